"""The reason why an execution is still working, and all facts that Temporal has of it, for the operator."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.enums.v1 import (
    PendingActivityState,
    PendingWorkflowTaskState,
    TaskQueueType,
    WorkflowTaskFailedCause,
)
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import DescribeTaskQueueResponse
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse as Described
from temporalio.service import RPCError

from mcp_workflows.adapter import Execution, Explanation, Gate, asked, rough_duration
from mcp_workflows_temporal.client import Frontend, Handle
from mcp_workflows_temporal.diagnosis import (
    FAILING_FROM,
    Problem,
    and_more,
    failure_text,
    find_problem,
    no_worker_problem,
    one_line,
)
from mcp_workflows_temporal.gate_rules import GateRequests
from mcp_workflows_temporal.history import CANCEL_REQUESTED, TASK_FAILED, TASK_TIMED_OUT, Tail, event_name, read_tail
from mcp_workflows_temporal.payloads import decode_failure
from mcp_workflows_temporal.report_text import ago, command, counted, moment
from mcp_workflows_temporal.status import read_failure
from mcp_workflows_temporal.task_queues import ACTIVITIES, WORKFLOWS, idle_time, live_pollers
from mcp_workflows_temporal.tooling.explain_gates import gate_states
from mcp_workflows_temporal.tooling.handler_arguments import argument_problem

MANY = 10  # activities, workers or children in the report
PAGES = 10  # of 250 events: how far back a history is read for gates

_STARTED = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An open execution: its description, the end of its history, and its problem if there is one."""

    frontend: Frontend
    execution: Execution
    found: Described
    tail: Tail
    problem: Problem | None

    @property
    def queue(self) -> str:
        """The workflow's own task queue."""
        return self.found.workflow_execution_info.task_queue


async def explain(
    frontend: Frontend,
    handle: Handle,
    execution: Execution,
    gates: Mapping[str, Gate],
    read_gates: Callable[[Described], Awaitable[GateRequests]],
) -> Explanation:
    """Explain the state of an execution; `execution` is the look at it just before."""
    if execution.terminal:
        text = execution.failure.text if execution.failure else execution.message
        detail = "" if text in (None, "", execution.status) else f", {text}"
        return Explanation(reason=f"it has ended: {execution.status}{detail}")
    found = await frontend.describe_chain(handle)
    tail = await read_tail(frontend, found.workflow_execution_info.execution, pages=PAGES if gates else 1)
    subject = Subject(
        frontend=frontend,
        execution=execution,
        found=found,
        tail=tail,
        problem=await argument_problem(frontend, gates, found, tail)
        or await find_problem(frontend, found)
        or await _unanswered_query(frontend, found, read_gates),
    )
    facts = [*_itself(subject), *[fact async for fact in _work(subject)], *_waits(subject)]
    facts += [fact async for fact in _queues(subject)]
    wait = None if subject.problem else next(each for find in WAITS if (each := find(subject)))
    reason, advice = (subject.problem.text, subject.problem.advice) if subject.problem else wait or ("", "")
    return Explanation(
        reason=_with_cancel(subject, reason),
        facts=dict(facts),
        advice=advice,
        gates=await gate_states(frontend, gates, found, subject.tail, execution),
    )


async def _unanswered_query(
    frontend: Frontend, found: Described, read_gates: Callable[[Described], Awaitable[GateRequests]]
) -> Problem | None:
    """Return the problem of a gate whose query no worker answers: its question is as it was last."""
    gates = await read_gates(found)
    if not gates.needs_worker:
        return None
    queue = found.workflow_execution_info.task_queue
    known = f"it waited for an answer when it was last asked: {one_line(asked(gates.requests))}"
    unknown = "nobody knows whether it waits for an answer"
    text = f"{known if gates.requests else unknown}; no worker on task queue {queue} answers the query that tells"
    return Problem(text=text, advice=no_worker_problem(frontend, queue).advice)


def _with_cancel(subject: Subject, reason: str) -> str:
    if not subject.found.workflow_extended_info.cancel_requested:
        return reason
    return f"it was asked to cancel and goes on; {reason}"


# --- facts, in their order in the report


