"""The queries that decide gates, sent again only when the result may have changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import anyio
from temporalio.service import RPCError, RPCStatusCode

from mcp_workflows.adapter import JSON
from mcp_workflows_temporal.client import Run
from mcp_workflows_temporal.gate_rules import Rule
from mcp_workflows_temporal.payloads import UndecodableError, decode

QUERY_EVERY = 5.0  # seconds, while nothing happens in the history
QUERIES_AT_ONCE = 5  # of one execution
REMEMBERED = 1000
LONGEST_TEXT = 200  # characters of Temporal's own words

NO_WORKER = frozenset(
    {
        RPCStatusCode.CANCELLED,  # the SDK's error when its own time-out passes
        RPCStatusCode.DEADLINE_EXCEEDED,
        RPCStatusCode.FAILED_PRECONDITION,  # it has not begun, or its workflow task fails
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """The result of one query, and the length of the history at that time."""

    at: float  # seconds of the event loop's clock
    length: int  # of the history
    waits: bool | None = None  # None: not known
    value: JSON = None  # if it is known
    problem: str | None = None  # the reason why nothing is known
    needs_worker: bool = False  # no worker answered


class GateQueries:
    """The queries of the gates of one namespace, and their latest results."""

    def __init__(self) -> None:
        self._results: dict[tuple[tuple[str, str], str, str], QueryResult] = {}

    async def ask(self, run: Run, rules: Sequence[Rule], *, fresh: bool) -> Mapping[str, QueryResult]:
        """Return the results by gate.

        A query is sent when the last result is 5 s old, the history has grown, or `fresh` is set. The first query shows
        if a worker answers; without one the others are not sent, with one they are sent at the same time.
        """
        results = {rule.name: last for rule in rules if (last := self._recent(run, rule, fresh=fresh))}
        due = [rule for rule in rules if rule.name not in results]
        if not due:
            return results
        first = results[due[0].name] = await self._query(run, due[0])
        if first.needs_worker:
            return {**results, **{rule.name: self._keep(run, rule, _unanswered(run, rule)) for rule in due[1:]}}
        return {**results, **await self._query_together(run, due[1:])}

    async def _query_together(self, run: Run, rules: Sequence[Rule]) -> Mapping[str, QueryResult]:
        """Send the queries, and raise an error once all have ended: cancelling a call harms the SDK's core."""
        results: dict[str, QueryResult] = {}
        errors: list[RPCError] = []
        limit = anyio.Semaphore(QUERIES_AT_ONCE)

        async def ask(rule: Rule) -> None:
            async with limit:
                try:
                    results[rule.name] = await self._query(run, rule)
                except RPCError as error:
                    errors.append(error)

        async with anyio.create_task_group() as group:
            for rule in rules:
                group.start_soon(ask, rule)
        if errors:
            raise errors[0]
        return results

    def _recent(self, run: Run, rule: Rule, *, fresh: bool) -> QueryResult | None:
        last = self._results.get(_key(run, rule))
        if last is None or fresh or last.length != run.length or anyio.current_time() - last.at >= QUERY_EVERY:
            return None
        return last

    async def _query(self, run: Run, rule: Rule) -> QueryResult:
        return self._keep(run, rule, await _send(run, rule))

    def _keep(self, run: Run, rule: Rule, result: QueryResult) -> QueryResult:
        key = _key(run, rule)
        self._results.pop(key, None)  # to the end, so that the oldest one is dropped first
        self._results[key] = result
        if len(self._results) > REMEMBERED:
            self._results.pop(next(iter(self._results)))
        return result


def _key(run: Run, rule: Rule) -> tuple[tuple[str, str], str, str]:
    return run.ids, rule.name, rule.when.model_dump_json()


async def _send(run: Run, rule: Rule) -> QueryResult:
    name, unknown = rule.when.query or "", QueryResult(at=anyio.current_time(), length=run.length)
    try:
        payload = await run.frontend.query(run.execution, name, rule.when.args)
        value = await decode(run.frontend.converter(run.execution.workflow_id), payload) if payload else None
    except UndecodableError as error:
        return replace(unknown, problem=f"what the query {name} gives cannot be read here ({error})")
    except RPCError as error:
        if error.status in NO_WORKER:
            return _unanswered(run, rule)
        if error.status is RPCStatusCode.INVALID_ARGUMENT:
            problem = f"the query {name} failed: {error.message.partition(chr(10))[0][:LONGEST_TEXT]}"
            return replace(unknown, problem=problem)
        raise
    return replace(unknown, waits=is_same(value, rule.when.equals), value=value)


def _unanswered(run: Run, rule: Rule) -> QueryResult:
    problem = f"only a live worker on task queue {run.queue} can tell whether it waits (query {rule.when.query})"
    return QueryResult(at=anyio.current_time(), length=run.length, problem=problem, needs_worker=True)


def is_same(one: JSON, other: JSON) -> bool:
    """Return whether two JSON values are equal; unlike in Python, true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        left, right = cast("Mapping[str, JSON]", one), cast("Mapping[str, JSON]", other)
        return left.keys() == right.keys() and all(is_same(left[name], right[name]) for name in left)
    if isinstance(one, list) and isinstance(other, list):
        first, second = cast("Sequence[JSON]", one), cast("Sequence[JSON]", other)
        return len(first) == len(second) and all(is_same(*pair) for pair in zip(first, second, strict=True))
    return bool(one == other)
