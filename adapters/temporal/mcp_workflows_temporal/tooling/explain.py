"""Why an execution still runs, with the facts that Temporal has about it, for the operator."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import anyio
from temporalio.api.enums.v1 import (
    PendingActivityState,
    PendingWorkflowTaskState,
    TaskQueueType,
    WorkflowExecutionStatus,
    WorkflowTaskFailedCause,
)
from temporalio.api.failure.v1 import Failure as FailureMessage
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse as Described
from temporalio.service import RPCError

from mcp_workflows.adapter import Execution, Gate, asked, rough_duration
from mcp_workflows.errors import EngineRefused
from mcp_workflows.kit.tooling import ExplainedGate, Explanation, GateState, open_gates
from mcp_workflows_temporal.client import ACTIVITIES, WORKFLOWS, Frontend, Handle, Run, idle_time, live_pollers, quoted
from mcp_workflows_temporal.diagnosis import (
    FAILING_FROM,
    MEND_CODE,
    Problem,
    ago,
    and_more,
    command,
    counted,
    failure_text,
    find_problem,
    moment,
    no_worker_problem,
    one_line,
)
from mcp_workflows_temporal.gate_rules import (
    CLOSED,
    GateRequests,
    HistorySummary,
    Message,
    MessageKind,
    Rule,
    event_filter,
    key_of,
    read_rules,
    summarize,
)
from mcp_workflows_temporal.gates import GateQueries, signal_request_id
from mcp_workflows_temporal.payloads import decode_failure, read_failure
from mcp_workflows_temporal.tooling.histories import (
    CANCEL_REQUESTED,
    SIGNALED,
    TASK_COMPLETED,
    TASK_FAILED,
    TASK_TIMED_OUT,
    Sent,
    Tail,
    event_name,
    format_names,
    nearest,
    read_activities,
    read_message,
    read_sent,
    read_tail,
)

MANY = 10  # activities, workers or children in the report
PAGES = 10  # of 250 events: how far back a history is read for gates

_PAUSED = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_PAUSED
_COMMANDS: Mapping[MessageKind, tuple[str, str]] = {  # of the CLI: the command that sends it, and its type in a reset
    MessageKind.SIGNAL: ("signal", "Signal"),
    MessageKind.UPDATE: ("update execute", "Update"),
}
_WRONG_COUNT = re.compile(
    r"(?P<handler>[\w.<>]+)\(\) (missing \d+ required positional arguments?: .+"
    r"|takes (from \d+ to )?\d+ positional arguments? but \d+ (was|were) given)"
)
_NO_TYPE = re.compile(  # of the SDKs for Python, Go and TypeScript
    r"Workflow class .+ is not registered on this worker, available workflows: (?P<python>.*)"
    r"|unable to find workflow type: .+\. Supported types: \[(?P<go>.*)\]"
    r"|Failed to initialize workflow of type '.+': no such function"
)
_BAD_INPUT = re.compile(r"^Failed decoding arguments$|unable to decode the workflow function input")  # Python, Go
_IN_FILE = "mistake in the configuration"
_IN_CODE = "mistake in the workflow's code"
_CORRECT_ARGUMENTS = "correct `input` or `args` of the tool: mcp-workflows call --dry-run shows what it sends"
_FRAME = re.compile(r'^\s*File "([^"]+)"', re.MULTILINE)
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

    def event(self, event_id: int) -> str:
        """Return the id and time of an event, for people."""
        when = next((ago(event.event_time) for event in self.tail.events if event.event_id == event_id), None)
        return f"event {event_id}, {when}" if when else f"event {event_id}"


async def explain(
    frontend: Frontend,
    handle: Handle,
    execution: Execution,
    gates: Mapping[str, Gate],
    read_gates: Callable[[Described], Awaitable[GateRequests]],
) -> Explanation:
    """Explain the state of an execution; `execution` is its state just before."""
    if execution.terminal:
        text = execution.failure.text if execution.failure else execution.message
        detail = "" if text in (None, "", execution.status) else f", {text}"
        advice = _CORRECT_ARGUMENTS if execution.failure and _BAD_INPUT.search(execution.failure.text) else None
        mistake = f"{_IN_FILE}: the arguments do not fit the workflow; " if advice else ""
        return Explanation(reason=f"{mistake}it has ended: {execution.status}{detail}", advice=advice)
    found = await frontend.describe_chain(handle)
    tail = await read_tail(frontend, found.workflow_execution_info.execution, pages=PAGES if gates else 1)
    subject = Subject(
        frontend=frontend,
        execution=execution,
        found=found,
        tail=tail,
        problem=await argument_problem(frontend, gates, found, tail)
        or await find_mistake(frontend, found, tail)
        or await find_problem(frontend, found)
        or await _unanswered_query(frontend, found, read_gates),
    )
    facts = [*_itself(subject), *[fact async for fact in _work(subject)], *_waits(subject)]
    facts += [fact async for fact in _queues(subject)]
    reason, advice = (subject.problem.text, subject.problem.advice) if subject.problem else _reason(subject)
    if found.workflow_extended_info.cancel_requested:
        reason = f"it was asked to cancel and continues; {reason}"
    return Explanation(reason=reason, facts=dict(facts), advice=advice, gates=await gate_states(subject, gates))


async def _unanswered_query(
    frontend: Frontend, found: Described, read_gates: Callable[[Described], Awaitable[GateRequests]]
) -> Problem | None:
    """Return the problem of a gate whose query no worker answers; its question is in its last known state."""
    gates = await read_gates(found)
    if not gates.needs_worker:
        return None
    queue = found.workflow_execution_info.task_queue
    known = f"it waited for an answer when it was last asked: {one_line(asked(gates.requests))}"
    unknown = "whether it waits for an answer is unknown"
    text = f"{known if gates.requests else unknown}; no worker on task queue {queue} answers the query that tells"
    return Problem(text=text, advice=no_worker_problem(frontend, queue).advice)


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
        event = subject.tail.newest(CANCEL_REQUESTED)
        origin = "earlier than the last events"
        if event is not None:
            requested = event.workflow_execution_cancel_requested_event_attributes
            cause = f": {one_line(requested.cause)}" if requested.cause else ""
            origin = f"{moment(event.event_time)}, by {requested.identity}{cause}"
        yield "cancel requested", origin
    if subject.execution.message:
        yield "it says", subject.execution.message


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
        return f"a worker accepted it and did not answer in time, {ago(event.event_time)}"
    failed = event.workflow_task_failed_event_attributes
    converter = subject.frontend.converter(subject.found.workflow_execution_info.execution.workflow_id)
    text = one_line((await read_failure(converter, failed.failure)).text)
    cause = WorkflowTaskFailedCause.Name(failed.cause).removeprefix("WORKFLOW_TASK_FAILED_CAUSE_")
    kind = failed.failure.application_failure_info.type
    return f"{f'{kind}: ' if kind else ''}{text} ({cause}, worker {failed.identity}, {ago(event.event_time)})"


async def _activity(subject: Subject, each: PendingActivityInfo) -> str:
    limit = f" of {each.maximum_attempts}" if each.maximum_attempts else ""
    state = PendingActivityState.Name(each.state).removeprefix("PENDING_ACTIVITY_STATE_").lower().replace("_", " ")
    texts = [f"attempt {each.attempt}{limit}, {'paused' if each.paused else state}"]
    if each.HasField("last_failure"):
        texts.append(f"last error: {await failure_text(subject.frontend, subject.found, each)}")
    times = {
        "last started": each.last_started_time,
        "next attempt": each.next_attempt_schedule_time,
        "last heartbeat": each.last_heartbeat_time,
        "given up": each.expiration_time,
    }
    texts += [f"{name} {ago(at)}" for name, at in times.items() if at.ToNanoseconds()]
    if each.last_worker_identity:
        texts.append(f"last worker {each.last_worker_identity}")
    return "; ".join(texts)


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
    live = sorted(live_pollers(found), key=idle_time)
    if live:
        workers = ", ".join(
            f"{each.identity} (last poll {rough_duration(idle_time(each))} ago)" for each in live[:MANY]
        )
        polled = f"{counted(len(live), 'worker')}: {workers}{', ...' if len(live) > MANY else ''}"
    else:
        latest = min(map(idle_time, found.pollers), default=None)
        polled = "nobody polls it" + (f", the last poll was {rough_duration(latest)} ago" if latest is not None else "")
    waiting, age = found.stats.approximate_backlog_count, found.stats.approximate_backlog_age.ToTimedelta()
    backlog = f"{waiting} waiting, the oldest for {rough_duration(age)}" if waiting else "nothing waits in it"
    return f"{polled}; {backlog}"


# --- the reason and advice when there is no problem


def _reason(subject: Subject) -> tuple[str, str]:
    """Return what an execution without a problem waits for, with advice."""
    found, timers = subject.found, subject.tail.timers
    questions = [
        one_line(str(request.params.get("message", key))) for key, request in subject.execution.requests.items()
    ]
    if questions:
        advice = "answer it in the MCP host, or with mcp-workflows tasks answer"
        return f"it waits for an answer: {'; '.join(questions)}", advice
    running = [each for each in found.pending_activities if each.state == _STARTED]
    if running:
        first, others = running[0], and_more(len(running) - 1)
        advice = f"see the log of worker {first.last_worker_identity or 'that runs it'} if that is too long"
        return f"{first.activity_type.name} is running since {moment(first.last_started_time)}{others}", advice
    if found.pending_activities or found.pending_workflow_task.state:
        return "its next step is about to be taken by a worker", "look again in a few seconds"
    if found.pending_children:
        child = found.pending_children[0]
        describe = command(subject.frontend.place, "workflow", "describe", "--workflow-id", child.workflow_id)
        reason = f"it waits for child workflow {child.workflow_type_name}, {child.workflow_id}"
        return reason, f"see why that one still runs: {describe}"
    if timers:
        return f"it sleeps: its next timer fires {moment(timers[0])}", "wait for it"
    stack = ("workflow", "stack", "--workflow-id", found.workflow_execution_info.execution.workflow_id)
    return (
        "it waits for a signal or an update from outside: no step, timer or child is under way",
        f"see where its code stands (needs a worker): {command(subject.frontend.place, *stack)}",
    )


# --- the state of each gate


async def gate_states(subject: Subject, gates: Mapping[str, Gate]) -> Mapping[str, ExplainedGate]:
    """Return the state of each gate. Queries are sent again, all at once."""
    states = dict(open_gates(subject.execution.requests))
    async with anyio.create_task_group() as group:

        async def explain(name: str, gate: Gate) -> None:
            states[name] = await _explain_gate(subject, name, gate)

        for name, gate in gates.items():
            if name not in states:
                group.start_soon(explain, name, gate)
    return {name: states[name] for name in gates}


async def _explain_gate(subject: Subject, name: str, gate: Gate) -> ExplainedGate:
    """Explain why a gate is closed, whether the history or a query opens it."""
    try:
        [rule] = read_rules({name: gate})
    except EngineRefused as error:
        return ExplainedGate.closed(str(error).removeprefix(f"gate {name}: "))
    if subject.found.workflow_execution_info.status == _PAUSED:
        return ExplainedGate.closed("the execution is paused: it asks nothing until it is unpaused")
    summary = summarize(reversed(subject.tail.events), event_filter((rule,)))
    if summary is None:
        return _unknown("Temporal gave no history")
    answer, activity = _answer_in(subject, rule, summary), rule.when.after
    if activity is not None:
        completed = summary.completed.get(activity, CLOSED)
        if completed and rule.answering_event(summary) > completed:
            again = f"it opens again when {activity} completes again"
            return ExplainedGate.closed(f"answered already: {answer}; {again}")
        if completed:
            return _unknown(f"after: {activity} has completed ({subject.event(completed)}): the next poll may show it")
        return ExplainedGate.closed(f"after: {_not_completed(subject, activity)}")
    if rule.is_answered_and_not_taken(summary):
        return ExplainedGate.closed(f"answered already: {answer}, and the workflow has not processed it yet")
    try:
        result = (await GateQueries().ask(Run.of(subject.frontend, subject.found), [rule], fresh=True))[name]
    except RPCError as error:
        return _unknown(f"Temporal does not report it ({error.status.name.lower()})")
    if result.problem is not None:
        return _unknown(result.problem)
    value, equals = (one_line(json.dumps(each, ensure_ascii=False)) for each in (result.value, rule.when.equals))
    given = f"query {rule.when.query} gives {value}"
    if result.waits:
        return _unknown(f"{given}: the next poll may show it")
    return ExplainedGate.closed(f"{given}, and the gate is open at {equals}")


def _unknown(why: str) -> ExplainedGate:
    return ExplainedGate(state=GateState.UNKNOWN, why=why)


def _not_completed(subject: Subject, activity: str) -> str:
    """Return the progress of the activity, and the most similar name if it is unknown."""
    activities, info = read_activities(reversed(subject.tail.events)), subject.found.workflow_execution_info
    for pending in subject.found.pending_activities:
        if pending.activity_type.name == activity:
            return f"{activity} has not completed: it is under way, attempt {pending.attempt}"
    if activity in activities.failed:
        return f"{activity} has not completed: it failed or was given up ({subject.event(activities.failed[activity])})"
    if activity in activities.local:
        return f"{activity} runs as a local activity, and no gate can see that: see: docs/use/gates.md"
    tail = subject.tail
    extent = "so far" if tail.whole else f"in its latest {len(tail.events):,} events"
    later = "" if info.execution.run_id == (info.first_run_id or info.execution.run_id) else " in this run of the chain"
    text = f"{activity} has not completed{later}; seen {extent}: {format_names(activities.scheduled)}"
    suggestion = nearest(activity, {*activities.scheduled} - {activity})
    return f"{text}; did you mean {suggestion!r}?" if suggestion else text


def _answer_in(subject: Subject, rule: Rule, summary: HistorySummary) -> str | None:
    """Return the latest message in the history that answers the gate."""
    latest = max(rule.messages & summary.answers.keys(), key=lambda message: summary.answers[message], default=None)
    return None if latest is None else f"{latest.kind} {latest.name} came ({subject.event(summary.answers[latest])})"


# --- a mistake in the configuration, or in the workflow's code


async def find_mistake(frontend: Frontend, found: Described, tail: Tail) -> Problem | None:
    """Return the problem if no worker has the workflow, its arguments do not fit it, or its code fails."""
    info, completed = found.workflow_execution_info, tail.newest(TASK_COMPLETED)
    failed = tail.newest(TASK_FAILED, TASK_TIMED_OUT, TASK_COMPLETED)
    if info.status == _PAUSED or not found.pending_workflow_task.state:
        return None
    has_begun = completed is not None or not tail.whole
    other = None if has_begun else await _other_queue(frontend, found)
    correct = (
        f"correct `task_queue` of the tool: {other}" if other else "correct `workflow` or `task_queue` of the tool"
    )
    workflow_id, queue = info.execution.workflow_id, info.task_queue
    terminate = command(frontend.place, "workflow", "terminate", "--workflow-id", workflow_id)
    again = f"then start it again, as an execution keeps its start settings: {terminate}"
    is_deserted = await frontend.task_queues.is_deserted(queue, WORKFLOWS)
    if is_deserted and other:
        text = f"{_IN_FILE}: nobody polls task queue {queue}; workers of {info.type.name} poll task queue {other}"
        return Problem(text=text, advice=f"{correct}, or start a worker on task queue {queue}; {again}")
    is_failing = not is_deserted and found.pending_workflow_task.attempt >= FAILING_FROM
    if not is_failing or failed is None or failed.WhichOneof("attributes") != TASK_FAILED:
        return None
    failure = await _decoded(frontend, found, failed)
    if no_type := None if has_begun else _NO_TYPE.match(failure.message):
        has = [each for each in (no_type["python"] or no_type["go"] or "").split(", ") if each]
        near = nearest(info.type.name, has)
        meant = f"; did you mean {near!r}?" if near else ""
        there = f" (it has: {format_names(has)})" if has else ""
        text = f"{_IN_FILE}: the worker on task queue {queue} has no workflow {info.type.name!r}{meant}{there}"
        return Problem(text=text, advice=f"{correct}, or add the workflow to the worker; {again}")
    if not has_begun and (_BAD_INPUT.search(failure.message) or _wrong_count(failure)):
        cause = failure.cause.message if failure.HasField("cause") else failure.message
        text = f"{_IN_FILE}: the arguments do not fit workflow {info.type.name}: {one_line(cause)}"
        return Problem(text=text, advice=f"{_CORRECT_ARGUMENTS}; {again}")
    if _wrong_count(failure):
        return None  # a message with other arguments, not from a gate: another sender
    kind = failure.application_failure_info.type
    text = f"{_IN_CODE}, which is tried again: {f'{kind}: ' if kind else ''}{one_line(failure.message)}"
    return Problem(text=text, advice=MEND_CODE)


async def _other_queue(frontend: Frontend, found: Described) -> str | None:
    """Return the task queue of another execution of this workflow, if workers poll it."""
    info = found.workflow_execution_info
    query = f"WorkflowType = {quoted(info.type.name)} AND TaskQueue != {quoted(info.task_queue)}"
    with suppress(RPCError):  # unknown to Temporal
        rows = [row async for row in frontend.list_executions(query, page=MANY, pages=1)]
        for queue in dict.fromkeys(row.task_queue for row in rows):
            if live_pollers(await frontend.describe_task_queue(queue)):
                return queue
    return None


async def _decoded(frontend: Frontend, found: Described, failed: HistoryEvent) -> FailureMessage:
    failure = FailureMessage()
    failure.CopyFrom(failed.workflow_task_failed_event_attributes.failure)
    await decode_failure(frontend.converter(found.workflow_execution_info.execution.workflow_id), failure)  # in place
    return failure


def _wrong_count(failure: FailureMessage) -> re.Match[str] | None:
    """Return the match of an error about argument counts that the SDK raised, not the workflow's own code."""
    frames = _FRAME.findall(failure.stack_trace)
    is_by_the_sdk = bool(frames) and "temporalio" in re.split(r"[/\\]", frames[-1])
    is_type_error = failure.application_failure_info.type == TypeError.__name__
    return _WRONG_COUNT.fullmatch(failure.message) if is_by_the_sdk and is_type_error else None