def _itself(subject: Subject) -> Iterator[tuple[str, str]]:
    info, extended = subject.found.workflow_execution_info, subject.found.workflow_extended_info
    yield "workflow", f"{info.type.name} on task queue {info.task_queue}"
    yield "execution", f"{info.execution.workflow_id}, run {info.execution.run_id}"
    yield "started", moment(info.start_time)
    if last := subject.tail.newest():
        yield "nothing new since", f"{moment(last.event_time)} (event {last.event_id}, {event_name(last)})"
    if extended.HasField("pause_info"):
        pause = extended.pause_info
        yield "paused", f"{moment(pause.paused_time)}, by {pause.identity}: {one_line(pause.reason)}"
    if extended.cancel_requested:
        yield "cancel requested", _cancel(subject.tail.newest(CANCEL_REQUESTED))
    if subject.execution.message:
        yield "it says", subject.execution.message


def _cancel(event: HistoryEvent | None) -> str:
    if event is None:
        return "earlier than the last events"
    requested = event.workflow_execution_cancel_requested_event_attributes
    cause = f": {one_line(requested.cause)}" if requested.cause else ""
    return f"{moment(event.event_time)}, by {requested.identity}{cause}"


async def _work(subject: Subject) -> AsyncIterator[tuple[str, str]]:
    """Yield the facts of the workflow task and the activities."""
    task = subject.found.pending_workflow_task
    if task.state:
        state = PendingWorkflowTaskState.Name(task.state).rpartition("_")[2].lower()
        when = task.started_time if task.HasField("started_time") else task.scheduled_time
        yield "workflow task", f"attempt {task.attempt}, {state} {ago(when)}"
    failed = subject.tail.newest(TASK_FAILED, TASK_TIMED_OUT)
    if failed and task.attempt >= FAILING_FROM:
        yield "its last error", await _task_failure(subject, failed)
    for each in subject.found.pending_activities[:MANY]:
        yield f"activity {each.activity_type.name} ({each.activity_id})", await _activity(subject, each)
    if (others := len(subject.found.pending_activities) - MANY) > 0:
        yield "more activities", str(others)


async def _task_failure(subject: Subject, event: HistoryEvent) -> str:
    if event.WhichOneof("attributes") == TASK_TIMED_OUT:
        return f"a worker took it and did not answer in time, {ago(event.event_time)}"
    failed = event.workflow_task_failed_event_attributes
    converter = subject.frontend.converter(subject.found.workflow_execution_info.execution.workflow_id)
    text = one_line(read_failure(await decode_failure(converter, failed.failure)).text)
    cause = WorkflowTaskFailedCause.Name(failed.cause).removeprefix("WORKFLOW_TASK_FAILED_CAUSE_")
    kind = failed.failure.application_failure_info.type
    return f"{f'{kind}: ' if kind else ''}{text} ({cause}, worker {failed.identity}, {ago(event.event_time)})"


async def _activity(subject: Subject, each: PendingActivityInfo) -> str:
    limit = f" of {each.maximum_attempts}" if each.maximum_attempts else ""
    state = PendingActivityState.Name(each.state).removeprefix("PENDING_ACTIVITY_STATE_").lower().replace("_", " ")
    texts = [f"attempt {each.attempt}{limit}, {'paused' if each.paused else state}"]
    if each.HasField("last_failure"):
        texts.append(f"last error: {await failure_text(subject.frontend, subject.found, each)}")
    texts += [f"{name} {ago(at)}" for name, at in _times(each).items() if at.ToNanoseconds()]
    if each.last_worker_identity:
        texts.append(f"last worker {each.last_worker_identity}")
    return "; ".join(texts)


def _times(each: PendingActivityInfo) -> Mapping[str, Timestamp]:
    return {
        "last started": each.last_started_time,
        "next attempt": each.next_attempt_schedule_time,
        "last heartbeat": each.last_heartbeat_time,
        "given up": each.expiration_time,
    }


def _waits(subject: Subject) -> Iterator[tuple[str, str]]:
    """Yield the questions, timers, children and operations that it waits for."""
    for key, request in subject.execution.requests.items():
        yield f"question {key}", one_line(str(request.params.get("message", "")))
    if timers := subject.tail.timers:
        more = "" if subject.tail.whole else "at least "
        yield "timers", f"{more}{len(timers)}, the next fires {moment(timers[0])}"
    if children := subject.found.pending_children:
        names = ", ".join(f"{child.workflow_type_name} {child.workflow_id}" for child in children[:MANY])
        yield "child workflows", f"{len(children)}: {names}{', ...' if len(children) > MANY else ''}"
    if operations := subject.found.pending_nexus_operations:
        yield "Nexus operations", str(len(operations))


