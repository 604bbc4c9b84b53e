"""Temporal's words into ours: states and failures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mcp_workflows_temporal_worker.contract import PROTOCOL_ERROR
from temporalio.api.enums.v1 import WorkflowExecutionStatus as State
from temporalio.exceptions import ActivityError, ApplicationError, ChildWorkflowError, FailureError, NexusOperationError
from temporalio.exceptions import TimeoutError as TemporalTimeoutError

from mcp_workflows.adapter import JSON, Failure, Status

STATUSES: Mapping[int, Status] = {
    State.WORKFLOW_EXECUTION_STATUS_RUNNING: Status.RUNNING,
    State.WORKFLOW_EXECUTION_STATUS_COMPLETED: Status.SUCCEEDED,
    State.WORKFLOW_EXECUTION_STATUS_FAILED: Status.FAILED,
    State.WORKFLOW_EXECUTION_STATUS_CANCELED: Status.CANCELLED,
    State.WORKFLOW_EXECUTION_STATUS_TERMINATED: Status.CANCELLED,
    State.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW: Status.RUNNING,  # the chain goes on under the same id
    State.WORKFLOW_EXECUTION_STATUS_TIMED_OUT: Status.FAILED,
    State.WORKFLOW_EXECUTION_STATUS_PAUSED: Status.RUNNING,  # unknown to the SDK's own enum (1.35)
}
"""A state we do not know yet is RUNNING: nothing is declared ended that may go on."""


def failure(error: BaseException) -> Failure:
    """Why a workflow failed, in the words of whoever raised it: no class names, wrappers or stack traces."""
    chain = list(_causes(error))
    speaking = [(cause, text) for cause in chain if (text := _words(cause))]
    texts = [text for _, text in speaking]
    first = next((cause for cause in chain if isinstance(cause, ApplicationError)), None)
    said = texts[0] if texts else "the workflow failed without a reason"
    if len(texts) > 1 and texts[1] not in said:
        said = f"{said}: {texts[1]}"
    code, data = _protocol_error(first)
    return Failure(text=said, kind=_kind(first or (speaking[0][0] if speaking else error)), code=code, data=data)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """From the outside in, past wrappers; what lies behind an application error only if Temporal put it there.

    The Python exception that an author raised from is theirs, not for people.
    """
    while error is not None:
        yield error
        inner = error.__cause__
        if isinstance(error, ApplicationError) and isinstance(inner, ApplicationError):
            return
        error = inner


def _words(error: BaseException) -> str | None:
    """What one link of the chain says; wrappers say nothing of their own."""
    if isinstance(error, ActivityError | ChildWorkflowError | NexusOperationError):
        return None
    if isinstance(error, TemporalTimeoutError):
        return _timed_out(error)
    if isinstance(error, FailureError):
        return error.message or _kind(error)
    return f"its failure cannot be read here ({type(error).__name__})"


def _timed_out(error: TemporalTimeoutError) -> str:
    kind = error.type.name.lower().replace("_", " ") if error.type else "no answer in time"
    return f"a step timed out ({kind})"


def _kind(error: BaseException) -> str | None:
    return error.type if isinstance(error, ApplicationError) else type(error).__name__


def _protocol_error(error: ApplicationError | None) -> tuple[int | None, JSON]:
    """The code and data of an `McpError`; one without an integer code is an ordinary failure."""
    if error is None or error.type != PROTOCOL_ERROR or not error.details:
        return None, None
    code, *rest = error.details
    if not isinstance(code, int) or isinstance(code, bool):
        return None, None
    return code, rest[0] if rest else None
