"""Durable, retry-safe creation: the row first, its attempt noted, then the start, then the handle is bound.

A crash between any two loses nothing: a row without a handle is healed by starting again under the same key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from datetime import datetime
from weakref import WeakValueDictionary

import anyio

from mcp_workflows.adapter import JSON, Adapter, Failure, Start, StartGuarantee
from mcp_workflows.capabilities import is_fleeting
from mcp_workflows.engines import Engines
from mcp_workflows.errors import INTERNAL_ERROR, INVALID_PARAMS, EngineRefused, EngineUnavailable, RequestError
from mcp_workflows.store import Store, changed
from mcp_workflows.task import Task, attempt, bind, lose, refuse

NOT_STARTED = "NotStarted"  # the kind of failure of a row that was closed before anything was started
OUTCOME_UNKNOWN = Failure(
    text="outcome unknown: it may have been started, and is never started again", kind="OutcomeUnknown"
)


def digest(value: JSON) -> str:
    """A name for a JSON value: 32 hexadecimal characters, the same for the same value."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]


class Creation:
    """From a new row to a bound handle, once, however many ask and whatever dies in between."""

    def __init__(self, store: Store, engines: Engines, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._engines = engines
        self._clock = clock
        self._locks: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    async def create(self, task: Task) -> Task:
        """Insert the row and start it, or return the task that this idempotency key already stands for.

        Raises:
            RequestError: the key stands for another call, or for a task that has expired.
            EngineRefused: nothing was started; the row is closed and the key is free again.
            EngineUnavailable: likewise: the engine cannot be reached.
        """
        task = attempt(task)  # with its first start noted: one commit for both
        while (row := await self._inserted(task)).id != task.id:
            _check_same_call(row, task, self._clock())
            row = await self._begun(row, self.started)
            if not _closed(row):
                return row  # or else the key is free again: it was closed while we waited
        return row

    async def _inserted(self, task: Task) -> Task:
        """The task, started, or the one that has its idempotency key; whoever finds it meanwhile waits."""
        row = task
        async with self._lock(task.id):
            with anyio.CancelScope(shield=True):
                row = await self._store.create(task)
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
        """The task with its handle, started under its key if it has none yet; single flight per task.

        Shielded: who asked may go away, but a start is not left half done; each call in it is bounded.

        Raises:
            EngineRefused, EngineUnavailable: see `create`.
        """
        row = task
        if row.handle is not None or row.ended:
            return row
        async with self._lock(task.id):
            with anyio.CancelScope(shield=True):
                row = await changed(self._store, task, attempt)
                if row.handle is None and not row.ended:
                    row = await self._start(row)
        return row

    def _lock(self, task_id: str) -> anyio.Lock:
        return self._locks.setdefault(task_id, anyio.Lock())

    async def _start(self, row: Task) -> Task:
        """The row, whose attempt is noted, with its handle; a bind that a power cut undoes heals under the key."""
        try:
            async with self._engines.calling(row.engine) as adapter:
                keyed = _keyed(adapter, row)
                handle = await adapter.start(_order(row)) if keyed or row.attempts == 1 else None
        except EngineRefused as error:
            if not await self._close(row, str(error), final=error.final):
                raise EngineUnavailable(
                    f"refused for now ({error}), and an earlier attempt may have started it"
                ) from None
            raise
        except EngineUnavailable as error:
            if error.sent or not await self._close(row, "nothing was started"):
                raise EngineUnavailable(str(error)) from None
            raise
        if handle is None:
            return await changed(self._store, row, lambda task: lose(task, OUTCOME_UNKNOWN, self._clock()))
        now = self._clock()
        return await changed(self._store, row, lambda task: bind(task, handle, now), durable=not keyed)

    async def _close(self, task: Task, reason: str, *, final: bool = False) -> bool:
        """Whether it is certain that nothing was started: then the row is closed and its key is free."""
        failure = Failure(text=reason, kind=NOT_STARTED, code=INTERNAL_ERROR)
        return _closed(await changed(self._store, task, lambda row: refuse(row, failure, self._clock(), final=final)))


def _closed(task: Task) -> bool:
    failure = task.execution.failure
    return failure is not None and failure.kind == NOT_STARTED


def _keyed(adapter: Adapter, row: Task) -> bool:
    """Whether starting it again under its key is safe."""
    return adapter.starts is StartGuarantee.KEYED and not is_fleeting(adapter, row.options)


def _order(task: Task) -> Start:
    return Start(
        workflow=task.workflow,
        arguments=task.arguments,
        key=task.key,
        created=task.created,
        options=task.options,
        context=task.context,
    )


def _check_same_call(row: Task, task: Task, now: datetime) -> None:
    if row.expired(now):
        raise RequestError(INVALID_PARAMS, "this idempotency key was used for a task that has expired: use a new one")
    if row.fingerprint != task.fingerprint:
        raise RequestError(
            INVALID_PARAMS, "this idempotency key was used for a call with other arguments: nothing was started"
        )
