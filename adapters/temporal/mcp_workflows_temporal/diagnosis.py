"""Diagnosis of open executions that make no progress, mostly from their description alone."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.enums.v1 import PendingActivityState, PendingWorkflowTaskState
from temporalio.api.enums.v1 import WorkflowExecutionStatus as State
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse as Described
from temporalio.converter import ActivitySerializationContext

from mcp_workflows.adapter import rough_duration
from mcp_workflows_temporal.client import ACTIVITIES, WORKFLOWS, Frontend
from mcp_workflows_temporal.payloads import read_failure
from mcp_workflows_temporal.settings import Place

_CLI_DEFAULTS = frozenset({"127.0.0.1:7233", "localhost:7233"})  # the default addresses of Temporal's command line
NEVER_BEGUN_AFTER = timedelta(seconds=1)
NO_WORKER_AFTER = timedelta(seconds=10)  # workers take a task within milliseconds; after losing one, in 5 s
LONGEST_TEXT = 200  # characters of a failure, or of Temporal's texts
FAILING_FROM = 2  # the attempt
MEND_CODE = "mend the workflow's code and deploy it: the execution goes on where it stands"

_PAUSED = State.WORKFLOW_EXECUTION_STATUS_PAUSED
_SCHEDULED = PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_SCHEDULED
_NOT_TAKEN = PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED


def ago(at: datetime | Timestamp) -> str:
    """Return `12 min ago`, or `in 12 min` for the future."""
    passed = datetime.now(UTC) - _datetime(at)
    return f"in {rough_duration(-passed)}" if passed < timedelta(0) else f"{rough_duration(passed)} ago"


def moment(at: datetime | Timestamp) -> str:
    """Return `2026-07-28 12:00:00 UTC, 12 min ago`."""
    return f"{_datetime(at):%Y-%m-%d %H:%M:%S} UTC, {ago(at)}"


def counted(number: int, thing: str) -> str:
    """Return `1 worker` or `2 workers`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def command(place: Place, *arguments: str) -> str:
    """Return a command of Temporal's CLI, quoted for a shell; without credentials."""
    address = [] if place.address in _CLI_DEFAULTS else ["--address", place.address]
    namespace = [] if place.namespace == "default" else ["--namespace", place.namespace]
    return shlex.join(["temporal", *arguments, *address, *namespace])


