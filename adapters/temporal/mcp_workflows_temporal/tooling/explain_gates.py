"""The reason why each gate of an open execution asks nothing now, for the operator."""

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
from mcp_workflows_temporal.client import Frontend, Run
from mcp_workflows_temporal.diagnosis import LONGEST_TEXT
from mcp_workflows_temporal.gate_history import HistorySummary, MessageKind, summarize
from mcp_workflows_temporal.gate_queries import GateQueries
from mcp_workflows_temporal.gate_rules import CLOSED, Rule, event_filter, read_rules
from mcp_workflows_temporal.history import Tail
from mcp_workflows_temporal.report_text import ago
from mcp_workflows_temporal.tooling.activities import ActivityEvents, format_names, nearest, read_activities

_PAUSED = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_PAUSED


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """An open execution, and the part of its history that was read."""

    run: Run
    found: Described
    tail: Tail
    activities: ActivityEvents

    @property
    def extent(self) -> str:
        """The extent of that part, for people."""
        return "so far" if self.tail.whole else f"in its latest {len(self.tail.events):,} events"

    def event(self, event_id: int) -> str:
        """Return the id and the time of an event, for people."""
        when = next((ago(event.event_time) for event in self.tail.events if event.event_id == event_id), None)
        return f"event {event_id}, {when}" if when else f"event {event_id}"


async def gate_states(
    frontend: Frontend, gates: Mapping[str, Gate], found: Described, tail: Tail, execution: Execution
) -> Mapping[str, ExplainedGate]:
    """Return the state of each gate; `execution` is the look just before. Queries are sent again, all at once."""
    events = list(reversed(tail.events))
    subject = _Subject(run=Run.of(frontend, found), found=found, tail=tail, activities=read_activities(events))
    states = dict(open_gates(execution.requests))
    async with anyio.create_task_group() as group:

        async def explain(name: str, gate: Gate) -> None:
            states[name] = await _explain_gate(subject, events, name, gate)

        for name, gate in gates.items():
            if name not in states:
                group.start_soon(explain, name, gate)
    return {name: states[name] for name in gates}


async def _explain_gate(subject: _Subject, events: list[HistoryEvent], name: str, gate: Gate) -> ExplainedGate:
    try:
        [rule] = read_rules({name: gate})
    except EngineRefused as error:
        return ExplainedGate.closed(str(error).removeprefix(f"gate {name}: "))
    if subject.found.workflow_execution_info.status == _PAUSED:
        return ExplainedGate.closed("the execution is paused: it asks nothing until it is unpaused")
    summary = summarize(events, event_filter((rule,)))
    if summary is None:
        return ExplainedGate(state=GateState.UNKNOWN, why="Temporal gave no history")
    if rule.when.after is not None:
        return _after(subject, rule, rule.when.after, summary)
    return await _query(subject, rule, summary)


def _after(subject: _Subject, rule: Rule, activity: str, summary: HistorySummary) -> ExplainedGate:
    """Explain a gate that the history opens and an answer closes."""
    completed = summary.completed.get(activity, CLOSED)
    if (
        completed
        and max((summary.answers.get(message, CLOSED) for message in rule.messages), default=CLOSED) > completed
    ):
        why = f"answered already: {_answer(subject, rule, summary)}; it opens again when {activity} completes again"
        return ExplainedGate.closed(why)
    if completed:
        why = f"after: {activity} has completed ({subject.event(completed)}): the next look may show it"
        return ExplainedGate(state=GateState.UNKNOWN, why=why)
    return ExplainedGate.closed(f"after: {_not_completed(subject, activity)}")


def _not_completed(subject: _Subject, activity: str) -> str:
    """Return the progress of the activity, and the most similar name if it is unknown."""
    activities = subject.activities
    for pending in subject.found.pending_activities:
        if pending.activity_type.name == activity:
            return f"{activity} has not completed: it is under way, attempt {pending.attempt}"
    if activity in activities.failed:
        return f"{activity} has not completed: it failed or was given up ({subject.event(activities.failed[activity])})"
    if activity in activities.local:
        return f"{activity} runs as a local activity, and no gate can see that: see: mcp-workflows docs gates"
    later = "" if subject.run.execution.run_id == subject.run.first_run_id else " in this run of the chain"
    text = f"{activity} has not completed{later}; seen {subject.extent}: {format_names(activities.scheduled)}"
    suggestion = nearest(activity, {*activities.scheduled} - {activity})
    return f"{text}; did you mean {suggestion!r}?" if suggestion else text


def _answer(subject: _Subject, rule: Rule, summary: HistorySummary) -> str | None:
    """Return the latest message in the history that answers the gate."""
    latest = max(rule.messages & summary.answers.keys(), key=lambda message: summary.answers[message], default=None)
    return None if latest is None else f"{latest.kind} {latest.name} came ({subject.event(summary.answers[latest])})"


async def _query(subject: _Subject, rule: Rule, summary: HistorySummary) -> ExplainedGate:
    signals = [summary.answers.get(message, CLOSED) for message in rule.messages if message.kind is MessageKind.SIGNAL]
    if max(signals, default=CLOSED) > summary.handled:
        return ExplainedGate.closed(
            f"answered already: {_answer(subject, rule, summary)}, and the workflow has not taken it yet"
        )
    try:
        result = (await GateQueries().ask(subject.run, [rule], fresh=True))[rule.name]
    except RPCError as error:
        return ExplainedGate(state=GateState.UNKNOWN, why=f"Temporal does not tell ({error.status.name.lower()})")
    if result.problem is not None:
        return ExplainedGate(state=GateState.UNKNOWN, why=result.problem)
    given = f"query {rule.when.query} gives {_json(result.value)}"
    if result.waits:
        return ExplainedGate(state=GateState.UNKNOWN, why=f"{given}: the next look may show it")
    return ExplainedGate.closed(f"{given}, and the gate is open at {_json(rule.when.equals)}")


def _json(value: JSON) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 3]}..."
