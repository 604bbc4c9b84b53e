"""The reasons why an execution still runs, and why each of its gates asks nothing now, for the operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from mcp_workflows.adapter import Execution, Ref, Status, closest, rough_duration
from mcp_workflows.errors import EngineError
from mcp_workflows.kit.tooling import ExplainedGate, Explanation, open_gates
from mcp_workflows_stepfunctions.client import Client, ExpectedCodeError
from mcp_workflows_stepfunctions.definition import WAITS_FOR_TOKEN, State
from mcp_workflows_stepfunctions.describe import HistoryReader, read_failure
from mcp_workflows_stepfunctions.gates import gate_state, problems
from mcp_workflows_stepfunctions.settings import StepFunctionsOptions
from mcp_workflows_stepfunctions.start import Machines
from mcp_workflows_stepfunctions.tooling.check import definitions

LATEST: Final = 200  # events
_FAILED: Final = ("TaskFailed", "TaskTimedOut", "LambdaFunctionFailed", "LambdaFunctionTimedOut", "ActivityFailed")
_FAILED_TOO: Final = ("ActivityTimedOut", "TaskSubmitFailed", "TaskStartFailed", "LambdaFunctionScheduleFailed")
_TROUBLE: Final = frozenset({*_FAILED, *_FAILED_TOO})


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The type, the time and the details of an event. Any: JSON."""

    type: str
    at: datetime
    details: Mapping[str, Any]

    @classmethod
    def read(cls, event: Mapping[str, Any]) -> Event:
        """Read an event of a reply of boto3."""
        details = [value for key, value in event.items() if key.endswith("EventDetails")]
        return cls(type=event["type"], at=event["timestamp"], details=details[0] if details else {})


Reason = tuple[str, str | None]  # the reason, and a remedy

_ANSWER: Final = "answer it in the MCP host, or with mcp-workflows tasks answer"


async def explain(client: Client, ref: Ref, execution: Execution) -> Explanation:
    """Explain an execution; `execution` is the look just before."""
    if execution.terminal:
        why = execution.failure.text if execution.failure else execution.message
        return Explanation(reason=f"it has ended: {execution.status}" + (f", {why}" if why else ""))
    if execution.execution_id is None or not execution.execution_id.startswith("arn:"):
        return Explanation(reason="an Express execution: it ends within 5 minutes, and nothing can be seen of it")
    page = await client.call("get_execution_history", executionArn=ref.handle, reverseOrder=True, maxResults=LATEST)
    events = [Event.read(event) for event in page["events"]]
    reason, advice = _reason(execution, events)
    return Explanation(reason=reason, facts=dict(_facts(execution, events)), advice=advice)


def _reason(execution: Execution, events: Sequence[Event]) -> Reason:
    if execution.status is Status.INPUT_REQUIRED:
        return f"it waits for an answer in state {execution.message}", _ANSWER
    newest = next((event for event in events if not event.type.endswith("StateExited")), None)
    if newest is None:
        return "it has just been started", None
    explain_event = _REASONS.get(newest.type)
    return explain_event(newest) if explain_event else (f"its newest event is {newest.type}", None)


def _facts(execution: Execution, events: Sequence[Event]) -> Iterator[tuple[str, str]]:
    entered = next((event for event in events if event.type.endswith("StateEntered")), None)
    if entered is not None:
        yield "state", f"{entered.details.get('name')}, for {_elapsed(entered.at)}"
    if events:
        yield "last event", f"{events[0].type}, {_elapsed(events[0].at)} ago"
    if execution.progress is not None and execution.progress.total is not None:
        yield "progress", f"{execution.progress.value:.15g} of {execution.progress.total:.15g}"
    since = entered.at if entered else datetime.min.replace(tzinfo=UTC)
    failed = [event for event in events if event.type in _TROUBLE and event.at >= since]
    if failed:
        yield "failed attempts in this state", str(len(failed))
        yield "last failure", _failure(failed[0])


def _failure(event: Event) -> str:
    return read_failure("FAILED", event.details.get("error"), event.details.get("cause")).text


def _resource(event: Event) -> str:
    details = event.details
    return f"{details.get('resourceType', '')}:{details.get('resource', '')}".strip(":") or str(details.get("resource"))


def _task(event: Event) -> Reason:
    if str(event.details.get("resource", "")).endswith(WAITS_FOR_TOKEN):
        waits = f"it waits until somebody answers with the task token that went to {_resource(event)}"
        remedy = "whoever got the token must call SendTaskSuccess; or make a gate of the state"
        return waits, f"{remedy}, see: mcp-workflows docs gates"
    return f"{_resource(event)} is under way", None


def _activity(event: Event) -> Reason:
    activity = str(event.details.get("resource"))
    return f"no worker has taken its activity {activity}", f"start a worker that polls {activity}"


def _failed_attempt(event: Event) -> Reason:
    return f"an attempt has failed, and it will be tried again: {_failure(event)}", None


def _fixed_reason(text: str) -> Callable[[Event], Reason]:
    return lambda _: (text, None)


