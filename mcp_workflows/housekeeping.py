"""What is done for tasks that nobody asks about.

Starts are healed, cancellations delivered, what does not end in its grace is terminated, ends are seen before engines
forget them, and what has expired is let go of.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import anyio
from anyio.abc import TaskGroup

from mcp_workflows.cancelling import Cancelling
from mcp_workflows.engines import Engines
from mcp_workflows.errors import WorkflowsError
from mcp_workflows.keeping import Keeping
from mcp_workflows.leases import Leases
from mcp_workflows.store import Store, changed
from mcp_workflows.task import Task, postpone

logger = logging.getLogger(__name__)

HEAL_AFTER = timedelta(seconds=5)  # older rows without a handle are nobody's work in hand any more
HEAL_EVERY = 5.0  # seconds
HEAL_BATCH = 100  # rows of one engine
HEAL_AT_ONCE = 8  # starts at one engine: each writes the row, and many at once would hold up all requests
SWEEP_EVERY = 5.0  # seconds
SWEEP_LEASE = timedelta(seconds=20)  # who sweeps goes on doing so
KEEP_EVERY = 60.0  # seconds until it is asked again whether it is time
ATTEND_EVERY = 1.0  # seconds
ATTEND_BATCH = 100  # rows of one engine
ATTEND_AT_ONCE = 8  # calls to one engine
_SWEEP: Final = "sweep"  # names of leases
_ATTEND: Final = "attend "

Look = Callable[[Task], Awaitable[Task]]


class Housekeeping:
    """The chores of one process. `heal` is one look at a task, `look` a fresh one.

    Replicas that share a store share them out by leases, one replica at a time for each engine. But healing all do: one
    key is one execution however many try, and a start shall not wait for a replica that cannot reach the engine.
    """

    def __init__(
        self,
        *,
        store: Store,
        engines: Engines,
        heal: Look,
        look: Look,
        cancelling: Cancelling,
        retention: timedelta,
        clock: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._engines = engines
        self._heal = heal
        self._look = look
        self._cancelling = cancelling
        self._retention = retention
        self._clock = clock
        self._leases = Leases(store, clock)
        self._keeping = Keeping(store, self._leases, heal, clock)
        self._attended: set[str] = set()  # engines whose turn goes on

    async def run(self) -> None:
        """Do all of it, each at its own pace; for ever."""
        async with anyio.create_task_group() as group:
            group.start_soon(_repeat, self._heal_all, HEAL_EVERY)
            group.start_soon(_repeat, self._sweep, SWEEP_EVERY)
            group.start_soon(_repeat, self._keeping.round, KEEP_EVERY)
            group.start_soon(_repeat, partial(self._attend_all, group), ATTEND_EVERY)

    async def _sweep(self) -> None:
        """All there is, if nobody else does it; should two, no harm is done."""
        if await self._leases.holds(_SWEEP, SWEEP_LEASE):
            now = self._clock()
            await self._store.sweep(now, now - self._retention)

    # --- starts

    async def _heal_all(self) -> None:
        before = self._clock() - HEAL_AFTER
        async with anyio.create_task_group() as group:
            for engine in self._engines.names:
                if rows := await self._store.unbound(engine, before, HEAL_BATCH):
                    group.start_soon(self._heal_engine, engine, rows)

    async def _heal_engine(self, engine: str, rows: Sequence[Task]) -> None:
        """Start what can be; of an engine that is known to be silent, the rest waits for the next round."""
        turns = anyio.Semaphore(HEAL_AT_ONCE)
        async with anyio.create_task_group() as group:
            for row in rows:
                await turns.acquire()
                if silence := self._engines.silence(engine):
                    logger.warning("tasks are not started yet: engine %r: %s", engine, silence)
                    return
                group.start_soon(self._heal_one, row, turns)

    async def _heal_one(self, task: Task, turn: anyio.Semaphore) -> None:
        try:
            await self._heal(task)
        except WorkflowsError as error:
            logger.warning("a %s task is not started yet: engine %r: %s", task.tool, task.engine, error)
        finally:
            turn.release()

    # --- what is due

    async def _attend_all(self, group: TaskGroup) -> None:
        """Each engine by itself: one that gives no answer keeps no other waiting."""
        for engine in self._engines.names:
            if engine not in self._attended and await self._store.due(engine, self._clock(), 1):
                self._attended.add(engine)
                group.start_soon(self._attend_engine, engine)

    async def _attend_engine(self, engine: str) -> None:
        try:
            await _guarded(partial(self._leases.alone, f"{_ATTEND}{engine}", partial(self._attend_batch, engine)))
        finally:
            self._attended.discard(engine)

    async def _attend_batch(self, engine: str) -> None:
        turns = anyio.Semaphore(ATTEND_AT_ONCE)
        async with anyio.create_task_group() as group:
            for row in await self._store.due(engine, self._clock(), ATTEND_BATCH):
                await turns.acquire()
                group.start_soon(self._attend_one, row, turns)

    async def _attend_one(self, task: Task, turn: anyio.Semaphore) -> None:
        """What does not work is put off, so that it keeps no other waiting; it must never end the server."""
        try:
            await self._cancelling.attend(task, self._look)
            return
        except WorkflowsError as error:
            logger.warning("a %s task does not end yet, engine %r: %s", task.tool, task.engine, error)
        except Exception:  # see docs/decisions/0002
            logger.exception("the housekeeping of a %s task failed", task.tool)
        finally:
            turn.release()
        await _guarded(partial(self._postpone, task))

    async def _postpone(self, task: Task) -> None:
        await changed(self._store, task, lambda row: postpone(row, self._clock()))


async def _repeat(chore: Callable[[], Awaitable[None]], every: float) -> None:
    while True:
        await _guarded(chore)
        await anyio.sleep(every)


async def _guarded(chore: Callable[[], Awaitable[None]]) -> None:
    """What fails is tried again; it must never end the server: see docs/decisions/0002."""
    try:
        await chore()
    except WorkflowsError as error:
        logger.warning("housekeeping failed, will be tried again: %s", error)
    except Exception:
        logger.exception("housekeeping failed, will be tried again")
