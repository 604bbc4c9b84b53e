"""What is done for tasks that nobody asks about: starts are healed, and what has expired is let go of."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import anyio

from mcp_workflows.engines import Engines
from mcp_workflows.errors import WorkflowsError
from mcp_workflows.store import Store
from mcp_workflows.task import Task

logger = logging.getLogger(__name__)

HEAL_AFTER = timedelta(seconds=5)  # older rows without a handle are nobody's work in hand any more
HEAL_EVERY = 5.0  # seconds
HEAL_AT_ONCE = 100  # rows


class Housekeeping:
    """The chores of one process; replicas that share a store may all do them. `heal` is one look at a task."""

    def __init__(
        self,
        *,
        store: Store,
        engines: Engines,
        heal: Callable[[Task], Awaitable[Task]],
        retention: timedelta,
        clock: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._engines = engines
        self._heal = heal
        self._retention = retention
        self._clock = clock

    async def run(self) -> None:
        """Heal what was never known to be started, and let go of what has expired; for ever."""
        while True:
            for chore in (self._heal_all, self._sweep):
                await _guarded(chore)
            await anyio.sleep(HEAL_EVERY)

    async def _sweep(self) -> None:
        await self._store.sweep(self._clock(), self._clock() - self._retention)

    async def _heal_all(self) -> None:
        before = self._clock() - HEAL_AFTER
        async with anyio.create_task_group() as group:
            for engine in self._engines.names:
                for row in await self._store.unbound(engine, before, HEAL_AT_ONCE):
                    group.start_soon(self._heal_one, row)

    async def _heal_one(self, task: Task) -> None:
        try:
            await self._heal(task)
        except WorkflowsError as error:
            logger.warning("a %s task is not started yet: engine %r: %s", task.tool, task.engine, error)


async def _guarded(chore: Callable[[], Awaitable[None]]) -> None:
    """What fails is tried again; it must never end the server: see docs/decisions/0002."""
    try:
        await chore()
    except WorkflowsError as error:
        logger.warning("housekeeping failed, will be tried again: %s", error)
    except Exception:
        logger.exception("housekeeping failed, will be tried again")