def _datetime(at: datetime | Timestamp) -> datetime:
    return at.ToDatetime(UTC) if isinstance(at, Timestamp) else at


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A reason why an execution makes no progress; its text is stable between polls, to keep lastUpdatedAt stable."""

    text: str
    advice: str
    of_a_step: bool = False  # the workflow's own message remains valid


async def status_message(frontend: Frontend, found: Described, own: str | None) -> str | None:
    """Return the message of an open execution: its own, its problem if any, and a requested cancellation."""
    text = own
    if problem := await find_problem(frontend, found):
        text = f"{own} ({problem.text})" if own and problem.of_a_step else problem.text
    text = text or _running(found)
    if not found.workflow_extended_info.cancel_requested:
        return text
    return f"cancellation requested: {text}" if text else "cancellation requested"


def _running(found: Described) -> str | None:
    """Return what the workflow waits for: an activity with its attempt, or a child workflow; None if neither."""
    names = [
        f"{each.activity_type.name}, attempt {each.attempt}" if each.attempt > 1 else each.activity_type.name
        for each in found.pending_activities
    ]
    names += [f"child workflow {each.workflow_type_name}" for each in found.pending_children]
    more = f", and {len(names) - 1} more" if len(names) > 1 else ""
    return f"running {names[0]}{more}" if names else None


async def find_problem(frontend: Frontend, found: Described) -> Problem | None:
    """Return the most serious problem of an open execution: paused, no worker, failing code or a failing step."""
    info, task = found.workflow_execution_info, found.pending_workflow_task
    if info.status == _PAUSED:
        reason = found.workflow_extended_info.pause_info.reason
        unpause = command(frontend.place, "workflow", "unpause", "--workflow-id", info.execution.workflow_id)
        advice = f"unpause it when it may go on: {unpause}"
        return Problem(text=f"paused: {one_line(reason)}" if reason else "paused", advice=advice)
    if task.state == _SCHEDULED:  # a problem after a second if no worker ever took a task, otherwise after ten
        delay = task.scheduled_time.ToDatetime() - info.start_time.ToDatetime()  # signals may come before it
        if _since(task.scheduled_time) >= (NEVER_BEGUN_AFTER if delay < NEVER_BEGUN_AFTER else NO_WORKER_AFTER):
            if await frontend.task_queues.is_deserted(info.task_queue, WORKFLOWS):
                return no_worker_problem(frontend, info.task_queue)
            if task.attempt < FAILING_FROM:
                text = f"waiting for a worker on task queue {info.task_queue}"
                return Problem(
                    text=text, advice="the workers of that task queue are busy or just went away: see how they are"
                )
    if task.attempt >= FAILING_FROM:  # Temporal retries the workflow task endlessly
        text = (
            f"the workflow's code fails or times out and is tried again (attempt {task.attempt}): see the worker's log"
        )
        return Problem(text=text, advice=MEND_CODE)
    problems = [
        problem for each in found.pending_activities if (problem := await _activity_problem(frontend, found, each))
    ]
    if not problems:
        return None
    text = problems[0].text + and_more(len(problems) - 1)
    return Problem(text=text, advice=problems[0].advice, of_a_step=True)


def no_worker_problem(frontend: Frontend, queue: str, step: str | None = None) -> Problem:
    """Return the problem of a task queue without workers, for the workflow itself or for one of its steps."""
    text = f"{step}: nobody polls task queue {queue}" if step else f"nobody polls task queue {queue}"
    worker = f"a worker with activity {step}" if step else "a worker"
    advice = f"start {worker} on task queue {queue} in namespace {frontend.place.namespace}"
    return Problem(text=text, advice=advice, of_a_step=step is not None)


def and_more(others: int) -> str:
    """Return the count of other activities as the end of a sentence."""
    return {0: "", 1: ", and 1 more activity"}.get(others, f", and {others} more activities")


async def _activity_problem(frontend: Frontend, found: Described, each: PendingActivityInfo) -> Problem | None:
    """Return the problem of one activity: it is paused, no worker takes it, or it fails."""
    name = each.activity_type.name
    if each.paused:
        reason = each.pause_info.manual.reason
        ids = ("--activity-id", each.activity_id, "--workflow-id", found.workflow_execution_info.execution.workflow_id)
        advice = f"unpause it when it may go on: {command(frontend.place, 'activity', 'unpause', *ids)}"
        return Problem(text=f"{name} paused: {one_line(reason)}" if reason else f"{name} paused", advice=advice)
    delay = NEVER_BEGUN_AFTER if each.attempt < FAILING_FROM else NO_WORKER_AFTER
    if each.state == _NOT_TAKEN and _since(each.scheduled_time) >= delay:
        queue = each.activity_options.task_queue.name or found.workflow_execution_info.task_queue
        if await frontend.task_queues.is_deserted(queue, ACTIVITIES):
            return no_worker_problem(frontend, queue, name)
    if each.attempt < FAILING_FROM or not each.HasField("last_failure"):
        return None
    text = f"{name} attempt {each.attempt}: {await failure_text(frontend, found, each)}"
    return Problem(text=text, advice=f"see why {name} fails; Temporal tries it again by itself")


async def failure_text(frontend: Frontend, found: Described, each: PendingActivityInfo) -> str:
    """Return the reason for the failure of the last attempt, on one line."""
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
    failure = await read_failure(frontend.client.data_converter.with_context(context), each.last_failure)
    return one_line(failure.text).removeprefix("a step ")


def one_line(text: str) -> str:
    """Return the first line of a text, shortened to 200 characters."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= LONGEST_TEXT else f"{line[: LONGEST_TEXT - 3]}..."


def _since(at: Timestamp) -> timedelta:
    """Return the time that has passed; negative for the future."""
    return datetime.now(UTC) - at.ToDatetime(UTC)
