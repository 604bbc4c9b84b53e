"""The ends of executions that nobody asks about, seen before their engines forget them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final

import anyio

from mcp_workflows.errors import EngineError
from mcp_workflows.store.leases import Leases
from mcp_workflows.store.protocol import Store
from mcp_workflows.task import Task

logger = logging.getLogger(__name__)

EVERY = timedelta(hours=12)  # engines keep what has ended for a day at least
YOUNG = timedelta(hours=6)  # younger ones are seen in the next round
PACE = 1.0  # seconds from one look to the next: it is nobody's hurry
_PAGE = 100  # rows
_ROUND: Final = "keep"  # the name of the lease


class Keeping:
    """One slow round over all tasks that have not ended, twice a day, by one of all replicas that share the store."""

    def __init__(
        self, store: Store, leases: Leases, look: Callable[[Task], Awaitable[Task]], clock: Callable[[], datetime]
    ) -> None:
        self._store = store
        self._leases = leases
        self._look = look
        self._clock = clock
        self._next: datetime | None = None

    async def round(self) -> None:
        """Look at each, if it is time for that and nobody else does; an engine without an answer is left out."""
        now = self._clock()
        if self._next is not None and timedelta() < self._next - now <= EVERY:  # longer: the clock was set back
            return
        if not await self._leases.holds(_ROUND, EVERY):
            return
        self._next = now + EVERY
        silent: set[str] = set()
        async for task in self._working(now):
            if task.engine in silent or task.handle is None or task.expired(now):
                continue
            try:
                await self._look(task)
            except EngineError as error:
                silent.add(task.engine)
                logger.info("whether tasks on engine %r have ended is asked later: %s", task.engine, error)
            await anyio.sleep(PACE)

    async def _working(self, now: datetime) -> AsyncIterator[Task]:
        before = now - YOUNG
        while page := await self._store.everyones(limit=_PAGE, before=before):
            for task in page:
                yield task
            before = page[-1].created
