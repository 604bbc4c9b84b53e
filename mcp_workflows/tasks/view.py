"""The view of a task for its owner: from the row to a `TaskView`, the same for all revisions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from mcp_workflows.adapter import JSON, Execution, ExecutionStep, Status, asked
from mcp_workflows.adapter.display_text import cleaned
from mcp_workflows.errors import RequestError
from mcp_workflows.task import Task
from mcp_workflows.tasks.results import (
    Large,
    checked,
    document,
    failure_result,
    fitted,
    tool_error,
    tool_result,
    uri_of,
)
from mcp_workflows.wire.commands import Document, Finished, Part, ProtocolError, TaskView

META_PREFIX = "mcp-workflows/"
META_STEPS = f"{META_PREFIX}steps"
META_LOG = f"{META_PREFIX}log"
META_URL = f"{META_PREFIX}url"


def view(task: Task, poll_interval: timedelta) -> TaskView:
    """Return the task with this poll interval; its result is a `CallToolResult`, or a link if it is too large."""
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
    """Return the result of a task that has ended."""
    return Finished(result=final_result(view(task, timedelta())))


def unanswerable(task: Task) -> Finished:
    """Return the error for a question that the client can neither read from a task nor put to a person."""
    text = f"{_workflow(task)} waits for an answer this client cannot give: {asked(task.seen.requests)}"
    return Finished(result=tool_error(text))


def abandoned_text(task: Task) -> str:
    """Return the text for a client that cannot come back to the task and must not start it again."""
    return (
        f"The server is stopping, so its result cannot be waited for. {_workflow(task)} goes on by itself: "
        f"do not call {task.tool} again, that would start it twice."
    )


def _workflow(task: Task) -> str:
    """Return words by which people find the execution in the engine."""
    return "The workflow" + (f" (execution {task.execution.execution_id})" if task.execution.execution_id else "")


def withdrawn_result(task: TaskView) -> Mapping[str, JSON]:
    """Return the result of a cancelled task in 2025-11-25, where a cancellation is final at once."""
    return tool_error(f"Task {task.task_id} was cancelled by request")


def protocol_error(execution: Execution) -> ProtocolError | None:
    """Return the JSON-RPC error that the workflow asked for at its end, if any."""
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
        return failure_result(task.execution.failure)
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
