"""The gates of executions: which are open, and the delivery of their answers.

The keys of questions contain event ids, so a restart or another replica produces the same keys. A poll reads only the
new events since the last one, and repeats a query only when its result may have changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast
from uuid import UUID, uuid5

import anyio
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse as Described
from temporalio.service import RPCError, RPCStatusCode

from mcp_workflows.adapter import JSON, Ref
from mcp_workflows.adapter.display_text import cleaned, without_zero_fractions
from mcp_workflows.errors import EngineRefused, EngineUnavailable
from mcp_workflows_temporal.client import REMEMBERED, Frontend, Handle, Latest, Run, is_open
from mcp_workflows_temporal.diagnosis import FAILING_FROM, one_line
from mcp_workflows_temporal.errors import unless_ended
from mcp_workflows_temporal.gate_rules import (
    CLOSED,
    EventFilter,
    GateRequests,
    HistorySummary,
    Rule,
    Sending,
    event_filter,
    event_of,
    join,
    key_of,
    read_rules,
    read_sending,
    summarize,
)
from mcp_workflows_temporal.payloads import UndecodableError, decode, read_failure

PAGE = 100  # events
PAGES_PER_POLL = 100  # some 4 ms each; the next poll continues from here
QUERY_EVERY = 5.0  # seconds, while the history does not grow
QUERIES_AT_ONCE = 5  # for one execution

NO_WORKER = frozenset(
    {
        RPCStatusCode.CANCELLED,  # the SDK's error when its own time-out passes
        RPCStatusCode.DEADLINE_EXCEEDED,
        RPCStatusCode.FAILED_PRECONDITION,  # it has not begun, or its workflow task fails
    }
)
ENDED_MEANWHILE = "AcceptedUpdateCompletedWorkflow"  # the workflow ended before the handler of its accepted update
REQUEST_IDS = UUID("c3bd4d0f-13b3-4a2c-9a3e-6c4c7a1f2f64")  # the UUID namespace of our request ids
NOT_IN_TIME = frozenset({RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The current state of one gate: open, closed, or unknown with a reason."""

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
        """Send each answer whose gate is still open; ignore late ones.

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
            if not asked.open:  # the key may open again, so an unsent answer must not count as sent
                raise EngineRefused(f"gate {asked.rule.name}: the workflow does not wait for an answer now")
            sending, identity = read_sending(asked.rule.name, response.get("send")), answered_by(ref, response)
            with unless_ended():
                if sending.signal is not None:
                    request_id = signal_request_id(run.execution, key)
                    await frontend.signal(run.execution, sending.signal, sending.args, request_id, identity)
                else:
                    await self._update(run, handle, asked, sending, identity)

    async def _decide(
        self, run: Run, rules: Sequence[Rule], asked: frozenset[str], *, fresh: bool
    ) -> Sequence[Decision]:
        """Decide by the history first, then by queries, so that no result is older than the event that it is used for.

        An unanswered query leaves the question unchanged: open if its key is among those `asked`.
        """
        summary = await self._read_history(run, rules, patient=fresh)
        decisions = [_by_history(run, rule, summary, asked) for rule in rules]
        queried = [
            each.rule for each in decisions if each.open and not each.problem and each.rule.when.query is not None
        ]
        results = await self._queries.ask(run, queried, fresh=fresh)
        for number, each in enumerate(decisions):
            if result := results.get(each.rule.name):
                waits = each.key in asked if result.waits is None else result.waits
                problem, needs_worker = result.problem, result.needs_worker
                decisions[number] = replace(each, open=waits, problem=problem, needs_worker=needs_worker)
        return decisions

    async def _update(self, run: Run, handle: Handle, asked: Decision, sending: Sending, identity: str) -> None:
        name = sending.update or ""
        try:
            done = await run.frontend.update(run.execution, name, sending.args, asked.key or "", "", identity)
        except RPCError as error:
            if error.status not in NOT_IN_TIME:
                raise
            found = await run.frontend.describe_chain(handle)
            now = await self._read_history(Run.of(run.frontend, found), (asked.rule,), patient=True)
            if asked.rule.answering_event(now) > run.length:  # it was slow, but accepted after all
                return
            if found.pending_workflow_task.attempt >= FAILING_FROM:
                text = (
                    f"the workflow task that takes the answer (update {name}) fails: mcp-workflows tasks why says why"
                )
                raise EngineUnavailable(f"{text}; the answer may still be taken once that is mended") from None
            text = f"no worker on task queue {run.queue} took the answer (update {name}) in time"
            raise EngineUnavailable(f"{text}, and an update is not kept: answer again once a worker is up") from None
        refusal = done.outcome.failure
        if done.outcome.HasField("failure") and refusal.application_failure_info.type != ENDED_MEANWHILE:
            reason = await read_failure(run.frontend.converter(run.execution.workflow_id), refusal)
            raise EngineRefused(f"the workflow does not accept this answer: {reason.text}")

    async def _read_history(self, run: Run, rules: Sequence[Rule], *, patient: bool) -> HistorySummary:
        def is_enough(summary: HistorySummary) -> bool:
            return all(rule.opening_event(summary) is not None for rule in rules)

        return await self._histories.read(run, event_filter(rules), is_enough, patient=patient)


def answered_by(ref: Ref, response: JSON) -> str:
    """Return the identity for the event in the history: who answered, and accept or decline."""
    principal = cast("Mapping[str, JSON]", ref.principal or {})
    return f"mcp-workflows: {response.get('action')} by {cleaned(str(principal.get('subject') or 'anonymous'))[:200]}"


def signal_request_id(execution: WorkflowExecution, key: str) -> str:
    """Return the request id of the signal that answers a question; Temporal drops a second signal with this id."""
    return str(uuid5(REQUEST_IDS, f"{execution.workflow_id}/{execution.run_id}/{key}"))


def _by_history(run: Run, rule: Rule, summary: HistorySummary, asked: frozenset[str]) -> Decision:
    """Decide one gate by the history; a query gate is open only if its query agrees."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedHistory:
    """The part of one run's history that was read."""

    summary: HistorySummary
    before: bytes  # the token of the page before it; empty: none


