"""Requests about tasks, their messages and errors; a request whose reply is lost is sent again.

Source: the tasks extension, tasks.extensions.modelcontextprotocol.io.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, TypeVar

import anyio
import mcp_types as types
from mcp.client import ClientSession
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, ValidationError

from mcp_workflows.errors import ClientError, ServerUnreachable
from mcp_workflows.wire.params import IDEMPOTENCY_KEY

# --- errors about one task


class TaskError(ClientError, MCPError):
    """A JSON-RPC error about one task; also an `MCPError`, so that handlers for plain calls catch it."""

    def __init__(self, task_id: str, code: int, message: str, data: Any = None) -> None:  # Any: any JSON value
        MCPError.__init__(self, code, message, data)
        self.task_id = task_id


class TaskFailed(TaskError):
    """The followed task ended with a JSON-RPC error: `code`, `message`, `data`."""


class TaskNotFound(TaskError):
    """The server does not know the task: the id is wrong, of another owner (deliberately alike), or expired long
    ago."""


class TaskExpired(TaskNotFound):
    """The task's time to live is over; other servers may raise `TaskNotFound` instead."""


class AnswerRejected(TaskError):
    """The server refused an answer that does not fit its question; the task continues to wait for it."""


# --- messages, as models of the MCP SDK

Status: TypeAlias = Literal["working", "input_required", "completed", "failed", "cancelled"]

_ENDED = frozenset({"completed", "failed", "cancelled"})


class CreatedTask(types.Result):
    """The result of `tools/call` if it is a task; it must not define the fields that the SDK reserves."""

    result_type: Literal["task"] = "task"
    task_id: str
    status: Status
    status_message: str | None = None
    ttl_ms: int | None = None
    poll_interval_ms: float | None = None

    @property
    def state(self) -> TaskState:
        """The same as a `TaskState`."""
        return TaskState(
            _meta=self.meta,
            task_id=self.task_id,
            status=self.status,
            status_message=self.status_message,
            ttl_ms=self.ttl_ms,
            poll_interval_ms=self.poll_interval_ms,
        )


class TaskState(types.Result):
    """The current state: `result` once completed, `error` once failed, `input_requests` while it waits for answers."""

    task_id: str
    status: Status
    status_message: str | None = None
    created_at: str | None = None
    last_updated_at: str | None = None
    ttl_ms: int | None = None
    poll_interval_ms: float | None = None
    input_requests: dict[str, types.InputRequest] | None = None
    result: dict[str, Any] | None = None  # Any: JSON, a CallToolResult
    error: types.ErrorData | None = None

    @property
    def ended(self) -> bool:
        """True if the state is final."""
        return self.status in _ENDED


class TaskParams(types.RequestParams):
    """The params of requests about a task."""

    task_id: str


class GetTask(types.Request[TaskParams, Literal["tasks/get"]]):
    """The request `tasks/get`."""

    method: Literal["tasks/get"] = "tasks/get"
    params: TaskParams
    name_param = "taskId"  # becomes the Mcp-Name header


class CancelTask(types.Request[TaskParams, Literal["tasks/cancel"]]):
    """The request `tasks/cancel`."""

    method: Literal["tasks/cancel"] = "tasks/cancel"
    params: TaskParams
    name_param = "taskId"


class UpdateParams(TaskParams):
    """The params of `tasks/update`: responses by question key."""

    input_responses: Mapping[str, Any]  # Any: JSON


class UpdateTask(types.Request[UpdateParams, Literal["tasks/update"]]):
    """The request `tasks/update`."""

    method: Literal["tasks/update"] = "tasks/update"
    params: UpdateParams
    name_param = "taskId"


def listen_to(task_id: str) -> types.SubscriptionsListenRequest:
    """Return the request for a stream of changes of this task; the extension adds `taskIds` to the filter."""
    notifications = types.SubscriptionFilter.model_validate({"taskIds": [task_id]})
    return types.SubscriptionsListenRequest(params=types.SubscriptionsListenRequestParams(notifications=notifications))


def idempotency(key: str) -> types.RequestParamsMeta:
    """Return the `meta` of a retryable call: the same key and arguments start one workflow, not two."""
    meta: Any = {IDEMPOTENCY_KEY: key}  # Any: the SDK's type has no open keys
    found: types.RequestParamsMeta = meta
    return found


def visible(state: TaskState) -> object:
    """Return the part of a state that people see; the rest, such as times, may change with every poll."""
    return state.status, state.status_message, sorted(state.input_requests or {})


