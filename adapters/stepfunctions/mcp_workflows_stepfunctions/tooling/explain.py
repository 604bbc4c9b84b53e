"""Why an execution still runs, and why each of its gates is closed, for the operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
    """An event of a history. Any: JSON."""

    id: int
    before: int  # the id of the event it follows from
    type: str
    at: datetime
    details: Mapping[str, Any]

    @classmethod
    def read(cls, event: Mapping[str, Any]) -> Event:
        """Read an event of a reply of boto3."""
        details = [value for key, value in event.items() if key.endswith("EventDetails")]
        return cls(
            id=event["id"],
            before=event.get("previousEventId", 0),
            type=event["type"],
            at=event["timestamp"],
            details=details[0] if details else {},
        )


Reason = tuple[str, str | None]  # the reason, and a remedy

_ANSWER: Final = "answer it in the MCP host, or with mcp-workflows tasks answer"


async def explain(
    client: Client, machines: Machines, reader: HistoryReader, ref: Ref, execution: Execution
) -> Explanation:
    """Explain an execution by its newest events; `execution` is its state just before.

    Raises:
        ExecutionNotFound, EngineUnavailable: see `Explains.explain`.
    """
    if execution.terminal:
        why = execution.failure.text if execution.failure else execution.message
        return Explanation(reason=f"it has ended: {execution.status}" + (f", {why}" if why else ""))
    if execution.execution_id is None or not execution.execution_id.startswith("arn:"):
        return Explanation(reason="an Express execution: it ends within 5 minutes, and nothing of it is visible")
    page = await client.call("get_execution_history", executionArn=ref.handle, reverseOrder=True, maxResults=LATEST)
    events = [Event.read(event) for event in page["events"]]
    gates = dict(open_gates(execution.requests))
    closed = [name for name in ref.gates if name not in gates]
    if closed and not StepFunctionsOptions.read(ref.options).history:
        unseen = ExplainedGate.closed("the tool has history: false, so its questions are not read")
        gates |= dict.fromkeys(closed, unseen)
    elif closed:
        said = problems(await reader.read(ref.handle), ref.gates)
        defined = await _defined_states(client, machines, ref.workflow)
        for name in closed:
            found = [text.removeprefix(f"gate {name}: ") for text in said if text.startswith(f"gate {name}: ")]
            state = gate_state(ref.gates[name].when)
            gates[name] = ExplainedGate.closed("; ".join(found) or _why_closed(state, events, defined))
    reason, advice = _reason(execution, events)
    return Explanation(
        reason=reason,
        facts=dict(_facts(execution, events)),
        advice=advice,
        gates={name: gates[name] for name in ref.gates},
    )


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
        waits = f"it waits for an answer with the task token that was sent to {_resource(event)}"
        remedy = "the receiver of the token must call SendTaskSuccess; or make the state a gate"
        return waits, f"{remedy}, see: docs/use/gates.md"
    return f"{_resource(event)} is under way", None


def _activity(event: Event) -> Reason:
    activity = str(event.details.get("resource"))
    return f"no worker has taken its activity {activity}", f"start a worker that polls {activity}"


def _failed_attempt(event: Event) -> Reason:
    return f"an attempt failed and will be retried: {_failure(event)}", None


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
    "WaitStateEntered": lambda event: (f"state {event.details.get('name')} waits for its time", None),
    "MapRunStarted": _fixed_reason("a distributed Map runs: its child executions have histories of their own"),
    "ExecutionRedriven": _fixed_reason("it was redriven just now"),
    **dict.fromkeys(_TROUBLE, _failed_attempt),
}


def _elapsed(then: datetime) -> str:
    """Return the time since then, in the format of `rough_duration`."""
    return rough_duration(datetime.now(UTC) - then)


SHOWN: Final = 10  # states

_ENDS: Final[Mapping[str, str]] = {
    "TaskSucceeded": "answered already",
    "TaskFailed": "answered already by an error",
    "TaskTimedOut": "it timed out before an answer came",
}


async def _defined_states(client: Client, machines: Machines, workflow: str) -> Mapping[str, State]:
    """Return the current states of the machine; none if it cannot be read."""
    try:
        found = await definitions(client, await machines.find(workflow))
    except (ExpectedCodeError, EngineError):
        return {}
    return {name: state for each in found for name, state in each.items()}


def _why_closed(state: str, events: Sequence[Event], defined: Mapping[str, State]) -> str:
    """Return the reason why a gate is closed; the events are the newest ones, the newest first."""
    visited = [event for event in events if event.type.endswith(("StateEntered", "StateExited"))]
    latest = next((event for event in visited if event.details.get("name") == state), None)
    if latest is None and defined and state not in defined:
        meant = closest(state, defined)
        hint = f"did you mean {meant!r}?" if meant else f"its states: {', '.join(defined)}"
        return f"the state machine has no state {state!r}; {hint}"
    if latest is None:
        entered = list(dict.fromkeys(str(event.details.get("name")) for event in reversed(visited)))
        shown = ", ".join(entered[:SHOWN]) + (", ..." if len(entered) > SHOWN else "")
        far = "so far" if len(events) < LATEST else "in its latest events"
        return f"state {state} has not been entered; entered {far}: {shown or 'none'}"
    if latest.type.endswith("StateExited"):
        ended = next((event.type for event in events if event.id == latest.before), "")
        end = _ENDS.get(ended, "it no longer asks")
        return f"{end}: state {state} was left {_elapsed(latest.at)} ago (event {latest.id})"
    waits = state not in defined or defined[state].waits_for_token
    return (
        f"the execution is in state {state}, and that does not wait for {'an answer now' if waits else 'a task token'}"
    )
