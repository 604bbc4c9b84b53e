"""Durable starts that are safe to retry: store the row, record the attempt, start, then store the handle.

A crash between any two steps loses nothing. A row without a handle is recovered: it is started again with the same key,
or, if the engine does not dedupe by key, its execution is searched for first. A row that was returned to a client
before its start is certain is marked as acknowledged: if no attempt has started it, it is started later. Other rows are
deleted if nothing was started. See docs/decisions/0014.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from weakref import WeakValueDictionary

import anyio

from mcp_workflows.adapter import Adapter, ConnectsLate, Failure, Finds, Start, StartGuarantee
from mcp_workflows.engines.registry import REBIND, Engines
from mcp_workflows.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    EngineError,
    EngineRefused,
    EngineUnavailable,
    RequestError,
    StartConflict,
    StoreUnavailable,
)
from mcp_workflows.store.protocol import NO_CAPS, Caps, Store, changed
from mcp_workflows.task import (
    CLOCKS_DIFFER,
    CREATING,
    Task,
    acknowledge,
    attempt,
    bind,
    is_ahead,
    mark_outcome_unknown,
    refuse,
    release_key,
    retract,
)
from mcp_workflows.tasks.pauses import Pauses
from mcp_workflows.tools.prepare import Idempotency

logger = logging.getLogger(__name__)

FIND_EVERY = 3.0  # seconds between two searches by one process for a task's execution
LOOK_BACK = timedelta(days=1)  # for a search, if the row's creation time is in the future
NOT_KNOWN = "not known yet whether it was started"
NOT_STARTED = "NotStarted"  # kind of the failure when the engine refused the start
_GONE = "this task no longer exists: its start was given up, or it expired; call again"
OUTCOME_UNKNOWN = Failure(
    text="outcome unknown: it may have started, and will not be started again", kind="OutcomeUnknown"
)
_MESSAGE_UNKNOWN = "outcome unknown: it may have been sent, and will not be sent again"
NO_KEY = Idempotency()


def not_known(why: str | None = None, *, throttled: bool = True) -> EngineUnavailable:
    """Return the error for an unknown outcome; `throttled` while the engine answers, so that callers keep waiting."""
    return EngineUnavailable(f"{NOT_KNOWN}: {why}" if why else NOT_KNOWN, throttled=throttled)


def order_of(task: Task) -> Start:
    """Return the request to start or search for a task."""
    return Start(
        workflow=task.workflow,
        arguments=task.input,
        key=task.key,
        created=task.created,
        options=task.options,
        context=task.context,
        target=task.target,
        attempt=task.attempts or None,
    )


def promised(adapter: Adapter | None, row: Task) -> StartGuarantee:
    """Return the start guarantee of this row; FINDABLE without `Finds` counts as ONCE."""
    if adapter is None:
        return StartGuarantee.KEYED  # nothing is started while its engine is not configured
    promise = adapter.promise(row.options)
    return StartGuarantee.ONCE if promise is StartGuarantee.FINDABLE and not isinstance(adapter, Finds) else promise


def check_not_late(adapter: Adapter, row: Task, now: datetime) -> None:
    """Check that this attempt is not late, because others assume that it is over when it has settled.

    Raises:
        EngineUnavailable: it is late; the next poll decides.
    """
    settling = adapter.settling if isinstance(adapter, Finds) else timedelta.max
    if now - (row.attempted or row.created) > max(settling / 2, timedelta(seconds=1)):
        raise not_known("this process was held up")


@dataclass(frozen=True, slots=True, kw_only=True)
class _FailedSearch:
    """A search without an answer, and its error."""

    at: float  # on the event loop's clock
    error: EngineUnavailable


class ExecutionSearch:
    """Searches engines for executions, at most once in `FIND_EVERY` seconds per task, except during its own starts."""

    def __init__(self, engines: Engines, clock: Callable[[], datetime]) -> None:
        self._engines = engines
        self._clock = clock
        self._failed: dict[str, _FailedSearch] = {}  # in the last few seconds, by task id

    def settled(self, row: Task, at: datetime) -> bool:
        """Return True if a search that began at this time sees all earlier attempts."""
        adapter = self._engines.get(row.engine)
        return isinstance(adapter, Finds) and at >= (row.attempted or row.created) + adapter.settling

    async def find(self, row: Task) -> str | None:
        """Return the handle of the execution, or None if it is not found.

        Raises:
            StartConflict: the key belongs to another execution.
            EngineUnavailable: the search failed; an execution may still exist.
        """
        try:
            async with self._engines.calling(row, api="find") as adapter:
                if isinstance(adapter, Finds):
                    return await adapter.find(self._search_order(row))
                raise not_known("its adapter can no longer look for it")
        except StartConflict:
            raise
        except EngineError as error:
            throttled = isinstance(error, EngineUnavailable) and error.throttled
            raise not_known(str(error), throttled=throttled) from None

    def _search_order(self, row: Task) -> Start:
        """Return the request to search for; a creation time ahead of the clock becomes `LOOK_BACK` ago."""
        order, now = order_of(row), self._clock()
        return replace(order, created=now - LOOK_BACK) if is_ahead(order.created, now) else order

    def check_not_too_often(self, row: Task) -> None:
        """Raise the error of the last search again if that was a moment ago.

        Raises:
            EngineUnavailable: the last search failed less than `FIND_EVERY` seconds ago.
        """
        now = anyio.current_time()
        self._failed = {name: each for name, each in self._failed.items() if now - each.at < FIND_EVERY}
        if last := self._failed.get(row.id):
            raise EngineUnavailable(str(last.error), throttled=last.error.throttled)

    def note_failure(self, row: Task, error: EngineUnavailable) -> None:
        """Record a failed search."""
        self._failed[row.id] = _FailedSearch(at=anyio.current_time(), error=error)


class TaskCreation:
    """Creates rows and starts each execution once, with any number of callers and after any crash."""

    def __init__(
        self,
        store: Store,
        engines: Engines,
        clock: Callable[[], datetime],
        is_steady: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_steady` returns True if the clock can be trusted now, because it was not just set."""
        self._store = store
        self._engines = engines
        self._clock = clock
        self._is_steady = is_steady
        self._locks: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()
        self._search = ExecutionSearch(engines, clock)
        self.pauses = Pauses(store, clock)
        self._again: Mapping[StartGuarantee, Callable[[Task], Awaitable[Task]]] = {
            StartGuarantee.KEYED: self._restart_keyed,
            StartGuarantee.FINDABLE: self._recover_findable,
            StartGuarantee.ONCE: self._recover_once,
        }

    async def create(self, task: Task, caps: Caps = NO_CAPS, same: Idempotency = NO_KEY) -> Task:
        """Insert the row and start it, or return the existing task of this idempotency key.

        Raises:
            CapReached: a quota is reached; nothing was started.
            StoreUnavailable: the store accepts no writes; the message shows if the execution may have started anyway.
            RequestError: the key belongs to another call, or to an expired task.
            EngineRefused: nothing was started, and the key is free again; no row is left, unless another call has it.
            EngineUnavailable: the engine cannot be reached; otherwise as for EngineRefused.
        """
        while (row := await self._insert_and_start(task, caps, same)).id != task.id:
            if same.window is not None and not _covers(same.window, same.since, row, self._clock()):
                await changed(self._store, row, release_key)
                continue  # the first insertion opens the next window, for all replicas
            _check_same_call(row, task, self._clock())
            _check_same_engine(row, self._engines)
            if (begun := await self.resume(row)) is not None:
                return begun  # otherwise it was not started, and the key is free again
        return row

    async def resume(self, row: Task) -> Task | None:
        """Return the task of an earlier call, started if it was not; None: nothing was started, and it is given up.

        Raises:
            EngineRefused, EngineUnavailable: see `create`.
        """
        begun = await self._start_or_acknowledge(row, self.ensure_started)
        if begun is None or is_refused(begun):
            return None
        await self._store.sync()  # another replica may have stored the row without a sync
        self._engines.telemetry.count("duplicate_start_prevented", engine=row.engine, tool=row.tool)
        return begun

    async def _insert_and_start(self, task: Task, caps: Caps, same: Idempotency) -> Task:
        """Return the task, started, or the one that has its idempotency key; callers with the same key wait for it.

        If the engine dedupes by key, the row is flushed to disk while the engine starts it. If power fails meanwhile,
        no client knows the task yet, and a repeated call with its key finds the execution. Otherwise the row is on disk
        before the start.
        """
        row = task
        identity, adapter = self._engines.identity(task.engine), self._engines.get(task.engine)
        promise = promised(adapter, task)
        keyed = promise is StartGuarantee.KEYED and same.holds_at_engine
        late = promise is StartGuarantee.ONCE and isinstance(adapter, ConnectsLate)
        async with self._lock(task.id):
            with anyio.CancelScope(shield=True):
                if task.held is not None:
                    return await self._store.create(replace(task, identity=identity), caps)
                attempted = attempt(task, self._clock(), identity, is_sent=not late)
                row = await self._store.create(attempted, caps, durable=not keyed)
                if row.id == task.id:
                    start = (
                        self._start_beside_sync(row) if keyed else self._start_or_acknowledge(row, self._start_order)
                    )
                    if (begun := await start) is None:  # another call with this key was refused before the attempt
                        raise EngineUnavailable(_GONE, sent=False)
                    row = begun
        return row

    async def _start_beside_sync(self, row: Task) -> Task | None:
        """Start the row while a slow disk stores it. Its handle is stored, and so visible to others, after both.

        Raises:
            StoreUnavailable: the disk failed; the execution may still run.
        """
        if await self._sync(briefly=True):
            return await self._start_or_acknowledge(row, self._start_order)
        begun: Task | None = None
        failures: list[StoreUnavailable] = []
        synced = anyio.Event()

        async def sync() -> None:
            try:
                await self._sync()
            except StoreUnavailable as error:
                failures.append(error)
            finally:
                synced.set()

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(sync)
                begun = await self._start_or_acknowledge(row, partial(self._start_order, synced=synced))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        if failures:
            raise failures[0]
        return begun

    async def _sync(self, *, briefly: bool = False) -> bool:
        try:
            return await self._store.sync(briefly=briefly)
        except StoreUnavailable as error:
            raise StoreUnavailable(f"{error}; it may have started anyway") from None

    async def _start_or_acknowledge(self, row: Task, start: Callable[[Task], Awaitable[Task]]) -> Task | None:
        """Return the started row, or the acknowledged row if the outcome is unknown; None if it was deleted."""
        try:
            return await start(row)
        except EngineUnavailable as error:
            if not error.sent:
                raise
            return await self._store.change(row.id, row.owner, acknowledge)

    async def ensure_started(self, task: Task) -> Task:
        """Return the task with its handle; start or find it by its key if it has none. One call at a time per task.

        It is shielded, so a cancelled request does not leave a start half done. Each call in it has a time limit.

        Raises:
            EngineRefused, EngineUnavailable: see `create`.
        """
        row = task
        if not row.can_start:
            return row
        if (
            not row.attempts
            and row.target is None
            and (paused := await self.pauses.refusal(row.engine, row.tool, row.owner))
        ):
            raise EngineUnavailable(paused.message, throttled=True)  # for example, it was approved before the pause
        self._engines.check_identity(row)
        promise = promised(self._engines.get(row.engine), row)
        async with self._lock(task.id):
            with anyio.CancelScope(shield=True):
                row = await self._again[promise](row)
        return row

    async def _restart_keyed(self, task: Task) -> Task:
        """KEYED: start the task again with its key."""
        row = _live(await self._store.change(task.id, task.owner, self._attempt))
        return self._count_recovered(await self._start_order(row)) if row.can_start else row

    async def _recover_once(self, task: Task) -> Task:
        """ONCE: start the task if no attempt can have started it; otherwise close it with an unknown outcome.

        Raises:
            EngineUnavailable: an attempt is in progress, or may be, because the clock was just set.
        """
        row = _live(await self._store.get(task.id, task.owner))
        if not row.can_start:
            return row
        if not row.attempts:
            return self._count_recovered(await self._start_order(row))
        if not self._is_steady() or self._clock() < (row.attempted or row.created) + CREATING:
            raise not_known()
        return await self._close_as_unknown(row)

    async def _close_as_unknown(self, row: Task, why: str | None = None) -> Task:
        text = OUTCOME_UNKNOWN.text if row.target is None else _MESSAGE_UNKNOWN
        failure = replace(OUTCOME_UNKNOWN, text=f"{text} ({why})" if why else text)
        lost = await self._store.change(
            row.id, row.owner, lambda task: mark_outcome_unknown(task, failure, self._clock())
        )
        if lost is not None and lost.handle is None:
            self._engines.telemetry.count("start_unknown", engine=row.engine)
        return _live(lost)

    def _count_recovered(self, row: Task) -> Task:
        if row.handle is not None:
            self._engines.telemetry.count("start_recovered", engine=row.engine)
        return row

    def _attempt(self, row: Task) -> Task:
        return attempt(row, self._clock(), self._engines.identity(row.engine))

    def _lock(self, task_id: str) -> anyio.Lock:
        return self._locks.setdefault(task_id, anyio.Lock(fast_acquire=True))

    async def _start_order(self, row: Task, synced: anyio.Event | None = None) -> Task:
        """Start a row; record its attempt first, if there is none.

        If a crash loses the handle, the row is recovered by its key.

        `synced`: the end of the row's running sync; the handle is stored only after it.
        """
        promise = StartGuarantee.KEYED
        if not row.attempts:
            row = await self._first_attempt(row)
        try:
            async with self._engines.calling(row, api="start") as adapter:
                promise = promised(adapter, row)
                if promise is StartGuarantee.FINDABLE:
                    check_not_late(adapter, row, self._clock())
                if promise is StartGuarantee.ONCE and row.attempts > 1:
                    raise not_known()
                handle = await adapter.start(order_of(row))
        except EngineRefused as error:
            if not await self._drop(row, self._refusal(error)):
                raise EngineUnavailable(
                    f"refused for now ({error}), and an earlier attempt may have started it"
                ) from None
            raise
        except EngineUnavailable as error:
            if error.sent and promise is StartGuarantee.ONCE:
                return await self._close_as_unknown(row, str(error))
            if not error.sent and await self._drop(row, retract):
                raise
            raise EngineUnavailable(str(error), throttled=error.throttled) from None
        if promise is StartGuarantee.FINDABLE and row.attempts > 1:
            # an earlier attempt may have been very late, and the oldest execution counts
            handle = await self._find(row) or handle
        if synced is not None:
            await synced.wait()
        return await self._bind(row, handle, promise)

    async def _first_attempt(self, row: Task) -> Task:
        """Record the first attempt for an engine with ONCE, after the connection of an engine that connects late.

        Raises:
            EngineRefused: the engine refuses access; nothing was started.
            EngineUnavailable: it cannot be reached, or another replica starts the row.
        """
        if not isinstance(self._engines.get(row.engine), ConnectsLate):
            return await self._claim_attempt(row)
        try:
            async with self._engines.calling(row, api="check") as adapter:
                if isinstance(adapter, ConnectsLate):
                    await adapter.connect_engine()
        except EngineRefused as error:
            refusal = self._refusal(error)
            if await self._drop(row, lambda stored: stored if stored.attempts else refusal(stored)):
                raise
            raise EngineUnavailable(f"refused for now ({error}), and another attempt may have started it") from None
        except EngineUnavailable as error:
            if await self._drop(row, lambda stored: stored):  # no attempt was counted that could be taken back
                raise EngineUnavailable(str(error), sent=False, throttled=error.throttled) from None
            raise EngineUnavailable(str(error), throttled=error.throttled) from None
        return await self._claim_attempt(row)

    async def _bind(self, row: Task, handle: str, promise: StartGuarantee) -> Task:
        """Store the handle. If the row has another one by now, this execution is a duplicate, and a search cancels it.

        Raises:
            EngineUnavailable: the row no longer exists.
        """
        now, durable = self._clock(), promise is not StartGuarantee.KEYED
        bound = await self._store.change(row.id, row.owner, lambda task: bind(task, handle, now), durable=durable)
        if bound is None:
            raise EngineUnavailable(_GONE)  # a later call with this key has another row
        if promise is StartGuarantee.FINDABLE and bound.handle not in (None, handle):
            try:
                await self._find(row)
            except EngineError as error:
                logger.warning("engine %r may run a %s task twice: %s", row.engine, row.tool, error)
        return bound

    # --- FINDABLE

    async def _recover_findable(self, task: Task) -> Task:
        """FINDABLE: find the execution, or start it again once every earlier attempt would have been found.

        Raises:
            EngineUnavailable: not known yet. Nothing was stored, so searches postpone nothing.
        """
        row = _live(await self._store.get(task.id, task.owner))
        if not row.can_start:
            return row
        self._search.check_not_too_often(row)
        try:
            began = self._clock()
            if (handle := await self._find(row)) is not None:
                self._engines.telemetry.count("duplicate_start_prevented", engine=row.engine, tool=row.tool)
                return self._count_recovered(await self._bind(row, handle, StartGuarantee.FINDABLE))
            if not (self._is_steady() and self._search.settled(row, began)):
                raise not_known()
            return self._count_recovered(await self._start_order(await self._claim_attempt(row)))
        except EngineUnavailable as error:
            self._search.note_failure(row, error)
            raise

    async def _find(self, row: Task) -> str | None:
        """Search (`ExecutionSearch.find`), and close a row whose key belongs to another execution."""
        try:
            return await self._search.find(row)
        except StartConflict as conflict:
            closed = await self._store.change(row.id, row.owner, self._refusal(conflict))
            if closed is not None and is_refused(closed):
                raise
            raise not_known(str(conflict)) from None

    async def _claim_attempt(self, row: Task) -> Task:
        """Record one more attempt; if several replicas try, the store lets only one do so.

        Raises:
            EngineUnavailable: another replica is the one, or the row no longer exists.
        """
        ours = False

        def claim(found: Task) -> Task:
            nonlocal ours
            ours = (found.attempts, found.attempted) == (row.attempts, row.attempted)
            return self._attempt(found) if ours else found

        claimed = _live(await self._store.change(row.id, row.owner, claim))
        if not ours or claimed.attempts == row.attempts:
            raise not_known()
        return claimed

    def _refusal(self, error: EngineRefused) -> Callable[[Task], Task]:
        failure = Failure(text=str(error), kind=NOT_STARTED, code=INTERNAL_ERROR)
        return partial(refuse, failure=failure, at=self._clock(), final=error.final)

    async def _drop(self, task: Task, otherwise: Callable[[Task], Task]) -> bool:
        """Give up this process's attempt, which certainly started nothing; return True if the key is now free.

        A row that was not returned to a client is deleted, but only up to `CREATING / 2` before others may see it,
        because clocks differ.
        """

        def drop(row: Task) -> Task | None:
            is_ours = row.attempts == task.attempts and row.pending(self._clock() + CREATING / 2)
            return None if is_ours else otherwise(row)

        row = await self._store.change(task.id, task.owner, drop)
        return row is None or is_refused(row)


