"""Gates that ask the workflow by a query: what it said, asked again only when it may say something else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import anyio
from temporalio.service import RPCError, RPCStatusCode

from mcp_workflows.adapter import JSON
from mcp_workflows_temporal.decode import UndecodableError, decode
from mcp_workflows_temporal.gate_calls import Run, query
from mcp_workflows_temporal.gates import Rule

QUERY_EVERY = 5.0  # seconds, while nothing happens in the history
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
    opening: int  # the event whose round it was asked about
    waits: bool | None = None  # None: not known
    value: JSON = None  # what it gave, if that is known
    problem: str | None = None  # why the last try told nothing


class Polls:
    """The queries of the gates of one namespace."""

    def __init__(self) -> None:
        self._polled: dict[tuple[tuple[str, str], str, str], Polled] = {}

    async def ask(self, run: Run, rule: Rule, opening: int, *, fresh: bool) -> Polled:
        """Whether the workflow waits; asked when time has passed, the history has grown, or it must be certain.

        If nobody can tell now, what was known of this round still holds.
        """
        place, now = (run.place, rule.name, rule.when.model_dump_json()), anyio.current_time()
        last = self._polled.get(place)
        if last and not fresh and last.length == run.length and now - last.at < QUERY_EVERY:
            return last
        polled = await _ask(run, rule, Polled(at=now, length=run.length, opening=opening))
        if polled.waits is None and last and last.opening == opening:
            polled = replace(polled, waits=last.waits)
        self._polled.pop(place, None)  # to the end: what was not asked for longest goes first
        self._polled[place] = polled
        if len(self._polled) > REMEMBERED:
            self._polled.pop(next(iter(self._polled)))
        return polled


async def _ask(run: Run, rule: Rule, unknown: Polled) -> Polled:
    name = rule.when.query or ""
    try:
        payload = await query(run, name, rule.when.args)
        value = await decode(run.frontend.converter(run.execution.workflow_id), payload) if payload else None
    except UndecodableError as error:
        return replace(unknown, problem=f"what the query {name} gives cannot be read here ({error})")
    except RPCError as error:
        if problem := _problem(error, run, name):
            return replace(unknown, problem=problem)
        raise
    return replace(unknown, waits=same(value, rule.when.equals), value=value)


def _problem(error: RPCError, run: Run, name: str) -> str | None:
    """What hides the answer of a query, if it is not Temporal itself."""
    if error.status in NO_WORKER:
        return f"only a live worker on task queue {run.queue} can tell whether it waits (query {name})"
    if error.status is RPCStatusCode.INVALID_ARGUMENT:
        return f"the query {name} failed: {error.message.partition(chr(10))[0][:LONGEST_TEXT]}"
    return None


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
