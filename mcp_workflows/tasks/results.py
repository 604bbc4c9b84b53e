"""The view of a task for its reader, and its result as a `CallToolResult`: plain dicts, the same for all revisions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache, lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any, Final, TypeGuard, cast

from pydantic import ValidationError

from mcp_workflows.adapter import JSON, Execution, ExecutionStep, Failure, Status, asked
from mcp_workflows.adapter.display_text import MAX_TEXT, cleaned, cleaned_result
from mcp_workflows.errors import LimitReached, RequestError
from mcp_workflows.task import Task
from mcp_workflows.tools.json_schema import Checker, size_of, violations
from mcp_workflows.tools.tool import UNCHECKED, is_action, repetition
from mcp_workflows.wire.commands import (
    CallOutcome,
    Created,
    Document,
    Finished,
    Part,
    ProtocolError,
    TaskView,
    Unfinished,
)

_PREFIX: Final = "mcp-workflows://tasks/"
META_PREFIX: Final = "mcp-workflows/"  # prefix of our keys in `_meta`
META_STEPS: Final = f"{META_PREFIX}steps"
META_LOG: Final = f"{META_PREFIX}log"
META_URL: Final = f"{META_PREFIX}url"
RETRY_AFTER: Final = f"{META_PREFIX}retryAfterMs"
MISMATCH: Final = f"{META_PREFIX}schemaMismatch"  # why the result does not match the tool's output schema
_JSON: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))  # `json.dumps` makes one for each text
_NO_RESULT: Final = "The workflow has ended and returned nothing."
_SHOWN: Final = 2000  # characters of a failure too large to be stored
_RESULT_KEYS = frozenset({"content", "structuredContent", "isError", "_meta", "resultType"})


def tool_result(output: JSON) -> dict[str, Any]:
    """Return any JSON as a result: a `CallToolResult` is kept, an object becomes structured content and text.

    A string becomes text; other JSON becomes text and is wrapped as `{"result": ...}`. The content is never empty:
    Anthropic's MCP connector rejects a result without content or with blank text.
    """
    if _is_tool_result(output):
        found = {"isError": False, **{key: value for key, value in output.items() if key != "resultType"}}
        if not found["content"]:
            value = found.get("structuredContent")
            found["content"] = [text_block(_NO_RESULT if value is None else document(value))]
        return cleaned_result(found)
    if output is None or (isinstance(output, str) and not output.strip()):
        return {"content": [text_block(_NO_RESULT)], "isError": False}
    if isinstance(output, str):
        return {"content": [text_block(output)], "isError": False}
    structured: JSON = cast("JSON", output) if isinstance(output, Mapping) else {"result": output}
    return {"content": [text_block(document(output))], "structuredContent": structured, "isError": False}


def tool_error(text: str) -> dict[str, Any]:
    """Return an error that the model can read (spec: tool execution errors are results with `isError`)."""
    return {"content": [text_block(text)], "isError": True}


def limit_result(reached: LimitReached) -> dict[str, Any]:
    """Return a reached limit as a result, so that the model can wait, cancel a task, or inform the user.

    Source: MCP, tools, error handling: clients SHOULD give execution errors to the model, and MAY give it protocol
    errors. For programs, the time is in `_meta`.
    """
    result = tool_error(reached.message)
    return result if reached.data is None else {**result, "_meta": {RETRY_AFTER: reached.data["retryAfterMs"]}}


def failure_result(failure: Failure | None, schema: Mapping[str, JSON] | None = None) -> dict[str, Any]:
    """Return the failure of a workflow as a result with `isError`; its structured content is `{"error": ...}`.

    For a tool with an output schema, that object is JSON text in the stand-in that `Tool.promised_output` allows,
    because the TypeScript SDK 1.x also validates the structured content of errors.
    """
    result = tool_error(failure.text if failure and failure.text else "The workflow failed and gave no reason.")
    if failure is None or not failure_facts(failure):
        return result
    structured = {"error": {"message": cleaned(failure.text, MAX_TEXT), **failure_facts(failure)}}
    return {**result, "structuredContent": structured if schema is None else {UNCHECKED: document(structured)}}


def failure_facts(failure: Failure) -> dict[str, JSON]:
    """Return the facts of a failure other than its text: `type`, `step`, `retryable` and `details`."""
    found = {"type": failure.kind, "step": failure.step, "retryable": failure.retryable, "details": failure.details}
    return {name: value for name, value in found.items() if value is not None}


def error_in(result: Mapping[str, JSON]) -> Mapping[str, JSON] | None:
    """Return the error in the structured content of a `failure_result`, or None for anything else."""
    found: JSON = result.get("structuredContent")
    if isinstance(found, dict) and isinstance(text := cast("JSON", found).get(UNCHECKED), str):
        try:
            found = json.loads(text)
        except ValueError:
            return None
    error: JSON = cast("JSON", found).get("error") if isinstance(found, dict) else None
    return cast("Mapping[str, JSON]", error) if isinstance(error, dict) else None


def checked(result: dict[str, Any], schema: Mapping[str, JSON] | None) -> dict[str, Any]:
    """Return the result, marked in `_meta` if it does not match the tool's output schema.

    It stays a success, because a model would start the work again after an error. The structured content is then a
    stand-in that `Tool.promised_output` allows (MCP, tools, output schema: servers MUST provide results that conform to
    it).
    """
    if (wrong := mismatch(result, schema)) is None:
        return result
    structured = result.get("structuredContent")
    note = f"The workflow has completed. Its result follows, but does not match the tool's output schema: {wrong}"
    return {
        "content": [text_block(note), *result["content"]],
        "structuredContent": {UNCHECKED: texts_in(result) if structured is None else document(structured)},
        "isError": False,
        "_meta": {**(result.get("_meta") or {}), MISMATCH: wrong},
    }


def mismatch(result: Mapping[str, JSON], schema: Mapping[str, JSON] | None) -> str | None:
    """Return why the result does not match the tool's output schema, without its values, or None if it does."""
    if schema is None or result.get("isError"):
        return None
    return next(iter(_checker(document(schema)).violations(result.get("structuredContent"))), None)


