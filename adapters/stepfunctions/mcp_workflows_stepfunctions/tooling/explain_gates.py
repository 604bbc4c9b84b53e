"""The reason why each gate of a running execution asks nothing now, for the operator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mcp_workflows.adapter import Execution, ExplainedGate, Ref, closest, open_gates
from mcp_workflows.errors import EngineError
from mcp_workflows_stepfunctions.client import Client, ExpectedCodeError
from mcp_workflows_stepfunctions.definition import State
from mcp_workflows_stepfunctions.gates import gate_state
from mcp_workflows_stepfunctions.history_reader import HistoryReader
from mcp_workflows_stepfunctions.machines import Machines
from mcp_workflows_stepfunctions.options import StepFunctionsOptions
from mcp_workflows_stepfunctions.questions import problems
from mcp_workflows_stepfunctions.tooling.explain import elapsed
from mcp_workflows_stepfunctions.tooling.verify import definitions

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
            f"{end}: state {state} was left {elapsed(exited['timestamp'])} ago (event {exited['id']})"
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