def _covers(window: timedelta, since: datetime | None, row: Task, now: datetime) -> bool:
    """Return True if a call keyed by its arguments belongs to that row, which opened the window.

    A call with several rounds of questions, the first at `since`, starts once. A row from the future, written before
    the clock was set back, covers its calls until it has ended.
    """
    if row.held is not None:
        return True  # the first request is still undecided
    if is_ahead(row.created, now):
        return not row.ended
    return now < row.created + window or (since is not None and row.created >= since - CLOCKS_DIFFER)


def is_refused(task: Task) -> bool:
    """Return True if its engine refused to start it."""
    failure = task.execution.failure
    return failure is not None and failure.kind == NOT_STARTED


def _live(row: Task | None) -> Task:
    """Return the row if it can still be started.

    Raises:
        EngineUnavailable: it no longer exists.
    """
    if row is None or row.tombstone:
        raise EngineUnavailable(_GONE)
    return row


def _check_same_engine(row: Task, engines: Engines) -> None:
    """Check that a key's row does not belong to another engine with the same name.

    Raises:
        RequestError: it does; nothing was started.
    """
    if engines.is_foreign(row):
        raise RequestError(
            INVALID_PARAMS,
            f"this idempotency key or an identical call was used on another engine named {row.engine}: nothing was "
            f"started. Use another key; if it is the same engine, the operator can confirm that: {REBIND}",
        )


def _check_same_call(row: Task, task: Task, now: datetime) -> None:
    if row.expired(now):
        raise RequestError(INVALID_PARAMS, "this idempotency key was used for a task that has expired: use a new one")
    if row.fingerprint != task.fingerprint:
        raise RequestError(
            INVALID_PARAMS, "this idempotency key was used for a call with other arguments: nothing was started"
        )
