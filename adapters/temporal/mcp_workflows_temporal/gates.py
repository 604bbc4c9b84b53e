"""Which gates of an execution are open, and how their answers get in.

After a restart, or on another replica, the same questions have the same keys: they are made of event ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse as Described
from temporalio.service import RPCError, RPCStatusCode

from mcp_workflows.adapter import JSON, Ref
from mcp_workflows.errors import EngineRefused, EngineUnavailable
from mcp_workflows_temporal.client import Frontend, Handle
from mcp_workflows_temporal.describe import described, is_open
from mcp_workflows_temporal.diagnosis import FAILING_FROM
from mcp_workflows_temporal.gate_calls import Run, signal, update
from mcp_workflows_temporal.gate_history import Trail
from mcp_workflows_temporal.gate_queries import Polled, Polls
from mcp_workflows_temporal.gate_rules import CLOSED, Rule, Sending, Shown, event_of, key_of, read_rules, read_sending
from mcp_workflows_temporal.payloads import decode_failure
from mcp_workflows_temporal.status import failure
from mcp_workflows_temporal.trail_reader import TrailReader

OVERTAKEN = "AcceptedUpdateCompletedWorkflow"  # the workflow took the update, and ended before its handler did
NOT_IN_TIME = frozenset({RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What is known of one gate now: open, closed, or not known (then why)."""

    rule: Rule
    key: str | None = None  # of the question, if it is open or may be
    open: bool = False
    problem: str | None = None
    needs_worker: bool = False  # the problem is that no worker answers


class Gatekeeper:
    """The gates of the executions of one namespace."""

    def __init__(self) -> None:
        self._trails = TrailReader()
        self._polls = Polls()

    async def look(self, frontend: Frontend, ref: Ref, found: Described) -> Shown:
        """What the gates of an open execution ask now; asks Temporal nothing if nothing can have changed."""
        if not ref.gates:
            return Shown()
        try:
            rules = read_rules(ref.gates)
        except EngineRefused as error:
            return Shown(message=str(error))
        rounds = await self._rounds(Run.of(frontend, found), rules, ref.asked, fresh=False)
        requests = {
            each.key: replace(each.rule.request, gate=each.rule.name) for each in rounds if each.open and each.key
        }
        problems = [f"gate {each.rule.name}: {each.problem}" for each in rounds if each.problem]
        needs_worker = any(each.needs_worker for each in rounds)
        return Shown(requests=requests, message="; ".join(problems) or None, needs_worker=needs_worker)

    async def answer(self, frontend: Frontend, ref: Ref, responses: Mapping[str, JSON]) -> None:
        """Send each answer whose gate is still open; the others come too late, and are ignored.

        Raises:
            EngineRefused: the workflow does not accept it.
            EngineUnavailable: whether the gate is open cannot be known now, or no worker took the update.
        """
        rules, handle = read_rules(ref.gates), Handle.parse(ref.handle)
        for key, response in responses.items():
            found = await described(frontend, handle)
            if not is_open(found):
                return
            run = Run.of(frontend, found)
            rounds = await self._rounds(run, rules, ref.asked, fresh=True)
            asked = next((each for each in rounds if each.key == key), None)
            if asked is None:
                continue
            if asked.problem and not asked.open:
                raise EngineUnavailable(f"gate {asked.rule.name}: {asked.problem}")
            if not asked.open:  # the same round, and its key, may open again: what is not sent must not count as sent
                raise EngineRefused(f"gate {asked.rule.name}: the workflow does not wait for an answer now")
            await self._send(run, handle, asked, read_sending(asked.rule.name, response.get("send")))

    async def _rounds(self, run: Run, rules: Sequence[Rule], asked: frozenset[str], *, fresh: bool) -> Sequence[Round]:
        """History first, then the queries: what a query says is never older than the round it is taken for.

        A query that nobody answers leaves the question as it was last: open if its key is among those `asked`.
        """
        trail = await self._trails.read(run, rules, patient=fresh)
        rounds = [_by_history(run, rule, trail, asked) for rule in rules]
        queried = [each.rule for each in rounds if each.open and not each.problem and each.rule.when.query is not None]
        polled = await self._polls.ask(run, queried, fresh=fresh)
        return [_by_query(each, polled[each.rule.name], asked) if each.rule.name in polled else each for each in rounds]

    async def _send(self, run: Run, handle: Handle, asked: Round, sending: Sending) -> None:
        try:
            if sending.signal is not None:
                await signal(run, sending.signal, sending.args, asked.key or "")
            else:
                await self._update(run, handle, asked, sending)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            # It was there a moment ago: that run has ended, and nobody in it waits for an answer any more.

    async def _update(self, run: Run, handle: Handle, asked: Round, sending: Sending) -> None:
        name = sending.update or ""
        try:
            refusal = await update(run, name, sending.args, asked.key or "")
        except RPCError as error:
            if error.status not in NOT_IN_TIME:
                raise
            found = await described(run.frontend, handle)
            if await self._taken(run, found, asked.rule):
                return
            if found.pending_workflow_task.attempt >= FAILING_FROM:
                text = (
                    f"the workflow task that takes the answer (update {name}) fails: mcp-workflows tasks why says why"
                )
                raise EngineUnavailable(f"{text}; the answer may still be taken once that is mended") from None
            text = f"no worker on task queue {run.queue} took the answer (update {name}) in time"
            raise EngineUnavailable(f"{text}, and an update is not kept: answer again once a worker is up") from None
        if refusal is not None and refusal.application_failure_info.type != OVERTAKEN:
            reason = failure(await decode_failure(run.frontend.converter(run.execution.workflow_id), refusal)).text
            raise EngineRefused(f"the workflow does not accept this answer: {reason}")

    async def _taken(self, run: Run, found: Described, rule: Rule) -> bool:
        """Whether a slow update was accepted after all: then it is in the history, and will be done."""
        now = Run.of(run.frontend, found)
        trail = await self._trails.read(now, (rule,), patient=True)
        return any(trail.answers.get(word, CLOSED) > run.length for word in rule.words)


def _by_history(run: Run, rule: Rule, trail: Trail, asked: frozenset[str]) -> Round:
    """One gate as the history decides it; of a query gate it only tells which round may be open."""
    event = rule.opened(trail)
    if event is None:
        read = trail.high - trail.low + 1
        problem = f"the history is being read, {read} of {run.length} events so far"
        answered = rule.answered(trail)
        opened_by = {key: event_of(key, rule.name, run.execution.run_id, run.first_run_id) for key in asked}
        last = next((key for key, event in opened_by.items() if event > answered), None)
        return Round(rule=rule, key=last, open=last is not None, problem=problem)
    if event == CLOSED:
        return Round(rule=rule)
    return Round(rule=rule, key=key_of(rule.name, event, run.execution.run_id, run.first_run_id), open=True)


def _by_query(may_be: Round, polled: Polled, asked: frozenset[str]) -> Round:
    is_open = may_be.key in asked if polled.waits is None else polled.waits
    return replace(may_be, open=is_open, problem=polled.problem, needs_worker=polled.needs_worker)
