"""Gates that ask the workflow by a query: what it said, asked again only when it may say something else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import anyio
from temporalio.service import RPCError, RPCStatusCode

from mcp_workflows.adapter import JSON
from mcp_workflows_temporal.gate_calls import Run, query
from mcp_workflows_temporal.gate_rules import Rule
from mcp_workflows_temporal.payloads import UndecodableError, decode

QUERY_EVERY = 5.0  # seconds, while nothing happens in the history
QUERIES_AT_ONCE = 5  # of one execution
REMEMBERED = 1000
LONGEST_TEXT = 200  # characters of Temporal's own words

NO_WORKER = frozenset(
    {
        RPCStatusCode.CANCELLED,  # how the SDK says that its own time-out passed
        RPCStatusCode.DEADLINE_EXCEEDED,
        RPCStatusCode.FAILED_PRECONDITION,  # it has not begun, or its workflow task fails
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """What a query said, and what there was then."""

    at: float  # when it was tried, seconds of the event loop's clock
    length: int  # of the history
    waits: bool | None = None  # None: not known
    value: JSON = None  # what it gave, if that is known
    problem: str | None = None  # why the last try told nothing
    needs_worker: bool = False  # no worker answered


class Polls:
    """The queries of the gates of one namespace."""

    def __init__(self) -> None:
        self._polled: dict[tuple[tuple[str, str], str, str], Polled] = {}

    async def ask(self, run: Run, rules: Sequence[Rule], *, fresh: bool) -> Mapping[str, Polled]:
        """Return by gate whether the workflow waits.

        A query is sent when time has passed, the history has grown, or it must be certain. The first one shows whether
        a worker answers; without one the others are not sent, with one they are sent at the same time.
        """
        polled = {rule.name: last for rule in rules if (last := self._recent(run, rule, fresh=fresh))}
        due = [rule for rule in rules if rule.name not in polled]
        if not due:
            return polled
        first = polled[due[0].name] = await self._asked(run, due[0])
        if first.needs_worker:
            return {**polled, **{rule.name: self._keep(run, rule, _unanswered(run, rule)) for rule in due[1:]}}
        return {**polled, **await self._asked_together(run, due[1:])}

    async def _asked_together(self, run: Run, rules: Sequence[Rule]) -> Mapping[str, Polled]:
        """An error is raised when all have ended: a call that is cancelled harms the SDK's core."""
        told: dict[str, Polled] = {}
        errors: list[RPCError] = []
        turns = anyio.Semaphore(QUERIES_AT_ONCE)

        async def ask(rule: Rule) -> None:
            async with turns:
                try:
                    told[rule.name] = await self._asked(run, rule)
                except RPCError as error:
                    errors.append(error)

        async with anyio.create_task_group() as group:
            for rule in rules:
                group.start_soon(ask, rule)
        if errors:
            raise errors[0]
        return told

    def _recent(self, run: Run, rule: Rule, *, fresh: bool) -> Polled | None:
        last = self._polled.get(_place(run, rule))
        if last is None or fresh or last.length != run.length or anyio.current_time() - last.at >= QUERY_EVERY:
            return None
        return last

    async def _asked(self, run: Run, rule: Rule) -> Polled:
        return self._keep(run, rule, await _ask(run, rule))

    def _keep(self, run: Run, rule: Rule, polled: Polled) -> Polled:
        place = _place(run, rule)
        self._polled.pop(place, None)  # to the end: what was not asked for longest goes first
        self._polled[place] = polled
        if len(self._polled) > REMEMBERED:
            self._polled.pop(next(iter(self._polled)))
        return polled


def _place(run: Run, rule: Rule) -> tuple[tuple[str, str], str, str]:
    return run.place, rule.name, rule.when.model_dump_json()


async def _ask(run: Run, rule: Rule) -> Polled:
    name, unknown = rule.when.query or "", Polled(at=anyio.current_time(), length=run.length)
    try:
        payload = await query(run, name, rule.when.args)
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
    return replace(unknown, waits=same(value, rule.when.equals), value=value)


def _unanswered(run: Run, rule: Rule) -> Polled:
    problem = f"only a live worker on task queue {run.queue} can tell whether it waits (query {rule.when.query})"
    return Polled(at=anyio.current_time(), length=run.length, problem=problem, needs_worker=True)


def same(one: JSON, other: JSON) -> bool:
    """Whether two JSON values are equal: true is not 1, as it is in Python."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        left, right = cast("Mapping[str, JSON]", one), cast("Mapping[str, JSON]", other)
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
    if isinstance(one, list) and isinstance(other, list):
        first, second = cast("Sequence[JSON]", one), cast("Sequence[JSON]", other)
        return len(first) == len(second) and all(same(*pair) for pair in zip(first, second, strict=True))
    return bool(one == other)