_REASONS: Final[Mapping[str, Callable[[Event], Reason]]] = {
    "ActivityScheduled": _activity,
    "ActivityStarted": lambda event: (f"worker {event.details.get('workerName', '')} has its activity", None),
    "TaskScheduled": _task,
    "TaskStarted": _task,
    "TaskSubmitted": _task,
    "LambdaFunctionScheduled": lambda event: (f"Lambda function {event.details.get('resource')} is to be called", None),
    "LambdaFunctionStarted": _fixed_reason("its Lambda function runs"),
    "WaitStateEntered": lambda event: (f"state {event.details.get('name')} waits for time to pass", None),
    "MapRunStarted": _fixed_reason("a distributed Map runs: its child executions have histories of their own"),
    "ExecutionRedriven": _fixed_reason("it was redriven just now"),
    **dict.fromkeys(_TROUBLE, _failed_attempt),
}


def _elapsed(then: datetime) -> str:
    """Return the time since then, as `rough_duration` writes it."""
    return rough_duration(datetime.now(UTC) - then)


PAGES: Final = 5  # of 1,000 events, searched for states
SHOWN: Final = 10  # states

_ENDS: Final[Mapping[str, str]] = {
    "TaskSucceeded": "answered already",
    "TaskFailed": "answered already by an error",
    "TaskTimedOut": "its time was up before an answer came",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _StateVisits:
    """The visited states in order, with the event that left each, or None for a state that was not left."""

    left: Mapping[str, Mapping[str, Any] | None]  # Any: an event of boto3
    ends: Mapping[int, str]  # the types of events that can end a state, by id
    whole: bool


async def explain_gates(
    client: Client, machines: Machines, reader: HistoryReader, ref: Ref, execution: Execution
) -> Mapping[str, ExplainedGate]:
    """Return the state of each gate; `execution` is the look just before, which had not ended.

    Raises:
        ExecutionNotFound, EngineUnavailable: see `Explains.explain`.
    """
    opened = open_gates(execution.requests)
    if opened.keys() >= ref.gates.keys():
        return opened
    if not StepFunctionsOptions.read(ref.options).history:
        closed = ExplainedGate.closed("the tool has history: false, so its questions are not looked for")
        return {**dict.fromkeys(ref.gates, closed), **opened}
    found_problems = problems(await reader.read(ref.handle), ref.gates)
    visits, states = await _visits(client, ref.handle), await _defined_states(client, machines, ref.workflow)
    explained = {
        name: _explain_gate(name, gate_state(gate.when), found_problems, visits, states)
        for name, gate in ref.gates.items()
    }
    return {**explained, **opened}


async def _visits(client: Client, arn: str) -> _StateVisits:
    events: list[Mapping[str, Any]] = []  # Any: an event of boto3
    page: dict[str, Any] = {
        "executionArn": arn,
        "reverseOrder": True,
        "maxResults": 1000,
        "includeExecutionData": False,
    }
    for _ in range(PAGES):
        found = await client.call("get_execution_history", **page)
        events += found["events"]
        page["nextToken"] = found.get("nextToken")
        if not page["nextToken"]:
            break
    left: dict[str, Mapping[str, Any] | None] = {}
    for event in sorted(events, key=lambda event: event["id"]):
        if event["type"].endswith("StateEntered"):
            left[event["stateEnteredEventDetails"]["name"]] = None
        elif event["type"].endswith("StateExited"):
            left[event["stateExitedEventDetails"]["name"]] = event
    ends = {event["id"]: event["type"] for event in events if event["type"] in _ENDS}
    return _StateVisits(left=left, ends=ends, whole=not page["nextToken"])


async def _defined_states(client: Client, machines: Machines, workflow: str) -> Mapping[str, State]:
    """Return the present states of the machine; none if it cannot be read."""
    try:
        found = await definitions(client, await machines.find(workflow))
    except (ExpectedCodeError, EngineError):
        return {}
    return {name: state for each in found for name, state in each.items()}


def _explain_gate(
    name: str, state: str, found_problems: Iterable[str], visits: _StateVisits, states: Mapping[str, State]
) -> ExplainedGate:
    if why := [text.removeprefix(f"gate {name}: ") for text in found_problems if text.startswith(f"gate {name}: ")]:
        return ExplainedGate.closed("; ".join(why))
    if state not in visits.left:
        return ExplainedGate.closed(_never_entered(state, visits, states))
    if (exited := visits.left[state]) is not None:
        end = _ENDS.get(visits.ends.get(exited.get("previousEventId", 0), ""), "it asks nothing any more")
        return ExplainedGate.closed(
            f"{end}: state {state} was left {_elapsed(exited['timestamp'])} ago (event {exited['id']})"
        )
    if state in states and not states[state].waits_for_token:
        return ExplainedGate.closed(f"the execution is in state {state}, and that does not wait for a task token")
    return ExplainedGate.closed(f"the execution is in state {state}, and that does not wait for an answer now")


def _never_entered(state: str, visits: _StateVisits, states: Mapping[str, State]) -> str:
    entered = list(visits.left)
    shown = ", ".join(entered[:SHOWN]) + (", ..." if len(entered) > SHOWN else "")
    far = "so far" if visits.whole else "in its latest events"
    if not states or state in states:
        return f"state {state} has not been entered; entered {far}: {shown or 'none'}"
    meant = closest(state, states)
    hint = f"did you mean {meant!r}?" if meant else f"its states: {', '.join(states)}"
    return f"the state machine has no state {state!r}; {hint}"
