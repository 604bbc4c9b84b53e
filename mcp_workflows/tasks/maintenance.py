"""Background work on tasks without a request: starts, cancellations, termination, retention and expiry."""

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
from mcp_workflows.tasks.cancel import Cancellation, Look

logger = logging.getLogger(__name__)

EVERY = timedelta(hours=12)  # engines keep what has ended for a day at least
YOUNG = timedelta(hours=6)  # younger tasks are seen in the next round
PACE = 1.0  # seconds from one look to the next
_PAGE = 100  # rows
_ROUND: Final = "keep"  # before an engine's key in the name of its lease
HEAL_AFTER = timedelta(seconds=5)  # older rows without a handle belong to no call in progress
HEAL_EVERY = 5.0  # seconds
HEAL_BATCH = 100  # rows of one engine
HEAL_AT_ONCE = 8  # starts at one engine: each writes the row, and many at once would hold up all requests
SWEEP_EVERY = 5.0  # seconds
SWEEP_LEASE = timedelta(seconds=20)  # longer than the interval, so that one replica goes on sweeping
KEEP_EVERY = 60.0  # seconds between two checks for a due round
CLOCK_EVERY = 5.0  # seconds
INTEGRITY_EVERY = 60.0  # seconds between two requests; the store decides if a check is due
JUMP = 5.0  # seconds between the wall clock and the uptime that show that the clock was set
LONGEST_DISTRUST = 3600.0  # seconds after which a clock that stays set is trusted
SCANNED = 100  # rows at once
ATTEND_EVERY = 1.0  # seconds
ATTEND_BATCH = 100  # rows of one engine
ATTEND_AT_ONCE = 8  # calls to one engine
_SWEEP: Final = "sweep"  # names of leases
_ATTEND: Final = "attend "


class RetentionScan:
    """A slow round over all tasks that have not ended, twice a day, by one of the replicas that share the store.

    Engines forget executions some time after they end; the round sees each end before that.
    """

    def __init__(
        self, store: Store, engines: Engines, leases: Leases, look: Look, clock: Callable[[], datetime]
    ) -> None:
        self._store = store
        self._engines = engines
        self._leases = leases
        self._look = look
        self._clock = clock
        self._next: datetime | None = None

    async def round(self) -> None:
        """Look at each task, if it is time and no other replica does; an engine without an answer is skipped."""
        now = self._clock()
        if self._next is not None and timedelta() < self._next - now <= EVERY:  # longer: the clock was set back
            return
        held = [key for key in self._engines.keys if await self._leases.holds(f"{_ROUND} {key}", EVERY)]
        if not held:
            return
        self._next = now + EVERY
        silent: set[str] = set()
        async for task in self._working(now, held):
            if task.engine in silent or task.handle is None or task.expired(now):
                continue
            try:
                await self._look(task)
            except EngineError as error:
                silent.add(task.engine)
                logger.info("whether tasks on engine %r have ended is asked later: %s", task.engine, error)
            await anyio.sleep(PACE)

    async def _working(self, now: datetime, engines: Sequence[str]) -> AsyncIterator[Task]:
        for engine in engines:
            before = now - YOUNG
            while page := await self._store.list_all(engine=engine, limit=_PAGE, before=before):
                for task in page:
                    yield task
                before = page[-1].created


