"""Background work on tasks, outside requests: starts, cancellations, terminations, retention and expiry."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final, TypeAlias

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint
from pydantic import TypeAdapter, ValidationError

from mcp_workflows.adapter import JSON, TERMINAL
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import WorkflowsError
from mcp_workflows.store.leases import Leases
from mcp_workflows.store.protocol import ChecksIntegrity, Store, TaskFilter, changed
from mcp_workflows.task import Task, postpone, set_back, split_engine_key

logger = logging.getLogger(__name__)

EVERY = timedelta(hours=12)  # engines keep ended executions for at least a day
YOUNG = timedelta(hours=6)  # younger tasks wait for the next round
POLL_EVERY = 1.0  # seconds between polls of one engine in a round
RETRY_AFTER = timedelta(minutes=5)  # between attempts to poll tasks whose poll failed
RETENTION_PAGE = 20  # rows; a restart repeats no more polls than this
_MOST_FAILED = 1000  # tasks of one engine
_ROUND: Final = "keep"  # prefix of the lease names; the engine's key follows
_ROUNDS: Final = "(retention)"  # note space; keys are those of engines
_ROUND_KEPT = timedelta(days=30)
RECOVER_AFTER = timedelta(seconds=5)  # older rows without a handle belong to no running call
RECOVER_EVERY = 5.0  # seconds
RECOVER_BATCH = 100  # rows of one engine
RECOVER_AT_ONCE = 8  # starts at one engine: each writes the row, and too many would delay all requests
DELETE_EVERY = 5.0  # seconds
DELETE_LEASE = timedelta(seconds=20)  # longer than the interval, so that one replica keeps deleting
KEEP_EVERY = 60.0  # seconds between checks for a due round
CLOCK_EVERY = 5.0  # seconds
INTEGRITY_EVERY = 60.0  # seconds between requests; the store decides if a check is due
JUMP = 5.0  # seconds: a larger change between wall clock and uptime means that the clock was set
LONGEST_DISTRUST = 3600.0  # seconds after which the changed clock is trusted
SCANNED = 100  # rows at once
STEPS_EVERY = 1.0  # seconds
STEPS_BATCH = 100  # rows of one engine
STEPS_AT_ONCE = 8  # calls to one engine
_DELETE: Final = "delete_expired"  # lease names
_STEPS: Final = "attend "

Observe: TypeAlias = Callable[[Task], Awaitable[Task]]
"""Return the task after a poll of its engine; raise `EngineError` or `StoreError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRound:
    """The progress of a round over one engine's tasks, as stored."""

    began: datetime
    before: datetime | None = None  # continue with the tasks created before this
    is_walked: bool = False  # every task had its turn
    ended: datetime | None = None  # of the last complete round
    failed: Sequence[str] = ()  # ids of tasks whose poll failed, for a retry
    dropped: int = 0  # further ones, left for the next round
    again: datetime | None = None  # when the failed ones are retried

    @property
    def skipped(self) -> int:
        """The number of tasks whose poll failed."""
        return len(self.failed) + self.dropped


_KEPT_ROUND: Final = TypeAdapter(RetentionRound)


class RetentionScan:
    """A slow round over each engine's live tasks, twice a day.

    Engines forget executions some time after they end; the round observes each end before that. A task whose poll fails
    is skipped and retried minutes later. A silent engine is not polled; its round continues later at the same place.
    Replicas share the places, and only one at a time works on an engine.
    """

    def __init__(
        self,
        store: Store,
        leases: Leases,
        observe: Observe,
        clock: Callable[[], datetime],
        engines: Engines | None = None,
    ) -> None:
        """Keep the parts. Without `engines`, no engine counts as silent, and the store names the engines."""
        self._store = store
        self._leases = leases
        self._observe = observe
        self._clock = clock
        self._engines = engines

    async def round(self) -> None:
        """Observe the tasks of all engines until none remains for now."""
        busy = {""}
        while busy:
            busy = set[str]()
            if self._engines:
                keys = sorted(self._engines.keys)
            else:
                counts = await self._store.counts(self._clock())
                keys = sorted({each.engine for each in counts if each.status not in TERMINAL})
            async with anyio.create_task_group() as group:
                for engine in keys:
                    step = partial(self._step, engine, busy)
                    group.start_soon(_guarded, partial(self._leases.alone, f"{_ROUND} {engine}", step))

    async def _step(self, engine: str, busy: set[str]) -> None:
        """Observe the next page of an engine's tasks, or the failed ones; add it to `busy` if there are more."""
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
            is_silent = await self._observe_all(engine, found, failed) < len(found)
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
        """Observe the next page; return the round after it, and True if the engine is silent.

        Young tasks are left out. A task dated in the future was created before the clock was set back.
        """
        async for page in _pages(self._store, RETENTION_PAGE, engine=engine, before=known.before):
            wanted = [task for task in page if not timedelta() <= now - task.created < YOUNG]
            done = await self._observe_all(engine, wanted, failed)
            if done < len(wanted):
                return replace(known, before=wanted[done].created + timedelta.resolution), True
            last = page[-1].created
            is_young = timedelta() <= now - last < YOUNG
            return replace(known, before=now - YOUNG + timedelta.resolution if is_young else last), False
        if failed:
            name = split_engine_key(engine)[0]
            logger.warning("engine %r: %d tasks could not be observed in this round", name, len(failed))
        return replace(known, is_walked=True, ended=self._clock()), False

    async def _observe_all(self, engine: str, tasks: Sequence[Task], failed: dict[str, None]) -> int:
        """Observe these tasks until the engine is silent. Return how many had their turn; add to `failed`.

        The task whose poll reveals the silence has had its turn: it may be the cause.
        """
        for number, task in enumerate(tasks):
            if self._engines and self._engines.silence(split_engine_key(engine)[0]):
                return number
            failed.pop(task.id, None)
            if task.handle is None or task.ended or task.expired(self._clock()):
                continue
            trouble = f"a {task.tool} task on engine {task.engine!r} cannot be polled; retrying later"
            if not await _guarded(partial(self._observe, task), trouble):
                failed[task.id] = None
            await anyio.sleep(POLL_EVERY)
        return len(tasks)


async def retention_rounds(store: Store, engines: Engines | None = None) -> Mapping[str, RetentionRound]:
    """Return each engine's last round, shared by all replicas: by engine name, or by key without `engines`.

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
    except ValidationError:  # missing, or from another version: start a new round
        return None


async def _pages(
    store: Store, limit: int, *, engine: str | None = None, before: datetime | None = None
) -> AsyncGenerator[Sequence[Task]]:
    """Yield pages of live rows, newest first; rows with equal times are on one page."""
    size = limit
    while page := await store.list_all(TaskFilter(engine=engine, created_before=before), limit=size):
        if len(page) == size:
            page = [task for task in page if task.created > page[-1].created]
        if page:
            yield page
            size, before = limit, page[-1].created
            await checkpoint()
        else:
            size *= 2


def uptime() -> float:
    """Return the uptime in seconds, unaffected by clock changes; on Linux it also counts while suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Jump:
    """A jump of the wall clock: seconds ahead of the uptime, and the uptime when it was noticed."""

    ahead: float
    since: float


class ClockCheck:
    """Detects changes of the wall clock by comparing it with the uptime.

    A changed clock is not trusted for as long as it was moved, at most an hour; it is trusted at once if it is set back
    to its earlier time. A clock that was wrong when the process started is not detected.
    """

    def __init__(self, clock: Callable[[], datetime], uptime: Callable[[], float] = uptime) -> None:
        self._clock = clock
        self._uptime = uptime
        self._believed = self.ahead()
        self._jump: _Jump | None = None

    def trust(self) -> None:
        """Trust the current clock: it was corrected before anything relied on it."""
        self._believed = self.ahead()

    def ahead(self) -> float:
        """Return the seconds from the uptime to the wall clock."""
        return self._clock().timestamp() - self._uptime()

    def is_steady(self) -> bool:
        """Return True if the clock can be trusted now; log changes."""
        ahead, now = self.ahead(), self._uptime()
        moved = ahead - self._believed
        if abs(moved) > JUMP:
            if self._jump is None or abs(ahead - self._jump.ahead) > JUMP:
                self._jump = _Jump(ahead=ahead, since=now)
                logger.warning(
                    "the clock was set %s by %s: nothing expires or is terminated for %s, unless it is set back before "
                    "then",
                    "forward" if moved > 0 else "back",
                    timedelta(seconds=round(abs(moved))),
                    timedelta(seconds=round(min(abs(moved), LONGEST_DISTRUST))),
                )
            if now - self._jump.since < min(abs(moved), LONGEST_DISTRUST):
                return False
        if self._jump is not None:
            logger.info("the clock is steady or right again: tasks expire as usual")
        self._believed, self._jump = ahead, None
        return True


class Maintenance:
    """The background work of one process.

    Replicas that share a store divide the work by leases, one replica at a time per engine. All replicas recover
    starts: one key means one execution however many try, and a start must not wait for a replica that cannot reach the
    engine.
    """

    def __init__(
        self,
        *,
        store: Store,
        engines: Engines,
        observe: Observe,
        take_due_step: Callable[[Task], Awaitable[None]],
        retention: timedelta,
        clock: Callable[[], datetime],
        clock_check: ClockCheck,
    ) -> None:
        """Keep the parts. `observe` also starts an unstarted task; `take_due_step` cancels or terminates."""
        self._store = store
        self._engines = engines
        self._observe = observe
        self._take_due_step = take_due_step
        self._retention = retention
        self._clock = clock
        self._leases = Leases(store)
        self._retention_scan = RetentionScan(store, self._leases, observe, clock, engines)
        self._clock_check = clock_check
        self._ahead = float("inf")  # seconds from the uptime to the clock at the last check
        self._engines_in_progress: set[str] = set()

    async def run(self) -> None:
        """Run all background work, each part at its own interval, until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(_repeat, self._recover_starts, RECOVER_EVERY)
            group.start_soon(_repeat, self._delete_expired, DELETE_EVERY)
            group.start_soon(_repeat, self._retention_scan.round, KEEP_EVERY)
            group.start_soon(_repeat, partial(self._take_due_steps, group), STEPS_EVERY)
            group.start_soon(_repeat, self._notice_set_back, CLOCK_EVERY)
            if isinstance(self._store, ChecksIntegrity):
                group.start_soon(_repeat, self._store.check_integrity, INTEGRITY_EVERY)

    async def _delete_expired(self) -> None:
        """Delete expired rows, unless another process does or the clock was just set; doing it twice is harmless."""
        if self._clock_check.is_steady() and await self._leases.holds(_DELETE, DELETE_LEASE):
            now = self._clock()
            await self._store.delete_expired(now, now - self._retention)

    # --- clock changes

    async def _notice_set_back(self) -> None:
        """Correct the rows at the start, because the earlier clock is unknown, and whenever the clock was set back."""
        ahead = self._clock_check.ahead()
        if ahead < self._ahead - JUMP:
            await self._set_back()
        self._ahead = ahead

    async def _set_back(self) -> None:
        """Correct the times of all live tasks, so that no cancellation is delayed by a clock that was set back."""
        async for page in _pages(self._store, SCANNED):
            now = self._clock()
            for task in page:
                if set_back(task, now) is not task:
                    correct = partial(changed, self._store, task, lambda row: set_back(row, self._clock()))
                    await _guarded(correct, f"a {task.tool} task keeps times of the old clock")

    # --- starts

    async def _recover_starts(self) -> None:
        before = self._clock() - RECOVER_AFTER
        async with anyio.create_task_group() as group:
            for key, engine in self._engines.keys.items():
                if tasks := await self._store.unbound(key, before, RECOVER_BATCH):
                    group.start_soon(self._recover_engine, engine, tasks)

    async def _recover_engine(self, engine: str, tasks: Sequence[Task]) -> None:
        """Start the tasks of one engine; if the engine is silent, the rest waits for the next round."""
        turns = anyio.Semaphore(RECOVER_AT_ONCE)

        async def recover(task: Task) -> None:
            trouble = f"a {task.tool} task is not started yet: engine {engine!r}"
            try:
                await _guarded(partial(self._observe, task), trouble)
            finally:
                turns.release()

        async with anyio.create_task_group() as group:
            for task in tasks:
                await turns.acquire()
                if silence := self._engines.silence(engine):
                    logger.warning("tasks are not started yet: engine %r: %s", engine, silence)
                    return
                group.start_soon(recover, task)

    # --- due cancellations and terminations

    async def _take_due_steps(self, group: TaskGroup) -> None:
        """Work on each engine separately, so that a silent one delays no other."""

        async def work(engine: str) -> None:
            try:
                await _guarded(partial(self._leases.alone, f"{_STEPS}{engine}", partial(self._take_batch, engine)))
            finally:
                self._engines_in_progress.discard(engine)

        for engine in self._engines.keys:
            if engine not in self._engines_in_progress and await self._store.due(engine, self._clock(), 1):
                self._engines_in_progress.add(engine)
                group.start_soon(work, engine)

    async def _take_batch(self, engine: str) -> None:
        """Take the due steps of one engine; postpone a step after an error, so that it delays no other task."""
        turns, steady = anyio.Semaphore(STEPS_AT_ONCE), self._clock_check.is_steady()

        async def take(task: Task) -> None:
            try:
                step = partial(self._take_due_step, task)
                done = await _guarded(step, f"a {task.tool} task could not be ended yet, engine {task.engine!r}")
            finally:
                turns.release()
            if not done:
                await _guarded(partial(changed, self._store, task, lambda stored: postpone(stored, self._clock())))

        async with anyio.create_task_group() as group:
            for task in await self._store.due(engine, self._clock(), STEPS_BATCH):
                if not (steady or _is_wanted(task)):
                    continue  # termination and expiry cannot be undone, and the clock was just set
                await turns.acquire()
                group.start_soon(take, task)


def _is_wanted(task: Task) -> bool:
    """Return True if the due step is a cancellation that was requested: it does not depend on the clock."""
    return task.cancel_requested is not None and not task.cancel_delivered


async def _repeat(chore: Callable[[], Awaitable[None]], every: float) -> None:
    while True:
        await _guarded(chore)
        await anyio.sleep(every)


async def _guarded(
    chore: Callable[[], Awaitable[object]], trouble: str = "housekeeping failed and will be retried"
) -> bool:
    """Run a chore; return True if it succeeded. No error may end the server: see docs/decisions/0002."""
    try:
        await chore()
    except WorkflowsError as error:
        logger.warning("%s: %s", trouble, error)
    except Exception:  # work in the background must not end the server: docs/decisions/0002
        logger.exception("%s", trouble)
    else:
        return True
    return False
