"""2025-11-25 with its tasks in core (SEP-1686): dict in, dict out.

Source: the specification of that revision, basic/utilities/tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from mcp_workflows.adapter import JSON, TERMINAL, InputRequest, asked
from mcp_workflows.adapter.display_text import cleaned
from mcp_workflows.errors import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, RequestError
from mcp_workflows.wire.commands import (
    Call,
    Capability,
    CapabilityNeeded,
    Created,
    Document,
    Finished,
    Listed,
    Outcome,
    TaskView,
)
from mcp_workflows.wire.events import advice
from mcp_workflows.wire.params import (
    KEY_PATHS,
    STATUS,
    KeyPath,
    Params,
    call_of,
    contents_of,
    fields_of,
    mapping_of,
    object_of,
    status_message,
    text_of,
)

PROTOCOL_VERSION: Final = "2025-11-25"
NOTIFICATION: Final = "notifications/tasks/status"
RELATED_TASK: Final = "io.modelcontextprotocol/related-task"
IMMEDIATE_RESPONSE: Final = "io.modelcontextprotocol/model-immediate-response"
_LONGEST_MESSAGE: Final = 1000  # characters of a failure's text, or of questions, in a status message


# --- requests: params -> command


def parse_call(
    params: Params,
    *,
    in_core: bool,
    takes_questions: bool,
    takes_urls: bool = False,
    key_paths: Sequence[KeyPath] = KEY_PATHS,
) -> Call:
    """Parse `tools/call`; `params.task` counts only if this revision was negotiated."""
    wanted = in_core and params.get("task") is not None
    call = call_of(params, key_paths, takes_tasks=wanted, takes_questions=takes_questions, takes_urls=takes_urls)
    return replace(call, wants_task=True, ttl_ms=_ttl(mapping_of(params, "task"))) if wanted else call


def _ttl(task: Params) -> int | None:
    ttl = task.get("ttl")
    if ttl is None:
        return None
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not ttl >= 0:
        raise RequestError(INVALID_PARAMS, "params.task.ttl must be a number of milliseconds, at least 0")
    return int(min(ttl, 2**53))


def parse_list(params: Params) -> str | None:
    """Return the cursor of `tasks/list`; None: the first page."""
    return None if params.get("cursor") is None else text_of(params, "cursor")


# --- outcomes: outcome -> result


def with_tasks(initialized: Params, *, lists: bool, tools_change: bool) -> dict[str, Any]:
    """Render the result of `initialize` with the capability; `tasks/list` only for identified callers.

    `tools_change`: the list of tools changes during the session.
    """
    tasks: dict[str, JSON] = {"cancel": {}, "requests": {"tools": {"call": {}}}}
    if lists:
        tasks["list"] = {}
    capabilities: dict[str, JSON] = {**object_of(initialized.get("capabilities")), "tasks": tasks}
    if tools_change:
        capabilities["tools"] = {**object_of(capabilities.get("tools")), "listChanged": True}
    return {**initialized, "capabilities": capabilities}


def render(outcome: Outcome, *, wants_task: bool = False, hears_events: bool = False) -> dict[str, Any]:
    """Render the result of `tools/call` or `resources/read`.

    A caller that asked for a task gets a `CreateTaskResult` or an error, never a plain result. `hears_events`: the
    client can subscribe to events.

    Raises:
        RequestError: the outcome is a JSON-RPC error.
    """
    match outcome:
        case Created(task=task):
            said = f"Task {task.task_id} of {task.tool} is under way; its result follows when it has ended."
            said = f"{said} {advice(task.task_id)}" if hears_events else said
            return {"task": task_of(task), "_meta": {IMMEDIATE_RESPONSE: said, **related(task.task_id)}}
        case Finished(result=result) if wants_task:
            raise RequestError(INVALID_PARAMS, text_in(result) or "the call was refused; nothing was started")
        case Finished(result=result):
            return dict(result)
        case Document():
            return {"contents": [contents_of(outcome)]}
        case CapabilityNeeded(capability=Capability.TASKS, message=message):
            raise RequestError(METHOD_NOT_FOUND, f"{message}, and a call with params.task (MCP {PROTOCOL_VERSION})")
        case CapabilityNeeded(message=message):
            raise RequestError(INVALID_PARAMS, message)
        case _:
            raise RequestError(INTERNAL_ERROR, "Internal error")  # these requests have no other outcomes


def ended(task: TaskView) -> bool:
    """Return True if the task has ended in this revision."""
    return task.cancelled or task.status in TERMINAL


def detailed(task: TaskView) -> dict[str, Any]:
    """Render the result of `tasks/get` and `tasks/cancel`."""
    return {**task_of(task), "_meta": dict(task.meta)}


def listed(page: Listed) -> dict[str, Any]:
    """Render the result of `tasks/list`."""
    tasks = [task_of(task) for task in page.tasks]
    return {"tasks": tasks} if page.next_cursor is None else {"tasks": tasks, "nextCursor": page.next_cursor}


def result_of(task: TaskView, final: Mapping[str, JSON]) -> dict[str, Any]:
    """Render the result of `tasks/result`: the result of the call, with the id of its task."""
    return {**final, "_meta": {**object_of(final.get("_meta")), **related(task.task_id)}}


def task_of(task: TaskView) -> dict[str, Any]:
    """Render `Task`, also as the params of `notifications/tasks/status`, which refer to the task nowhere else."""
    return fields_of(task, _status(task), _message(task))


def question(request: InputRequest, task_id: str | None) -> dict[str, Any]:
    """Render the params of a request to the client (`elicitation/create`), with its task."""
    if task_id is None:
        return dict(request.params)
    return {**request.params, "_meta": {**object_of(request.params.get("_meta")), **related(task_id)}}


def related(task_id: str) -> dict[str, JSON]:
    """Render the part of `_meta` that links a message to its task."""
    return {RELATED_TASK: {"taskId": task_id}}


def _status(task: TaskView) -> str:
    if task.cancelled:
        return "cancelled"
    failed = task.error is not None or (task.result or {}).get("isError")
    return "failed" if failed else STATUS[task.status]


def _message(task: TaskView) -> str | None:
    """Render the message with a failure's text, because clients of this revision show it without the result.

    It also has the open questions, for clients that cannot elicit.
    """
    if task.cancelled:
        return "cancelled by request"
    if task.result and task.result.get("isError"):
        return cleaned(text_in(task.result)) or task.message
    said = status_message(task.message, task.progress)
    waiting = asked(task.requests)
    return "; ".join(filter(None, (said, waiting and f"asks: {waiting}")))[:_LONGEST_MESSAGE] or None


def text_in(result: Mapping[str, JSON]) -> str:
    """Return the text of a `CallToolResult`, shortened if necessary."""
    blocks = cast("list[Mapping[str, JSON]]", result.get("content", []))
    texts = [str(block.get("text", "")) for block in blocks if block.get("type") == "text"]
    return "\n".join(texts)[:_LONGEST_MESSAGE]
