"""Durable, retry-safe creation: the row first, then the start, then the handle is bound.

A crash between any two loses nothing: a row without a handle is healed by starting again under the same key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import datetime
from weakref import WeakValueDictionary

import anyio

from mcp_workflows.adapter import JSON, Failure, Start, StartGuarantee
from mcp_workflows.engines import Engines
from mcp_workflows.errors import INTERNAL_ERROR, INVALID_PARAMS, EngineRefused, EngineUnavailable, RequestError
from mcp_workflows.store import Store
from mcp_workflows.task import Task, attempt, bind, refuse

NOT_STARTED = "NotStarted"  # the kind of failure of a row that was closed before anything was started


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
        row = await self._store.create(task)
        if row.id != task.id:
            _check_same_call(row, task, self._clock())
            row = await self._begun(row)
            if not _closed(row):
                return row
            row = await self._store.create(task)  # closed while we waited, so the key was free again
        return await self._begun(row)

    async def _begun(self, row: Task) -> Task:
        """The row, started; or still starting, when nobody knows."""
        try:
            return await self.started(row)
        except EngineUnavailable as error:
            if not error.sent:
                raise
            return await self._store.get(row.id, row.owner) or row

    async def started(self, task: Task) -> Task:
        """The task with its handle, started under its key if it has none yet; single flight per task.

        Raises:
            EngineRefused, EngineUnavailable: see `create`.
        """
        if task.handle is not None or task.ended:
            return task
        lock = self._locks.setdefault(task.id, anyio.Lock())
        async with lock:
            row = await self._store.get(task.id, task.owner) or task
            return await self._start(row)

    async def _start(self, row: Task) -> Task:
        """Shielded: who asked may go away, but a start is not left half done; each call in it is bounded."""
        started = row
        with anyio.CancelScope(shield=True):
            started = await self._start_and_bind(row)
        return started  # noqa: RET504  # type checkers hold that a cancel scope may swallow the return

    async def _start_and_bind(self, row: Task) -> Task:
        row = await self._change(row, attempt)
        if row.handle is not None or row.ended:
            return row
        try:
            async with self._engines.calling(row.engine) as adapter:
                if adapter.starts is not StartGuarantee.KEYED and row.attempts > 1:
                    raise EngineRefused(
                        "outcome unknown: it may have been started, and is never started again", final=True
                    )
                handle = await adapter.start(_order(row))
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
        now = self._clock()
        return await self._change(row, lambda task: bind(task, handle, now))

    async def _close(self, task: Task, reason: str, *, final: bool = False) -> bool:
        """Whether it is certain that nothing was started: then the row is closed and its key is free."""
        failure = Failure(text=reason, kind=NOT_STARTED, code=INTERNAL_ERROR)
        return _closed(await self._change(task, lambda row: refuse(row, failure, self._clock(), final=final)))

    async def _change(self, task: Task, change: Callable[[Task], Task]) -> Task:
        return await self._store.change(task.id, task.owner, change) or change(task)


def _closed(task: Task) -> bool:
    failure = task.execution.failure
    return failure is not None and failure.kind == NOT_STARTED


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
