"""What is done for tasks that nobody asks about.

Starts are healed, cancellations delivered, what does not end in its grace is terminated, ends are seen before engines
forget them, and what has expired is let go of.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import EngineError, WorkflowsError
from mcp_workflows.store.leases import Leases
from mcp_workflows.store.protocol import ChecksIntegrity, Store, changed
from mcp_workflows.task import Task, postpone, set_back
from mcp_workflows.tasks.cancel import Cancellation

EVERY = timedelta(hours=12)  # engines keep what has ended for a day at least
YOUNG = timedelta(hours=6)  # younger ones are seen in the next round
PACE = 1.0  # seconds from one look to the next: it is nobody's hurry
_PAGE = 100  # rows
_ROUND: Final = "keep"  # the name of the lease


class RetentionScan:
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


logger = logging.getLogger(__name__)

HEAL_AFTER = timedelta(seconds=5)  # older rows without a handle are nobody's work in hand any more
HEAL_EVERY = 5.0  # seconds
HEAL_BATCH = 100  # rows of one engine
HEAL_AT_ONCE = 8  # starts at one engine: each writes the row, and many at once would hold up all requests
SWEEP_EVERY = 5.0  # seconds
SWEEP_LEASE = timedelta(seconds=20)  # who sweeps goes on doing so
KEEP_EVERY = 60.0  # seconds until it is asked again whether it is time
CLOCK_EVERY = 5.0  # seconds
INTEGRITY_EVERY = 60.0  # seconds until the store is asked again; it knows when it is time
JUMP = 5.0  # seconds between the wall clock and the uptime since the last look: somebody has set the clock
LONGEST_DISTRUST = 3600.0  # seconds: a clock that stays set for so long is believed
SCANNED = 100  # rows at once
ATTEND_EVERY = 1.0  # seconds
ATTEND_BATCH = 100  # rows of one engine
ATTEND_AT_ONCE = 8  # calls to one engine
_SWEEP: Final = "sweep"  # names of leases
_ATTEND: Final = "attend "

Look = Callable[[Task], Awaitable[Task]]


def uptime() -> float:
    """Seconds that pass evenly, whatever is done to the wall clock; on Linux also while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Jump:
    """The wall clock was set: by how much it is ahead of the uptime since, and when that was seen, in uptime."""

    ahead: float
    since: float


class ClockCheck:
    """Whether the wall clock can be believed: it passes as the uptime does.

    A clock that was set is not believed for as long as it was moved, up to an hour; at once if it is set back to where
    it was. A clock that was wrong already when the process started cannot be told from a right one.
    """

    def __init__(self, clock: Callable[[], datetime], uptime: Callable[[], float] = uptime) -> None:
        self._clock = clock
        self._uptime = uptime
        self._believed = self.ahead()
        self._jump: _Jump | None = None

    def ahead(self) -> float:
        """Seconds from the uptime to the wall clock."""
        return self._clock().timestamp() - self._uptime()

    def is_steady(self) -> bool:
        """Whether it can be believed now; a line in the log says when that changes."""
        ahead, now = self.ahead(), self._uptime()
        moved = ahead - self._believed
        if abs(moved) > JUMP:
            if self._jump is None or abs(ahead - self._jump.ahead) > JUMP:
                self._jump = _Jump(ahead=ahead, since=now)
                logger.warning(
                    "the clock was set %s by %s: nothing expires and nothing is terminated for %s, unless it is set "
                    "back before",
                    "forward" if moved > 0 else "back",
                    timedelta(seconds=round(abs(moved))),
                    timedelta(seconds=round(min(abs(moved), LONGEST_DISTRUST))),
                )
            if now - self._jump.since < min(abs(moved), LONGEST_DISTRUST):
                return False
        if self._jump is not None:
            logger.info("the clock has gone on evenly, or is right again: tasks expire as usual")
        self._believed, self._jump = ahead, None
        return True


class Maintenance:
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
        cancellation: Cancellation,
        retention: timedelta,
        clock: Callable[[], datetime],
        clock_check: ClockCheck,
    ) -> None:
        self._store = store
        self._engines = engines
        self._heal = heal
        self._look = look
        self._cancellation = cancellation
        self._retention = retention
        self._clock = clock
        self._leases = Leases(store, clock)
        self._retention_scan = RetentionScan(store, self._leases, heal, clock)
        self._clock_check = clock_check
        self._ahead = float("inf")  # of the uptime, when it was looked at last whether the clock was set back
        self._attended: set[str] = set()  # engines whose turn goes on

    async def run(self) -> None:
        """Do all of it, each at its own pace; for ever."""
        async with anyio.create_task_group() as group:
            group.start_soon(_repeat, self._heal_all, HEAL_EVERY)
            group.start_soon(_repeat, self._sweep, SWEEP_EVERY)
            group.start_soon(_repeat, self._retention_scan.round, KEEP_EVERY)
            group.start_soon(_repeat, partial(self._attend_all, group), ATTEND_EVERY)
            group.start_soon(_repeat, self._notice_set_back, CLOCK_EVERY)
            if isinstance(self._store, ChecksIntegrity):
                group.start_soon(_repeat, self._store.check_integrity, INTEGRITY_EVERY)

    async def _sweep(self) -> None:
        """Sweep, if no other process does and the clock was not just set. Two sweeps at once do no harm."""
        if self._clock_check.is_steady() and await self._leases.holds(_SWEEP, SWEEP_LEASE):
            now = self._clock()
            await self._store.sweep(now, now - self._retention)

    # --- a clock that was set back

    async def _notice_set_back(self) -> None:
        """At the start, as nobody knows what the clock was before, and whenever it was set back since."""
        ahead = self._clock_check.ahead()
        if ahead < self._ahead - JUMP:
            await self._set_back()
        self._ahead = ahead

    async def _set_back(self) -> None:
        """Go through all that works: a cancellation must not wait until it is as late as it was."""
        before: datetime | None = None
        while page := await self._store.everyones(limit=SCANNED, before=before):
            now = self._clock()
            for task in page:
                if set_back(task, now) is not task:
                    await changed(self._store, task, lambda row: set_back(row, self._clock()))
            if len(page) < SCANNED:
                return
            oldest = page[-1].created  # the next page may have more rows of this moment
            before = oldest if page[0].created == oldest else oldest + timedelta.resolution
            await checkpoint()

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
        turns, steady = anyio.Semaphore(ATTEND_AT_ONCE), self._clock_check.is_steady()
        async with anyio.create_task_group() as group:
            for row in await self._store.due(engine, self._clock(), ATTEND_BATCH):
                if not (steady or _is_wanted(row)):
                    continue  # termination and expiry cannot be undone, and the clock was just set
                await turns.acquire()
                group.start_soon(self._attend_one, row, turns)

    async def _attend_one(self, task: Task, turn: anyio.Semaphore) -> None:
        """What does not work is put off, so that it keeps no other waiting; it must never end the server."""
        try:
            await self._cancellation.attend(task, self._look)
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


def _is_wanted(task: Task) -> bool:
    """Whether what is due for it was asked for, whatever the time is: its cancellation is to be delivered."""
    return task.cancel_requested is not None and not task.cancel_delivered


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
