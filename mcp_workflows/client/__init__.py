"""TasksClient: the MCP SDK's client resolves a task as if it were a plain call; with any server of the extension.

```python
tasks = TasksClient(on_change=show)
async with Client(url, extensions=[tasks], elicitation_callback=ask) as client:
    result = await client.call_tool("fulfil_order", {"order_id": "A-1001"})
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import mcp_types as types
from mcp.client import ClaimContext, Client, ClientExtension, ClientSession, NotificationBinding, ResultClaim
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError

from mcp_workflows.client.following import Following, OnChange, ask, look
from mcp_workflows.client.messages import CancelTask, CreatedTask, TaskParams, TaskState, UpdateParams, UpdateTask
from mcp_workflows.errors import TaskCancelled
from mcp_workflows.wire import v2026_07_28 as wire

__all__ = ["OnChange", "TaskState", "TasksClient", "idempotency"]

MAX_ROUNDS: Final = 100  # of questions before one call has its result or its task


def idempotency(key: str) -> types.RequestParamsMeta:
    """The `meta` of a call that may be sent again: the same key and arguments start one workflow, not two."""
    meta: Any = {wire.IDEMPOTENCY_KEY: key}  # Any: the SDK's type has no way to name an open key
    found: types.RequestParamsMeta = meta
    return found


class TasksClient(ClientExtension):
    """The extension `io.modelcontextprotocol/tasks` for `Client(extensions=[...])`.

    `client.call_tool` then returns the final result: the task is listened to or polled, its questions go to the
    client's own callbacks, `on_change` hears each new state. Whatever becomes of the client, the task goes on: any
    later one comes back to it with `result`.
    """

    identifier = wire.EXTENSION

    def __init__(self, on_change: OnChange | None = None) -> None:
        """`on_change` is called with each state that a person could tell from the one before."""
        self._on_change = on_change or _look_away
        self._followed: set[Following] = set()

    # --- what the SDK wants to know

    def claims(self) -> Sequence[ResultClaim[Any]]:
        """A call may come back as a task."""
        return [ResultClaim(result_type="task", model=CreatedTask, resolve=self._resolve)]

    def notifications(self) -> Sequence[NotificationBinding[Any]]:
        """Changes of tasks that are listened to."""
        return [NotificationBinding(method=wire.NOTIFICATION, params_type=TaskState, handler=self._notified)]

    # --- for its user

    async def call(
        self,
        client: Client | ClientSession,
        tool: str,
        arguments: Mapping[str, Any] | None = None,  # Any: JSON
        *,
        idempotency_key: str | None = None,
        progress_callback: ProgressFnT | None = None,
    ) -> types.CallToolResult:
        """Call and wait for the result, task or not; `progress_callback` is for a call that becomes no task.

        Raises:
            MCPError: a JSON-RPC error, of the call or as the task's outcome.
            TaskCancelled: the task was.
        """
        begun = await self.start(
            client, tool, arguments, idempotency_key=idempotency_key, progress_callback=progress_callback
        )
        return await self.finish(client, begun) if isinstance(begun, TaskState) else begun

    async def start(
        self,
        client: Client | ClientSession,
        tool: str,
        arguments: Mapping[str, Any] | None = None,  # Any: JSON
        *,
        idempotency_key: str | None = None,
        progress_callback: ProgressFnT | None = None,
    ) -> TaskState | types.CallToolResult:
        """Call without waiting for the task, if it becomes one; questions before the start are asked one by one.

        Raises:
            MCPError: a JSON-RPC error, or a question was refused.
        """
        session = _session(client)
        responses: types.InputResponses | None = None
        state: str | None = None
        for _ in range(MAX_ROUNDS):
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
            if isinstance(begun, CreatedTask):
                await self._on_change(begun.state)
                return begun.state
            if isinstance(begun, types.CallToolResult):
                return begun
            assert isinstance(begun, types.InputRequiredResult), "nothing else is claimed"
            asked = begun.input_requests or {}
            responses = {key: await ask(session, key, request) for key, request in asked.items()}
            state = begun.request_state
        raise MCPError(types.INTERNAL_ERROR, f"{tool} asked more than {MAX_ROUNDS} times and still did not start")

    async def result(self, client: Client | ClientSession, task_id: str) -> types.CallToolResult:
        """Wait for a task's result, whoever started it, whenever; its questions are asked meanwhile.

        Raises:
            MCPError: no such task, no answer, or a JSON-RPC error as its outcome.
            TaskCancelled: it was.
        """
        return await self._follow(Following(_session(client), task_id, self._on_change))

    async def finish(self, client: Client | ClientSession, begun: TaskState) -> types.CallToolResult:
        """The same for what `start` returned, which `on_change` has heard of already."""
        return await self._follow(Following(_session(client), begun.task_id, self._on_change, seen=begun))

    async def _follow(self, following: Following) -> types.CallToolResult:
        self._followed.add(following)
        try:
            return _outcome(await following.until_ended())
        finally:
            self._followed.discard(following)

    async def get(self, client: Client | ClientSession, task_id: str) -> TaskState:
        """One look.

        Raises:
            MCPError: no such task, or no answer.
        """
        return await look(_session(client), task_id)

    async def answer(self, client: Client | ClientSession, task_id: str, responses: Mapping[str, Any]) -> None:
        """Answer questions by their keys, each with `{"action": "accept", "content": {...}}`.

        Raises:
            MCPError: no such task, or an answer that does not fit its question.
        """
        update = UpdateTask(params=UpdateParams(task_id=task_id, input_responses=responses))
        await _session(client).send_request(update, types.EmptyResult)

    async def cancel(self, client: Client | ClientSession, task_id: str) -> None:
        """Ask to cancel; what comes of it shows in the state.

        Raises:
            MCPError: no such task.
        """
        await _session(client).send_request(CancelTask(params=TaskParams(task_id=task_id)), types.EmptyResult)

    # --- what the SDK calls

    async def _resolve(self, created: CreatedTask, context: ClaimContext) -> types.CallToolResult:
        await self._on_change(created.state)
        return await self.finish(context.session, created.state)

    async def _notified(self, state: TaskState) -> None:
        for following in self._followed:
            if following.task_id == state.task_id:
                following.wake()


def _session(client: Client | ClientSession) -> ClientSession:
    return client.session if isinstance(client, Client) else client


def _outcome(ended: TaskState) -> types.CallToolResult:
    if ended.status == "cancelled":
        raise TaskCancelled(ended.task_id, ended.status_message)
    if ended.error is not None:
        raise MCPError.from_error_data(ended.error)
    return types.CallToolResult.model_validate(ended.result)


async def _look_away(state: TaskState) -> None:
    pass