# --- a workflow task that fails because of a gate's arguments


async def argument_problem(
    frontend: Frontend, gates: Mapping[str, Gate], found: Described, tail: Tail
) -> Problem | None:
    """Return the problem if the workflow task fails because a handler cannot take a gate's message."""
    failed, completed = tail.newest(TASK_FAILED), tail.newest(TASK_COMPLETED)
    is_failing = found.pending_workflow_task.attempt >= FAILING_FROM
    if not is_failing or failed is None or completed is None or failed.event_id < completed.event_id:
        return None
    workflow_id = found.workflow_execution_info.execution.workflow_id
    failure = await _decoded(frontend, found, failed)
    if (match := _wrong_count(failure)) is None:
        return None
    blamed = _blamed(gates, found, tail, completed.event_id, match["handler"].rpartition(".")[2])
    if blamed is None:
        return None
    sent, given = blamed
    message = f"{sent.message.kind} {sent.message.name}"
    with_count = "" if given is None else f" with {counted(given, 'argument')}"
    its_self = " (self is one of them)" if " takes " in failure.message else ""
    text = f"{sent.where}: gate {sent.gate} sent {message}{with_count}, which its handler does not take"
    again, kind = _COMMANDS[sent.message.kind]
    named = ("--workflow-id", workflow_id)
    since = ("--event-id", str(completed.event_id), "--reapply-exclude", kind, "--reason", "wrong-arguments")
    reset = command(frontend.place, "workflow", "reset", *named, *since)
    answer = command(frontend.place, "workflow", *again.split(), *named, "--name", sent.message.name)
    return Problem(
        text=f"{text}: {failure.message}{its_self}",
        advice=(
            f"correct {sent.where} for tasks to come; take back what was sent: {reset} (other {sent.message.kind}s "
            f"since event {completed.event_id} are taken back too, and steps begun since then run again); then send "
            f"the answer yourself, as this task keeps the gate it started with: {answer}, with one --input, in "
            f"JSON, for each argument"
        ),
    )


