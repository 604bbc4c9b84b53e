"""Looking for the execution of a row that may have been started: what `StartGuarantee.FINDABLE` needs of the core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import anyio

from mcp_workflows.adapter import Adapter, Finds, Start, StartGuarantee, is_fleeting
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import EngineError, EngineUnavailable, StartConflict
from mcp_workflows.task import Task, is_ahead

FIND_EVERY = 3.0  # seconds: no task's execution is looked for more often than that by one process
LOOK_BACK = timedelta(days=1)  # for the execution of a row that a clock has dated which was ahead
NOT_KNOWN = "not known yet whether it was started"


def not_known(why: str | None = None, *, throttled: bool = True) -> EngineUnavailable:
    """Whether it was started; `throttled` as long as the engine answers: then who waits for it waits on."""
    return EngineUnavailable(f"{NOT_KNOWN}: {why}" if why else NOT_KNOWN, throttled=throttled)


def order_of(task: Task) -> Start:
    """What an adapter is told to start, or to look for."""
    return Start(
        workflow=task.workflow,
        arguments=task.arguments,
        key=task.key,
        created=task.created,
        options=task.options,
        context=task.context,
    )


def promised(adapter: Adapter | None, row: Task) -> StartGuarantee:
    """What is known about starting this row twice; who says FINDABLE and cannot find knows no more than ONCE."""
    if adapter is None:
        return StartGuarantee.KEYED  # nothing is started as long as its engine is not there
    if is_fleeting(adapter, row.options):
        return StartGuarantee.ONCE
    if adapter.starts is StartGuarantee.FINDABLE and not isinstance(adapter, Finds):
        return StartGuarantee.ONCE
    return adapter.starts


def check_not_late(adapter: Adapter, row: Task, now: datetime) -> None:
    """Others count on an attempt being over when it has settled: one that was held up is not made any more.

    Raises:
        EngineUnavailable: it was; the next look decides.
    """
    if promised(adapter, row) is not StartGuarantee.FINDABLE or not isinstance(adapter, Finds):
        return
    if now - (row.attempted or row.created) > max(adapter.settling / 2, timedelta(seconds=1)):
        raise not_known("this process was held up")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vain:
    """A search that told nothing, and why."""

    at: float  # of the event loop's clock
    error: EngineUnavailable


class Searching:
    """Where the engines can be searched; at most once in `FIND_EVERY` seconds for each task, but for its own starts."""

    def __init__(self, engines: Engines, clock: Callable[[], datetime]) -> None:
        self._engines = engines
        self._clock = clock
        self._vain: dict[str, _Vain] = {}  # of the last few seconds, by task id

    def settled(self, row: Task, at: datetime) -> bool:
        """Whether a search that began then sees all attempts there were."""
        adapter = self._engines.get(row.engine)
        return isinstance(adapter, Finds) and at >= (row.attempted or row.created) + adapter.settling

    async def find(self, row: Task) -> str | None:
        """The handle of its execution, if one is seen.

        Raises:
            StartConflict: its key is another's.
            EngineUnavailable: it cannot be told, for whatever reason: what was started may be there all the same.
        """
        try:
            async with self._engines.calling(row.engine, api="find") as adapter:
                if isinstance(adapter, Finds):
                    return await adapter.find(self._sought(row))
                raise not_known("its adapter cannot look for it any more")
        except StartConflict:
            raise
        except EngineError as error:
            throttled = isinstance(error, EngineUnavailable) and error.throttled
            raise not_known(str(error), throttled=throttled) from None

    def _sought(self, row: Task) -> Start:
        """Return the order to search for; a creation time ahead of the clock is replaced by `LOOK_BACK` ago."""
        order, now = order_of(row), self._clock()
        return replace(order, created=now - LOOK_BACK) if is_ahead(order.created, now) else order

    def check_not_too_often(self, row: Task) -> None:
        """Raise what came of the last search again, if that was just now."""
        now = anyio.current_time()
        self._vain = {name: each for name, each in self._vain.items() if now - each.at < FIND_EVERY}
        if last := self._vain.get(row.id):
            raise EngineUnavailable(str(last.error), throttled=last.error.throttled)

    def note_vain(self, row: Task, error: EngineUnavailable) -> None:
        """It told nothing."""
        self._vain[row.id] = _Vain(at=anyio.current_time(), error=error)