@lru_cache(maxsize=64)
def _checker(schema: str) -> Checker:
    return Checker(json.loads(schema), quotes=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Large:
    """The address and name of a result over the limit, and the limit in bytes."""

    uri: str
    limit: int
    name: str


def fitted(result: dict[str, Any], large: Large, schema: Mapping[str, JSON] | None) -> dict[str, Any]:
    """Return the result if its JSON is within the limit (bytes), or else a resource link to it."""
    size = len(document(result).encode())
    if size <= large.limit:
        return result
    link = {
        "type": "resource_link",
        "uri": large.uri,
        "name": large.name,
        "mimeType": "application/json",
        "size": size,
    }
    note = f"The result has {size} bytes, over the limit of {large.limit}: read {large.uri} for all of it."
    short: dict[str, Any] = {"content": [text_block(note), link], "isError": bool(result.get("isError"))}
    if mark := cast("Mapping[str, JSON]", result.get("_meta") or {}).get(MISMATCH):
        return {**short, "structuredContent": {UNCHECKED: note}, "_meta": {MISMATCH: mark}}
    if schema is not None and not short["isError"]:
        short["structuredContent"] = _promised(result["structuredContent"], large, schema)
    return short


def keepable(execution: Execution, most: int | None) -> Execution:
    """Return the execution, with a note instead of an output or failure that is too large to be stored.

    Its status stays; only the engine has the full content.
    """
    failure = execution.failure
    if most is None or not execution.terminal:
        return execution
    if failure is not None and (size := size_of([failure.text, failure.data, failure.details])) > most:
        text = f"{failure.text[:_SHOWN]} ... ({size} bytes, over the limit of {most}; see the engine for all of it)"
        return replace(execution, failure=replace(failure, text=text, data=None, details=None))
    if execution.output is None or (size := size_of(execution.output)) <= most:
        return execution
    where = f" (execution {execution.execution_id})" if execution.execution_id else ""
    text = (
        f"The workflow has ended. Its result has {size} bytes, over the limit of {most} that this server stores: read "
        f"it in the engine{where}."
    )
    return replace(execution, output=tool_error(text))


def _promised(whole: JSON, large: Large, schema: Mapping[str, JSON]) -> JSON:
    """Return the address if the schema allows it, or else the full structured content: SDK clients validate it."""
    stand_in = {"uri": large.uri}
    return whole if violations(schema, stand_in) else stand_in


def uri_of(task_id: str, part: Part = Part.RESULT) -> str:
    """Return the address of a part of a task, by default of its full result."""
    return f"{_PREFIX}{task_id}/{part.value}"


def part_at(uri: str) -> tuple[str, Part] | None:
    """Return the task id and the part of such an address, or None if it is not ours."""
    task_id, _, part = uri.removeprefix(_PREFIX).rpartition("/")
    if not uri.startswith(_PREFIX) or not task_id or part not in set(Part):
        return None
    return task_id, Part(part)


def document(value: JSON) -> str:
    """Return a full result, or any other value, as JSON text."""
    return _JSON.encode(value)


def _is_tool_result(output: JSON) -> TypeGuard[Mapping[str, JSON]]:
    if not isinstance(output, Mapping):
        return False
    found = cast("Mapping[str, JSON]", output)
    if not isinstance(found.get("content"), list) or not found.keys() <= _RESULT_KEYS:
        return False
    try:
        _sdk_types().CallToolResult.model_validate(found, strict=True, by_name=False)
    except ValidationError:
        return False  # some other object with a `content`
    return True


@cache
def _sdk_types() -> ModuleType:
    """Return the SDK's types. Importing them takes half a second, and few commands need them."""
    return import_module("mcp_types")


def texts_in(result: Mapping[str, JSON]) -> str:
    """Return the texts of a `CallToolResult`, one per line."""
    blocks = cast("Sequence[Mapping[str, JSON]]", result.get("content", []))
    return "\n".join(block["text"] for block in blocks if block.get("type") == "text")


def text_block(text: str) -> dict[str, Any]:
    """Return a text as a content block."""
    return {"type": "text", "text": text}


# --- the view of a task


def view(task: Task, poll_interval: timedelta) -> TaskView:
    """Return the view of a task; its result is a `CallToolResult`, or a link if it is too large."""
    seen = task.seen
    error = protocol_error(seen)
    return TaskView(
        task_id=task.id,
        tool=task.tool,
        status=seen.status,
        message=_message(seen),
        progress=seen.progress,
        created=task.created,
        updated=task.updated,
        ttl_ms=None if task.expires is None else (task.expires - task.created) // timedelta(milliseconds=1),
        poll_interval_ms=poll_interval // timedelta(milliseconds=1),
        requests=seen.requests,
        result=None if error else _result(task),
        error=error,
        cancelled=task.cancelled is not None,
        meta=_meta(task, seen),
        only_question=task.only_question,
        waits_for_others=not task.may_answer and task.execution.status is Status.INPUT_REQUIRED,
    )


def _result(task: Task) -> Mapping[str, JSON] | None:
    """Return the `CallToolResult` if the task ended with one, within the tool's limit."""
    match task.execution.status:
        case Status.SUCCEEDED | Status.FAILED:
            large = Large(uri=uri_of(task.id), limit=task.max_result, name=f"{task.tool} result")
            return fitted(_whole(task), large, task.output_schema)
        case Status.RUNNING | Status.INPUT_REQUIRED | Status.CANCELLED:
            return None


def final_result(task: TaskView) -> Mapping[str, JSON]:
    """Return the `CallToolResult` that the call would have returned without a task.

    Raises:
        RequestError: the workflow asked for this JSON-RPC error.
    """
    if task.error is not None:
        raise RequestError(task.error.code, task.error.message, task.error.data)
    return task.result or tool_error(f"The workflow ended without a result: {task.message or 'cancelled'}")


def finished(task: Task) -> Finished:
    """Return the result of an ended task."""
    return Finished(result=final_result(view(task, timedelta())))


def unanswerable_text(task: Task) -> str:
    """Return the text for a question that the client can neither read from a task nor show to a person."""
    return f"{_workflow(task)} waits for an answer this client cannot give: {asked(task.seen.requests)}"


def abandoned_text(task: Task, why: str, *, continues: bool) -> str:
    """Return the text for a client without the task's id; `continues`: an identical call continues it."""
    again = repetition(task.tool)
    sent, what = ("send", "content") if is_action(task.tool) else ("start", "arguments")
    follow_up = f"do not {again} again: that would {sent} it twice"
    if continues:
        follow_up = f"to continue it, {again} again with the same {what} within ten minutes"
    return f"{why}, so this call cannot wait for the result. {_workflow(task)} continues by itself: {follow_up}."


def continued(outcome: CallOutcome, called: datetime) -> CallOutcome:
    """Return the outcome of a call that continues an earlier one, with that fact in its texts."""
    said = f"this continues your call of {called:%H:%M} UTC"
    match outcome:
        case Created() | Unfinished():
            task = outcome.task
            return replace(outcome, task=replace(task, message=f"{said}; {task.message or task.status.value}"))
        case Finished():
            content = cast("list[JSON]", outcome.result.get("content") or [])
            note = text_block(f"Note: {said}, and nothing was started again.")
            return Finished(result={**outcome.result, "content": [*content, note]})
        case _:
            return outcome


def _workflow(task: Task) -> str:
    """Return a text that helps people find the execution in the engine."""
    return "The workflow" + (f" (execution {task.execution.execution_id})" if task.execution.execution_id else "")


def withdrawn_result(task: TaskView) -> Mapping[str, JSON]:
    """Return the result of a cancelled task in 2025-11-25, where a cancellation is final at once."""
    return tool_error(f"Task {task.task_id} was cancelled by request")


def protocol_error(execution: Execution) -> ProtocolError | None:
    """Return the JSON-RPC error that the workflow asked for at its end, or None."""
    failure = execution.failure
    if execution.status is not Status.FAILED or failure is None or failure.code is None:
        return None
    return ProtocolError(code=failure.code, message=failure.text, data=failure.data)


def whole_result(task: Task) -> Document:
    """Return the result as a resource, however large."""
    return Document(uri=uri_of(task.id), mime_type="application/json", text=document(_whole(task)))


def log_document(task: Task, text: str) -> Document:
    """Return the end of a log as a resource."""
    return Document(uri=uri_of(task.id, Part.LOG), mime_type="text/plain", text=text)


def _whole(task: Task) -> dict[str, JSON]:
    if task.execution.status is Status.FAILED:
        return failure_result(task.execution.failure, task.output_schema)
    return checked(tool_result(task.execution.output), task.output_schema)


def _message(seen: Execution) -> str | None:
    return cleaned(seen.failure.text) if seen.status is Status.FAILED and seen.failure else seen.message


def _meta(task: Task, seen: Execution) -> Mapping[str, JSON]:
    steps = [_step(each) for each in seen.steps] or None
    found = {
        "engine": task.engine,
        "workflow": task.workflow,
        "executionId": seen.execution_id,
        "url": seen.url,
        "steps": steps,
        "log": uri_of(task.id, Part.LOG) if seen.has_log else None,
    }
    return {META_PREFIX + name: value for name, value in found.items() if value is not None}


def _step(step: ExecutionStep) -> Mapping[str, JSON]:
    at = {} if step.at is None else {"at": step.at.isoformat()}
    return {"name": step.name, "status": step.status.value, **at}