class HistoryReader:
    """The histories of one namespace, read backwards from the end; evicted ones are read again."""

    def __init__(self) -> None:
        self._cache = Latest[tuple[tuple[str, str], EventFilter], CachedHistory](REMEMBERED)

    async def read(
        self, run: Run, wanted: EventFilter, is_enough: Callable[[HistorySummary], bool], *, patient: bool
    ) -> HistorySummary:
        """Summarize the history until `is_enough`; unless `patient`, read a limited number of pages at a time.

        Sends no request if the history has not grown and enough of it is cached.
        """
        key = run.ids, wanted
        cached = self._cache.get(key)
        if cached is None or cached.summary.high < run.length:
            cached = self._cache[key] = await _newest(run, wanted, cached)
        pages = 0
        while cached.before and not is_enough(cached.summary) and (patient or pages < PAGES_PER_POLL):
            page = await run.frontend.history_page(run.execution, PAGE, cached.before)
            older = summarize(page.history.events[::-1], wanted)
            summary = join(older, cached.summary) if older else cached.summary
            cached = self._cache[key] = CachedHistory(summary=summary, before=page.next_page_token)
            pages += 1
        return cached.summary


async def _newest(run: Run, wanted: EventFilter, cached: CachedHistory | None) -> CachedHistory:
    """Join the events since the last poll to the cached ones; drop these if there are too many new events."""
    high = cached.summary.high if cached else 0
    top: HistorySummary | None = None
    before = b""
    for _ in range(PAGES_PER_POLL):
        page = await run.frontend.history_page(run.execution, min(PAGE, max(run.length - high, 1)), before)
        before = page.next_page_token
        new = summarize((event for event in page.history.events[::-1] if event.event_id > high), wanted)
        top = join(new, top) if new and top else (new or top)
        if cached is None or not before or top is None or top.low == high + 1:
            break
    if cached and (top is None or top.low == high + 1):
        return replace(cached, summary=join(cached.summary, top) if top else cached.summary)
    if top is None:
        raise EngineUnavailable(f"{run.frontend.place}: it gave no history", silent=False)
    return CachedHistory(summary=top, before=before)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """The result of one query, and the length of the history at that time."""

    at: float  # seconds on the event loop's clock
    length: int  # of the history
    waits: bool | None = None  # None: unknown
    value: JSON = None  # if known
    problem: str | None = None  # the reason why nothing is known
    needs_worker: bool = False  # no worker answered


