"""Temporal's states and failures in the terms of the boundary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mcp_workflows_temporal_worker.contract import PROTOCOL_ERROR
from temporalio.api.enums.v1 import WorkflowExecutionStatus as State
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse as Described
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
"""An unknown state counts as RUNNING, so that nothing that may go on is declared ended."""


def is_open(found: Described) -> bool:
    """Return whether a described execution has not ended."""
    return STATUSES.get(found.workflow_execution_info.status, Status.RUNNING) is Status.RUNNING


def read_failure(error: BaseException) -> Failure:
    """Return the reason of a failure in the words of its author: no class names, wrappers or stack traces."""
    chain = list(_causes(error))
    with_text = [(cause, text) for cause in chain if (text := _text(cause))]
    texts = [text for _, text in with_text]
    first = next((cause for cause in chain if isinstance(cause, ApplicationError)), None)
    text = texts[0] if texts else "the workflow failed without a reason"
    if len(texts) > 1 and texts[1] not in text:
        text = f"{text}: {texts[1]}"
    code, data = _protocol_error(first)
    return Failure(text=text, kind=_kind(first or (with_text[0][0] if with_text else error)), code=code, data=data)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the chain of causes from the outside in.

    It ends at an application error that was raised from a Python exception: that one is an internal detail.
    """
    while error is not None:
        yield error
        inner = error.__cause__
        if isinstance(error, ApplicationError) and isinstance(inner, ApplicationError):
            return
        error = inner


def _text(error: BaseException) -> str | None:
    """Return the text of one error in the chain; wrappers have none."""
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
    """Return the code and data of an `McpError`; without an integer code it is an ordinary failure."""
    if error is None or error.type != PROTOCOL_ERROR or not error.details:
        return None, None
    code, *rest = error.details
    if not isinstance(code, int) or isinstance(code, bool):
        return None, None
    return code, rest[0] if rest else None
