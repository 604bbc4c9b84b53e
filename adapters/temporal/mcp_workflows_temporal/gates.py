"""The gates of executions: which are open, and the delivery of their answers.

The keys of questions are made of event ids, so a restart or another replica gives the same keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast
from uuid import UUID, uuid5

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse as Described
from temporalio.service import RPCError, RPCStatusCode

from mcp_workflows.adapter import JSON, Ref
from mcp_workflows.adapter.display_text import cleaned
from mcp_workflows.errors import EngineRefused, EngineUnavailable
from mcp_workflows_temporal.client import Frontend, Handle, Run
from mcp_workflows_temporal.diagnosis import FAILING_FROM
from mcp_workflows_temporal.gate_history import HistoryReader, HistorySummary
from mcp_workflows_temporal.gate_queries import GateQueries, QueryResult
from mcp_workflows_temporal.gate_rules import (
    CLOSED,
    GateRequests,
    Rule,
    Sending,
    event_filter,
    event_of,
    key_of,
    read_rules,
    read_sending,
)
from mcp_workflows_temporal.payloads import decode_failure
from mcp_workflows_temporal.status import is_open, read_failure

ENDED_MEANWHILE = "AcceptedUpdateCompletedWorkflow"  # the workflow ended before the handler of its accepted update did
REQUEST_IDS = UUID("c3bd4d0f-13b3-4a2c-9a3e-6c4c7a1f2f64")  # the UUID namespace of our request ids
NOT_IN_TIME = frozenset({RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The state of one gate now: open, closed, or unknown with a reason."""

    rule: Rule
    key: str | None = None  # of the question, if it is open or may be
    open: bool = False
    problem: str | None = None
    needs_worker: bool = False  # the problem: no worker answers


