"""The executions behind tasks: create, observe, follow, answer and cancel them. A task's row has the last state.

The page docs/why/architecture.md names the values used here, and follows a request through them.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from math import ceil
from secrets import token_hex
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeAlias
from weakref import WeakValueDictionary

import anyio
from pydantic import TypeAdapter, ValidationError

from mcp_workflows.access import Principal
from mcp_workflows.access.audit import Audit, Event, record_of, silent, status_record
from mcp_workflows.access.limit_settings import UNLIMITED, Limits
from mcp_workflows.access.rate_limits import RateLimits
from mcp_workflows.adapter import JSON, TERMINAL, Execution, Failure, HasLogs, Status, Terminates, digest
from mcp_workflows.adapter.display_text import cleaned
from mcp_workflows.adapter.redaction import mask
from mcp_workflows.adapter.templates import Template
from mcp_workflows.engines.polling.peers import ALONE
from mcp_workflows.engines.polling.policy import DEFAULT_POLICY, PollingPolicy
from mcp_workflows.engines.polling.poller import Poller
from mcp_workflows.engines.registry import FOREIGN, Engines, ref_of, validated
from mcp_workflows.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    EngineError,
    EngineRefused,
    EngineUnavailable,
    ExecutionNotFound,
    LimitReached,
    MappingError,
    RequestError,
    StoreError,
    StoreUnavailable,
    WorkflowsError,
)
from mcp_workflows.store.encryption import seal, unseal
from mcp_workflows.store.protocol import NO_CAPS, CapReached, Caps, ConnectsReplicas, Store, changed
from mcp_workflows.store.replicas import Replicas
from mcp_workflows.task import (
    START_GATE,
    START_KEY,
    Decision,
    Step,
    Task,
    accept,
    decide,
    deliver_cancel,
    identify,
    mark_answered,
    mark_cancelled,
    mark_terminated,
    note_delivery,
    note_step,
    observe,
    question_digest,
    request_cancel,
    steps_of,
)
from mcp_workflows.tasks.adopt import Adoption
from mcp_workflows.tasks.approvals import (
    check_reason,
    decided_already,
    decision_of,
    decision_text,
    refuse_another_decision,
)
from mcp_workflows.tasks.maintenance import ClockCheck, Maintenance, uptime
from mcp_workflows.tasks.repeated_calls import OpenCall, RepeatedCalls
from mcp_workflows.tasks.results import keepable, mismatch, tool_result
from mcp_workflows.tasks.start import NO_KEY, TaskCreation
from mcp_workflows.telemetry import annotate_span
from mcp_workflows.tools.dialogue import Action, AnswerWay, checked_response, invalid_response
from mcp_workflows.tools.json_schema import is_object
from mcp_workflows.tools.prepare import Idempotency
from mcp_workflows.tools.tool import AnyTool
from mcp_workflows.units import utc_now
from mcp_workflows.wire.commands import people_answer

logger = logging.getLogger(__name__)

RETENTION: Final = timedelta(days=90)  # for keys of expired tasks, and for tasks without a time to live
LATE = 10.0  # seconds of age from which a state comes with a warning that shows its age
READ_TIMEOUT = 3.0  # seconds until a read returns, whatever engines and the store do
DECIDING: Final = timedelta(seconds=30)  # three times the longest call to an engine
SETTLING = timedelta(minutes=1)  # how long a new execution may be missing at its engine (eventual consistency)
NOT_STARTED: Final = "start not confirmed yet; the server retries it under the same key"
_PROBE_TIMEOUT = 0.1  # seconds for a call to a silent engine: enough if it answers again
_STORE_TIMEOUT = 0.25  # seconds of `READ_TIMEOUT` reserved for reading the stored state after a slow engine
_FIND_PAGES = 4  # of the owner's newest tasks that `newest` reads: the card lost its task only recently
_FIND_PAGE_SIZE = 50
REFUSED_FOR: Final = 60.0  # seconds before a refused cancellation is sent again automatically
_START_KEYS = "start-keys"  # name of their salt in the store
_CURSORS = "cursors"  # name of their key in the store
_REQUESTERS = "requesters"  # name of the key for principals who wait for an approval
_LINKS = "question-links"  # name of the key for links to questions
_REPLICAS = "replicas"  # name of the key for replicas' messages
_PRINCIPAL: Final = TypeAdapter(Principal)
_SHARED = "shared "  # prefix of the reader's name in a cursor of other owners' tasks

Answers: TypeAlias = Mapping[str, Mapping[str, JSON]]
"""The responses that fit open questions, by key, as adapters receive them."""

Check: TypeAlias = Callable[[Task, Answers], Awaitable[None]]
NOBODY: Final = Principal(id="")  # answers when a deadline passes


class ObservedTask(NamedTuple):
    """A task and its current state. The warning explains why the state is old, or not saved."""

    task: Task
    warning: str | None = None


class Executions:
    """Tasks and the executions behind them. Enter it to poll, and to run the background work.

    Operators' commands use it without entering: it then observes an execution only on request, and starts none.
    """

    def __init__(
        self,
        *,
        store: Store,
        engines: Engines,
        retention: timedelta = RETENTION,
        polling: PollingPolicy = DEFAULT_POLICY,
        limits: Limits = UNLIMITED,
        meters: RateLimits | None = None,
        clock: Callable[[], datetime] = utc_now,
        steady: Callable[[], float] | None = None,
        audit: Audit = silent,
        web_url: str | None = None,
    ) -> None:
        """`steady` counts seconds evenly, even if the clock is set. A `clock` without it counts as never set.

        `meters` count callers' open requests and sessions; replicas exchange these counts.
        """
        steady = steady or (uptime if clock is utc_now else lambda: clock().timestamp())
        self.replicas = Replicas(store.channel, meters, clock) if isinstance(store, ConnectsReplicas) else ALONE
        self.clock = clock = self.replicas.clock if isinstance(self.replicas, Replicas) else clock
        self.read_timeout = READ_TIMEOUT
        self.adoption = Adoption(store, engines, clock)
        self._store = store
        self._engines = engines
        self._audit = audit
        self.web_url = web_url
        self._max_kept_result = limits.max_kept_result
        self._clock_check = ClockCheck(clock, steady)
        self._creation = TaskCreation(store, engines, clock, self._clock_check.is_steady)
        self._poller = Poller(self._poll, engines, replace(polling, clock=clock), peers=self.replicas)
        self._maintenance = Maintenance(
            store=store,
            engines=engines,
            observe=self._poller.poll,
            take_due_step=self._take_due_step,
            retention=retention,
            clock=clock,
            clock_check=self._clock_check,
        )
        self._answering: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()
        self._refused_cancels: dict[str, float] = {}  # event loop times of the last minute, by task id
        self._counted_at: OrderedDict[tuple[str | None, str | None], float] = OrderedDict()
        self._until_stop: set[anyio.CancelScope] = set()
        self.repeated_calls = RepeatedCalls(store, engines, clock)
        self.pauses = self._creation.pauses
        self._salt = self._cursor_key = self._requester_key = self._link_key = b""
        self._is_entered = False
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._salt = self.repeated_calls.salt = await self._store.secret(_START_KEYS)
        self._cursor_key = await self._store.secret(_CURSORS)
        self._requester_key = await self._store.secret(_REQUESTERS)
        self._link_key = await self._store.secret(_LINKS)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._poller)
            group = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(group.cancel_scope.cancel)
            if isinstance(self.replicas, Replicas):
                await self.replicas.join(await self._store.secret(_REPLICAS))
                self._clock_check.trust()
                group.start_soon(self.replicas.run, self._poller)
            group.start_soon(self._maintenance.run)
            group.start_soon(self.repeated_calls.run)
            self._stack = stack.pop_all()
        self._is_entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    # --- create

    def start_key(self, task_id: str, tool: str, owner: str, same: Idempotency) -> str:
        """Return the key of an execution, from the client's idempotency key or else from the task's id.

        A digest of arguments does not name an execution, because the same arguments may be sent again later.

        It is salted with a secret of the store. So other deployments on the same engine never have the same key, and
        the name of a future execution cannot be guessed.
        """
        parts = [task_id] if same.key is None or same.window is not None else [owner, tool, same.key]
        return f"{tool}-{digest([self._salt.hex(), *parts])}"

    async def create(self, task: Task, caps: Caps = NO_CAPS, same: Idempotency = NO_KEY) -> Task:
        """Return the new task, stored and started, or the existing task of its idempotency key.

        If the outcome of the start is unknown, the task is still starting, and is recovered with its key.

        Raises:
            LimitReached: a quota is reached; an existing task with this idempotency key needs none.
            RequestError: the idempotency key belongs to another call.
            EngineRefused: the engine refused; nothing was started.
            EngineUnavailable: the engine cannot be reached; nothing was started.
        """
        create = partial(self._creation.create, task, caps, same)
        return await self._within(caps, create, owner=task.owner, tool=task.tool)

    async def resume(self, call: OpenCall) -> Task | None:
        """Return the task of an abandoned call that this call repeats, or None.

        Raises:
            StoreUnavailable: the tasks cannot be read or changed.
            EngineRefused, EngineUnavailable: see `create`.
        """
        while claimed := await self.repeated_calls.claim(call):
            called = None if claimed.unanswered is None else claimed.unanswered.called
            try:
                resumed = await self._creation.resume(claimed)
            except (EngineRefused, EngineUnavailable) as error:
                if isinstance(error, EngineRefused) or not error.sent:  # nothing was started
                    await changed(self._store, claimed, partial(mark_answered, holder=call.holder))
                raise
            if resumed is not None:
                call.continues = called
                self._engines.telemetry.count("call_continued", engine=resumed.engine, tool=resumed.tool)
                return resumed
        return None

    async def adopt(self, task: Task, caps: Caps = NO_CAPS) -> Task:
        """Return the task of `Adoption.new_task`, or its owner's existing task for the execution and unchanged tool.

        Raises:
            LimitReached: a quota is reached.
        """
        create = partial(self.adoption.create, task, caps)
        return await self._within(caps, create, owner=task.owner, tool=task.tool)

    async def _within(self, caps: Caps, create: Callable[[], Awaitable[Task]], *, owner: str, tool: str) -> Task:
        """Return the task that `create` creates within these caps.

        A row counts as live until its end is observed, so the oldest tasks are observed before a cap counts as reached.
        """
        try:
            return await create()
        except CapReached as reached:
            if not await self._observe_oldest(reached.cap, owner, tool):
                raise limit_reached(reached, caps, tool, self.clock()) from None
        try:
            return await create()
        except CapReached as reached:
            raise limit_reached(reached, caps, tool, self.clock()) from None

    async def _observe_oldest(self, cap: str, owner: str, tool: str) -> bool:
        """Observe the oldest tasks that count for this cap; return True if one of them has ended."""
        if cap not in _COUNTED_BY:
            return False  # only time can lift caps on creations
        by_owner, by_tool = _COUNTED_BY[cap]
        counted = (owner if by_owner else None, tool if by_tool else None)
        now, time = self.clock(), anyio.current_time()
        last = self._counted_at.get(counted)
        if last is not None and time - last < COUNT_EVERY:
            return False
        self._counted_at[counted] = time
        self._counted_at.move_to_end(counted)
        if len(self._counted_at) > _MOST_COUNTED:
            self._counted_at.popitem(last=False)
        tasks = await self._store.longest_live(owner=counted[0], tool=counted[1], now=now, limit=OBSERVED_OLDEST)
        observed: list[Task] = []

        async def poll(task: Task) -> None:
            with suppress(WorkflowsError):  # without an answer the task still counts
                observed.append(await self._poller.poll(task))

        with anyio.move_on_after(OBSERVED_FOR):
            async with anyio.create_task_group() as group:
                for task in tasks:
                    if not task.pending(now):
                        group.start_soon(poll, task)
        return any(task.ended for task in observed)

    # --- find

    async def find(
        self, task_id: str, owner: str, shared_tools: Sequence[str] = (), *, by: float = float("inf")
    ) -> Task | None:
        """Return the task of this owner, or of any owner if its tool is shared; the owner's task may have expired.

        Raises:
            StoreUnavailable: it cannot be read before the deadline `by`.
        """
        with _until(by):
            task = await self._store.get(task_id, owner)
            if task is not None or not shared_tools:
                return task
            task = await self._store.get_of_tools(task_id, shared_tools)
            return None if task is None or task.expired(self.clock()) else task

    async def newest(self, owner: str, tool: str, fingerprint: str) -> Task | None:
        """Return the owner's newest task started by a call of this tool with this fingerprint of arguments, or None.

        It searches only the owner's latest tasks, `_FIND_PAGES` pages.

        Raises:
            StoreUnavailable: the tasks cannot be read within the time of a read.
        """
        now, before = self.clock(), None
        with _until(anyio.current_time() + self.read_timeout):
            for _ in range(_FIND_PAGES):
                page = await self._store.list_of_owner(owner, now=now, limit=_FIND_PAGE_SIZE, before=before)
                for task in page:
                    if task.tool == tool and task.fingerprint == fingerprint and not task.pending(now):
                        return task
                if len(page) < _FIND_PAGE_SIZE:
                    return None
                before = page[-1].created, page[-1].id
        return None

    async def page(
        self, reader: str, cursor: str | None, limit: int, *, shared_tools: Sequence[str] | None = None
    ) -> tuple[Sequence[ObservedTask], str | None]:
        """Return a page of tasks, newest first, each as from `observe`, and the cursor of the next page.

        They are the reader's, or with `shared_tools` the live tasks of all owners of these tools, for principals whose
        rules allow it. Pending tasks are left out, because they may still be deleted.

        Raises:
            RequestError: the cursor was not issued here for this reader.
        """
        by, now = anyio.current_time() + self.read_timeout, self.clock()
        subject = reader if shared_tools is None else f"{_SHARED}{reader}"
        before = None if cursor is None else read_cursor(self._cursor_key, subject, cursor)
        with _until(by):
            if shared_tools is None:
                tasks = await self._store.list_of_owner(reader, now=now, limit=limit + 1, before=before)
            else:
                tasks = await self._store.list_of_tools(shared_tools, now=now, limit=limit + 1, before=before)
        following = None
        if len(tasks) > limit:
            tasks = tasks[:limit]
            following = write_cursor(self._cursor_key, subject, (tasks[-1].created, tasks[-1].id))
        return await self.observe_all([task for task in tasks if not task.pending(now)], by), following

    async def observe_all(self, tasks: Sequence[Task], by: float | None = None) -> Sequence[ObservedTask]:
        """Return the tasks, each as from `observe`."""
        by = anyio.current_time() + self.read_timeout if by is None else by
        observed: dict[str, ObservedTask] = {}

        async def observe_one(task: Task) -> None:
            observed[task.id] = await self.observe(task, by=by)

        async with anyio.create_task_group() as group:
            for task in tasks:
                group.start_soon(observe_one, task)
        return [observed[task.id] for task in tasks]

    async def list_asking(
        self, owner: str, shared_tools: Sequence[str], limit: int, after: tuple[datetime, str] | None
    ) -> Sequence[Task]:
        """Return tasks that wait for input, oldest first: the owner's, and others' that the rules let the owner see.

        Raises:
            StoreUnavailable: the tasks cannot be read within the time of a read.
        """
        with _until(anyio.current_time() + self.read_timeout):
            return await self._store.list_asking(owner, shared_tools, now=self.clock(), limit=limit, after=after)

    # --- observe

    async def observe(self, task: Task, *, by: float | None = None) -> ObservedTask:
        """Return the task after a poll; without an answer in time (3 s by default), its last known state.

        An engine known to be silent gets a tenth of a second.
        """
        annotate_span(task.tool, task.context)
        if task.ended:
            return ObservedTask(task)
        by = anyio.current_time() + self.read_timeout if by is None else by
        silence = self._engines.silence(task.engine)
        warning: str | None = f"engine {task.engine}: {silence or 'no answer yet'}"
        try:
            latest = by - _STORE_TIMEOUT
            # after its deadline the poll of a silent engine continues in the background, as the probe
            with anyio.CancelScope(deadline=min(latest, anyio.current_time() + _PROBE_TIMEOUT) if silence else latest):
                task = await self._poller.poll(task)
                warning = self._poller.unsaved(task)
                if warning is None and (age := self._poller.age(task)) >= LATE:
                    warning = f"engine {task.engine} has many tasks to poll: status as of {age:.0f} s ago"
                return ObservedTask(task, warning)
        except EngineError as error:
            warning = f"engine {task.engine}: {silence or error}"
        except StoreError as error:
            warning = str(error)
        with anyio.CancelScope(deadline=by), suppress(StoreError):
            task = await self._store.get(task.id, task.owner) or task
        return ObservedTask(self._poller.latest(task), warning)

    async def observe_afresh(self, task: Task) -> Task:
        """Return the task after a poll that begins now.

        Raises:
            EngineError, StoreError: it failed.
        """
        if not self._is_entered:
            return await self._observe_unpolled(task)
        self._poller.note(task)
        self._poller.refresh_now(task.id)
        return await self._poller.poll(task, urgent=True)

    async def observe_once(self, task: Task) -> ObservedTask:
        """Return the task after one request to its engine, or else its last known state; for operators."""
        if task.ended or task.held is not None:
            return ObservedTask(task)
        if task.handle is None:
            return ObservedTask(task, FOREIGN if self._engines.is_foreign(task) else NOT_STARTED)
        if (silence := self._engines.silence(task.engine)) and not self._engines.is_foreign(task):
            return ObservedTask(task, f"engine {task.engine}: {silence}")
        try:
            return ObservedTask(await self._observe_unpolled(task))
        except EngineError as error:
            return ObservedTask(task, f"engine {task.engine}: {error}")

    async def _observe_unpolled(self, task: Task) -> Task:
        if task.ended or task.handle is None:
            return task
        async with self._engines.calling(task, api="describe") as adapter:
            execution = validated(await adapter.describe(ref_of(task, task.handle)))
        return (await self._record(task, execution, self.clock()))[0]

    async def _poll(self, task: Task, stored: Task | None, is_asking: Callable[[], None]) -> tuple[Task, str | None]:
        """Take the steps due for the task, poll its engine, and store the result; the poller decides when.

        `stored` is the task if it was just read; `is_asking` is called when the request is sent. Return the task, and
        the reason if the result could not be saved.
        """
        polled = task
        task = stored or await self._store.get(task.id, task.owner) or task
        if task.tombstone and polled.handle is not None:
            task = polled  # it expired; a waiting plain call still gets its result
        if task.cancelled and not polled.cancelled:
            return task, None  # another replica notified a client: final; the next poll asks the engine
        if task.handle is None and not task.ended and task.held is None:
            with self._engines.admitted(task.engine):
                task = await self._creation.ensure_started(task)
            if task.ended:
                self._record_status(task)
        if task.ended or (handle := task.handle) is None:
            return task, None
        if polled.ended and not task.tombstone:
            # clients may have seen this end, so it stays
            return await self._record(task, polled.execution, polled.updated)
        if task.cancel_requested and not task.cancel_delivered:
            self._engines.check_identity(task)
            delivered = await self._deliver_cancel_again(task, handle)
            task = task if delivered.tombstone else delivered
        if anyio.current_time() >= self.replicas.live_until:
            raise StoreUnavailable("this replica lost touch with the store for a moment; try again")
        is_asking()
        execution = await self._describe(task, handle)
        if task.identity != (current := self._engines.identity(task.engine)):  # the row predates engine identities
            task = await changed(self._store, task, partial(identify, identity=current))
        if execution.is_unmapped:
            self._engines.telemetry.count("unmapped_statuses", engine=task.engine)
            logger.warning("engine %r: %s", task.engine, execution.message)
        if observe(task, execution, task.updated) is task:
            return task, None
        kept = keepable(validated(execution), self._max_kept_result)
        return await self._record(task, kept, polled.updated if polled.execution == kept else self.clock())

    async def _describe(self, task: Task, handle: str) -> Execution:
        try:
            async with self._engines.calling(task, api="describe") as adapter:
                return await adapter.describe(ref_of(task, handle))
        except ExecutionNotFound:
            if task.identity != self._engines.identity(task.engine):
                raise EngineUnavailable("it does not show the execution, and may not be where it ran") from None
            settled = self.clock() - task.updated >= SETTLING  # `created` may be long before the start
            if not (settled and self._clock_check.is_steady()):
                raise EngineUnavailable("it does not show the execution yet") from None
            text = f"engine {task.engine} no longer has this execution: its outcome is unknown"
            failure = Failure(text=text, kind="ExecutionNotFound", code=INTERNAL_ERROR)
            return replace(task.execution, status=Status.FAILED, failure=failure, requests={})

    async def _record(self, task: Task, execution: Execution, at: datetime) -> tuple[Task, str | None]:
        """Store an observed execution. Only one replica's transaction changes the status, and that replica audits it.

        `task` is the row before the poll. If its execution has changed since, only an end counts: this replica may have
        been suspended, and another one has observed the execution later.
        """
        is_new_status = is_late = False

        def take_over(stored: Task) -> Task:
            nonlocal is_new_status, is_late
            is_late = stored.execution != task.execution and execution.status not in TERMINAL
            after = stored if is_late else observe(stored, execution, at)
            is_new_status = after.execution.status is not stored.execution.status
            return after

        try:
            stored = await changed(self._store, task, take_over)
        except StoreError as error:
            return observe(task, execution, at), f"not saved: {error}"
        if stored.tombstone:
            return observe(task, execution, at), None
        if is_late:
            self._poller.refresh_now(task.id)
        if is_new_status:
            self._record_status(stored)
        return stored, None

    def _record_status(self, task: Task) -> None:
        is_done = task.execution.status is Status.SUCCEEDED
        if wrong := is_done and mismatch(tool_result(task.execution.output), task.output_schema):
            self._engines.telemetry.count("result_mismatches", engine=task.engine, tool=task.tool)
            text = "a result does not match the output schema; it is delivered with a mark"
            logger.warning("tool %r: %s: %s", task.tool, text, wrong)
        if self._audit is not silent:
            self._audit(status_record(task))

    async def log(self, task: Task) -> str:
        """Return the end of its execution's log; empty if there is none yet.

        Raises:
            RequestError: the engine cannot show it now.
        """
        try:
            async with self._engines.calling(task) as adapter:
                if task.handle is None or not isinstance(adapter, HasLogs):
                    return ""
                text = mask(await adapter.log(ref_of(task, task.handle)))
                return cleaned(text, len(text) + 1)
        except EngineError as error:
            raise RequestError(INTERNAL_ERROR, f"engine {task.engine} cannot show the log now: {error}") from None

    def poll_interval(self, task: Task) -> timedelta:
        """Return the time after which another `tasks/get` is worthwhile; it grows with the task's age and the load."""
        return timedelta(seconds=self._poller.interval(task))

    # --- follow

    async def follow(
        self,
        task: Task,
        on_change: Callable[[ObservedTask], Awaitable[bool | None]],
        *,
        timeout: float = float("inf"),  # noqa: ASYNC109  # of the engine, not of the call
    ) -> Task:
        """Call `on_change` now and after each change, until the task ends or `on_change` returns True; return the task.

        Raises:
            EngineError: the engine gave no answer for `timeout` seconds.
            ServerStopping: the server is stopping.
        """

        async def notify(task: Task) -> bool | None:
            return await on_change(ObservedTask(task, self._poller.unsaved(task)))

        return await self._poller.follow(task, notify, give_up_after=timeout)

    def stop(self) -> None:
        """End all waiting, because the server is about to stop."""
        self._poller.stop()
        for scope in tuple(self._until_stop):
            scope.cancel()

    @property
    def stopping(self) -> bool:
        """True after `stop`."""
        return self._poller.stopped

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

    # --- answer

    async def answer(
        self,
        task: Task,
        responses: Mapping[str, JSON],
        principal: Principal,
        way: AnswerWay,
        check: Check | None = None,
    ) -> tuple[Task, Answers]:
        """Deliver responses to open questions and return those; ignore the others (MCP, `tasks/update`).

        `check` receives the current task and the answers before delivery, and may refuse them.

        Raises:
            RequestError: an answer does not fit its question, or the engine did not accept it; nothing was applied.
        """
        async with self._answering.setdefault(task.id, anyio.Lock()):  # conflicting answers are handled one at a time
            task = await self._store.get(task.id, task.owner) or task
            for key in responses.keys() & task.decisions.keys():
                refuse_another_decision(task, key, responses[key], principal)
            if task.ended and START_KEY in responses.keys() & task.asked_keys:  # another replica accepted it
                raise _cancelled_before()
            if task.ended:
                return task, {}
            if not task.may_answer:
                raise RequestError(INVALID_PARAMS, f"tool {task.tool} only watches: it cannot deliver answers")
            if any(key not in task.execution.requests for key in responses):
                try:
                    task = await self.observe_afresh(task)
                except EngineError as error:
                    raise _undelivered(task, error) from None
            if way is not AnswerWay.PAGE:
                responses = self._without_links(task, responses, way)
            answers = _fitting_answers(task, responses, principal)
            if answers and check is not None:
                await check(task, answers)
            if answers and task.held is not None:
                decision = decision_of(principal, answers[START_KEY], self.clock(), START_GATE)
                return await self._decide(task, decision), answers
            if not answers or task.handle is None:
                return task, {}
            try:
                async with self._deciding(task, answers):
                    return await self._deliver_answers(task, task.handle, answers, principal), answers
            finally:
                self._poller.refresh_now(task.id)

    @asynccontextmanager
    async def _deciding(self, task: Task, answers: Answers) -> AsyncGenerator[None]:
        """Let one replica at a time deliver decisions on a task, so that the record matches what the engine received.

        Raises:
            RequestError: another replica is delivering one now, or has delivered one.
        """
        if not any(task.terms_of(key) for key in answers):
            yield
            return
        name, holder = f"decision {task.id}", token_hex(8)
        try:
            if not await self._store.lease(name, holder, lasting=DECIDING):
                raise RequestError(INVALID_PARAMS, "Somebody else is deciding now; nothing was applied: look again")
            latest = await self._store.get(task.id, task.owner) or task
            if decided := latest.decisions.keys() & answers.keys():
                raise decided_already(latest.decisions[min(decided)])
        except StoreError as error:
            raise RequestError(INTERNAL_ERROR, f"nothing was decided: {error}; try again") from None
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(_STORE_TIMEOUT), suppress(StoreError):
                await self._store.lease(name, holder, lasting=timedelta())

    def _without_links(self, task: Task, responses: Mapping[str, JSON], way: AnswerWay) -> Mapping[str, JSON]:
        """Return the responses without those about opening our page; such a question stays open until its page answers.

        Raises:
            RequestError: a response answers a question that only our page accepts.
        """
        links = self.links(task)
        for key in links.keys() & responses.keys():
            if way is AnswerWay.CHAT or not is_object(responses[key]) or responses[key].get("content") is not None:
                raise invalid_response(key, people_answer(links[key]))
        return {key: response for key, response in responses.items() if key not in links}

    async def _decide(self, task: Task, decision: Decision) -> Task:
        """Record the decision on a held start, and start it if approved; the first decision counts.

        Raises:
            RequestError: another decision was made before, or it was cancelled.
        """
        text = decision_text(decision)
        try:
            decided = await changed(self._store, task, lambda stored: decide(stored, decision, text))
        except StoreError as error:
            raise RequestError(INTERNAL_ERROR, f"nothing was decided: {error}; try again") from None
        first = decided.decisions.get(START_KEY)
        if first is None:
            raise _cancelled_before()
        if first != decision:
            raise decided_already(first)
        self._poller.note(decided)
        self._poller.refresh_now(task.id)
        if decided.ended:
            self._record_status(decided)
        elif self._is_entered:
            decided = (await self.observe(decided)).task  # starts it; if its engine is unavailable, maintenance does
        return decided

    async def _deliver_answers(self, task: Task, handle: str, answers: Answers, principal: Principal) -> Task:
        """Return the task once its engine has accepted these answers and the store has recorded that."""
        try:
            await self._store.check()  # an answer that cannot be stored is not delivered
            async with self._engines.calling(task, api="answer") as adapter:
                await adapter.answer(replace(ref_of(task, handle), principal=principal.scope["principal"]), answers)
        except EngineRefused as error:
            raise RequestError(INVALID_PARAMS, f"engine {task.engine} refused the answer: {error}") from None
        except EngineError as error:
            raise _undelivered(task, error) from None
        except StoreError as error:
            raise RequestError(INTERNAL_ERROR, f"the answer was not delivered: {error}; try again") from None
        try:
            at = self.clock()
            decisions = {
                key: decision_of(principal, answers[key], at, task.execution.requests[key].gate or "", task.gates)
                for key in answers
                if task.terms_of(key)
            }
            return await changed(self._store, task, lambda stored: accept(stored, answers, at, decisions))
        except StoreError as error:
            text = f"engine {task.engine} accepted the answer, but it was not recorded: {error}; check the task first"
            raise RequestError(INTERNAL_ERROR, text) from None

    # --- cancel

    async def cancel(self, task: Task, *, is_final: bool = False) -> ObservedTask:
        """Ask the engine to cancel. The status shows the outcome, and the warning an engine that did not accept it.

        If the engine does not accept the cancellation now, a later poll delivers it. `is_final`: the client is notified
        at once that the task is cancelled, which is final in 2025-11-25.

        Raises:
            RequestError: the request cannot be stored.
        """
        change = mark_cancelled if is_final else request_cancel
        try:
            task = await changed(self._store, task, lambda stored: change(stored, self.clock()))
        except StoreError as error:
            raise RequestError(INTERNAL_ERROR, f"not cancelled: {error}; the task continues; try again") from None
        self._poller.note(task)
        warning = None
        if task.handle is not None and not task.ended:
            task, warning = await self._deliver_cancel(task, task.handle)
            self._poller.note(task)
        self._poller.refresh_now(task.id)
        return ObservedTask(task, warning)

    async def _deliver_cancel(self, task: Task, handle: str) -> ObservedTask:
        """Send the cancellation to the engine; if the engine does not accept it now, it stays due."""
        try:
            async with self._engines.calling(task, api="cancel") as adapter:
                await adapter.cancel(ref_of(task, handle))
        except EngineError as error:
            if isinstance(error, EngineRefused):
                self._refused_cancels[task.id] = anyio.current_time()
            logger.warning("engine %r did not accept a cancellation; it will be sent again: %s", task.engine, error)
            return ObservedTask(task, f"engine {task.engine}: {error}")
        try:
            return ObservedTask(await changed(self._store, task, lambda stored: deliver_cancel(stored, self.clock())))
        except StoreError as error:  # the poll that delivered it continues
            logger.warning("a cancellation that engine %r accepted will be sent again: %s", task.engine, error)
            return ObservedTask(task, str(error))

    async def _deliver_cancel_again(self, task: Task, handle: str) -> Task:
        """Deliver a cancellation, unless the engine refused it recently."""
        now = anyio.current_time()
        self._refused_cancels = {name: at for name, at in self._refused_cancels.items() if now - at < REFUSED_FOR}
        return task if task.id in self._refused_cancels else (await self._deliver_cancel(task, handle)).task

    async def _take_due_step(self, task: Task) -> None:
        """Deliver the cancellation, terminate the execution or take the approval step that is due, if it still is.

        For maintenance.

        Raises:
            EngineError: the step failed, and is still due.
        """
        stored = await self._store.get(task.id, task.owner)
        if stored is None or not self._is_due(stored):
            return
        task, now = stored, self.clock()
        is_over = task.cancels_itself is not None and task.cancels_itself <= now  # even if a refusal fails
        if not is_over and (step := min((each for each in steps_of(task) if each[0] <= now), default=None)):
            await self._take_approval_step(task, *step[1:])
            return
        if task.cancel_requested is None:
            task = await changed(self._store, task, lambda stored: request_cancel(stored, self.clock()))
            self._audit(record_of(Event.CANCEL, None, task, outcome="expired", reason="its time to live was over"))
        task = await self.observe_afresh(task)  # also delivers the cancellation
        if task.ended or task.handle is None:
            return
        if not task.cancel_delivered:
            raise EngineUnavailable("it did not accept the cancellation")
        if self._is_due(task):
            reason = f"it did not end within {task.grace:g} s of the request to cancel"
            task = await self.terminate(task, task.handle, reason)
            logger.info("terminated an execution of a %s task on engine %r: %s", task.tool, task.engine, reason)
            self._audit(record_of(Event.CANCEL, None, task, outcome="terminated", reason=reason))
            await self.observe_afresh(task)

    async def _take_approval_step(self, task: Task, key: str, step: Step) -> None:
        """Remind people of an approval, escalate it, or decline it.

        Raises:
            EngineUnavailable: the engine did not accept the refusal.
        """
        now = self.clock()
        answers: Answers = {}
        if step is not Step.DECLINE:
            task = await changed(self._store, task, lambda stored: note_step(stored, key, step, now))
            self._poller.note(task)
            self._poller.refresh_now(task.id)
        else:
            with suppress(RequestError):  # it was decided a moment ago
                task, answers = await self.answer(task, {key: {"action": Action.DECLINE}}, NOBODY, AnswerWay.PAGE)
            if key in task.seen.requests:
                raise EngineUnavailable("it did not accept the refusal")
            if not answers:
                return
        self._audit(record_of(Event.ANSWER, None, task, outcome=step.value, reason=f"{key}: nobody decided"))

    async def note_delivery(self, task_id: str, owner: str, key: str, channel: str, at: datetime | None) -> None:
        """Record when a channel accepted a notification (`task.note_delivery`); followers of the task see it at once.

        Raises:
            StoreError: it cannot be stored.
        """
        task = await self._store.change(task_id, owner, lambda row: note_delivery(row, key, channel, at))
        if task is not None:
            self._poller.note(task)
            self._poller.refresh_now(task.id)

    def page_url(self, task_id: str, key: str) -> str | None:
        """Return the stable address of a question's page; None: there are no pages.

        The address is opaque and grants nothing: the page requires a login.
        """
        return None if self.web_url is None else f"{self.web_url}/approvals/{self._make_link(task_id, key)}"

    def links(self, task: Task) -> Mapping[str, str]:
        """Return the page addresses of the open questions that only our page accepts answers for, by key."""
        asked = task.seen.requests
        return {key: at for key in asked if asked[key].on_page and (at := self.page_url(task.id, key))}

    def with_links(self, task: Task) -> Task:
        """Return the task for a client: questions that only our page can answer are links (URL mode)."""
        links, requests = self.links(task), dict(task.execution.requests)
        for key, url in links.items():
            kept = {part: each for part, each in requests[key].params.items() if part in {"message", "_meta"}}
            params = {"mode": "url", **kept, "url": url, "elicitationId": question_digest(task.id, key)}
            requests[key] = replace(requests[key], params=params)
        return replace(task, execution=replace(task.execution, requests=requests)) if links else task

    def _make_link(self, task_id: str, key: str) -> str:
        return seal(self._link_key, f"{task_id} {question_digest(task_id, key)}".encode(), _LINKS, is_stable=True)

    def read_link(self, link: str) -> tuple[str, str] | None:
        """Return the task id and the `question_digest` in a link; None: it was not created here."""
        found = unseal(self._link_key, link[:_LONGEST_CURSOR], _LINKS)
        if found is None:
            return None
        task_id, _, question = found.decode().rpartition(" ")
        return task_id, question

    def sealed(self, requester: Principal, task_id: str) -> str:
        """Return an approval's requester, encrypted for the task: claims are never stored in the clear."""
        return seal(self._requester_key, _PRINCIPAL.dump_json(requester), task_id)

    def unsealed(self, text: str, task_id: str) -> Principal | None:
        """Return the principal from `sealed`; None: it cannot be read."""
        found = unseal(self._requester_key, text, task_id)
        try:
            return None if found is None else _PRINCIPAL.validate_json(found)
        except ValidationError:  # written by another version
            return None

    def is_foreign(self, task: Task) -> bool:
        """Return True if the task belongs to another engine of the same name."""
        return self._engines.is_foreign(task)

    async def terminate(self, task: Task, handle: str, reason: str) -> Task:
        """End the execution without its cooperation.

        Raises:
            EngineError: its engine cannot, or did not.
        """
        async with self._engines.calling(task, api="terminate") as adapter:
            if not isinstance(adapter, Terminates):
                raise EngineRefused("its adapter cannot terminate")
            await adapter.terminate(ref_of(task, handle), reason)
        return await changed(self._store, task, lambda stored: mark_terminated(stored, self.clock()))

    def _is_due(self, task: Task) -> bool:
        return task.due is not None and task.due <= self.clock()


