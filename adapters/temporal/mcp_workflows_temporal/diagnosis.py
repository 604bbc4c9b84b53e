"""The problem that keeps an open execution from making progress, mostly read from its description alone."""

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
from mcp_workflows_temporal.status import read_failure
from mcp_workflows_temporal.task_queues import ACTIVITIES, WORKFLOWS

NEVER_BEGUN_AFTER = timedelta(seconds=1)
NO_WORKER_AFTER = timedelta(seconds=10)  # workers take a task within milliseconds; after losing one, in 5 s
LONGEST_TEXT = 200  # characters of a failure
FAILING_FROM = 2  # the attempt

_SCHEDULED = PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_SCHEDULED
_NOT_TAKEN = PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A reason why an execution makes no progress; its text is stable between looks, or lastUpdatedAt would move."""

    text: str
    advice: str
    of_a_step: bool = False  # the workflow's own message still holds


async def status_message(frontend: Frontend, found: Described, own: str | None) -> str | None:
    """Return the message of an open execution: its own, the problem if there is one, and a requested cancellation."""
    text = own
    if problem := await find_problem(frontend, found):
        text = f"{own} ({problem.text})" if own and problem.of_a_step else problem.text
    if not found.workflow_extended_info.cancel_requested:
        return text
    return f"cancellation requested: {text}" if text else "cancellation requested"


async def find_problem(frontend: Frontend, found: Described) -> Problem | None:
    """Return the gravest problem of an open execution."""
    for find in DIAGNOSES:
        if problem := await find(frontend, found):
            return problem
    return None


async def _paused(frontend: Frontend, found: Described) -> Problem | None:
    if found.workflow_execution_info.status != State.WORKFLOW_EXECUTION_STATUS_PAUSED:
        return None
    reason = found.workflow_extended_info.pause_info.reason
    workflow_id = found.workflow_execution_info.execution.workflow_id
    unpause = command(frontend.place, "workflow", "unpause", "--workflow-id", workflow_id)
    advice = f"unpause it when it may go on: {unpause}"
    return Problem(text=f"paused: {one_line(reason)}" if reason else "paused", advice=advice)


async def _deserted(frontend: Frontend, found: Described) -> Problem | None:
    """Nobody takes its workflow task: a problem after a second if nobody ever did, otherwise after ten."""
    task, info = found.pending_workflow_task, found.workflow_execution_info
    if task.state != _SCHEDULED:
        return None
    delay = task.scheduled_time.ToDatetime() - info.start_time.ToDatetime()  # signals may come before it
    patience = NEVER_BEGUN_AFTER if delay < NEVER_BEGUN_AFTER else NO_WORKER_AFTER
    if _since(task.scheduled_time) < patience:
        return None
    if await frontend.task_queues.is_deserted(info.task_queue, WORKFLOWS):
        return no_worker_problem(frontend, info.task_queue)
    if task.attempt >= FAILING_FROM:
        return None
    text = f"waiting for a worker on task queue {info.task_queue}"
    return Problem(text=text, advice="the workers of that task queue are busy or just went away: see how they are")


def no_worker_problem(frontend: Frontend, queue: str, step: str | None = None) -> Problem:
    """Return the problem of a task queue without workers, for the workflow itself or for one of its steps."""
    text = f"{step}: nobody polls task queue {queue}" if step else f"nobody polls task queue {queue}"
    worker = f"a worker with activity {step}" if step else "a worker"
    advice = f"start {worker} on task queue {queue} in namespace {frontend.place.namespace}"
    return Problem(text=text, advice=advice, of_a_step=step is not None)


async def _failing(_: Frontend, found: Described) -> Problem | None:
    """A bug in the workflow's code does not fail the execution: Temporal retries the workflow task for ever."""
    attempt = found.pending_workflow_task.attempt
    if attempt < FAILING_FROM:
        return None
    text = f"the workflow's code fails or times out and is tried again (attempt {attempt}): see the worker's log"
    return Problem(text=text, advice="mend the workflow's code and deploy it: the execution goes on where it stands")


async def _failing_activity(frontend: Frontend, found: Described) -> Problem | None:
    """The first activity with a problem, and the number of others."""
    problems = [
        problem for each in found.pending_activities if (problem := await _activity_problem(frontend, found, each))
    ]
    if not problems:
        return None
    first, others = problems[0], len(problems) - 1
    return Problem(text=first.text + and_more(others), advice=first.advice, of_a_step=True)


def and_more(others: int) -> str:
    """Return the count of other activities as the end of a sentence."""
    return {0: "", 1: ", and 1 more activity"}.get(others, f", and {others} more activities")


DIAGNOSES: Sequence[Callable[[Frontend, Described], Awaitable[Problem | None]]] = (
    _paused,
    _deserted,
    _failing,
    _failing_activity,
)


async def _activity_problem(frontend: Frontend, found: Described, each: PendingActivityInfo) -> Problem | None:
    """Return the problem of one activity: it is paused, no worker takes it, or it fails."""
    name = each.activity_type.name
    if each.paused:
        reason = each.pause_info.manual.reason
        ids = ("--activity-id", each.activity_id, "--workflow-id", found.workflow_execution_info.execution.workflow_id)
        advice = f"unpause it when it may go on: {command(frontend.place, 'activity', 'unpause', *ids)}"
        return Problem(text=f"{name} paused: {one_line(reason)}" if reason else f"{name} paused", advice=advice)
    patience = NEVER_BEGUN_AFTER if each.attempt < FAILING_FROM else NO_WORKER_AFTER
    if each.state == _NOT_TAKEN and _since(each.scheduled_time) >= patience:
        queue = each.activity_options.task_queue.name or found.workflow_execution_info.task_queue
        if await frontend.task_queues.is_deserted(queue, ACTIVITIES):
            return no_worker_problem(frontend, queue, name)
    if each.attempt < FAILING_FROM or not each.HasField("last_failure"):
        return None
    text = f"{name} attempt {each.attempt}: {await failure_text(frontend, found, each)}"
    return Problem(text=text, advice=f"see why {name} fails; Temporal tries it again by itself")


async def failure_text(frontend: Frontend, found: Described, each: PendingActivityInfo) -> str:
    """Return the reason of the last attempt's failure, on one line."""
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
    own.CopyFrom(each.last_failure)  # decoding changes it in place
    error = await decode_failure(frontend.client.data_converter.with_context(context), own)
    return one_line(read_failure(error).text).removeprefix("a step ")


def one_line(text: str) -> str:
    """Return the first line of a text, shortened to 200 characters."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= LONGEST_TEXT else f"{line[: LONGEST_TEXT - 3]}..."


def _since(at: Timestamp) -> timedelta:
    """Return the time that has passed; negative for the future."""
    return datetime.now(UTC) - at.ToDatetime(UTC)
