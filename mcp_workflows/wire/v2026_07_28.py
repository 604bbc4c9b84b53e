"""2026-07-28 with the extension `io.modelcontextprotocol/tasks` (SEP-2663): dict in, dict out.

Source: the extension's specification, tasks.extensions.modelcontextprotocol.io.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final, NamedTuple, cast

from mcp_workflows.adapter import JSON, InputRequest, Status, askable, asked
from mcp_workflows.errors import INVALID_PARAMS, RequestError
from mcp_workflows.wire.commands import (
    Call,
    Capability,
    CapabilityNeeded,
    Created,
    Document,
    Finished,
    Outcome,
    ProtocolError,
    Questions,
    TaskView,
)
from mcp_workflows.wire.params import (
    KEY_PATHS,
    KeyPath,
    Params,
    call_of,
    checked,
    contents_of,
    fields_of,
    is_object,
    mapping_of,
    object_of,
    status_message,
    takes_forms,
    takes_urls,
    task_id_of,
)

PROTOCOL_VERSION: Final = "2026-07-28"
EXTENSION: Final = "io.modelcontextprotocol/tasks"
MISSING_CAPABILITY: Final = -32021
HEADER_MISMATCH: Final = -32020
NOTIFICATION: Final = "notifications/tasks"
MAX_SUBSCRIBED: Final = 1000  # tasks in one subscription
_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
_SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"

STATUS: Mapping[Status, str] = {
    Status.RUNNING: "working",
    Status.INPUT_REQUIRED: "input_required",
    Status.SUCCEEDED: "completed",
    Status.FAILED: "completed",  # `failed` is only for JSON-RPC errors: a failed workflow is a result with isError
    Status.CANCELLED: "cancelled",
}

_NO_URL_MODE: Final = "a person must visit a page, as this client does not declare elicitation in URL mode"
_NEEDED: Mapping[Capability, JSON] = {
    Capability.TASKS: {"extensions": {EXTENSION: {}}},
    Capability.ELICITATION: {"elicitation": {"form": {}}},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """The capabilities declared by this request; earlier ones do not count."""

    takes_tasks: bool
    takes_questions: bool
    takes_urls: bool = False


_CLIENTS: Mapping[tuple[bool, ...], Client] = {
    (tasks, asks, urls): Client(takes_tasks=tasks, takes_questions=asks, takes_urls=urls)
    for tasks, asks, urls in product((True, False), repeat=3)
}
"""All combinations, so that polls need not create one."""


def capabilities_of(params: Params) -> Params:
    """Return the capabilities in the request's `_meta`."""
    return object_of(object_of(params.get("_meta")).get(_CAPABILITIES))


def client_of(params: Params) -> Client:
    """Return the client from the capabilities in the request's `_meta`."""
    capabilities = capabilities_of(params)
    tasks = object_of(capabilities.get("extensions")).get(EXTENSION)
    return _CLIENTS[is_object(tasks), takes_forms(capabilities), takes_urls(capabilities)]


# --- requests: params -> command


def parse_call(params: Params, client: Client, key_paths: Sequence[KeyPath] = KEY_PATHS) -> Call:
    """Parse `tools/call`; a legacy `task` parameter is ignored, `requestState` is unsealed elsewhere."""
    call = call_of(
        params,
        key_paths,
        takes_tasks=client.takes_tasks,
        takes_questions=client.takes_questions,
        takes_urls=client.takes_urls,
    )
    return replace(call, responses=mapping_of(params, "inputResponses", default={}))


TASK_METHODS: Final = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})
REMOVED_METHODS: Final = frozenset({"tasks/result", "tasks/list"})


class TaskRequest(NamedTuple):
    """A request about one task. Only `tasks/update` has `responses`: `{action, content}` by input request key."""

    task_id: str
    responses: Params


def parse_task_request(method: str, params: Params, client: Client) -> TaskRequest:
    """Parse one of `TASK_METHODS`, from a client that declared the extension."""
    if not client.takes_tasks:
        raise _missing(Capability.TASKS, f"{method} needs a client that declares the extension {EXTENSION}")
    task_id = task_id_of(params)
    return TaskRequest(task_id, mapping_of(params, "inputResponses") if method == "tasks/update" else {})