class Gates:
    """The gates of the executions of one namespace."""

    def __init__(self) -> None:
        self._histories = HistoryReader()
        self._queries = GateQueries()

    async def read(self, frontend: Frontend, ref: Ref, found: Described) -> GateRequests:
        """Return the questions of an open execution's gates; send no request if nothing can have changed."""
        if not ref.gates:
            return GateRequests()
        try:
            rules = read_rules(ref.gates)
        except EngineRefused as error:
            return GateRequests(message=str(error))
        decisions = await self._decide(Run.of(frontend, found), rules, ref.asked, fresh=False)
        requests = {
            each.key: replace(each.rule.request, gate=each.rule.name) for each in decisions if each.open and each.key
        }
        problems = [f"gate {each.rule.name}: {each.problem}" for each in decisions if each.problem]
        needs_worker = any(each.needs_worker for each in decisions)
        return GateRequests(requests=requests, message="; ".join(problems) or None, needs_worker=needs_worker)

    async def answer(self, frontend: Frontend, ref: Ref, responses: Mapping[str, JSON]) -> None:
        """Send each answer whose gate is still open; ignore the late ones.

        Raises:
            EngineRefused: the workflow does not accept an answer.
            EngineUnavailable: the state of the gate is unknown, or no worker took the update.
        """
        rules, handle = read_rules(ref.gates), Handle.parse(ref.handle)
        for key, response in responses.items():
            found = await frontend.describe_chain(handle)
            if not is_open(found):
                return
            run = Run.of(frontend, found)
            decisions = await self._decide(run, rules, ref.asked, fresh=True)
            asked = next((each for each in decisions if each.key == key), None)
            if asked is None:
                continue
            if asked.problem and not asked.open:
                raise EngineUnavailable(f"gate {asked.rule.name}: {asked.problem}")
            if not asked.open:  # the key may open again, so an answer that is not sent must not count as sent
                raise EngineRefused(f"gate {asked.rule.name}: the workflow does not wait for an answer now")
            sending, identity = read_sending(asked.rule.name, response.get("send")), answered_by(ref, response)
            await self._send(run, handle, asked, sending, identity)

    async def _decide(
        self, run: Run, rules: Sequence[Rule], asked: frozenset[str], *, fresh: bool
    ) -> Sequence[Decision]:
        """Decide by the history first, then by queries, so that no result is older than the event it is used for.

        A query that nobody answers leaves the question as it was: open if its key is among those `asked`.
        """
        summary = await self._read_history(run, rules, patient=fresh)
        decisions = [_by_history(run, rule, summary, asked) for rule in rules]
        queried = [
            each.rule for each in decisions if each.open and not each.problem and each.rule.when.query is not None
        ]
        results = await self._queries.ask(run, queried, fresh=fresh)
        return [
            _by_query(each, results[each.rule.name], asked) if each.rule.name in results else each for each in decisions
        ]

    async def _send(self, run: Run, handle: Handle, asked: Decision, sending: Sending, identity: str) -> None:
        try:
            if sending.signal is not None:
                await run.frontend.signal(
                    run.execution,
                    sending.signal,
                    sending.args,
                    signal_request_id(run.execution, asked.key or ""),
                    identity,
                )
            else:
                await self._update(run, handle, asked, sending, identity)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            # It was open a moment ago: that run has ended, and the answer is not needed any more.

    async def _update(self, run: Run, handle: Handle, asked: Decision, sending: Sending, identity: str) -> None:
        name = sending.update or ""
        try:
            refusal = await run.frontend.update(run.execution, name, sending.args, asked.key or "", "", identity)
        except RPCError as error:
            if error.status not in NOT_IN_TIME:
                raise
            found = await run.frontend.describe_chain(handle)
            if await self._is_taken(run, found, asked.rule):
                return
            if found.pending_workflow_task.attempt >= FAILING_FROM:
                text = (
                    f"the workflow task that takes the answer (update {name}) fails: mcp-workflows tasks why says why"
                )
                raise EngineUnavailable(f"{text}; the answer may still be taken once that is mended") from None
            text = f"no worker on task queue {run.queue} took the answer (update {name}) in time"
            raise EngineUnavailable(f"{text}, and an update is not kept: answer again once a worker is up") from None
        if refusal is not None and refusal.application_failure_info.type != ENDED_MEANWHILE:
            reason = read_failure(await decode_failure(run.frontend.converter(run.execution.workflow_id), refusal)).text
            raise EngineRefused(f"the workflow does not accept this answer: {reason}")

    async def _is_taken(self, run: Run, found: Described, rule: Rule) -> bool:
        """Return whether a slow update was accepted after all: then it is in the history."""
        now = Run.of(run.frontend, found)
        summary = await self._read_history(now, (rule,), patient=True)
        return rule.answering_event(summary) > run.length

    async def _read_history(self, run: Run, rules: Sequence[Rule], *, patient: bool) -> HistorySummary:
        def is_enough(summary: HistorySummary) -> bool:
            return all(rule.opening_event(summary) is not None for rule in rules)

        return await self._histories.read(run, event_filter(rules), is_enough, patient=patient)


def answered_by(ref: Ref, response: JSON) -> str:
    """Return the identity of the event in the history: who answered, and accept or decline."""
    principal = cast("Mapping[str, JSON]", ref.principal or {})
    return f"mcp-workflows: {response.get('action')} by {cleaned(str(principal.get('subject') or 'anonymous'))[:200]}"


def signal_request_id(execution: WorkflowExecution, key: str) -> str:
    """Return the request id of the signal that answers a question; Temporal drops a second signal with this id."""
    return str(uuid5(REQUEST_IDS, f"{execution.workflow_id}/{execution.run_id}/{key}"))


def _by_history(run: Run, rule: Rule, summary: HistorySummary, asked: frozenset[str]) -> Decision:
    """Decide one gate by the history; a query gate is open only as far as its query agrees."""
    event = rule.opening_event(summary)
    if event is None:
        read = summary.high - summary.low + 1
        problem = f"the history is being read, {read} of {run.length} events so far"
        answered = rule.answering_event(summary)
        opened_by = {key: event_of(key, rule.name, run.execution.run_id, run.first_run_id) for key in asked}
        last = next((key for key, event in opened_by.items() if event > answered), None)
        return Decision(rule=rule, key=last, open=last is not None, problem=problem)
    if event == CLOSED:
        return Decision(rule=rule)
    return Decision(rule=rule, key=key_of(rule.name, event, run.execution.run_id, run.first_run_id), open=True)


def _by_query(possible: Decision, result: QueryResult, asked: frozenset[str]) -> Decision:
    waits = possible.key in asked if result.waits is None else result.waits
    return replace(possible, open=waits, problem=result.problem, needs_worker=result.needs_worker)