async def _queues(subject: Subject) -> AsyncIterator[tuple[str, str]]:
    """Yield the pollers of the task queues that it depends on."""
    yield f"task queue {subject.queue}", await _queue(subject.frontend, subject.queue, WORKFLOWS)
    pending = subject.found.pending_activities
    for name in dict.fromkeys(each.activity_options.task_queue.name or subject.queue for each in pending):
        yield f"task queue {name}, activities", await _queue(subject.frontend, name, ACTIVITIES)


async def _queue(frontend: Frontend, name: str, kind: TaskQueueType.ValueType) -> str:
    try:
        found = await frontend.describe_task_queue(name, kind)
    except RPCError:
        return "Temporal does not tell"
    return f"{_workers(found)}; {_backlog(found)}"


def _workers(found: DescribeTaskQueueResponse) -> str:
    live = sorted(live_pollers(found), key=idle_time)
    if not live:
        latest = min((idle_time(poller) for poller in found.pollers), default=None)
        return "nobody polls it" + (f", the last poll was {rough_duration(latest)} ago" if latest is not None else "")
    workers = ", ".join(
        f"{poller.identity} (last poll {rough_duration(idle_time(poller))} ago)" for poller in live[:MANY]
    )
    return f"{counted(len(live), 'worker')}: {workers}{', ...' if len(live) > MANY else ''}"


def _backlog(found: DescribeTaskQueueResponse) -> str:
    waiting = found.stats.approximate_backlog_count
    if not waiting:
        return "nothing waits in it"
    return f"{waiting} waiting, the oldest for {rough_duration(found.stats.approximate_backlog_age.ToTimedelta())}"


# --- the reason and advice when there is no problem


def _for_a_person(subject: Subject) -> tuple[str, str] | None:
    questions = [
        one_line(str(request.params.get("message", key))) for key, request in subject.execution.requests.items()
    ]
    advice = "answer it in the MCP host, or with mcp-workflows tasks answer"
    return (f"it waits for an answer: {'; '.join(questions)}", advice) if questions else None


def _for_an_activity(subject: Subject) -> tuple[str, str] | None:
    running = [each for each in subject.found.pending_activities if each.state == _STARTED]
    if not running:
        return None
    first, others = running[0], len(running) - 1
    reason = f"{first.activity_type.name} is running since {moment(first.last_started_time)}{and_more(others)}"
    return reason, f"see the log of worker {first.last_worker_identity or 'that runs it'} if that is too long"


def _for_a_worker(subject: Subject) -> tuple[str, str] | None:
    if not subject.found.pending_activities and not subject.found.pending_workflow_task.state:
        return None
    return "its next step is about to be taken by a worker", "look again in some seconds"


def _for_a_child(subject: Subject) -> tuple[str, str] | None:
    children = subject.found.pending_children
    if not children:
        return None
    first = children[0]
    reason = f"it waits for child workflow {first.workflow_type_name}, {first.workflow_id}"
    describe = command(subject.frontend.place, "workflow", "describe", "--workflow-id", first.workflow_id)
    return reason, f"see why that one goes on: {describe}"


def _for_a_timer(subject: Subject) -> tuple[str, str] | None:
    timers = subject.tail.timers
    return (f"it sleeps: its next timer fires {moment(timers[0])}", "wait for it") if timers else None


def _for_something(subject: Subject) -> tuple[str, str]:
    stack = ("workflow", "stack", "--workflow-id", subject.found.workflow_execution_info.execution.workflow_id)
    return (
        "it waits for something from outside, a signal or an update: no step, timer or child of it is under way",
        f"see where its code stands (needs a worker): {command(subject.frontend.place, *stack)}",
    )


WAITS: Sequence[Callable[[Subject], tuple[str, str] | None]] = (
    _for_a_person,
    _for_an_activity,
    _for_a_worker,
    _for_a_child,
    _for_a_timer,
    _for_something,
)