def parse_listen(params: Params, client: Client) -> Sequence[str] | None:
    """Return the task ids of `subscriptions/listen`; None if it names no tasks."""
    ids = object_of(params.get("notifications")).get("taskIds")
    if ids is None:
        return None
    if not client.takes_tasks:
        raise _missing(Capability.TASKS, f"taskIds need a client that declares the extension {EXTENSION}")
    if not isinstance(ids, list) or not all(isinstance(item, str) for item in cast("Sequence[JSON]", ids)):
        raise RequestError(INVALID_PARAMS, "notifications.taskIds must be a list of task ids")
    checked(cast("JSON", ids), "notifications.taskIds")
    wanted = tuple(dict.fromkeys(cast("Sequence[str]", ids)))
    if len(wanted) > MAX_SUBSCRIBED:
        raise RequestError(INVALID_PARAMS, f"notifications.taskIds: at most {MAX_SUBSCRIBED} tasks in one subscription")
    return wanted


def check_name_header(name: str | None, task_id: str) -> None:
    """Check that `Mcp-Name` is the task id; a missing header is accepted, because some clients omit it."""
    if name is not None and name != task_id:
        raise RequestError(HEADER_MISMATCH, "the Mcp-Name header does not match params.taskId")


# --- outcomes: outcome -> result


def acknowledged() -> dict[str, Any]:
    """Render the result of `tasks/update` and `tasks/cancel`; the state may follow later."""
    return {"resultType": "complete"}


def described(task: TaskView, *, takes_urls: bool = False) -> dict[str, Any]:
    """Render the result of `tasks/get`."""
    return {"resultType": "complete", **detailed(task, takes_urls=takes_urls)}


def render(outcome: Outcome) -> dict[str, Any]:
    """Render the result of `tools/call` or `resources/read`.

    Raises:
        RequestError: the outcome is a JSON-RPC error.
    """
    match outcome:
        case Created(task=task):
            return {"resultType": "task", **_handle(task)}
        case Finished(result=result):
            return {**result, "resultType": "complete"}
        case Questions(requests=requests, state=state):
            return {"resultType": "input_required", "inputRequests": _requests(requests), "requestState": state}
        case Document(ttl_ms=ttl_ms):
            contents = [contents_of(outcome)]
            return {"resultType": "complete", "contents": contents, "ttlMs": ttl_ms, "cacheScope": "private"}
        case CapabilityNeeded(capability=capability, message=message):
            raise _missing(capability, message)


def detailed(task: TaskView, *, takes_urls: bool = False) -> dict[str, Any]:
    """Render `DetailedTask`: the task with its result, error or questions inlined.

    If the client can show none of a task's questions, the task appears to be working. The message has the links to our
    pages.
    """
    requests = askable(task.requests, takes_urls=takes_urls)
    ours = asked({key: each for key, each in task.requests.items() if key not in requests and each.on_page})
    if ours or (task.requests and not requests):
        status = task.status if requests else Status.RUNNING
        task = replace(task, status=status, message=f"{_NO_URL_MODE}: {ours}" if ours else _NO_URL_MODE)
    whole = _handle(task)
    if task.error is not None:
        whole["error"] = _error(task.error)
    elif task.result is not None:
        whole["result"] = {**task.result, "resultType": "complete"}
    elif task.status is Status.INPUT_REQUIRED:
        whole["inputRequests"] = _requests(requests)
    return whole


def notification(task: TaskView, subscription_id: str | int, *, takes_urls: bool = False) -> dict[str, Any]:
    """Render the params of `notifications/tasks`: the current state as from `tasks/get`."""
    whole = detailed(task, takes_urls=takes_urls)
    return {**whole, "_meta": {**whole["_meta"], _SUBSCRIPTION_ID: subscription_id}}


def _handle(task: TaskView) -> dict[str, Any]:
    status = "failed" if task.error is not None else STATUS[task.status]
    return {
        **fields_of(task, status, status_message(task.message, task.progress), unit="Ms"),
        "_meta": dict(task.meta),
    }


def _requests(requests: Mapping[str, InputRequest]) -> dict[str, JSON]:
    return {key: {"method": request.method, "params": dict(request.params)} for key, request in requests.items()}


def _error(error: ProtocolError) -> dict[str, JSON]:
    found: dict[str, JSON] = {"code": error.code, "message": error.message}
    return found if error.data is None else {**found, "data": error.data}


def _missing(capability: Capability, message: str) -> RequestError:
    return RequestError(MISSING_CAPABILITY, message, {"requiredCapabilities": _NEEDED[capability]})