class GateQueries:
    """The queries of the gates of one namespace, and their latest results."""

    def __init__(self) -> None:
        self._results = Latest[tuple[tuple[str, str], str, str], QueryResult](REMEMBERED)

    async def ask(self, run: Run, rules: Sequence[Rule], *, fresh: bool) -> Mapping[str, QueryResult]:
        """Return the results by gate.

        A query is sent when the last result is 5 s old, the history has grown, or `fresh` is set. The first query shows
        whether a worker answers: if not, the others are skipped; if so, they are sent concurrently. An error is raised
        once all have ended, as cancelling a call harms the SDK's core.
        """
        keys = {rule.name: (run.ids, rule.name, rule.when.model_dump_json()) for rule in rules}
        results: dict[str, QueryResult] = {}
        for name, key in keys.items():
            last = self._results.get(key)
            if last and not fresh and last.length == run.length and anyio.current_time() - last.at < QUERY_EVERY:
                results[name] = last
        due = [rule for rule in rules if rule.name not in results]
        errors: list[RPCError] = []
        limit = anyio.Semaphore(QUERIES_AT_ONCE)

        async def send(rule: Rule) -> None:
            async with limit:
                try:
                    results[rule.name] = self._results[keys[rule.name]] = await _send(run, rule)
                except RPCError as error:
                    errors.append(error)

        if due:
            await send(due[0])
        if due and not errors and results[due[0].name].needs_worker:
            for rule in due[1:]:
                results[rule.name] = self._results[keys[rule.name]] = _unanswered(run, rule)
        elif not errors:
            async with anyio.create_task_group() as group:
                for rule in due[1:]:
                    group.start_soon(send, rule)
        if errors:
            raise errors[0]
        return results


async def _send(run: Run, rule: Rule) -> QueryResult:
    result = await ask(run, rule.when.query or "", rule.when.args)
    if result.needs_worker:
        return _unanswered(run, rule)
    return result if result.problem else replace(result, waits=is_same(result.value, rule.when.equals))


async def ask(run: Run, name: str, args: Sequence[JSON]) -> QueryResult:
    """Send a query once; return its result, or the reason why there is none."""
    unknown = QueryResult(at=anyio.current_time(), length=run.length)
    try:
        payload = await run.frontend.query(run.execution, name, args)
        value = await decode(run.frontend.converter(run.execution.workflow_id), payload) if payload else None
    except UndecodableError as error:
        return replace(unknown, problem=f"what the query {name} gives cannot be read here ({error})")
    except RPCError as error:
        if error.status in NO_WORKER:
            return replace(unknown, problem=f"no worker answers the query {name}", needs_worker=True)
        if error.status is RPCStatusCode.INVALID_ARGUMENT:
            return replace(unknown, problem=f"the query {name} failed: {one_line(error.message)}")
        raise
    return replace(unknown, value=value)


def _unanswered(run: Run, rule: Rule) -> QueryResult:
    problem = f"only a live worker on task queue {run.queue} can tell whether it waits (query {rule.when.query})"
    return QueryResult(at=anyio.current_time(), length=run.length, problem=problem, needs_worker=True)


def is_same(one: JSON, other: JSON) -> bool:
    """True if two JSON values are equal; unlike in Python, true is not 1."""
    first, second = (json.dumps(without_zero_fractions(value), sort_keys=True) for value in (one, other))
    return first == second
