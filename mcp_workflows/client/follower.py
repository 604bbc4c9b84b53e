"""Following one task to its end: poll after each possible change, and ask the task's questions."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

import anyio
import mcp_types as types
from anyio.abc import TaskGroup
from mcp.client import ClientRequestContext, ClientSession
from mcp.client.session import ElicitationFnT
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from mcp_workflows.client.requests import (
    LOST,
    SHORTEST_PAUSE_SECONDS,
    TaskFailed,
    TaskRequests,
    TaskState,
    as_json,
    listen_to,
    pauses,
    spread,
    visible,
)
from mcp_workflows.errors import ClientError, TaskCancelled

logger = logging.getLogger(__name__)

ABANDON_SECONDS: Final = 5.0  # for the cancel request, while the caller is being cancelled
POLL_SECONDS: Final = 1.0  # between two polls, if the server sets no interval
LONGEST_POLL_SECONDS: Final = 60.0  # even if the server sets more
LISTENING_SECONDS: Final = 10.0  # between two polls while the server reports changes: a stream can fail silently
MAX_STREAMS: Final = 20  # each keeps a connection open; further tasks are polled


class TaskChanges:
    """A signal that one task may have changed since the last poll."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        self._is_reported = False  # True if the server's stream has reported a change
        self._event = anyio.Event()

    def notify(self) -> None:
        """Signal a possible change."""
        self._event.set()

    def report(self) -> None:
        """Signal a change that the server reported."""
        self._is_reported = True
        self.notify()

    def lose(self) -> None:
        """Note that the server's stream has ended."""
        self._is_reported = False
        self.notify()

    def forget(self) -> None:
        """Reset the signal before a poll."""
        self._event = anyio.Event()

    async def wait(self, state: TaskState) -> None:
        """Wait for a possible change, or until the next poll is due."""
        with anyio.move_on_after(spread(self.pause(state))):
            await self._event.wait()

    def pause(self, state: TaskState) -> float:
        """Return the seconds to the next poll."""
        wanted = POLL_SECONDS if state.poll_interval_ms is None else state.poll_interval_ms / 1000
        least = LISTENING_SECONDS if self._is_reported else SHORTEST_PAUSE_SECONDS
        return min(max(wanted, least), LONGEST_POLL_SECONDS)


class TaskSubscriptions:
    """The followed tasks, with a stream of the server for each of the first `MAX_STREAMS`."""

    def __init__(self) -> None:
        self._waiting: set[TaskChanges] = set()
        self._streams = 0

    def report(self, task_id: str) -> None:
        """Signal a change of a task that the server reported."""
        for changes in self._waiting:
            if changes.task_id == task_id:
                changes.report()

    @asynccontextmanager
    async def to(self, session: ClientSession, task_id: str) -> AsyncGenerator[TaskChanges]:
        """Follow the changes of one task within this context; raise a single error without a group."""
        changes = TaskChanges(task_id)
        self._waiting.add(changes)
        streams = self._streams < MAX_STREAMS
        self._streams += streams
        try:
            async with anyio.create_task_group() as group:
                if streams:
                    group.start_soon(self._listen, session, changes)
                yield changes
                group.cancel_scope.cancel()
        except BaseExceptionGroup as errors:
            raise bare(errors) from None
        finally:
            self._waiting.discard(changes)
            self._streams -= streams

    async def _listen(self, session: ClientSession, changes: TaskChanges) -> None:
        """Request a stream, and again when it ends; stop if the server offers none."""
        for pause in pauses():
            try:
                await session.send_request(listen_to(changes.task_id), types.SubscriptionsListenResult)
            except MCPError as error:
                if error.code not in LOST:
                    return
            except ValidationError:  # of the final message; servers differ in how they end a stream
                logger.debug("the server ended the stream of %s in a way of its own", changes.task_id)
            finally:
                changes.lose()
            await anyio.sleep(pause)


def bare(error: BaseException) -> BaseException:
    """Return the error without the exception groups of task groups; of several, the first."""
    if isinstance(error, BaseExceptionGroup):
        inner = cast("BaseExceptionGroup[BaseException]", error).exceptions
        return bare(inner[0])
    return error


