"""The state of an execution, read from its rows in DBOS's tables."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, cast

from mcp_workflows.adapter import JSON, Execution, ExecutionStep, Failure, InputRequest, Progress, Status
from mcp_workflows_dbos.serializer import plain
from mcp_workflows_dbos.tables import Row, Step, Unreadable
from mcp_workflows_dbos.workflow import McpError

_STATUSES: Final[Mapping[str, Status]] = {
    "ENQUEUED": Status.RUNNING,
    "DELAYED": Status.RUNNING,
    "PENDING": Status.RUNNING,
    "SUCCESS": Status.SUCCEEDED,
    "ERROR": Status.FAILED,
    "MAX_RECOVERY_ATTEMPTS_EXCEEDED": Status.FAILED,
    "CANCELLED": Status.CANCELLED,
}
_UNDECODABLE: Final = "UndecodableResult"  # the core's name for the failure of a result that is not JSON
_INTERNAL_QUEUE: Final = "_dbos_internal_queue"  # DBOS's own, of recovered executions
_GIVEN_UP: Final = "the process ended too often while it ran (MAX_RECOVERY_ATTEMPTS_EXCEEDED)"


def execution_of(row: Row, note: str | None = None) -> Execution:
    """Return the execution of a row; while it runs, `note` replaces its message."""
    status = _STATUSES.get(row.status)
    steps = tuple(_step(step) for step in row.steps)
    if status is None:
        text = f"DBOS says {row.status}, which this version of mcp-workflows does not know"
        return Execution(status=Status.RUNNING, execution_id=row.id, message=text, is_unmapped=True)
    if status is Status.FAILED:
        return Execution(status=status, execution_id=row.id, failure=_failure(row), steps=steps)
    if status is Status.SUCCEEDED and row.not_json is not None:
        failure = Failure(text=f"it has succeeded, but its result is no JSON: {row.not_json}", kind=_UNDECODABLE)
        return Execution(status=Status.FAILED, execution_id=row.id, failure=failure, steps=steps)
    if status is Status.SUCCEEDED and isinstance(row.output, Unreadable):
        text = "it has succeeded; its result is pickled, which is not read here"
        return Execution(status=status, execution_id=row.id, message=text, steps=steps)
    if status is Status.SUCCEEDED:
        note = f"base64, because its bytes are no text: {', '.join(row.binary)}" if row.binary else None
        return Execution(status=status, execution_id=row.id, output=row.output, message=note, steps=steps)
    if status is Status.CANCELLED:
        return Execution(status=status, execution_id=row.id, message="cancelled in DBOS", steps=steps)
    requests = {key: _request(cast("Mapping[str, JSON]", each.params)) for key, each in row.questions.items()}
    return Execution(
        status=Status.INPUT_REQUIRED if requests else Status.RUNNING,
        execution_id=row.id,
        message=note or _message(row),
        progress=_progress(row.progress),
        requests=requests,
        steps=steps,
    )


def event_outcome(workflow_id: str, key: str, value: tuple[JSON | Unreadable] | None) -> Execution:
    """Return the outcome of reading an event; `value` is None if the workflow has not set it."""
    if value is None:
        text, kind = f"workflow {workflow_id} has not set the event {key}", "EventNotSet"
    elif isinstance(value[0], Unreadable):
        text, kind = f"the event {key} is pickled, or has a number that is no JSON", _UNDECODABLE
    else:
        return Execution(status=Status.SUCCEEDED, execution_id=workflow_id, output=value[0])
    return Execution(status=Status.FAILED, execution_id=workflow_id, failure=Failure(text=text, kind=kind))


def _failure(row: Row) -> Failure:
    """Return the failure of an execution, without its stack trace."""
    if row.status != "ERROR":
        return Failure(text=_GIVEN_UP, kind=row.status)
    stored: object = row.error
    if not isinstance(stored, dict):
        return Failure(text="it has failed; its error is pickled, which is not read here", kind=row.status)
    error = cast("dict[str, JSON]", stored)
    kind = str(error.get("name", row.status)).rpartition(":")[2]
    code, data = _protocol_error(error) if kind == McpError.__name__ else (None, None)
    return Failure(text=str(error.get("message") or kind), kind=kind, code=code, data=data)


def _protocol_error(error: Mapping[str, JSON]) -> tuple[int | None, JSON]:
    """Return the code and the data of an `McpError`, stored as typed JSON or as DBOS's portable JSON."""
    match error:
        case {"args": [_, int(code), data]}:
            return code, plain(data)
        case {"code": int(code)}:
            return code, error.get("data")
        case _:
            return None, None


def _message(row: Row) -> str | None:
    if row.status == "ENQUEUED":
        return "waits for its turn" if row.queue == _INTERNAL_QUEUE else f"waits in the queue {row.queue}"
    if row.status == "DELAYED" and row.delayed_until:
        return f"begins at {time_of(row.delayed_until):%Y-%m-%d %H:%M:%S} UTC"
    return cast("str | None", row.progress.get("message"))


def _progress(report: Mapping[str, JSON]) -> Progress | None:
    value, total = report.get("value"), report.get("total")
    return None if value is None else Progress(value=value, total=total)


def _request(params: Mapping[str, JSON]) -> InputRequest:
    return InputRequest(method="elicitation/create", params=dict(params))


def _step(step: Step) -> ExecutionStep:
    status = Status.FAILED if step.failed else Status.SUCCEEDED if step.completed_at else Status.RUNNING
    at = step.completed_at or step.started_at
    return ExecutionStep(name=step.name, status=status, at=time_of(at) if at else None)


def time_of(milliseconds: int) -> datetime:
    """Return a time of DBOS's tables."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