def as_json(model: types.Result) -> dict[str, Any]:  # Any: JSON
    """Return a model in its wire format."""
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


# --- requests, sent again if their reply is lost: each is idempotent

ANSWER_SECONDS: Final = 30.0  # for one reply, before it counts as lost
SHORTEST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 15.0
JITTER: Final = 0.2  # a pause is up to this fraction longer, to spread the requests of many clients
LOST: Final = frozenset({types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT, types.INTERNAL_ERROR})
"""Error codes without information about the task. The SDK maps a proxy's HTTP status (502, 503) to the last one."""
OVER: Final = "Connection closed"
"""The SDK's message for a permanently closed session: the client was closed, or a stdio server has exited."""

Result = TypeVar("Result", bound=BaseModel)


def spread(seconds: float) -> float:
    """Return the time with random jitter added."""
    return seconds * random.uniform(1, 1 + JITTER)  # noqa: S311  # no secret


def pauses() -> Iterator[float]:
    """Yield the pause before each retry: doubled every time, up to a limit."""
    seconds = SHORTEST_PAUSE_SECONDS
    while True:
        yield spread(seconds)
        seconds = min(2 * seconds, LONGEST_PAUSE_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRequests:
    """The requests about tasks in one session; `timeout` is the maximum number of seconds without a reply."""

    session: ClientSession
    timeout: float

    async def get(self, task_id: str) -> TaskState:
        """Send `tasks/get`.

        Raises:
            TaskNotFound: the server does not know the task (any more).
            ServerUnreachable: no reply.
            MCPError: any other JSON-RPC error.
        """
        try:
            return await self.send(GetTask(params=TaskParams(task_id=task_id)), TaskState)
        except MCPError as error:
            raise unknown(task_id, error) or error from None

    async def answer(self, task_id: str, responses: Mapping[str, Any]) -> None:  # Any: JSON
        """Send `tasks/update`, again if its reply is lost: servers ignore questions that were answered before.

        Raises:
            AnswerRejected: it does not fit its question.
            TaskNotFound: the server does not know the task (any more).
            ServerUnreachable: no reply; the response may have arrived.
            MCPError: any other JSON-RPC error.
        """
        try:
            update = UpdateTask(params=UpdateParams(task_id=task_id, input_responses=responses))
            await self.send(update, types.EmptyResult)
        except MCPError as error:
            if error.code != types.INVALID_PARAMS:
                raise
            if _gone(error.message):
                raise unknown(task_id, error) or error from None
            raise AnswerRejected(task_id, error.code, error.message, error.data) from None

    async def cancel(self, task_id: str) -> None:
        """Send `tasks/cancel`.

        Raises:
            TaskNotFound: the server does not know the task (any more).
            ServerUnreachable: no reply; the request may have arrived.
            MCPError: any other JSON-RPC error.
        """
        try:
            await self.send(CancelTask(params=TaskParams(task_id=task_id)), types.EmptyResult)
        except MCPError as error:
            raise unknown(task_id, error) or error from None

    async def send(self, request: types.Request[Any, Any], result: type[Result]) -> Result:  # Any: any request
        """Return the reply to an idempotent request.

        Raises:
            ServerUnreachable: no reply in time.
            MCPError: a JSON-RPC error.
            ClientError: the reply violates the protocol.
        """
        until = anyio.current_time() + self.timeout
        for pause in pauses():
            try:
                return await self.session.send_request(request, result, request_read_timeout_seconds=ANSWER_SECONDS)
            except MCPError as error:
                if error.code not in LOST:
                    raise
                if anyio.current_time() + pause > until or error.message == OVER:
                    raise ServerUnreachable(f"no answer to {request.method} ({error.message})") from None
            except ValidationError as error:
                raise ClientError(f"the server violates the protocol: {_first(error)}") from None
            await anyio.sleep(pause)
        raise AssertionError("there is always another pause")


def unknown(task_id: str, error: MCPError) -> TaskNotFound | None:
    """Return the error for a request whose only parameter is the task's id: both revisions use one code for it."""
    if error.code != types.INVALID_PARAMS:
        return None
    kind = TaskExpired if "expired" in error.message.lower() else TaskNotFound
    return kind(task_id, error.code, error.message, error.data)


def _gone(message: str) -> bool:
    """True if an update failed because the task is unknown; an answer that does not fit has the same code."""
    said = message.lower()
    return "task" in said and any(word in said for word in ("not found", "unknown task", "no such", "expired"))


def _first(error: ValidationError) -> str:
    return str(error).splitlines()[0]
