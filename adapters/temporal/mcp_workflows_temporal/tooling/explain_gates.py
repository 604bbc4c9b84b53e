"""Why each gate of an open execution asks nothing now, for the operator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import anyio
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse as Described
from temporalio.service import RPCError

from mcp_workflows.adapter import JSON, Execution, ExplainedGate, Gate, GateState, open_gates
from mcp_workflows.errors import EngineRefused
from mcp_workflows_temporal.client import Frontend
from mcp_workflows_temporal.diagnosis import LONGEST_TEXT
from mcp_workflows_temporal.gate_calls import Run
from mcp_workflows_temporal.gate_history import Kind, Trail, fold
from mcp_workflows_temporal.gate_queries import Polls
from mcp_workflows_temporal.gate_rules import CLOSED, Rule, names_of, read_rules
from mcp_workflows_temporal.history import Tail
from mcp_workflows_temporal.report_text import ago
from mcp_workflows_temporal.tooling.activities import Activities, nearest, read_activities, some

_PAUSED = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_PAUSED


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """An open execution, as far as its history was read."""

    run: Run
    found: Described
    tail: Tail
    activities: Activities

    @property
    def far(self) -> str:
        """How much of the history that is."""
        return "so far" if self.tail.whole else f"in its latest {len(self.tail.events):,} events"

    def event(self, event_id: int) -> str:
        """An event for people: its id, and when it was."""
        when = next((ago(event.event_time) for event in self.tail.events if event.event_id == event_id), None)
        return f"event {event_id}, {when}" if when else f"event {event_id}"


async def gate_states(
    frontend: Frontend, gates: Mapping[str, Gate], found: Described, tail: Tail, execution: Execution
) -> Mapping[str, ExplainedGate]:
    """The state of each gate; `execution` is the look just before. Queries are asked once more, all at once."""
    events = list(reversed(tail.events))
    seen = _Seen(run=Run.of(frontend, found), found=found, tail=tail, activities=read_activities(events))
    states = dict(open_gates(execution.requests))
    async with anyio.create_task_group() as group:

        async def explain(name: str, gate: Gate) -> None:
            states[name] = await _explained(seen, events, name, gate)

        for name, gate in gates.items():
            if name not in states:
                group.start_soon(explain, name, gate)
    return {name: states[name] for name in gates}


async def _explained(seen: _Seen, events: list[HistoryEvent], name: str, gate: Gate) -> ExplainedGate:
    try:
        [rule] = read_rules({name: gate})
    except EngineRefused as error:
        return _closed(str(error).removeprefix(f"gate {name}: "))
    if seen.found.workflow_execution_info.status == _PAUSED:
        return _closed("the execution is paused: it asks nothing until it is unpaused")
    trail = fold(events, names_of((rule,)))
    if trail is None:
        return ExplainedGate(state=GateState.UNKNOWN, why="Temporal gave no history")
    if rule.when.after is not None:
        return _after(seen, rule, rule.when.after, trail)
    return await _query(seen, rule, trail)


def _closed(why: str) -> ExplainedGate:
    return ExplainedGate(state=GateState.CLOSED, why=why)


def _after(seen: _Seen, rule: Rule, activity: str, trail: Trail) -> ExplainedGate:
    """The history opens it, and answers close it."""
    completed = trail.completed.get(activity, CLOSED)
    if completed and max((trail.answers.get(word, CLOSED) for word in rule.words), default=CLOSED) > completed:
        why = f"answered already: {_answer(seen, rule, trail)}; it opens again when {activity} completes again"
        return _closed(why)
    if completed:
        why = f"after: {activity} has completed ({seen.event(completed)}): the next look may show it"
        return ExplainedGate(state=GateState.UNKNOWN, why=why)
    return _closed(f"after: {_not_completed(seen, activity)}")


def _not_completed(seen: _Seen, activity: str) -> str:
    """How far the activity is, and what may be meant if nothing is known of it."""
    activities = seen.activities
    for pending in seen.found.pending_activities:
        if pending.activity_type.name == activity:
            return f"{activity} has not completed: it is under way, attempt {pending.attempt}"
    if activity in activities.failed:
        return f"{activity} has not completed: it failed or was given up ({seen.event(activities.failed[activity])})"
    if activity in activities.local:
        return f"{activity} runs as a local activity, and no gate can see that: see: mcp-workflows docs gates"
    later = "" if seen.run.execution.run_id == seen.run.first_run_id else " in this run of the chain"
    text = f"{activity} has not completed{later}; seen {seen.far}: {some(activities.scheduled)}"
    meant = nearest(activity, {*activities.scheduled} - {activity})
    return f"{text}; did you mean {meant!r}?" if meant else text


def _answer(seen: _Seen, rule: Rule, trail: Trail) -> str | None:
    """The latest thing in the history that answers the gate."""
    latest = max(rule.words & trail.answers.keys(), key=lambda word: trail.answers[word], default=None)
    return None if latest is None else f"{latest.kind} {latest.name} came ({seen.event(trail.answers[latest])})"


async def _query(seen: _Seen, rule: Rule, trail: Trail) -> ExplainedGate:
    signals = [trail.answers.get(word, CLOSED) for word in rule.words if word.kind is Kind.SIGNAL]
    if max(signals, default=CLOSED) > trail.handled:
        return _closed(f"answered already: {_answer(seen, rule, trail)}, and the workflow has not taken it yet")
    try:
        polled = (await Polls().ask(seen.run, [rule], fresh=True))[rule.name]
    except RPCError as error:
        return ExplainedGate(state=GateState.UNKNOWN, why=f"Temporal does not tell ({error.status.name.lower()})")
    if polled.problem is not None:
        return ExplainedGate(state=GateState.UNKNOWN, why=polled.problem)
    given = f"query {rule.when.query} gives {_json(polled.value)}"
    if polled.waits:
        return ExplainedGate(state=GateState.UNKNOWN, why=f"{given}: the next look may show it")
    return _closed(f"{given}, and the gate is open at {_json(rule.when.equals)}")


def _json(value: JSON) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 3]}..."
