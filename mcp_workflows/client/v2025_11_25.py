"""The tasks in the core of 2025-11-25, limited to the needs of the command line and `adapter: mcp`.

Source: the tasks page of that version.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import anyio
import mcp_types as types
from mcp.client import ClientSession
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from mcp_workflows.client.follower import OnStatus, TaskChanges, bare
from mcp_workflows.client.requests import TaskState, idempotency, pauses, unknown, visible
from mcp_workflows.errors import ServerUnreachable, TaskCancelled

_TAKES_TASKS: Final = frozenset({"optional", "required"})


class InCoreTaskRequests:
    """The tasks of one session of 2025-11-25; questions go to the client's `elicitation_callback`."""

    def __init__(self, session: ClientSession, on_status: OnStatus) -> None:
        self._session = session
        self._on_status = on_status
        self._seen: TaskState | None = None

    def offered(self, tool: types.Tool) -> bool:
        """True if a call of this tool can become a task."""
        capabilities = self._session.server_capabilities
        declared = capabilities and capabilities.tasks and capabilities.tasks.requests
        calls = declared and declared.tools and declared.tools.call is not None
        return bool(calls and tool.execution and tool.execution.task_support in _TAKES_TASKS)

    async def start(self, tool: str, arguments: Mapping[str, Any], key: str | None) -> TaskState:  # Any: JSON
        """Call a tool as a task.

        Raises:
            MCPError: a JSON-RPC error.
        """
        params = types.CallToolRequestParams(
            name=tool,
            arguments=dict(arguments),
            task=types.TaskMetadata(),
            _meta=idempotency(key) if key else None,
        )
        try:
            created = await self._session.send_request(types.CallToolRequest(params=params), types.CreateTaskResult)
        except ValidationError as error:  # the SDK validates it as the result of a plain call, which has content
            created = types.CreateTaskResult.model_validate(error.errors()[0]["input"])
        return await self._notify(created.task)

    async def result(self, task_id: str) -> types.CallToolResult:
        """Return the task's result. Poll its state; questions arrive on the stream of `tasks/result`.

        Raises:
            TaskCancelled: it was cancelled.
            TaskNotFound: the server does not know it (any more).
            ServerUnreachable: the connection is lost; a new one can continue.
            MCPError: a JSON-RPC error as its outcome.
        """
        if not (await self.get(task_id)).ended:
            await self._until_ended(task_id)
        try:
            return await self.payload(task_id)
        except MCPError:
            assert self._seen is not None, "it was polled"
            if self._seen.status != "cancelled":
                raise
            raise TaskCancelled(task_id, self._seen.status_message) from None

    async def _until_ended(self, task_id: str) -> None:
        """Poll until the task has ended; keep `tasks/result` open for the questions."""
        changes = TaskChanges(task_id)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._keep_open_for_questions, changes)
                while True:
                    changes.forget()
                    state = await self.get(task_id)
                    if state.ended:
                        break
                    await changes.wait(state)
                group.cancel_scope.cancel()
        except BaseExceptionGroup as errors:
            raise bare(errors) from None

    async def _keep_open_for_questions(self, changes: TaskChanges) -> None:
        for pause in pauses():
            with suppress(MCPError):  # the outcome, which is requested again, or a stream that the server closed
                await self.payload(changes.task_id)
            changes.notify()
            await anyio.sleep(pause)

    async def get(self, task_id: str) -> TaskState:
        """Send `tasks/get`."""
        request = types.GetTaskRequest(params=types.GetTaskRequestParams(task_id=task_id))
        try:
            return await self._notify(await self._session.send_request(request, types.GetTaskResult))
        except MCPError as error:
            raise unknown(task_id, error) or _lost(error) or error from None

    async def cancel(self, task_id: str) -> TaskState:
        """Send `tasks/cancel`, which servers refuse for an ended task."""
        request = types.CancelTaskRequest(params=types.CancelTaskRequestParams(task_id=task_id))
        try:
            return await self._notify(await self._session.send_request(request, types.CancelTaskResult))
        except MCPError as error:
            raise unknown(task_id, error) or _lost(error) or error from None

    async def payload(self, task_id: str) -> types.CallToolResult:
        """Send `tasks/result`, which returns when the task has ended."""
        request = types.GetTaskPayloadRequest(params=types.GetTaskPayloadRequestParams(task_id=task_id))
        try:
            return await self._session.send_request(request, types.CallToolResult)
        except MCPError as error:
            raise _lost(error) or error from None

    async def _notify(self, task: types.Task) -> TaskState:
        meta = task.meta if isinstance(task, types.GetTaskResult) else None
        state = TaskState(
            _meta=meta,
            task_id=task.task_id,
            status=task.status,
            status_message=task.status_message,
            poll_interval_ms=task.poll_interval,
        )
        before, self._seen = self._seen, state
        if before is None or visible(before) != visible(state):
            await self._on_status(state)
        return state


def _lost(error: MCPError) -> ServerUnreachable | None:
    """Return the error if the connection was lost. A restarted server answers an old session with 404, reported as
    this."""
    ended = error.code == types.INVALID_REQUEST and error.message == "Session terminated"
    if error.code in (types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT) or ended:
        return ServerUnreachable(f"no answer ({error.message})")
    return None
