"""Tasks of the upstream server: of the extension of 2026-07-28, or of the core of 2025-11-25."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, cast

import mcp_types as types
from anyio.abc import TaskGroup
from mcp.client import ClientRequestContext
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from mcp_workflows.adapter import JSON, Execution, Failure, InputRequest, Status
from mcp_workflows.client.requests import TaskState
from mcp_workflows.errors import EngineError, EngineUnavailable, ResultUnavailable
from mcp_workflows.kit.expressions import as_object
from mcp_workflows_mcp.client import Connection, Upstream
from mcp_workflows_mcp.errors import is_reply
from mcp_workflows_mcp.open_calls import MOST_QUESTIONS, Elicitations
from mcp_workflows_mcp.reply import failure_of

_UNSAID: Final = "it failed; the server does not say why"
_RELATED: Final = "io.modelcontextprotocol/related-task"
_STATUS: Final[Mapping[str, Status]] = {
    "working": Status.RUNNING,
    "input_required": Status.INPUT_REQUIRED,
    "completed": Status.SUCCEEDED,
    "failed": Status.FAILED,
    "cancelled": Status.CANCELLED,
}


def task_of(context: ClientRequestContext) -> str | None:
    """Return the id of the task to which a question of 2025-11-25 belongs, if it names one."""
    meta = cast("Mapping[str, JSON]", context.meta or {})
    found = (as_object(meta.get(_RELATED)) or {}).get("taskId")
    return found if isinstance(found, str) else None


class UpstreamTasks:
    """Polls tasks, answers and cancels them."""

    def __init__(self, upstream: Upstream, elicitations: Elicitations) -> None:
        self._upstream = upstream
        self._elicitations = elicitations
        self._listening = set[str]()  # tasks whose questions we wait for

    async def describe(self, task_id: str, group: TaskGroup) -> tuple[Execution, float]:
        """Return the execution, and the seconds until the server accepts the next poll.

        Raises:
            ExecutionNotFound: the server does not know the task, or no longer.
            EngineUnavailable: no answer.
        """
        connection = await self._upstream.connection()
        async with self._upstream.translated():
            if connection.in_core is None:
                state = await connection.task_requests.get(task_id)
                execution = self._execution(state, self._requests(state))
            else:
                state = await connection.in_core.get(task_id)
                execution = await self._in_core(connection, state, group)
        if state.task_id != task_id:
            raise EngineUnavailable("it was asked about one task, and told of another one", silent=False)
        if execution.terminal:
            self._elicitations.close(task_id)
        return replace(execution, execution_id=task_id), (state.poll_interval_ms or 0.0) / 1000

    async def _in_core(self, connection: Connection, state: TaskState, group: TaskGroup) -> Execution:
        """Return a task of 2025-11-25, whose result and questions arrive through another request."""
        assert connection.in_core is not None
        if state.status in {"completed", "failed"}:
            try:
                result = await connection.in_core.payload(state.task_id)
            except MCPError as error:
                if not is_reply(error):
                    raise
                failure = types.ErrorData(code=error.code, message=error.message)
                return self._execution(state.model_copy(update={"status": "failed", "error": failure}), {})
            except ValidationError:
                if state.status == "completed":
                    raise ResultUnavailable("the server's answer does not keep to the protocol") from None
                return self._execution(state, {})
            written = result.model_dump(by_alias=True, mode="json", exclude_none=True)
            return self._execution(state.model_copy(update={"status": "completed", "result": written}), {})
        requests = self._elicitations.requests(state.task_id)
        if state.status == "input_required" and not requests and state.task_id not in self._listening:
            group.start_soon(self._listen, connection, state.task_id)
        return self._execution(state, requests)

    async def _listen(self, connection: Connection, task_id: str) -> None:
        """Keep `tasks/result` open while the task asks, as its questions arrive during that request."""
        assert connection.in_core is not None
        self._listening.add(task_id)
        try:
            async with self._upstream.translated():
                await connection.in_core.payload(task_id)
        except EngineError:
            return  # the next poll shows the state, and listens again if needed
        finally:
            self._listening.discard(task_id)

    def _execution(self, state: TaskState, requests: Mapping[str, InputRequest]) -> Execution:
        status = _STATUS[state.status]
        if status is Status.INPUT_REQUIRED and not requests:
            return Execution(
                status=Status.RUNNING, message=state.status_message or "it asks; the question is not here yet"
            )
        output, failure = None, None
        if status is Status.SUCCEEDED:
            output = state.result
            if not output:
                raise ResultUnavailable("the server says nothing of it")
            if output.get("isError"):
                status, failure, output = Status.FAILED, failure_of(output), None
        elif status is Status.FAILED:
            failure = self._failure(state)
        return Execution(status=status, message=state.status_message, requests=requests, output=output, failure=failure)

    def _requests(self, state: TaskState) -> Mapping[str, InputRequest]:
        """Return the questions of a task for people, in limited number."""
        found: dict[str, InputRequest] = {}
        for key, request in (state.input_requests or {}).items():
            if isinstance(request, types.ElicitRequest) and len(found) < MOST_QUESTIONS:
                params = request.params.model_dump(by_alias=True, mode="json", exclude_none=True, exclude={"meta"})
                found[key] = InputRequest(method=request.method, params=params)
        return found

    def _failure(self, state: TaskState) -> Failure:
        if state.error is None:
            return Failure(text=state.status_message or _UNSAID)
        return Failure(text=state.error.message)

    async def answer(self, task_id: str, responses: Mapping[str, JSON]) -> None:
        """Answer questions; those that are no longer open are ignored.

        Raises:
            EngineRefused: an answer is invalid.
            ExecutionNotFound, EngineUnavailable: see `describe`.
        """
        connection = await self._upstream.connection()
        if connection.in_core is not None:
            self._elicitations.answer(task_id, responses)
            return
        written = {key: _response(response) for key, response in responses.items()}
        async with self._upstream.translated():
            await connection.task_requests.answer(task_id, written)

    async def cancel(self, task_id: str) -> None:
        """Request cancellation; nothing happens if the task has ended.

        Raises:
            ExecutionNotFound, EngineUnavailable: see `describe`.
        """
        connection = await self._upstream.connection()
        async with self._upstream.translated():
            if connection.in_core is None:
                await connection.task_requests.cancel(task_id)
            elif not (await connection.in_core.get(task_id)).ended:
                await connection.in_core.cancel(task_id)


def _response(response: JSON) -> JSON:
    return {name: response[name] for name in ("action", "content") if response.get(name) is not None}
