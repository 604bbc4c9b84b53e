"""One look: what DescribeWorkflowExecution says, the memo in it, and once it is closed how it ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from mcp_workflows_temporal_worker.contract import MEMO_INPUT, MEMO_STATUS
from temporalio.api.enums.v1 import WorkflowExecutionStatus as State
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse as Described
from temporalio.converter import DataConverter

from mcp_workflows.adapter import JSON, Execution, Failure, InputRequest, Status
from mcp_workflows.errors import ExecutionNotFound
from mcp_workflows_temporal.client import Frontend, Handle
from mcp_workflows_temporal.diagnosis import message
from mcp_workflows_temporal.gate_rules import Shown
from mcp_workflows_temporal.labels import mapping, progress, questions, text
from mcp_workflows_temporal.payloads import UndecodableError, decode, decode_failure, decode_known
from mcp_workflows_temporal.settings import ui_page
from mcp_workflows_temporal.status import STATUSES, failure

LOOKED_AT = frozenset({MEMO_INPUT, MEMO_STATUS})


async def described(frontend: Frontend, handle: Handle) -> Described:
    """The chain of this handle as it is now.

    Raises:
        ExecutionNotFound: the id belongs to another chain by now.
    """
    found = await frontend.describe(handle.workflow_id)
    first = found.workflow_execution_info.first_run_id
    if first and first != handle.first_run_id:
        raise ExecutionNotFound(f"workflow id {handle.workflow_id} belongs to another execution by now")
    return found


async def look(
    frontend: Frontend, handle: Handle, ui: str | None, gates: Callable[[Described], Awaitable[Shown]]
) -> Execution:
    """One look at the chain of a handle: one call while it is open, two once it is closed; more only for gates.

    Only one if a wait has just brought how it ended.
    """
    found = await described(frontend, handle)
    info = found.workflow_execution_info
    converter = frontend.converter(handle.workflow_id)
    memo = await decode_known(converter, info.memo.fields, LOOKED_AT)
    words = mapping(memo.get(MEMO_STATUS))
    seen = Execution(
        status=STATUSES.get(info.status, Status.RUNNING),
        message=text(words.get("message")),
        progress=progress(words),
        cancel_requested=found.workflow_extended_info.cancel_requested,
        execution_id=handle.workflow_id,
        url=ui_page(ui, frontend.place.namespace, handle.workflow_id, info.execution.run_id),
    )
    if seen.terminal:
        return await _ended(frontend, found, seen)
    paused = info.status == State.WORKFLOW_EXECUTION_STATUS_PAUSED  # what it asked waits with it
    shown = Shown() if paused else await gates(found)
    requests = {**await _questions(frontend, found, {} if paused else memo), **shown.requests}
    said = await message(frontend, found, seen.message)
    return replace(
        seen,
        status=Status.INPUT_REQUIRED if requests else seen.status,
        message="; ".join(filter(None, (said, shown.message))) or None,
        requests=requests,
    )


async def glance(frontend: Frontend, row: WorkflowExecutionInfo) -> Execution:
    """What a row of a list shows: its status, and what the workflow says and asks; see `sweeping`."""
    memo = await decode_known(frontend.converter(row.execution.workflow_id), row.memo.fields, LOOKED_AT)
    words, asked = mapping(memo.get(MEMO_STATUS)), mapping(memo.get(MEMO_INPUT))
    its_own = asked.get("run") == row.execution.run_id and row.status == State.WORKFLOW_EXECUTION_STATUS_RUNNING
    requests = questions(asked if its_own else {})
    return Execution(
        status=Status.INPUT_REQUIRED if requests else STATUSES.get(row.status, Status.RUNNING),
        message=text(words.get("message")),
        progress=progress(words),
        requests=requests,
        execution_id=row.execution.workflow_id,
    )


def is_open(found: Described) -> bool:
    """Whether it has not ended."""
    return STATUSES.get(found.workflow_execution_info.status, Status.RUNNING) is Status.RUNNING


async def open_questions(frontend: Frontend, handle: Handle) -> Mapping[str, InputRequest]:
    """What can be answered now; nothing once it has ended."""
    found = await described(frontend, handle)
    info = found.workflow_execution_info
    if not is_open(found):
        return {}
    memo = await decode_known(frontend.converter(handle.workflow_id), info.memo.fields, LOOKED_AT)
    return await _questions(frontend, found, memo)


async def _questions(frontend: Frontend, found: Described, memo: Mapping[str, JSON]) -> Mapping[str, InputRequest]:
    """The questions in the memo, if the current run asked them: retries and continue-as-new inherit the memo."""
    asked = mapping(memo.get(MEMO_INPUT))
    open_now = questions(asked)
    execution = found.workflow_execution_info.execution
    asked_by = asked.get("run")
    if not open_now or (asked_by != execution.run_id and asked_by != await frontend.original_run(execution)):
        return {}
    return open_now


async def _ended(frontend: Frontend, found: Described, seen: Execution) -> Execution:
    event = await frontend.close_event(found.workflow_execution_info)
    ending = ENDINGS.get(event.WhichOneof("attributes") or "")
    if ending is None:  # closed meanwhile by a retry or continue-as-new: the chain goes on
        return replace(seen, status=Status.RUNNING)
    return await ending(Ended(event=event, found=found, converter=frontend.converter(seen.execution_id or "")), seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """All there is to know about the end of an execution."""

    event: HistoryEvent
    found: Described
    converter: DataConverter


async def _completed(ended: Ended, seen: Execution) -> Execution:
    payloads = ended.event.workflow_execution_completed_event_attributes.result.payloads
    try:
        output = await decode(ended.converter, payloads[0]) if payloads else None
    except UndecodableError as error:
        text = f"the workflow completed, but its result cannot be read here ({error})"
        return replace(seen, status=Status.FAILED, message=None, failure=Failure(text=text, kind="UndecodableResult"))
    return replace(seen, output=output)


async def _failed(ended: Ended, seen: Execution) -> Execution:
    attributes = ended.event.workflow_execution_failed_event_attributes
    error = await decode_failure(ended.converter, attributes.failure)
    return replace(seen, message=None, failure=failure(error))


async def _timed_out(ended: Ended, seen: Execution) -> Execution:
    config = ended.found.execution_config
    limits = [config.workflow_run_timeout.ToTimedelta(), config.workflow_execution_timeout.ToTimedelta()]
    limit = min((each for each in limits if each), default=None)
    text = "the workflow timed out" + (f": it did not end within {limit.total_seconds():g} s" if limit else "")
    return replace(seen, message=None, failure=Failure(text=text, kind="TimedOut"))


async def _cancelled(ended: Ended, seen: Execution) -> Execution:
    return replace(seen, message=f"cancelled; last: {seen.message}" if seen.message else "cancelled")


async def _terminated(ended: Ended, seen: Execution) -> Execution:
    reason = ended.event.workflow_execution_terminated_event_attributes.reason
    return replace(seen, message=f"terminated: {reason}" if reason else "terminated")


ENDINGS: Mapping[str, Callable[[Ended, Execution], Awaitable[Execution]]] = {
    "workflow_execution_completed_event_attributes": _completed,
    "workflow_execution_failed_event_attributes": _failed,
    "workflow_execution_timed_out_event_attributes": _timed_out,
    "workflow_execution_canceled_event_attributes": _cancelled,
    "workflow_execution_terminated_event_attributes": _terminated,
}
