"""Why an open execution does not get on, in a sentence: read from the one describe, and hardly ever asking more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.enums.v1 import PendingActivityState, PendingWorkflowTaskState
from temporalio.api.enums.v1 import WorkflowExecutionStatus as State
from temporalio.api.failure.v1 import Failure as FailureMessage
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse as Described
from temporalio.converter import ActivitySerializationContext

from mcp_workflows_temporal.client import Frontend
from mcp_workflows_temporal.payloads import decode_failure
from mcp_workflows_temporal.report_text import command
from mcp_workflows_temporal.status import failure
from mcp_workflows_temporal.task_queues import ACTIVITIES, WORKFLOWS

NEVER_BEGUN_AFTER = timedelta(seconds=1)
NO_WORKER_AFTER = timedelta(seconds=10)  # workers take a task within milliseconds; after losing one, in 5 s
LONGEST_TEXT = 200  # characters of a failure
FAILING_FROM = 2  # the attempt

_SCHEDULED = PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_SCHEDULED
_NOT_TAKEN = PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What keeps an execution from getting on; it reads the same at the next look, or lastUpdatedAt would move."""

    text: str
    advice: str
    of_a_step: bool = False  # what the workflow says of itself still holds


async def message(frontend: Frontend, found: Described, words: str | None) -> str | None:
    """What people want to read of an open execution: its own words, what is wrong, that it was asked to stop."""
    said = words
    if wrong := await trouble(frontend, found):
        said = f"{words} ({wrong.text})" if words and wrong.of_a_step else wrong.text
    if not found.workflow_extended_info.cancel_requested:
        return said
    return f"cancellation requested: {said}" if said else "cancellation requested"


async def trouble(frontend: Frontend, found: Described) -> Trouble | None:
    """The first thing that is wrong, the gravest first."""
    for look in LOOKS:
        if wrong := await look(frontend, found):
            return wrong
    return None


async def _paused(frontend: Frontend, found: Described) -> Trouble | None:
    if found.workflow_execution_info.status != State.WORKFLOW_EXECUTION_STATUS_PAUSED:
        return None
    reason = found.workflow_extended_info.pause_info.reason
    workflow_id = found.workflow_execution_info.execution.workflow_id
    unpause = command(frontend.place, "workflow", "unpause", "--workflow-id", workflow_id)
    advice = f"unpause it when it may go on: {unpause}"
    return Trouble(text=f"paused: {one_line(reason)}" if reason else "paused", advice=advice)


async def _deserted(frontend: Frontend, found: Described) -> Trouble | None:
    """Nobody takes its workflow task: told from the first second if nobody ever did, otherwise after ten."""
    task, info = found.pending_workflow_task, found.workflow_execution_info
    if task.state != _SCHEDULED:
        return None
    waited_first = task.scheduled_time.ToDatetime() - info.start_time.ToDatetime()  # signals may be there before it
    patience = NEVER_BEGUN_AFTER if waited_first < NEVER_BEGUN_AFTER else NO_WORKER_AFTER
    if since(task.scheduled_time) < patience:
        return None
    if await frontend.queues.deserted(info.task_queue, WORKFLOWS):
        return nobody_polls(frontend, info.task_queue)
    if task.attempt >= FAILING_FROM:
        return None
    text = f"waiting for a worker on task queue {info.task_queue}"
    return Trouble(text=text, advice="the workers of that task queue are busy or just went away: see how they are")


def nobody_polls(frontend: Frontend, queue: str, step: str | None = None) -> Trouble:
    """A task queue without workers, for the workflow itself or for one of its steps."""
    text = f"{step}: nobody polls task queue {queue}" if step else f"nobody polls task queue {queue}"
    what = f"a worker with activity {step}" if step else "a worker"
    advice = f"start {what} on task queue {queue} in namespace {frontend.place.namespace}"
    return Trouble(text=text, advice=advice, of_a_step=step is not None)


async def _failing(_: Frontend, found: Described) -> Trouble | None:
    """A bug in a workflow does not fail it: Temporal tries the workflow task again, for ever."""
    attempt = found.pending_workflow_task.attempt
    if attempt < FAILING_FROM:
        return None
    text = f"the workflow's code fails or times out and is tried again (attempt {attempt}): see the worker's log"
    return Trouble(text=text, advice="mend the workflow's code and deploy it: the execution goes on where it stands")


async def _failing_activity(frontend: Frontend, found: Described) -> Trouble | None:
    """The activity that has been in trouble for longest, and how many more are."""
    troubles = [wrong for each in found.pending_activities if (wrong := await activity_trouble(frontend, found, each))]
    if not troubles:
        return None
    first, others = troubles[0], len(troubles) - 1
    return Trouble(text=first.text + and_more(others), advice=first.advice, of_a_step=True)


def and_more(others: int) -> str:
    """What is left unsaid of other activities."""
    return {0: "", 1: ", and 1 more activity"}.get(others, f", and {others} more activities")


LOOKS: Sequence[Callable[[Frontend, Described], Awaitable[Trouble | None]]] = (
    _paused,
    _deserted,
    _failing,
    _failing_activity,
)


async def activity_trouble(frontend: Frontend, found: Described, each: PendingActivityInfo) -> Trouble | None:
    """What is wrong with one activity: paused, taken by nobody, failing."""
    name = each.activity_type.name
    if each.paused:
        reason = each.pause_info.manual.reason
        ids = ("--activity-id", each.activity_id, "--workflow-id", found.workflow_execution_info.execution.workflow_id)
        advice = f"unpause it when it may go on: {command(frontend.place, 'activity', 'unpause', *ids)}"
        return Trouble(text=f"{name} paused: {one_line(reason)}" if reason else f"{name} paused", advice=advice)
    patience = NEVER_BEGUN_AFTER if each.attempt < FAILING_FROM else NO_WORKER_AFTER
    if each.state == _NOT_TAKEN and since(each.scheduled_time) >= patience:
        queue = each.activity_options.task_queue.name or found.workflow_execution_info.task_queue
        if await frontend.queues.deserted(queue, ACTIVITIES):
            return nobody_polls(frontend, queue, name)
    if each.attempt < FAILING_FROM or not each.HasField("last_failure"):
        return None
    text = f"{name} attempt {each.attempt}: {await failure_text(frontend, found, each)}"
    return Trouble(text=text, advice=f"see why {name} fails; Temporal tries it again by itself")


async def failure_text(frontend: Frontend, found: Described, each: PendingActivityInfo) -> str:
    """Why the last attempt failed: its innermost useful words, on one line."""
    info = found.workflow_execution_info
    context = ActivitySerializationContext(
        namespace=frontend.place.namespace,
        activity_id=each.activity_id,
        activity_type=each.activity_type.name,
        activity_task_queue=each.activity_options.task_queue.name or info.task_queue,
        workflow_id=info.execution.workflow_id,
        workflow_type=info.type.name,
        is_local=False,
    )
    own = FailureMessage()
    own.CopyFrom(each.last_failure)  # decoding is done in place
    error = await decode_failure(frontend.client.data_converter.with_context(context), own)
    return one_line(failure(error).text).removeprefix("a step ")


def one_line(text: str) -> str:
    """The first line of a text, not too long: what comes after it is for logs."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= LONGEST_TEXT else f"{line[: LONGEST_TEXT - 3]}..."


def since(at: Timestamp) -> timedelta:
    """How long ago that was; negative if it is still to come."""
    return datetime.now(UTC) - at.ToDatetime(UTC)
