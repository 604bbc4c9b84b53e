"""One task, followed to its end: looked at when it may have changed, its questions put to the person."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias, cast

import anyio
import mcp_types as types
from anyio.abc import TaskGroup
from mcp.client import ClientRequestContext, ClientSession
from mcp.shared.exceptions import MCPError

from mcp_workflows.client.messages import GetTask, TaskParams, TaskState, UpdateParams, UpdateTask, as_json, listen_to

OnChange: TypeAlias = Callable[[TaskState], Awaitable[None]]

POLL_SECONDS = 1.0  # between two looks, when the server does not say
LONGEST_POLL_SECONDS = 60.0  # whatever the server says
LISTENING_SECONDS = 10.0  # between two looks while the server tells of changes: a stream can die silently
_TRIES = 5  # for one look whose answer is lost on the way
_LOST_ON_THE_WAY = frozenset({types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT, types.INTERNAL_ERROR})


async def look(session: ClientSession, task_id: str) -> TaskState:
    """`tasks/get`, asked again a few times when the answer is lost on the way.

    Raises:
        MCPError: the server does not know the task, or gives no answer.
    """
    request = GetTask(params=TaskParams(task_id=task_id))
    for tried in range(1, _TRIES):
        try:
            return await session.send_request(request, TaskState)
        except MCPError as error:
            if error.code not in _LOST_ON_THE_WAY:
                raise
        await anyio.sleep(0.1 * 2**tried)
    return await session.send_request(request, TaskState)


async def ask(session: ClientSession, key: str, request: types.InputRequest) -> types.InputResponse:
    """The response of the client's own callbacks (elicitation, sampling, roots) to one question.

    Raises:
        MCPError: the callback refused.
    """
    response = await session.dispatch_input_request(ClientRequestContext(session=session, request_id=key), request)
    if isinstance(response, types.ErrorData):
        raise MCPError.from_error_data(response)
    return response


class Following:
    """A task on its way to its end; questions are asked beside the looking: one answered elsewhere goes away."""

    def __init__(
        self, session: ClientSession, task_id: str, on_change: OnChange, seen: TaskState | None = None
    ) -> None:
        self.task_id = task_id
        self._session = session
        self._on_change = on_change
        self._seen = seen
        self._asking: dict[str, anyio.CancelScope] = {}
        self._asked: set[str] = set()
        self._listening = False
        self._changed = anyio.Event()

    def wake(self) -> None:
        """The server says that it changed."""
        self._listening = True
        self._changed.set()

    async def until_ended(self) -> TaskState:
        """Its last state.

        Raises:
            MCPError: the server does not know it, or gives no answer; or a question was refused.
        """
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._listen)
                await self._look_on(group)
                group.cancel_scope.cancel()
        except BaseExceptionGroup as errors:
            raise bare(errors) from None
        assert self._seen is not None, "it has ended, so it was seen"
        return self._seen

    async def _look_on(self, group: TaskGroup) -> None:
        while True:
            self._changed = anyio.Event()
            state = await look(self._session, self.task_id)
            await self._tell(state)
            if state.ended:
                return
            self._ask_what_is_open(group, state)
            with anyio.move_on_after(self._pause(state)):
                await self._changed.wait()

    def _pause(self, state: TaskState) -> float:
        wanted = POLL_SECONDS if state.poll_interval_ms is None else state.poll_interval_ms / 1000
        return min(max(wanted, LISTENING_SECONDS if self._listening else 0.01), LONGEST_POLL_SECONDS)

    async def _listen(self) -> None:
        """Changes as they happen, where the server offers it; otherwise, and when the stream ends, it is polled."""
        with suppress(MCPError):
            await self._session.send_request(listen_to(self.task_id), types.SubscriptionsListenResult)
        self._listening = False
        self._changed.set()

    async def _tell(self, state: TaskState) -> None:
        before, self._seen = self._seen, state
        if before is None or _visible(before) != _visible(state):
            await self._on_change(state)

    def _ask_what_is_open(self, group: TaskGroup, state: TaskState) -> None:
        requests = state.input_requests or {}
        for key, scope in self._asking.items():
            if key not in requests:
                scope.cancel()  # somebody else has answered it
        for key, request in requests.items():
            if key not in self._asked:
                self._asked.add(key)
                self._asking[key] = anyio.CancelScope()
                group.start_soon(self._ask, key, request)

    async def _ask(self, key: str, request: types.InputRequest) -> None:
        with self._asking[key]:
            responses = {key: as_json(await ask(self._session, key, request))}
            update = UpdateTask(params=UpdateParams(task_id=self.task_id, input_responses=responses))
            await self._session.send_request(update, types.EmptyResult)
        del self._asking[key]
        self._changed.set()


def _visible(state: TaskState) -> object:
    """What a person sees of a state; the rest (times, for example) may change with every look."""
    return state.status, state.status_message, sorted(state.input_requests or {})


def bare(error: BaseException) -> BaseException:
    """The error as it was raised, without the groups that task groups wrap around it; the first of several."""
    if isinstance(error, BaseExceptionGroup):
        inner = cast("BaseExceptionGroup[BaseException]", error).exceptions
        return bare(inner[0])
    return error
