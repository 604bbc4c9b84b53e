"""Background work on tasks without a request: starts, cancellations, termination, retention and expiry."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint
from pydantic import TypeAdapter, ValidationError

from mcp_workflows.adapter import JSON
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import WorkflowsError
from mcp_workflows.store.leases import Leases
from mcp_workflows.store.protocol import ChecksIntegrity, Store, changed
from mcp_workflows.task import Task, postpone, set_back, split_engine_key
from mcp_workflows.tasks.cancel import Cancellation, Look

logger = logging.getLogger(__name__)

EVERY = timedelta(hours=12)  # engines keep what has ended for a day at least
YOUNG = timedelta(hours=6)  # younger tasks are seen in the next round
PACE = 1.0  # seconds from one look to the next, at one engine
RETRY_AFTER = timedelta(minutes=5)  # from one try of the tasks whose look failed to the next
RETENTION_PAGE = 20  # rows; after a restart no more are looked at again
_MOST_FAILED = 1000  # tasks of one engine
_ROUND: Final = "keep"  # the name of the leases, before the key of the engine
_ROUNDS: Final = "(retention)"  # the space of the notes; keys are those of engines
_ROUND_KEPT = timedelta(days=30)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRound:
    """The progress of the round over one engine's tasks, as kept in the store."""

    began: datetime
    before: datetime | None = None  # the round goes on at the tasks created before this
    is_walked: bool = False  # every task had its turn
    ended: datetime | None = None  # of the last round in which every task had its turn
    failed: Sequence[str] = ()  # ids of tasks whose look failed, to be tried again
    dropped: int = 0  # further ones, which wait for the next round
    again: datetime | None = None  # when the failed ones are tried again

    @property
    def skipped(self) -> int:
        """The number of tasks whose look failed."""
        return len(self.failed) + self.dropped


_KEPT_ROUND: Final = TypeAdapter(RetentionRound)


class RetentionScan:
    """A slow round over all tasks of each engine that have not ended, twice a day.

    Engines forget executions some time after they end; the round sees each end before that. A task whose look fails is
    skipped alone and tried again in minutes. A silent engine is left alone, and its round goes on later at the same
    place. Replicas share the places, and one of them at a time works on an engine.
    """

    def __init__(
        self,
        store: Store,
        leases: Leases,
        look: Look,
        clock: Callable[[], datetime],
        engines: Engines | None = None,
    ) -> None:
        """`engines`: without them, no engine counts as silent, and the store names the engines."""
        self._store = store
        self._engines = engines
        self._leases = leases
        self._look = look
        self._clock = clock
        self._engines = engines

    async def round(self) -> None:
        """Look at the tasks of all engines, until there is none to look at now."""
        busy = {""}
        while busy:
            busy = set[str]()
            if self._engines:
                keys = sorted(self._engines.keys)
            else:
                keys = sorted({engine for _, engine in await self._store.live_counts(self._clock())})
            async with anyio.create_task_group() as group:
                for engine in keys:
                    step = partial(self._step, engine, busy)
                    group.start_soon(_guarded, partial(self._leases.alone, f"{_ROUND} {engine}", step))

    async def _step(self, engine: str, busy: set[str]) -> None:
        """Look at the next page of an engine's tasks, or at those that failed; note the engine if there are more."""
        now, known = self._clock(), _kept_round(await self._store.note(_ROUNDS, engine))
        if known is None:
            known = RetentionRound(began=now)
        elif known.is_walked and not timedelta() <= now - known.began < EVERY:  # or the clock was set back
            known = RetentionRound(began=now, ended=known.ended, failed=known.failed)
        failed = dict.fromkeys(known.failed)
        if not known.is_walked:
            known, is_silent = await self._walk(engine, known, failed, now)
        elif failed and not (known.again and timedelta() < known.again - now <= RETRY_AFTER):
            found = [task for name in known.failed for task in await self._store.find(name, 1)]
            failed = {task.id: None for task in found}
            is_silent = await self._look_at(engine, found, failed) < len(found)
        else:
            return
        dropped = list(failed)[_MOST_FAILED:]
        known = replace(
            known,
            failed=list(failed)[:_MOST_FAILED],
            dropped=known.dropped + len(dropped),
            again=self._clock() + RETRY_AFTER if known.is_walked and not is_silent else None,
        )
        value = _KEPT_ROUND.dump_python(known, mode="json")
        await self._store.put_note(_ROUNDS, engine, value, until=now + _ROUND_KEPT)
        if not (known.is_walked or is_silent):
            busy.add(engine)

    async def _walk(
        self, engine: str, known: RetentionRound, failed: dict[str, None], now: datetime
    ) -> tuple[RetentionRound, bool]:
        """Look at the next page; return the round after it, and True if the engine is silent.

        Young tasks are left out. Those of a later time than now were created before the clock was set back.
        """
        async for page in _pages(self._store, RETENTION_PAGE, engine=engine, before=known.before):
            wanted = [task for task in page if not timedelta() <= now - task.created < YOUNG]
            done = await self._look_at(engine, wanted, failed)
            if done < len(wanted):
                return replace(known, before=wanted[done].created + timedelta.resolution), True
            last = page[-1].created
            is_young = timedelta() <= now - last < YOUNG
            return replace(known, before=now - YOUNG + timedelta.resolution if is_young else last), False
        if failed:
            name = split_engine_key(engine)[0]
            logger.warning("engine %r: %d tasks could not be looked at in this round", name, len(failed))
        return replace(known, is_walked=True, ended=self._clock()), False

    async def _look_at(self, engine: str, tasks: Sequence[Task], failed: dict[str, None]) -> int:
        """Look at these tasks until the engine is silent; return how many had their turn, and note those that failed.

        The one whose look shows the silence has had its turn: it may be the cause.
        """
        for number, task in enumerate(tasks):
            if self._engines and self._engines.silence(split_engine_key(engine)[0]):
                return number
            failed.pop(task.id, None)
            if task.handle is None or task.ended or task.expired(self._clock()):
                continue
            trouble = f"whether a {task.tool} task on engine {task.engine!r} has ended is asked later"
            if not await _guarded(partial(self._look, task), trouble):
                failed[task.id] = None
            await anyio.sleep(PACE)
        return len(tasks)