@contextmanager
def _until(by: float) -> Generator[None]:
    """Limit the store's reads in the body by a deadline of the event loop's clock."""
    with anyio.CancelScope(deadline=by) as scope:
        yield
    if scope.cancelled_caught:
        raise StoreUnavailable(f"the store did not answer within {READ_TIMEOUT:g} s")


# --- fitting answers


def _fitting_answers(task: Task, responses: Mapping[str, JSON], principal: Principal) -> Answers:
    """Return the responses to open questions as the adapter receives them, by key; ignore the rest.

    Raises:
        RequestError: one does not fit its question, see `checked_response` and `rendered_response`, or lacks a reason.
    """
    requests = task.seen.requests
    checked = {key: checked_response(key, requests[key], responses[key]) for key in responses if key in requests}
    for key, response in checked.items():
        if task.terms_of(key):
            check_reason(key, requests[key], response)
    rendered = {key: rendered_response(task, key, response, principal) for key, response in checked.items()}
    return {key: response for key, response in rendered.items() if response}


def rendered_response(
    task: Task, key: str, response: Mapping[str, JSON], principal: Principal
) -> Mapping[str, JSON] | None:
    """Return the response for the adapter; for a gate with `send`, add the rendered text for the engine.

    None: the question was only dismissed, and stays open. A workflow that asks without a gate receives that response.

    Raises:
        RequestError: the gate cannot be declined, or its template does not work on this answer.
    """
    request = task.seen.requests[key]
    gate, action = task.gates.get(request.gate or ""), response.get("action")
    if action == Action.CANCEL and (gate is not None or request.declinable is not None):
        return None
    if gate is None:
        return {name: value for name, value in response.items() if name != "send"}  # only gates may send
    template = gate.send if action == Action.ACCEPT else gate.decline
    if template is None:
        raise invalid_response(key, "this question cannot be declined, only answered or left open")
    answer = response.get("content") if action == Action.ACCEPT else None  # a refusal's content was not validated
    scope = {"args": task.arguments or {}, "task": {"id": task.id}, "answer": answer, **principal.scope}
    try:
        return {**response, "send": Template(template).render(scope, all_keys=True)}
    except MappingError as error:
        raise invalid_response(key, str(error)) from None


