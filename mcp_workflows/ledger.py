"""The tasks we hold: rows joined with looks at the engine, answers, cancellation and housekeeping."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self
from weakref import WeakValueDictionary

import anyio

from mcp_workflows.access import Principal
from mcp_workflows.adapter import JSON, Execution, Failure, Status
from mcp_workflows.ask import checked_response, sending
from mcp_workflows.creation import Creation, digest
from mcp_workflows.engines import Engines, sound
from mcp_workflows.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    EngineError,
    EngineRefused,
    EngineUnavailable,
    ExecutionNotFound,
    RequestError,
    WorkflowsError,
)
from mcp_workflows.pacing import SHIPPED, Pacing
from mcp_workflows.sight import Sight, ref_of
from mcp_workflows.store import Store, changed
from mcp_workflows.task import Task, accept, deliver_cancel, observe, request_cancel
from mcp_workflows.watch import Listener, Watch

logger = logging.getLogger(__name__)

LATE = 10.0  # seconds of age from which an answer says how old it is
PATIENCE = 3.0  # seconds a reader waits for a look before it gets the last known state
SETTLING = timedelta(minutes=1)  # how long a new execution may be unknown to its engine (eventual consistency)
HEAL_AFTER = timedelta(seconds=5)  # older rows without a handle are nobody's work in hand any more
HEAL_EVERY = 5.0  # seconds
HEAL_AT_ONCE = 100  # rows
_START_KEYS = "start-keys"  # the name of their salt in the store


def utc_now() -> datetime:
    """The clock."""
    return datetime.now(UTC)


class Ledger:
    """Tasks by id and owner; entered, it also heals and sweeps in the background."""

    def __init__(
        self,
        *,
        store: Store,
        engines: Engines,
        retention: timedelta,
        pacing: Pacing = SHIPPED,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._store = store
        self._engines = engines
        self._retention = retention
        self._clock = clock
        self._creation = Creation(store, engines, clock)
        self._watch = Watch(self._look, Sight(engines), pacing)
        self._answering: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()
        self._salt = b""
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._salt = await self._store.secret(_START_KEYS)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._watch)
            group = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(group.cancel_scope.cancel)
            group.start_soon(self._keep_house)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    def now(self) -> datetime:
        """The time, UTC."""
        return self._clock()

    def start_key(self, task_id: str, tool: str, owner: str, idempotency_key: str | None) -> str:
        """One key, one execution: from the client's own key if it sent one, or else from the task's id.

        Salted with a secret of the store: other deployments on the same engine never meet our keys, and nobody can
        guess the name of an execution to come.
        """
        parts = [task_id] if idempotency_key is None else [owner, tool, idempotency_key]
        return f"{tool}-{digest([self._salt.hex(), *parts])}"

    async def create(self, task: Task) -> Task:
        """The task, durable and started, or the one its idempotency key already stands for.

        An ambiguous outcome is a task too: still starting, to be healed under its key.

        Raises:
            RequestError: the idempotency key stands for another call.
            EngineRefused: a definite no; nothing was started.
            EngineUnavailable: the engine cannot be reached; nothing was started.
        """
        return await self._creation.create(task)

    async def owned(self, task_id: str, owner: str) -> Task:
        """The task, if it is this owner's and still to be read.

        Raises:
            RequestError: it is not: unknown, somebody else's (they look alike), or expired.
        """
        task = await self._store.get(task_id, owner)
        if task is None:
            raise RequestError(INVALID_PARAMS, "Task not found")
        if task.expired(self._clock()):
            raise RequestError(INVALID_PARAMS, "Task expired: its time to live is over")
        return task

    async def owned_among(self, task_ids: Sequence[str], owner: str) -> Sequence[Task]:
        """Those of the tasks that are this owner's; the others are left out silently."""
        rows = [await self._store.get(task_id, owner) for task_id in task_ids]
        return [row for row in rows if row is not None and not row.expired(self._clock())]

    async def current(self, task: Task) -> tuple[Task, str | None]:
        """The task after a look; or as known last, and why there was no look, when the engine gives no answer."""
        if task.ended:
            return task, None
        trouble = "no answer yet"
        try:
            with anyio.move_on_after(PATIENCE):
                seen = await self._watch.look(task)
                return seen, self._lateness(seen)
        except EngineError as error:
            trouble = str(error)
        return await self._store.get(task.id, task.owner) or task, f"engine {task.engine}: {trouble}"

    def _lateness(self, task: Task) -> str | None:
        """How old what is known is, when an engine is asked for so many that it shows."""
        age = self._watch.age(task)
        return None if age < LATE else f"engine {task.engine} is asked for many tasks: as of {age:.0f} s ago"

    def pace(self, task: Task) -> timedelta:
        """How often it is worth asking for it."""
        return timedelta(seconds=self._watch.pace(task))

    async def follow(self, task: Task, on_change: Listener, *, patience: float = float("inf")) -> Task:
        """Call `on_change` now and at each change, until the task has ended or `on_change` returned True.

        Raises:
            EngineError: for `patience` seconds the engine gave no answer.
        """
        return await self._watch.follow(task, on_change, patience=patience)

    async def answer(self, task: Task, responses: Mapping[str, JSON], principal: Principal) -> Task:
        """Deliver what answers an open question; the rest is ignored, as the spec says.

        Raises:
            RequestError: an answer does not fit its question, or the engine did not take it; nothing was applied.
        """
        async with self._answering.setdefault(task.id, anyio.Lock()):  # an answer and its contrary: one at a time
            row = await self._store.get(task.id, task.owner) or task
            return await self._answer(row, responses, principal)

    async def _answer(self, task: Task, responses: Mapping[str, JSON], principal: Principal) -> Task:
        if task.ended:
            return task
        if any(key not in task.execution.requests for key in responses):
            task = await self._looked(task)
        asked = task.seen.requests
        given = {key: checked_response(key, asked[key], responses[key]) for key in responses if key in asked}
        fitting = {key: sent for key in given if (sent := sending(task, key, given[key], principal))}
        if not fitting or task.handle is None:
            return task
        try:
            async with self._engines.calling(task.engine) as adapter:
                await adapter.answer(ref_of(task, task.handle), fitting)
        except EngineRefused as error:
            raise RequestError(INVALID_PARAMS, f"engine {task.engine} refused the answer: {error}") from None
        except EngineError as error:
            raise _undelivered(task, "answer", error) from None
        task = await changed(self._store, task, lambda row: accept(row, fitting, self._clock()))
        self._watch.nudge(task.id)
        return task

    async def cancel(self, task: Task) -> None:
        """Ask the engine to cancel; what comes of it shows in the status.

        What the engine does not take now is kept and delivered with a later look.
        """
        if task.ended:
            return
        task = await changed(self._store, task, lambda row: request_cancel(row, self._clock()))
        if task.handle is not None:
            await self._deliver_cancel(task, task.handle)
        self._watch.nudge(task.id)

    def stop(self) -> None:
        """End all waiting: the server is about to stop."""
        self._watch.stop()

    # --- looks

    async def _looked(self, task: Task) -> Task:
        try:
            return await self._watch.look(task, urgent=True)
        except EngineError as error:
            raise _undelivered(task, "answer", error) from None

    async def _look(self, task: Task, row: Task | None = None) -> Task:
        """One look, kept: the only place where executions are described; `row` is the row if it was read just now."""
        row = row or await self._store.get(task.id, task.owner) or task
        if not row.ended:
            row = await self._creation.started(row)
        if row.ended or row.handle is None:
            return row
        if row.cancel_requested and not row.cancel_delivered:
            await self._deliver_cancel(row, row.handle)
        execution = await self._describe(row, row.handle)
        if observe(row, execution, row.updated) is row:
            return row
        kept = sound(execution)
        return await changed(self._store, row, lambda task: observe(task, kept, self._clock()))

    async def _deliver_cancel(self, task: Task, handle: str) -> None:
        try:
            async with self._engines.calling(task.engine) as adapter:
                await adapter.cancel(ref_of(task, handle))
        except EngineError as error:
            logger.warning("engine %r did not take a cancellation, it will be sent again: %s", task.engine, error)
            return
        await changed(self._store, task, deliver_cancel)

    async def _describe(self, task: Task, handle: str) -> Execution:
        try:
            async with self._engines.calling(task.engine) as adapter:
                return await adapter.describe(ref_of(task, handle))
        except ExecutionNotFound:
            if self._clock() - task.created < SETTLING:
                raise EngineUnavailable("it does not show the execution yet") from None
            text = f"engine {task.engine} has no such execution any more: its outcome is not known"
            failure = Failure(text=text, kind="ExecutionNotFound", code=INTERNAL_ERROR)
            return replace(task.execution, status=Status.FAILED, failure=failure, requests={})

    # --- housekeeping

    async def _keep_house(self) -> None:
        """Heal what was never known to be started, and let go of what has expired; for ever."""
        while True:
            for chore in (self._heal, self._sweep):
                await _guarded(chore)
            await anyio.sleep(HEAL_EVERY)

    async def _sweep(self) -> None:
        await self._store.sweep(self._clock(), self._clock() - self._retention)

    async def _heal(self) -> None:
        before = self._clock() - HEAL_AFTER
        async with anyio.create_task_group() as group:
            for engine in self._engines.names:
                for row in await self._store.unbound(engine, before, HEAL_AT_ONCE):
                    group.start_soon(self._heal_one, row)

    async def _heal_one(self, task: Task) -> None:
        try:
            await self._watch.look(task)
        except WorkflowsError as error:
            logger.warning("a %s task is not started yet: engine %r: %s", task.tool, task.engine, error)


async def _guarded(chore: Callable[[], Awaitable[None]]) -> None:
    """Housekeeping that fails is tried again; it must never end the server: see docs/decisions/0002."""
    try:
        await chore()
    except WorkflowsError as error:
        logger.warning("housekeeping failed, will be tried again: %s", error)
    except Exception:
        logger.exception("housekeeping failed, will be tried again")


def _undelivered(task: Task, what: str, error: EngineError) -> RequestError:
    return RequestError(
        INTERNAL_ERROR, f"engine {task.engine} did not take the {what}: {error}; the task goes on, try again"
    )
