"""The client library: with TasksClient, a tool call of the MCP SDK's client returns the task's final result.

```python
async with Client(url, extensions=[TasksClient(on_status=show)], elicitation_callback=ask) as client:
    result = await client.call_tool("fulfil_order", {"order_id": "A-1001"})
```
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import mcp_types as types
from mcp.client import ClaimContext, Client, ClientExtension, ClientSession, NotificationBinding, ResultClaim
from mcp.client.session import ElicitationFnT
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_workflows.client.events import ServerEvents, verify_webhook
from mcp_workflows.client.follower import FollowOptions, OnStatus, TaskFollower, TaskSubscriptions
from mcp_workflows.client.http import reconnecting_http
from mcp_workflows.client.requests import (
    AnswerRejected,
    CreatedTask,
    TaskExpired,
    TaskFailed,
    TaskNotFound,
    TaskState,
    as_json,
    idempotency,
    visible,
)
from mcp_workflows.errors import ClientError, ServerUnreachable
from mcp_workflows.wire import v2026_07_28 as wire
from mcp_workflows.wire.events import Notice


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHandle:
    """A task, for code that controls it step by step; a later client can get it again by its `id`.

    Every method raises `TaskNotFound` (or `TaskExpired`) if the server does not know the task, and `ServerUnreachable`
    if the server does not reply in time.
    """

    id: str
    begun: TaskState | None = None
    """The first state that the server returned; None for a handle made from an id."""
    session: ClientSession = field(repr=False)
    options: FollowOptions = field(repr=False)

    async def status(self) -> TaskState:
        """Return the current state."""
        return await self.options.requests(self.session).get(self.id)

    async def updates(self) -> AsyncGenerator[TaskState]:
        """Yield the current state and each visible change until the end; answer no questions."""
        seen = await self.status()
        yield seen
        while not seen.ended:
            seen = await self._after(seen)
            yield seen

    async def _after(self, seen: TaskState) -> TaskState:
        """Wait for a visible change. Each update opens its own stream, as the caller may never request the next."""
        async with self.options.subscriptions.to(self.session, self.id) as changes:
            while True:
                changes.forget()
                state = await self.status()
                if state.ended or visible(state) != visible(seen):
                    return state
                await changes.wait(state)

    async def answer(self, responses: Mapping[str, types.InputResponse]) -> None:
        """Answer questions by key (all `input_requests`, or some); already answered keys are ignored.

        Raises:
            AnswerRejected: an answer does not fit its question.
        """
        answers: dict[str, Any] = {key: as_json(response) for key, response in responses.items()}  # Any: JSON
        await self.options.requests(self.session).answer(self.id, answers)

    async def result(self) -> types.CallToolResult:
        """Wait for the end as `client.call_tool` does: ask the questions, and call `on_status` with the states.

        Raises:
            TaskCancelled: it was cancelled.
            TaskFailed: it ended with a JSON-RPC error.
            AnswerRejected: an answer does not fit its question.
            MCPError: a callback refused a question.
        """
        return await TaskFollower(self.options, self.session, self.id, seen=self.begun).result()

    async def cancel(self) -> None:
        """Request cancellation; the state shows the outcome."""
        await self.options.requests(self.session).cancel(self.id)


__all__ = [
    "AnswerRejected",
    "OnStatus",
    "ServerEvents",
    "TaskExpired",
    "TaskFailed",
    "TaskHandle",
    "TaskNotFound",
    "TaskState",
    "TasksClient",
    "idempotency",
    "reconnecting_http",
    "verify_webhook",
]

MAX_ROUNDS: Final = 100  # rounds of questions before one call returns its result or task
TIMEOUT_SECONDS: Final = 60.0


class TasksClient(ClientExtension):
    """The extension `io.modelcontextprotocol/tasks` of 2026-07-28 for `Client(extensions=[...])`.

    `client.call_tool` then returns the final result: the task is followed by notifications or polls, and its questions
    are asked. The task continues without the client: a later client gets it by its id, with `handle`. With a server of
    another revision or without the extension, calls remain plain calls.
    """

    identifier = wire.EXTENSION

    def __init__(
        self,
        *,
        on_elicitation: ElicitationFnT | None = None,
        on_status: OnStatus | None = None,
        cancel_on_abandon: bool = False,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """Set how tasks are followed.

        Args:
            on_elicitation: answers the questions of tasks; by default, the client's `elicitation_callback` does.
                The SDK declares the elicitation capability only if that callback is given too.
            on_status: is called with each visible change of state.
            cancel_on_abandon: True to cancel the task when the wait for its result is cancelled.
            timeout_seconds: how long requests are retried without a reply before `ServerUnreachable`.
        """
        self._options = FollowOptions(
            on_elicitation=on_elicitation,
            on_status=on_status,
            cancel_on_abandon=cancel_on_abandon,
            timeout=timeout_seconds,
            subscriptions=TaskSubscriptions(),
        )
        self._waiting: set[anyio.Event] = set()  # for events

    # --- declarations for the SDK

    def claims(self) -> Sequence[ResultClaim[Any]]:
        """Return the claim that a call can return a task."""
        return [ResultClaim(result_type="task", model=CreatedTask, resolve=self._resolve)]

    def notifications(self) -> Sequence[NotificationBinding[Any]]:
        """Return the bindings for notifications about tasks and events."""
        return [
            NotificationBinding(method=wire.NOTIFICATION, params_type=TaskState, handler=self._notified),
            NotificationBinding(method=Notice.EVENT, params_type=types.NotificationParams, handler=self._told),
            NotificationBinding(method=Notice.TERMINATED, params_type=types.NotificationParams, handler=self._told),
        ]

    # --- for its user

    def handle(self, client: Client | ClientSession, task_id: str) -> TaskHandle:
        """Return a handle for a task id from an earlier client; send no request.

        Raises:
            ClientError: the connection uses another protocol version, with different tasks.
        """
        session = _session(client)
        if session.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            raise ClientError(
                f"tasks need a connection of {wire.PROTOCOL_VERSION}; this one speaks {session.protocol_version}"
            )
        return TaskHandle(id=task_id, session=session, options=self._options)

    def events(self, client: Client | ClientSession) -> ServerEvents:
        """Return the events of the server, available in every revision; send no request."""
        return ServerEvents(requests=self._options.requests(_session(client)), waiting=self._waiting)

    async def start(
        self,
        client: Client | ClientSession,
        tool: str,
        arguments: Mapping[str, Any] | None = None,  # Any: JSON
        *,
        idempotency_key: str | None = None,
        progress_callback: ProgressFnT | None = None,
    ) -> TaskHandle | types.CallToolResult:
        """Call a tool without waiting for the task, if there is one; ask questions before the start one by one.

        `progress_callback` is for a call that does not become a task. The call is never retried automatically; with an
        `idempotency_key`, you may retry it.

        Raises:
            ServerUnreachable: the reply was lost, and the workflow may have started.
            MCPError: a JSON-RPC error, or a refused question.
        """
        session = _session(client)
        responses: types.InputResponses | None = None
        state: str | None = None
        for _ in range(MAX_ROUNDS):
            try:
                begun = await session.call_tool(
                    tool,
                    dict(arguments or {}),
                    input_responses=responses,
                    request_state=state,
                    progress_callback=progress_callback,
                    meta=idempotency(idempotency_key) if idempotency_key else None,
                    allow_input_required=True,
                    allow_claimed=True,
                )
            except MCPError as error:
                raise _lost(error, tool) or error from None
            if isinstance(begun, CreatedTask):
                await self._options.notify(begun.state)
                return TaskHandle(id=begun.task_id, begun=begun.state, session=session, options=self._options)
            if isinstance(begun, types.CallToolResult):
                return begun
            assert isinstance(begun, types.InputRequiredResult), "nothing else is claimed"
            asked = begun.input_requests or {}
            responses = {key: await self._options.ask(session, key, request) for key, request in asked.items()}
            state = begun.request_state
        raise MCPError(types.INTERNAL_ERROR, f"{tool} asked more than {MAX_ROUNDS} times and still did not start")

    # --- callbacks of the SDK

    async def _resolve(self, created: CreatedTask, context: ClaimContext) -> types.CallToolResult:
        await self._options.notify(created.state)
        return await TaskFollower(self._options, context.session, created.task_id, seen=created.state).result()

    async def _notified(self, state: TaskState) -> None:
        self._options.subscriptions.report(state.task_id)

    async def _told(self, _: types.NotificationParams) -> None:
        for waiting in self._waiting:
            waiting.set()


def _session(client: Client | ClientSession) -> ClientSession:
    return client.session if isinstance(client, Client) else client


def _lost(error: MCPError, tool: str) -> ServerUnreachable | None:
    if error.code not in (types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT):
        return None
    return ServerUnreachable(
        f"no answer to the call of {tool} ({error.message}): it may have started; with an idempotency_key, calling "
        "again is safe"
    )