OnStatus: TypeAlias = Callable[[TaskState], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowOptions:
    """The settings of `TasksClient`, and the subscriptions of its server."""

    on_elicitation: ElicitationFnT | None
    on_status: OnStatus | None
    cancel_on_abandon: bool
    timeout: float
    subscriptions: TaskSubscriptions

    def requests(self, session: ClientSession) -> TaskRequests:
        """Return the requests about tasks in this session."""
        return TaskRequests(session=session, timeout=self.timeout)

    async def notify(self, state: TaskState) -> None:
        """Call `on_status` with a visible change of state."""
        if self.on_status:
            await self.on_status(state)

    async def ask(self, session: ClientSession, key: str, request: types.InputRequest) -> types.InputResponse:
        """Return the response to one question, from `on_elicitation` or from the client's callback for its kind.

        Raises:
            MCPError: the callback refused.
        """
        context = ClientRequestContext(session=session, request_id=key)
        response: types.InputResponse | types.ErrorData
        if isinstance(request, types.ElicitRequest) and self.on_elicitation:
            response = await self.on_elicitation(context, request.params)
        else:
            response = await session.dispatch_input_request(context, request)
        if isinstance(response, types.ErrorData):
            raise MCPError.from_error_data(response)
        return response


class TaskFollower:
    """Follows a task to its end. Questions are asked alongside the polls; one that was answered elsewhere is
    withdrawn."""

    def __init__(
        self, options: FollowOptions, session: ClientSession, task_id: str, seen: TaskState | None = None
    ) -> None:
        self._options = options
        self._session = session
        self._sending = options.requests(session)
        self._task_id = task_id
        self._seen = seen
        self._asking: dict[str, anyio.CancelScope] = {}
        self._answered: set[str] = set()

    async def result(self) -> types.CallToolResult:
        """Return the result of the task.

        Raises:
            TaskCancelled: it was cancelled.
            TaskFailed: it ended with a JSON-RPC error.
            TaskNotFound: the server does not know it (any more).
            AnswerRejected: an answer does not fit its question.
            ServerUnreachable: no reply in time.
            MCPError: a callback refused a question.
        """
        try:
            await self._until_ended()
        except BaseExceptionGroup as errors:
            raise bare(errors) from None
        except anyio.get_cancelled_exc_class():
            await self._abandon()
            raise
        assert self._seen is not None, "it has ended, so it was seen"
        return _outcome(self._seen)

    async def _until_ended(self) -> None:
        async with (
            self._options.subscriptions.to(self._session, self._task_id) as changes,
            anyio.create_task_group() as group,
        ):
            await self._poll_until_ended(group, changes)
            group.cancel_scope.cancel()

    async def _poll_until_ended(self, group: TaskGroup, changes: TaskChanges) -> None:
        while True:
            changes.forget()
            state = await self._sending.get(self._task_id)
            await self._notify(state)
            if state.ended:
                return
            self._ask_open_questions(group, changes, state)
            await changes.wait(state)

    async def _notify(self, state: TaskState) -> None:
        before, self._seen = self._seen, state
        if before is None or visible(before) != visible(state):
            await self._options.notify(state)

    def _ask_open_questions(self, group: TaskGroup, changes: TaskChanges, state: TaskState) -> None:
        requests = state.input_requests or {}
        for key, scope in self._asking.items():
            if key not in requests:
                scope.cancel()  # answered elsewhere; if it appears again, it is asked again
        for key, request in requests.items():
            if key not in self._asking and key not in self._answered:
                self._asking[key] = anyio.CancelScope()
                group.start_soon(self._ask, changes, key, request)

    async def _ask(self, changes: TaskChanges, key: str, request: types.InputRequest) -> None:
        with self._asking[key]:
            response = await self._options.ask(self._session, key, request)
            self._answered.add(key)
            await self._sending.answer(self._task_id, {key: as_json(response)})
        del self._asking[key]
        changes.notify()

    async def _abandon(self) -> None:
        """Cancel the task if that is configured. The caller is being cancelled, so the time is limited."""
        if not self._options.cancel_on_abandon or (self._seen and self._seen.ended):
            return
        with anyio.move_on_after(ABANDON_SECONDS, shield=True):
            try:
                await self._sending.cancel(self._task_id)
            except (MCPError, ClientError):
                return


def _outcome(ended: TaskState) -> types.CallToolResult:
    if ended.status == "cancelled":
        raise TaskCancelled(ended.task_id, ended.status_message)
    if ended.error is not None:
        raise TaskFailed(ended.task_id, ended.error.code, ended.error.message, ended.error.data)
    try:
        return types.CallToolResult.model_validate(ended.result)
    except ValidationError:
        raise ClientError(f"the server violates the protocol: no result of {ended.task_id}") from None