def _cancelled_before() -> RequestError:
    """Return the error for a decision on a cancelled start."""
    return RequestError(INVALID_PARAMS, "It was cancelled before this decision: nothing was applied")


def _undelivered(task: Task, error: EngineError) -> RequestError:
    """Return the error for an answer that the engine did not accept; the client may send it again."""
    return RequestError(
        INTERNAL_ERROR, f"engine {task.engine} did not accept the answer: {error}; the task continues; try again"
    )


# --- quotas

WINDOW: Final = timedelta(minutes=1)  # for counting creations
OBSERVED_OLDEST: Final = 20  # tasks: these have most likely ended unobserved
OBSERVED_FOR: Final = 3.0  # seconds
COUNT_EVERY: Final = 5.0  # seconds per owner and tool: repeated calls must not load engines
_MOST_COUNTED: Final = 1000  # owners and tools
_WAIT: Final = "wait until one ends, or cancel one"
_MESSAGES: Final[Mapping[str, str]] = {
    "live_of_owner": f"at most {{cap}} tasks of one caller may run at the same time: {_WAIT}",
    "live_of_tool": "at most {cap} tasks of {tool} of all callers may run at the same time: try later",
    "live_of_owner_and_tool": f"at most {{cap}} tasks of {{tool}} of one caller may run at the same time: {_WAIT}",
    "created_of_owner": "at most {cap} tasks of one caller may be created in a minute: try again",
    "created_of_tool": "at most {cap} tasks of {tool} of all callers may be created in a minute: try again",
}
"""The message for each field of `Caps`."""
_COUNTED_BY: Final[Mapping[str, tuple[bool, bool]]] = {
    "live_of_owner": (True, False),
    "live_of_tool": (False, True),
    "live_of_owner_and_tool": (True, True),
}
"""The rows that count for a cap: the owner's, the tool's."""
NO_MORE: Final = Caps(created_of_owner=0)  # no new task; an existing one with the same idempotency key is still found