def _blamed(
    gates: Mapping[str, Gate], found: Described, tail: Tail, completed: int, handler: str
) -> tuple[Sent, int | None] | None:
    """Return the message of a gate after the last completed workflow task, and its number of arguments if known.

    An update that breaks its workflow task is not in the history: the name of its handler identifies it.
    """
    sent = read_sent({name: {"send": gate.send, "decline": gate.decline} for name, gate in gates.items()})
    fresh = [event for event in reversed(tail.events) if event.event_id > completed]
    signals = [(each, read_message(event)[1]) for event in fresh for each in _ours(sent, found, event)]
    updates = [
        (each, None) for each in sent if each.message.kind is MessageKind.UPDATE and each.message.name == handler
    ]
    named = [(each, given) for each, given in signals if each.message.name == handler]
    return next(iter((*named, *updates, *signals)), None)


def _ours(sent: Sequence[Sent], found: Described, event: HistoryEvent) -> Iterator[Sent]:
    """Yield the gate that sent this signal: its request id is derived from the key of a question."""
    if event.WhichOneof("attributes") != SIGNALED:
        return
    execution, first = found.workflow_execution_info.execution, found.workflow_execution_info.first_run_id
    signaled = event.workflow_execution_signaled_event_attributes
    for each in sent:
        if each.message == Message(kind=MessageKind.SIGNAL, name=signaled.signal_name):
            keys = (key_of(each.gate, opened, execution.run_id, first) for opened in range(1, event.event_id))
            if any(signal_request_id(execution, key) == signaled.request_id for key in keys):
                yield each
