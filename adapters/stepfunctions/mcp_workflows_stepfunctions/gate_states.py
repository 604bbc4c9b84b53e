"""Why each gate of an execution that runs asks nothing now, for the operator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, Final

from mcp_workflows.adapter import Execution, ExplainedGate, GateState, Ref, open_gates
from mcp_workflows.errors import EngineError
from mcp_workflows_stepfunctions.asking import complaints
from mcp_workflows_stepfunctions.calls import AnsweredError, Calls
from mcp_workflows_stepfunctions.definition import State
from mcp_workflows_stepfunctions.gates import state_named
from mcp_workflows_stepfunctions.machines import Machines
from mcp_workflows_stepfunctions.options import StepFunctionsOptions
from mcp_workflows_stepfunctions.reading import Histories
from mcp_workflows_stepfunctions.verifying import definitions

PAGES: Final = 5  # of 1,000 events: how far back states are looked for
SHOWN: Final = 10  # states

_ENDS: Final[Mapping[str, str]] = {
    "TaskSucceeded": "answered already",
    "TaskFailed": "answered already by an error",
    "TaskTimedOut": "its time was up before an answer came",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Visits:
    """The states that an execution was in, the first one first: the event that left it, or None if it is in there."""

    left: Mapping[str, Mapping[str, Any] | None]  # Any: an event of boto3
    ends: Mapping[int, str]  # the types of events that may have ended a state, by id
    whole: bool


async def gate_states(
    calls: Calls, machines: Machines, histories: Histories, ref: Ref, execution: Execution
) -> Mapping[str, ExplainedGate]:
    """The state of each gate; `execution` is the look just before, at which it had not ended.

    Raises:
        ExecutionNotFound, EngineUnavailable: see `Explains.explain`.
    """
    opened = open_gates(execution.requests)
    if opened.keys() >= ref.gates.keys():
        return opened
    if not StepFunctionsOptions.read(ref.options).history:
        closed = _closed("the tool has history: false, so its questions are not looked for")
        return {**dict.fromkeys(ref.gates, closed), **opened}
    wrong = complaints(await histories.read(ref.handle), ref.gates)
    visits, there = await _visits(calls, ref.handle), await _defined(calls, machines, ref.workflow)
    states = {name: _explained(name, state_named(gate.when), wrong, visits, there) for name, gate in ref.gates.items()}
    return {**states, **opened}


async def _visits(calls: Calls, arn: str) -> _Visits:
    events: list[Mapping[str, Any]] = []  # Any: an event of boto3
    page: dict[str, Any] = {
        "executionArn": arn,
        "reverseOrder": True,
        "maxResults": 1000,
        "includeExecutionData": False,
    }
    for _ in range(PAGES):
        found = await calls.call("get_execution_history", **page)
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
    return _Visits(left=left, ends=ends, whole=not page["nextToken"])


async def _defined(calls: Calls, machines: Machines, workflow: str) -> Mapping[str, State]:
    """The states that the machine has now; none if that cannot be told."""
    try:
        found = await definitions(calls, await machines.named(workflow))
    except (AnsweredError, EngineError):
        return {}
    return {name: state for there in found for name, state in there.items()}


def _explained(
    name: str, state: str, wrong: Iterable[str], visits: _Visits, there: Mapping[str, State]
) -> ExplainedGate:
    if said := [text.removeprefix(f"gate {name}: ") for text in wrong if text.startswith(f"gate {name}: ")]:
        return _closed("; ".join(said))
    if state not in visits.left:
        return _closed(_never_entered(state, visits, there))
    if (exited := visits.left[state]) is not None:
        end = _ENDS.get(visits.ends.get(exited.get("previousEventId", 0), ""), "it asks nothing any more")
        return _closed(f"{end}: state {state} was left {_ago(exited['timestamp'])} ago (event {exited['id']})")
    if state in there and not there[state].waits_for_token:
        return _closed(f"the execution is in state {state}, and that does not wait for a task token")
    return _closed(f"the execution is in state {state}, and that does not wait for an answer now")


def _never_entered(state: str, visits: _Visits, there: Mapping[str, State]) -> str:
    entered = list(visits.left)
    shown = ", ".join(entered[:SHOWN]) + (", ..." if len(entered) > SHOWN else "")
    far = "so far" if visits.whole else "in its latest events"
    if not there or state in there:
        return f"state {state} has not been entered; entered {far}: {shown or 'none'}"
    meant = get_close_matches(state, there, n=1)
    hint = f"did you mean {meant[0]!r}?" if meant else f"its states: {', '.join(there)}"
    return f"the state machine has no state {state!r}; {hint}"


def _closed(why: str) -> ExplainedGate:
    return ExplainedGate(state=GateState.CLOSED, why=why)


def _ago(then: datetime) -> str:
    seconds = max(0, int((datetime.now(UTC) - then).total_seconds()))
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"