def caps_of(limits: Limits, tool: AnyTool, now: datetime) -> Caps:
    """Return the caps for one more task of this tool. Messages are exempt from the caller's cap on live tasks."""
    own = tool.limits
    return Caps(
        live_of_owner=None if tool.message else limits.tasks_per_principal,
        live_of_tool=own.tasks,
        live_of_owner_and_tool=own.tasks_per_principal,
        created_of_owner=limits.creates_per_minute,
        created_of_tool=own.creates_per_minute,
        since=now - WINDOW,
    )


def limit_reached(reached: CapReached, caps: Caps, tool: str, now: datetime) -> LimitReached:
    """Return the error for the caller: the limit, its value, and advice. It reveals nothing about other tasks."""
    text = _MESSAGES[reached.cap].format(cap=getattr(caps, reached.cap), tool=tool)
    if reached.again is None:
        return LimitReached(f"{text}; nothing was started")
    after = max(1.0, (reached.again - now).total_seconds())
    return LimitReached(f"{text} in {ceil(after)} s; nothing was started", retry_after=after)


# --- cursors: opaque, for one reader only, and encrypted, because the last task of a page may be hidden from it

Position: TypeAlias = tuple[datetime, str]  # creation of a task, and its id

_LONGEST_CURSOR: Final = 500  # characters


def write_cursor(key: bytes, reader: str, position: Position) -> str:
    """Return a cursor for the position that the next page starts after; `key` has 32 bytes."""
    return seal(key, f"{position[0].isoformat()} {position[1]}".encode(), reader)


def read_cursor(key: bytes, reader: str, cursor: str) -> Position:
    """Return the position in a cursor of `write_cursor`.

    Raises:
        RequestError: this server did not issue this cursor for this reader (spec 2025-11-25: -32602).
    """
    place = unseal(key, cursor[:_LONGEST_CURSOR], reader)
    if place is None:
        raise RequestError(INVALID_PARAMS, "unknown cursor: omit it to begin with the newest task")
    created, _, task_id = place.decode().partition(" ")
    return datetime.fromisoformat(created), task_id