async def retention_rounds(store: Store, engines: Engines | None = None) -> Mapping[str, RetentionRound]:
    """Return the last round of each engine as all replicas know it: by name, or by key if no engines are given.

    Raises:
        StoreError: it cannot be read.
    """
    notes = await store.notes_under(_ROUNDS, "")
    known = {key: found for key, note in notes.items() if (found := _kept_round(note))}
    if engines is None:
        return known
    keys = reversed(tuple(engines.keys.items()))  # the key without an identity counts only if there is no other
    return {name: known[key] for key, name in keys if key in known}


def _kept_round(note: JSON) -> RetentionRound | None:
    try:
        return _KEPT_ROUND.validate_python(note)
    except ValidationError:  # there is none, or it is another version's: the round begins anew
        return None


async def _pages(
    store: Store, limit: int, *, engine: str | None = None, before: datetime | None = None
) -> AsyncGenerator[Sequence[Task]]:
    """Yield the rows that have not ended, the youngest first; all rows of one moment are on one page."""
    size = limit
    while page := await store.list_all(engine=engine, limit=size, before=before):
        if len(page) == size:
            page = [task for task in page if task.created > page[-1].created]
        if page:
            yield page
            size, before = limit, page[-1].created
            await checkpoint()
        else:
            size *= 2


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
        self._retention_scan = RetentionScan(store, self._leases, heal, clock, engines)
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
        async for page in _pages(self._store, SCANNED):
            now = self._clock()
            for task in page:
                if set_back(task, now) is not task:
                    correct = partial(changed, self._store, task, lambda row: set_back(row, self._clock()))
                    await _guarded(correct, f"a {task.tool} task keeps the times of the clock before")

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
            await _guarded(partial(self._heal, task), f"a {task.tool} task is not started yet: engine {task.engine!r}")
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
    chore: Callable[[], Awaitable[object]], trouble: str = "housekeeping failed, will be tried again"
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
