"""Requests about tasks, sent again when their answer is lost on the way: each of them may safely arrive twice."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import anyio
import mcp_types as types
from mcp.client import ClientSession
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, ValidationError

from mcp_workflows.client.errors import AnswerRejected, TaskExpired, TaskNotFound
from mcp_workflows.client.messages import CancelTask, GetTask, TaskParams, TaskState, UpdateParams, UpdateTask
from mcp_workflows.errors import ClientError, ServerUnreachable

ANSWER_SECONDS: Final = 30.0  # for one answer, before it counts as lost
SHORTEST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 15.0
JITTER: Final = 0.2  # a pause is up to this much longer, so that many clients do not come all at once
LOST: Final = frozenset({types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT, types.INTERNAL_ERROR})
"""Errors that say nothing about the task; the SDK makes an HTTP status of a proxy (502, 503) into the last."""
OVER: Final = "Connection closed"
"""What the SDK says of a session that is over for good: the client was left, or a server over stdio has ended."""

Result = TypeVar("Result", bound=BaseModel)


def spread(seconds: float) -> float:
    """A little longer, by chance."""
    return seconds * random.uniform(1, 1 + JITTER)  # noqa: S311  # no secret


def pauses() -> Iterator[float]:
    """How long to wait before each further attempt: twice as long every time, up to a limit."""
    seconds = SHORTEST_PAUSE_SECONDS
    while True:
        yield spread(seconds)
        seconds = min(2 * seconds, LONGEST_PAUSE_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """What can be asked about tasks over one session; `patience` is for how long (seconds) no answer is no end."""

    session: ClientSession
    patience: float

    async def look(self, task_id: str) -> TaskState:
        """`tasks/get`.

        Raises:
            TaskNotFound: the server does not know the task (any more).
            ServerUnreachable: no answer.
            MCPError: any other JSON-RPC error.
        """
        try:
            return await self.send(GetTask(params=TaskParams(task_id=task_id)), TaskState)
        except MCPError as error:
            raise unknown(task_id, error) or error from None

    async def answer(self, task_id: str, responses: Mapping[str, Any]) -> None:  # Any: JSON
        """`tasks/update`; servers ignore what was answered before, so an answer whose reply was lost is sent again.

        Raises:
            AnswerRejected: it does not fit its question.
            TaskNotFound: the server does not know the task (any more).
            ServerUnreachable: no answer; whether the response arrived is not known.
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
        """`tasks/cancel`.

        Raises:
            TaskNotFound: the server does not know the task (any more).
            ServerUnreachable: no answer; whether the request arrived is not known.
            MCPError: any other JSON-RPC error.
        """
        try:
            await self.send(CancelTask(params=TaskParams(task_id=task_id)), types.EmptyResult)
        except MCPError as error:
            raise unknown(task_id, error) or error from None

    async def send(self, request: types.Request[Any, Any], result: type[Result]) -> Result:  # Any: any request
        """The answer to a request that may arrive more than once.

        Raises:
            ServerUnreachable: no answer for too long.
            MCPError: a JSON-RPC error.
            ClientError: the answer is none of the protocol.
        """
        until = anyio.current_time() + self.patience
        for pause in pauses():
            try:
                return await self.session.send_request(request, result, request_read_timeout_seconds=ANSWER_SECONDS)
            except MCPError as error:
                if error.code not in LOST:
                    raise
                if anyio.current_time() + pause > until or error.message == OVER:
                    raise ServerUnreachable(f"no answer to {request.method} ({error.message})") from None
            except ValidationError as error:
                raise ClientError(f"the server does not keep to the protocol: {_first(error)}") from None
            await anyio.sleep(pause)
        raise AssertionError("there is always another pause")


def unknown(task_id: str, error: MCPError) -> TaskNotFound | None:
    """What an error of a request that is only about a task's id says: both eras have one code for it."""
    if error.code != types.INVALID_PARAMS:
        return None
    kind = TaskExpired if "expired" in error.message.lower() else TaskNotFound
    return kind(task_id, error.code, error.message, error.data)


def _gone(message: str) -> bool:
    """An update may be wrong in two ways under one code: there is no such task, or the answer does not fit."""
    said = message.lower()
    return "task" in said and any(word in said for word in ("not found", "unknown task", "no such", "expired"))


def _first(error: ValidationError) -> str:
    return str(error).splitlines()[0]