def uptime() -> float:
    """Return seconds that pass evenly, even if the wall clock is set; on Linux also while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Jump:
    """A jump of the wall clock: seconds ahead of the uptime, and the uptime when that was seen."""

    ahead: float
    since: float


class ClockCheck:
    """Compares the wall clock with the uptime to find out if it was set.

    A clock that was set is not trusted for as long as it was moved, up to an hour; it is trusted at once if it is set
    back to its earlier time. A clock that was wrong when the process started cannot be told from a right one.
    """

    def __init__(self, clock: Callable[[], datetime], uptime: Callable[[], float] = uptime) -> None:
        self._clock = clock
        self._uptime = uptime
        self._believed = self.ahead()
        self._jump: _Jump | None = None

    def ahead(self) -> float:
        """Return the seconds from the uptime to the wall clock."""
        return self._clock().timestamp() - self._uptime()

    def is_steady(self) -> bool:
        """Return True if the clock can be trusted now; changes are logged."""
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
    """The background work of one process. `heal` is one look at a task, `look` a fresh one.

    Replicas that share a store divide the work by leases, one replica at a time for each engine. All replicas heal
    starts: one key is one execution however many try, and a start must not wait for a replica that cannot reach the
    engine.
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
        self._retention_scan = RetentionScan(store, engines, self._leases, heal, clock)
        self._clock_check = clock_check
        self._ahead = float("inf")  # seconds from the uptime to the clock at the last check for a clock set back
        self._engines_in_progress: set[str] = set()

    async def run(self) -> None:
        """Run all background work, each part at its own interval, for ever."""
        async with anyio.create_task_group() as group:
            group.start_soon(_repeat, self._heal_all, HEAL_EVERY)
            group.start_soon(_repeat, self._sweep, SWEEP_EVERY)
            group.start_soon(_repeat, self._retention_scan.round, KEEP_EVERY)
            group.start_soon(_repeat, partial(self._attend_all, group), ATTEND_EVERY)
            group.start_soon(_repeat, self._notice_set_back, CLOCK_EVERY)
            if isinstance(self._store, ChecksIntegrity):
                group.start_soon(_repeat, self._store.check_integrity, INTEGRITY_EVERY)

    async def _sweep(self) -> None:
        """Delete expired rows, unless another process does or the clock was just set; twice at once does no harm."""
        if self._clock_check.is_steady() and await self._leases.holds(_SWEEP, SWEEP_LEASE):
            now = self._clock()
            await self._store.delete_expired(now, now - self._retention)

    # --- a clock that was set back

    async def _notice_set_back(self) -> None:
        """Check the rows at the start, when the earlier clock is unknown, and whenever the clock was set back since."""
        ahead = self._clock_check.ahead()
        if ahead < self._ahead - JUMP:
            await self._set_back()
        self._ahead = ahead

    async def _set_back(self) -> None:
        """Correct all tasks that have not ended, so that no cancellation waits as long as the clock was set back."""
        before: datetime | None = None
        while page := await self._store.list_all(limit=SCANNED, before=before):
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
            for key, engine in self._engines.keys.items():
                if rows := await self._store.unbound(key, before, HEAL_BATCH):
                    group.start_soon(self._heal_engine, engine, rows)

    async def _heal_engine(self, engine: str, rows: Sequence[Task]) -> None:
        """Start the tasks of one engine; if the engine is silent, the rest waits for the next round."""
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

    # --- due cancellations and terminations

    async def _attend_all(self, group: TaskGroup) -> None:
        """Work on each engine by itself, so that one without an answer delays no other."""
        for engine in self._engines.keys:
            if engine not in self._engines_in_progress and await self._store.due(engine, self._clock(), 1):
                self._engines_in_progress.add(engine)
                group.start_soon(self._attend_engine, engine)

    async def _attend_engine(self, engine: str) -> None:
        try:
            await _guarded(partial(self._leases.alone, f"{_ATTEND}{engine}", partial(self._attend_batch, engine)))
        finally:
            self._engines_in_progress.discard(engine)

    async def _attend_batch(self, engine: str) -> None:
        turns, steady = anyio.Semaphore(ATTEND_AT_ONCE), self._clock_check.is_steady()
        async with anyio.create_task_group() as group:
            for row in await self._store.due(engine, self._clock(), ATTEND_BATCH):
                if not (steady or _is_wanted(row)):
                    continue  # termination and expiry cannot be undone, and the clock was just set
                await turns.acquire()
                group.start_soon(self._attend_one, row, turns)

    async def _attend_one(self, task: Task, turn: anyio.Semaphore) -> None:
        """Do the due step of a task; postpone it after an error, so that it delays no other task."""
        try:
            chore = partial(self._cancellation.attend, task, self._look)
            done = await _guarded(chore, f"a {task.tool} task does not end yet, engine {task.engine!r}")
        finally:
            turn.release()
        if not done:
            await _guarded(partial(self._postpone, task))

    async def _postpone(self, task: Task) -> None:
        await changed(self._store, task, lambda row: postpone(row, self._clock()))


def _is_wanted(task: Task) -> bool:
    """Return True if the due step is a cancellation that a client asked for: it does not depend on the clock."""
    return task.cancel_requested is not None and not task.cancel_delivered


async def _repeat(chore: Callable[[], Awaitable[None]], every: float) -> None:
    while True:
        await _guarded(chore)
        await anyio.sleep(every)


async def _guarded(
    chore: Callable[[], Awaitable[None]], trouble: str = "housekeeping failed, will be tried again"
) -> bool:
    """Run a chore; return True if it worked. No error may end the server: see docs/decisions/0002."""
    try:
        await chore()
    except WorkflowsError as error:
        logger.warning("%s: %s", trouble, error)
    except Exception:  # work in the background must not end the server: docs/decisions/0002
        logger.exception("%s", trouble)
    else:
        return True
    return False
