"""Durable, retry-safe creation: the row first, its attempt noted, then the start, then the handle is bound.

A crash between any two loses nothing: a row without a handle is healed by starting again under the same key, or, where
the engine does not dedupe by key, by looking for its execution first. See docs/decisions/0014.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from weakref import WeakValueDictionary

import anyio

from mcp_workflows.adapter import JSON, Failure, StartGuarantee
from mcp_workflows.engines import Engines
from mcp_workflows.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    EngineError,
    EngineRefused,
    EngineUnavailable,
    RequestError,
    StartConflict,
)
from mcp_workflows.searching import Searching, check_not_late, not_known, order_of, promised
from mcp_workflows.store import NO_CAPS, Caps, Store, changed
from mcp_workflows.task import CLOCKS_DIFFER, Task, attempt, bind, lose, outgrow, refuse

logger = logging.getLogger(__name__)

NOT_STARTED = "NotStarted"  # the kind of failure of a row that was closed before anything was started
OUTCOME_UNKNOWN = Failure(
    text="outcome unknown: it may have been started, and is never started again", kind="OutcomeUnknown"
)


def digest(value: JSON) -> str:
    """A name for a JSON value: 32 hexadecimal characters, the same for the same value."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """For how long a key that is made of the arguments stands for the task that opened it."""

    length: timedelta
    since: datetime | None = None  # when the call's first question went out: whatever it started is younger

    def covers(self, row: Task, now: datetime) -> bool:
        """Whether this call is the one that row stands for; a call that went through questions starts once.

        A row whose time is ahead, as the clock was set back since, stands for it until it has ended.
        """
        if row.created > now + CLOCKS_DIFFER:
            return not row.ended
        if now < row.created + self.length:
            return True
        return self.since is not None and row.created >= self.since - CLOCKS_DIFFER


class Creation:
    """From a new row to a bound handle, once, however many ask and whatever dies in between."""

    def __init__(
        self,
        store: Store,
        engines: Engines,
        clock: Callable[[], datetime],
        is_steady: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_steady`: whether the clock can be believed now, or was just set."""
        self._store = store
        self._engines = engines
        self._clock = clock
        self._is_steady = is_steady
        self._locks: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()
        self._searching = Searching(engines, clock)

    async def create(self, task: Task, caps: Caps = NO_CAPS, *, window: Window | None = None) -> Task:
        """Insert the row and start it, or return the task that this idempotency key already stands for.

        Raises:
            CapReached: there may be no more; nothing was started.
            RequestError: the key stands for another call, or for a task that has expired.
            EngineRefused: nothing was started; the row is closed and the key is free again.
            EngineUnavailable: likewise: the engine cannot be reached.
        """
        task = attempt(task, self._clock())  # with its first start noted: one commit for both
        while (row := await self._inserted(task, caps)).id != task.id:
            if window is not None and not window.covers(row, self._clock()):
                await changed(self._store, row, outgrow)
                continue  # whoever inserts first now opens the next window, for all replicas
            _check_same_call(row, task, self._clock())
            row = await self._begun(row, self.started)
            if not _closed(row):
                self._engines.telemetry.prevented(row.engine, row.tool)
                return row  # or else the key is free again: it was closed while we waited
        return row

    async def _inserted(self, task: Task, caps: Caps) -> Task:
        """The task, started, or the one that has its idempotency key; whoever finds it meanwhile waits."""
        row = task
        async with self._lock(task.id):
            with anyio.CancelScope(shield=True):
                row = await self._store.create(task, caps)
                if row.id == task.id:
                    row = await self._begun(row, self._start)
        return row

    async def _begun(self, row: Task, start: Callable[[Task], Awaitable[Task]]) -> Task:
        """The row, started; or still starting, when nobody knows."""
        try:
            return await start(row)
        except EngineUnavailable as error:
            if not error.sent:
                raise
            return await self._store.get(row.id, row.owner) or row

    async def started(self, task: Task) -> Task:
        """The task with its handle, started or found under its key if it has none yet; single flight per task.

        Shielded: who asked may go away, but a start is not left half done; each call in it is bounded.

        Raises:
            EngineRefused, EngineUnavailable: see `create`.
        """
        row = task
        if row.handle is not None or row.ended:
            return row
        async with self._lock(task.id):
            with anyio.CancelScope(shield=True):
                row = await (self._sought if self._searching.possible(row) else self._restarted)(row)
        return row

    async def _restarted(self, task: Task) -> Task:
        """The task, started again under its key; not if that is not safe: see `_start`."""
        row = _live(await changed(self._store, task, lambda row: attempt(row, self._clock())))
        return row if row.handle is not None or row.ended else self._healed(await self._start(row))

    def _healed(self, row: Task) -> Task:
        if row.handle is not None:
            self._engines.telemetry.healed(row.engine)
        return row

    def _lock(self, task_id: str) -> anyio.Lock:
        return self._locks.setdefault(task_id, anyio.Lock())

    async def _start(self, row: Task) -> Task:
        """The row, whose attempt is noted, with its handle; a bind that a power cut undoes heals under the key."""
        try:
            async with self._engines.calling(row.engine, api="start") as adapter:
                promise = promised(adapter, row)
                check_not_late(adapter, row, self._clock())
                once = promise is StartGuarantee.ONCE and row.attempts > 1
                handle = None if once else await adapter.start(order_of(row))
        except EngineRefused as error:
            if not await self._close(row, str(error), final=error.final):
                raise EngineUnavailable(
                    f"refused for now ({error}), and an earlier attempt may have started it"
                ) from None
            raise
        except EngineUnavailable as error:
            if error.sent or not await self._close(row, "nothing was started"):
                raise EngineUnavailable(str(error), throttled=error.throttled) from None
            raise
        if handle is None:
            return await changed(self._store, row, lambda task: lose(task, OUTCOME_UNKNOWN, self._clock()))
        if promise is StartGuarantee.FINDABLE and row.attempts > 1:
            handle = await self._find(row) or handle  # an earlier attempt may have been very late: the oldest counts
        return await self._bind(row, handle, promise)

    async def _bind(self, row: Task, handle: str, promise: StartGuarantee) -> Task:
        """The row with its handle; if that is another one by now, ours is a duplicate: finding it cancels it."""
        now, durable = self._clock(), promise is not StartGuarantee.KEYED
        bound = await changed(self._store, row, lambda task: bind(task, handle, now), durable=durable)
        if promise is StartGuarantee.FINDABLE and bound.handle not in (None, handle):
            try:
                await self._find(row)
            except EngineError as error:
                logger.warning("engine %r may run a %s task twice: %s", row.engine, row.tool, error)
        return bound

    # --- FINDABLE

    async def _sought(self, task: Task) -> Task:
        """The task with its handle: found, or started again once no earlier attempt can have escaped notice.

        Raises:
            EngineUnavailable: not known yet; nothing was noted, so that looking puts nothing off.
        """
        row = _live(await self._store.get(task.id, task.owner))
        if row.handle is not None or row.ended:
            return row
        self._searching.check_not_too_often(row)
        try:
            began = self._clock()
            if (handle := await self._find(row)) is not None:
                self._engines.telemetry.prevented(row.engine, row.tool)
                return self._healed(await self._bind(row, handle, StartGuarantee.FINDABLE))
            if not (self._is_steady() and self._searching.settled(row, began)):
                raise not_known()
            return self._healed(await self._start(await self._claimed(row)))
        except EngineUnavailable as error:
            self._searching.note_vain(row, error)
            raise

    async def _find(self, row: Task) -> str | None:
        """See `Searching.find`; a row whose key is another's is closed."""
        try:
            return await self._searching.find(row)
        except StartConflict as conflict:
            if await self._close(row, str(conflict), final=True):
                raise
            raise not_known(str(conflict)) from None

    async def _claimed(self, row: Task) -> Task:
        """The row with one more attempt noted: of all replicas that looked, the store lets one have it.

        Raises:
            EngineUnavailable: another has it, or the row is gone.
        """
        ours = False

        def claim(found: Task) -> Task:
            nonlocal ours
            ours = found.attempts == row.attempts
            return attempt(found, self._clock()) if ours else found

        claimed = _live(await self._store.change(row.id, row.owner, claim))
        if not ours or claimed.attempts == row.attempts:
            raise not_known()
        return claimed

    async def _close(self, task: Task, reason: str, *, final: bool = False) -> bool:
        """Whether it is certain that nothing was started: then the row is closed and its key is free."""
        failure = Failure(text=reason, kind=NOT_STARTED, code=INTERNAL_ERROR)
        return _closed(await changed(self._store, task, lambda row: refuse(row, failure, self._clock(), final=final)))


def _closed(task: Task) -> bool:
    failure = task.execution.failure
    return failure is not None and failure.kind == NOT_STARTED


def _live(row: Task | None) -> Task:
    """The row, if it is still there to be started."""
    if row is None or row.tombstone:
        raise EngineUnavailable("it expired before it was known whether it was started")
    return row


def _check_same_call(row: Task, task: Task, now: datetime) -> None:
    if row.expired(now):
        raise RequestError(INVALID_PARAMS, "this idempotency key was used for a task that has expired: use a new one")
    if row.fingerprint != task.fingerprint:
        raise RequestError(
            INVALID_PARAMS, "this idempotency key was used for a call with other arguments: nothing was started"
        )
