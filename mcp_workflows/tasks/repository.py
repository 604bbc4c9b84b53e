"""The tasks of this server: rows of the store, refreshed by looks at the engines, with answers and cancellation."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Self, TypeAlias
from weakref import WeakValueDictionary

import anyio

from mcp_workflows.access import Principal
from mcp_workflows.access.audit import Audit, silent
from mcp_workflows.access.limit_settings import UNLIMITED, Limits
from mcp_workflows.adapter import JSON, HasLogs, digest
from mcp_workflows.adapter.display_text import cleaned
from mcp_workflows.adapter.redaction import mask
from mcp_workflows.engines.polling.policy import DEFAULT_POLICY, PollingPolicy
from mcp_workflows.engines.polling.poller import Listener, Poller
from mcp_workflows.engines.registry import Engines, ref_of
from mcp_workflows.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    EngineError,
    RequestError,
    StoreError,
    StoreUnavailable,
)
from mcp_workflows.store.protocol import NO_CAPS, Caps, Store, changed
from mcp_workflows.task import Task, request_cancel, tell_cancelled
from mcp_workflows.tasks.adopt import Adoption, AdoptionRequest
from mcp_workflows.tasks.answer import deliver_answers, fitting_answers, undelivered
from mcp_workflows.tasks.cancel import Cancellation
from mcp_workflows.tasks.cursors import read_cursor, write_cursor
from mcp_workflows.tasks.look import ExecutionLook
from mcp_workflows.tasks.maintenance import ClockCheck, Maintenance, uptime
from mcp_workflows.tasks.quotas import TaskQuota
from mcp_workflows.tasks.start import NO_KEY, TaskCreation
from mcp_workflows.telemetry import annotate_span
from mcp_workflows.tools.idempotency import Idempotency
from mcp_workflows.units import utc_now

logger = logging.getLogger(__name__)

LATE = 10.0  # seconds of age from which an answer says how old it is
READ_TIMEOUT = 3.0  # seconds until a read is answered, whatever engines and the store do
_FOR_A_PROBE = 0.1  # seconds for a look at an engine that is known to be silent: enough if it answers again
_FOR_THE_STORE = 0.25  # seconds of these reserved for reading the stored state after a look took too long
_FIND_PAGES = 4  # of an owner's newest tasks that `newest` reads: the card has only just lost its task
_FIND_PAGE_SIZE = 50
EXPIRED = "Task expired: its time to live is over"
_START_KEYS = "start-keys"  # name of their salt in the store
_CURSORS = "cursors"  # name of their key in the store
_BEYOND = "beyond "  # before the reader's name in a cursor of other owners' tasks

TaskAndWarning: TypeAlias = tuple[Task, str | None]
"""A task, and a warning if its state is old or not saved."""


def expired() -> RequestError:
    """Return the error for a task that has expired."""
    return RequestError(INVALID_PARAMS, EXPIRED)


class TaskRepository:
    """Tasks by id and owner. Enter it to run the background work."""

    def __init__(
        self,
        *,
        store: Store,
        engines: Engines,
        retention: timedelta,
        polling: PollingPolicy = DEFAULT_POLICY,
        limits: Limits = UNLIMITED,
        clock: Callable[[], datetime] = utc_now,
        steady: Callable[[], float] | None = None,
        audit: Audit = silent,
    ) -> None:
        """`steady` counts seconds evenly, even if the clock is set. A `clock` given without it counts as never set."""
        steady = steady or (uptime if clock is utc_now else lambda: clock().timestamp())
        self._store = store
        self._engines = engines
        self._clock = clock
        clock_check = ClockCheck(clock, steady)
        self._creation = TaskCreation(store, engines, clock, clock_check.is_steady)
        self.adoption = Adoption(store, engines, clock)
        self._cancellation = Cancellation(store, engines, clock, audit=audit)
        look = ExecutionLook(
            store=store,
            engines=engines,
            creation=self._creation,
            cancellation=self._cancellation,
            max_kept_result=limits.max_kept_result,
            clock=clock,
            is_steady=clock_check.is_steady,
            audit=audit,
        )
        self._poller = Poller(look, engines, polling)
        self._quota = TaskQuota(store, self._poller.look, clock)
        self._maintenance = Maintenance(
            store=store,
            engines=engines,
            heal=self._poller.look,
            look=self._look_afresh,
            cancellation=self._cancellation,
            retention=retention,
            clock=clock,
            clock_check=clock_check,
        )
        self._answering: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()
        self._until_stop: set[anyio.CancelScope] = set()
        self._salt = self._cursor_key = b""
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._salt = await self._store.secret(_START_KEYS)
        self._cursor_key = await self._store.secret(_CURSORS)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._poller)
            group = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(group.cancel_scope.cancel)
            group.start_soon(self._maintenance.run)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    def now(self) -> datetime:
        """Return the time, UTC."""
        return self._clock()

    def start_key(self, task_id: str, tool: str, owner: str, same: Idempotency) -> str:
        """Return the key of an execution: from the client's idempotency key, or else from the task's id.

        A digest of arguments does not name an execution, as the same arguments may be sent again later.

        It is salted with a secret of the store, so that other deployments on the same engine never have the same key,
        and the name of a future execution cannot be guessed.
        """
        parts = [task_id] if same.key is None or same.window is not None else [owner, tool, same.key]
        return f"{tool}-{digest([self._salt.hex(), *parts])}"

    async def create(self, task: Task, caps: Caps = NO_CAPS, same: Idempotency = NO_KEY) -> Task:
        """Return the new task, stored and started, or the task that its idempotency key already stands for.

        With an ambiguous outcome the task is still starting, and is healed under its key.

        Raises:
            LimitReached: a quota is reached; an existing task with this idempotency key needs none.
            RequestError: the idempotency key stands for another call.
            EngineRefused: the engine refused; nothing was started.
            EngineUnavailable: the engine cannot be reached; nothing was started.
        """
        create = partial(self._creation.create, task, caps, same)
        return await self._quota.within(caps, create, owner=task.owner, tool=task.tool)

    async def adopt(self, adopted: AdoptionRequest, caps: Caps = NO_CAPS) -> Task:
        """Return the task for an execution that was started elsewhere and has been found.

        Raises:
            LimitReached: a quota is reached.
            MappingError: see `Adoption.create`.
        """
        take = partial(self.adoption.create, adopted, caps)
        return await self._quota.within(caps, take, owner=adopted.owner.id, tool=adopted.tool.name)

    def deadline(self) -> float:
        """Return the time by which a read that begins now must be answered, on the event loop's clock."""
        return anyio.current_time() + READ_TIMEOUT

    async def found(
        self, task_id: str, owner: str, beyond: Sequence[str] = (), *, by: float = float("inf")
    ) -> Task | None:
        """Return the task of this owner, or of any owner if its tool is in `beyond`; an owner's may have expired.

        Raises:
            StoreUnavailable: it cannot be read, or not until the deadline `by`.
        """
        with _until(by):
            task = await self._store.get(task_id, owner)
            if task is not None or not beyond:
                return task
            others = await self._store.get_of_tools(task_id, beyond)
            return None if others is None or others.expired(self._clock()) else others

    async def newest(self, owner: str, tool: str, fingerprint: str) -> Task | None:
        """Return the owner's newest task that a call of this tool started, by the fingerprint of its arguments.

        It searches only the latest tasks of the owner: `_FIND_PAGES` pages.

        Raises:
            StoreUnavailable: the tasks cannot be read within the time of a read.
        """
        now, before = self._clock(), None
        with _until(self.deadline()):
            for _ in range(_FIND_PAGES):
                rows = await self._store.list_of_owner(owner, now=now, limit=_FIND_PAGE_SIZE, before=before)
                for row in rows:
                    if row.tool == tool and row.fingerprint == fingerprint and not row.pending(now):
                        return row
                if len(rows) < _FIND_PAGE_SIZE:
                    return None
                before = rows[-1].created, rows[-1].id
        return None

    def over(self, task: Task) -> bool:
        """Return True if the task has expired."""
        return task.expired(self._clock())

    def seconds_left(self, task: Task) -> float:
        """Return the seconds until the task expires."""
        return float("inf") if task.expires is None else (task.expires - self._clock()).total_seconds()

    async def page(self, owner: str, cursor: str | None, limit: int) -> tuple[Sequence[TaskAndWarning], str | None]:
        """Return a page of the owner's tasks, newest first, each as by `current`, and the cursor of the next page.

        Pending rows are left out, as they may still be deleted.

        Raises:
            RequestError: the cursor was not made here for this owner.
        """
        return await self._page(owner, cursor, limit, partial(self._store.list_of_owner, owner))

    async def _look_at_all(self, rows: Sequence[Task], by: float) -> Sequence[TaskAndWarning]:
        looked: dict[str, TaskAndWarning] = {}

        async def look(row: Task) -> None:
            looked[row.id] = await self.current(row, by=by)

        async with anyio.create_task_group() as group:
            for row in rows:
                group.start_soon(look, row)
        return [looked[row.id] for row in rows]

    async def page_of(
        self, tools: Sequence[str], reader: str, cursor: str | None, limit: int
    ) -> tuple[Sequence[TaskAndWarning], str | None]:
        """Return a page of all owners' live tasks of these tools, likewise; for principals with rules that allow it.

        Raises:
            RequestError: the cursor was not made here for this reader.
        """
        return await self._page(f"{_BEYOND}{reader}", cursor, limit, partial(self._store.list_of_tools, tools))

    async def _page(
        self, reader: str, cursor: str | None, limit: int, rows_of: Callable[..., Awaitable[Sequence[Task]]]
    ) -> tuple[Sequence[TaskAndWarning], str | None]:
        by = self.deadline()
        before = None if cursor is None else read_cursor(self._cursor_key, reader, cursor)
        now = self._clock()
        with _until(by):
            rows = await rows_of(now=now, limit=limit + 1, before=before)
        shown = rows[:limit]
        following = None
        if len(rows) > limit:
            following = write_cursor(self._cursor_key, reader, (shown[-1].created, shown[-1].id))
        return await self._look_at_all([row for row in shown if not row.pending(now)], by), following

    async def current(self, task: Task, *, by: float | None = None) -> TaskAndWarning:
        """Return the task after a look; without an answer in time (3 s by default), the last known state and a warning.

        A look at an engine that is known to be silent gets a tenth of a second.
        """
        annotate_span(task.tool, task.context)
        if task.ended:
            return task, None
        by = self.deadline() if by is None else by
        silence = self._engines.silence(task.engine)
        trouble = f"engine {task.engine}: {silence or 'no answer yet'}"
        try:
            latest = by - _FOR_THE_STORE
            # the look goes on in the background after its deadline, as the probe
            with anyio.CancelScope(deadline=min(latest, anyio.current_time() + _FOR_A_PROBE) if silence else latest):
                seen = await self._poller.look(task)
                return seen, self._poller.unsaved(seen) or self._lateness(seen)
        except EngineError as error:
            trouble = f"engine {task.engine}: {silence or error}"
        except StoreError as error:
            trouble = str(error)
        with anyio.CancelScope(deadline=by), suppress(StoreError):
            task = await self._store.get(task.id, task.owner) or task
        return self._poller.latest(task), trouble

    async def log(self, task: Task) -> str:
        """Return the end of the log of its execution; empty if there is none yet.

        Raises:
            RequestError: the engine cannot tell it now.
        """
        try:
            async with self._engines.calling(task) as adapter:
                if task.handle is None or not isinstance(adapter, HasLogs):
                    return ""
                text = mask(await adapter.log(ref_of(task, task.handle)))
                return cleaned(text, len(text) + 1)
        except EngineError as error:
            raise RequestError(INTERNAL_ERROR, f"engine {task.engine} cannot show the log now: {error}") from None

    def unsaved(self, task: Task) -> str | None:
        """Return the reason why this state is not in the store and would be lost by a restart, or None."""
        return self._poller.unsaved(task)

    def _lateness(self, task: Task) -> str | None:
        """Return a warning if the state is old, because too many looks at the engine are due."""
        age = self._poller.age(task)
        return None if age < LATE else f"engine {task.engine} is asked for many tasks: as of {age:.0f} s ago"

    def pace(self, task: Task) -> timedelta:
        """Return the poll interval of a task."""
        return timedelta(seconds=self._poller.pace(task))

    async def follow(self, task: Task, on_change: Listener, *, patience: float = float("inf")) -> Task:
        """Call `on_change` now and at each change, until the task has ended or `on_change` returned True.

        Raises:
            EngineError: the engine gave no answer for `patience` seconds.
        """
        return await self._poller.follow(task, on_change, patience=patience)

    async def answer(
        self, task: Task, responses: Mapping[str, JSON], principal: Principal
    ) -> tuple[Task, Mapping[str, Mapping[str, JSON]]]:
        """Deliver responses to open questions and return these; ignore the others (MCP, `tasks/update`).

        Raises:
            RequestError: an answer does not fit its question, or the engine did not take it; nothing was applied.
        """
        async with self._answering.setdefault(task.id, anyio.Lock()):  # contradicting answers come one at a time
            row = await self._store.get(task.id, task.owner) or task
            return await self._answer(row, responses, principal)

    async def _answer(
        self, task: Task, responses: Mapping[str, JSON], principal: Principal
    ) -> tuple[Task, Mapping[str, Mapping[str, JSON]]]:
        if task.ended:
            return task, {}
        if not task.may_answer:
            raise RequestError(INVALID_PARAMS, f"tool {task.tool} only watches: nothing can be answered here")
        if any(key not in task.execution.requests for key in responses):
            task = await self._look_or_undelivered(task)
        fitting = fitting_answers(task, responses, principal)
        if not fitting or task.handle is None:
            return task, {}
        try:
            return await deliver_answers(
                task, task.handle, fitting, principal, self._store, self._engines, self._clock
            ), fitting
        finally:
            self._poller.refresh_now(task.id)

    async def cancel(self, task: Task, *, is_final: bool = False) -> Task:
        """Ask the engine to cancel; the status shows the outcome.

        If the engine does not take the cancellation now, a later look delivers it. `is_final`: the client is told
        at once that the task is cancelled, which is final in 2025-11-25.

        Raises:
            RequestError: the tool only watches, so the task cannot be cancelled.
        """
        if task.ended:
            return task
        if not task.may_cancel:
            raise RequestError(INVALID_PARAMS, f"tool {task.tool} only watches: nothing can be cancelled here")
        change = tell_cancelled if is_final else request_cancel
        try:
            task = await changed(self._store, task, lambda row: change(row, self._clock()))
        except StoreError as error:
            raise RequestError(INTERNAL_ERROR, f"not cancelled: {error}; the task goes on, try again") from None
        self._poller.note(task)
        if task.handle is not None and not task.ended:
            task = await self._cancellation.deliver(task, task.handle)
            self._poller.note(task)
        self._poller.refresh_now(task.id)
        return task

    def stop(self) -> None:
        """End all waiting, as the server is about to stop."""
        self._poller.stop()
        for scope in tuple(self._until_stop):
            scope.cancel()

    @contextmanager
    def until_stop(self) -> Generator[None]:
        """Cancel the body when the server is about to stop; the code after it still runs."""
        with anyio.CancelScope() as scope:
            self._until_stop.add(scope)
            if self.stopping:
                scope.cancel()
            try:
                yield
            finally:
                self._until_stop.discard(scope)

    @property
    def stopping(self) -> bool:
        """True after `stop`."""
        return self._poller.stopped

    # --- looks

    async def _look_afresh(self, task: Task) -> Task:
        self._poller.note(task)
        self._poller.refresh_now(task.id)
        return await self._poller.look(task, urgent=True)

    async def _look_or_undelivered(self, task: Task) -> Task:
        try:
            return await self._poller.look(task, urgent=True)
        except EngineError as error:
            raise undelivered(task, error) from None


@contextmanager
def _until(by: float) -> Generator[None]:
    """Bound the store's reads in the body by a deadline of the event loop's clock."""
    with anyio.CancelScope(deadline=by) as scope:
        yield
    if scope.cancelled_caught:
        raise StoreUnavailable(f"the store did not answer within {READ_TIMEOUT:g} s")
