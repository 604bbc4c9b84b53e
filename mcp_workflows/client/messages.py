"""The messages of a client of the tasks extension, as models of the MCP SDK.

Source: the extension's specification, tasks.extensions.modelcontextprotocol.io.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import mcp_types as types

from mcp_workflows.wire.params import IDEMPOTENCY_KEY

Status: TypeAlias = Literal["working", "input_required", "completed", "failed", "cancelled"]

_ENDED = frozenset({"completed", "failed", "cancelled"})


class CreatedTask(types.Result):
    """The result of `tools/call` that is a task; it must not have the fields that the SDK reserves for itself."""

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
    """A task as it is now: `result` once completed, `error` once failed, `input_requests` while it asks."""

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
        """True if it will never change again."""
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
    """The params of `tasks/update`: responses by the keys of the questions."""

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
    """Return the `meta` of a call that may be sent again: the same key and arguments start one workflow, not two."""
    meta: Any = {IDEMPOTENCY_KEY: key}  # Any: the SDK's type has no way to name an open key
    found: types.RequestParamsMeta = meta
    return found


def visible(state: TaskState) -> object:
    """Return the part of a state that a person sees; the rest (times, for example) may change with every look."""
    return state.status, state.status_message, sorted(state.input_requests or {})


def as_json(model: types.Result) -> dict[str, Any]:  # Any: JSON
    """Return a model as the wire has it."""
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)
