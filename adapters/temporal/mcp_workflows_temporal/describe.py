"""One look: the DescribeWorkflowExecution, the memo in it, and the close event once the execution has ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC
from functools import partial

from mcp_workflows_temporal_worker.contract import MEMO_INPUT, MEMO_STATUS
from temporalio.api.enums.v1 import WorkflowExecutionStatus as State
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse as Described
from temporalio.converter import DataConverter

from mcp_workflows.adapter import JSON, MAX_STEPS, Execution, ExecutionStep, Failure, InputRequest, Status
from mcp_workflows_temporal.client import Frontend, Handle
from mcp_workflows_temporal.diagnosis import status_message
from mcp_workflows_temporal.gate_rules import GateRequests
from mcp_workflows_temporal.labels import as_mapping, as_text, read_progress, read_questions
from mcp_workflows_temporal.payloads import UndecodableError, decode, decode_failure, decode_known
from mcp_workflows_temporal.settings import ui_page
from mcp_workflows_temporal.status import STATUSES, is_open, read_failure

READ_FIELDS = (MEMO_INPUT, MEMO_STATUS)


async def describe(
    frontend: Frontend, handle: Handle, ui: str | None, read_gates: Callable[[Described], Awaitable[GateRequests]]
) -> Execution:
    """Return the execution of a handle after one call, or two once it has ended; more only for gates.

    An ended one needs only one call if a long poll has just brought its close event.
    """
    found = await frontend.describe_chain(handle)
    info = found.workflow_execution_info
    memo = await decode_known(partial(frontend.converter, handle.workflow_id), info.memo.fields, READ_FIELDS)
    status = as_mapping(memo.get(MEMO_STATUS))
    execution = Execution(
        status=STATUSES.get(info.status, Status.RUNNING),
        message=as_text(status.get("message")),
        progress=read_progress(status),
        cancel_requested=found.workflow_extended_info.cancel_requested,
        execution_id=handle.workflow_id,
        url=ui_page(ui, frontend.place.namespace, handle.workflow_id, info.execution.run_id),
    )
    if execution.terminal:
        return await _ended(frontend, found, execution)
    paused = info.status == State.WORKFLOW_EXECUTION_STATUS_PAUSED  # its questions wait with it
    gates = GateRequests() if paused else await read_gates(found)
    requests = {**await _questions(frontend, found, {} if paused else memo), **gates.requests}
    text = await status_message(frontend, found, execution.message)
    return replace(
        execution,
        status=Status.INPUT_REQUIRED if requests else execution.status,
        message="; ".join(filter(None, (text, gates.message))) or None,
        requests=requests,
        steps=_steps(found),
    )


def _steps(found: Described) -> tuple[ExecutionStep, ...]:
    """Return the pending activities, which are in the reply; one that is tried again has no time, as it changes."""
    return tuple(
        ExecutionStep(
            name=each.activity_type.name,
            status=Status.RUNNING,
            at=each.last_started_time.ToDatetime(UTC) if each.attempt == 1 and each.last_started_time.seconds else None,
        )
        for each in found.pending_activities[:MAX_STEPS]
    )


async def open_questions(frontend: Frontend, handle: Handle) -> Mapping[str, InputRequest]:
    """Return the questions of the workflow that can be answered now; none once it has ended."""
    found = await frontend.describe_chain(handle)
    info = found.workflow_execution_info
    if not is_open(found):
        return {}
    memo = await decode_known(partial(frontend.converter, handle.workflow_id), info.memo.fields, READ_FIELDS)
    return await _questions(frontend, found, memo)


async def _questions(frontend: Frontend, found: Described, memo: Mapping[str, JSON]) -> Mapping[str, InputRequest]:
    """Return the questions in the memo if the current run asked them: a next run inherits the memo."""
    asked = as_mapping(memo.get(MEMO_INPUT))
    questions = read_questions(asked)
    execution = found.workflow_execution_info.execution
    asked_by = asked.get("run")
    if not questions or (asked_by != execution.run_id and asked_by != await frontend.original_run(execution)):
        return {}
    return questions


async def _ended(frontend: Frontend, found: Described, execution: Execution) -> Execution:
    event = await frontend.close_event(found.workflow_execution_info)
    ending = ENDINGS.get(event.WhichOneof("attributes") or "")
    if ending is None:  # a retry or continue-as-new closed it meanwhile: the chain goes on
        return replace(execution, status=Status.RUNNING)
    return await ending(
        Ended(event=event, found=found, converter=frontend.converter(execution.execution_id or "")), execution
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The close event of an execution, and its description."""

    event: HistoryEvent
    found: Described
    converter: DataConverter


async def _completed(ended: Ended, execution: Execution) -> Execution:
    payloads = ended.event.workflow_execution_completed_event_attributes.result.payloads
    try:
        output = await decode(ended.converter, payloads[0]) if payloads else None
    except UndecodableError as error:
        text = f"the workflow completed, but its result cannot be read here ({error})"
        return replace(
            execution, status=Status.FAILED, message=None, failure=Failure(text=text, kind="UndecodableResult")
        )
    return replace(execution, output=output)


async def _failed(ended: Ended, execution: Execution) -> Execution:
    attributes = ended.event.workflow_execution_failed_event_attributes
    error = await decode_failure(ended.converter, attributes.failure)
    return replace(execution, message=None, failure=read_failure(error))


async def _timed_out(ended: Ended, execution: Execution) -> Execution:
    config = ended.found.execution_config
    limits = [config.workflow_run_timeout.ToTimedelta(), config.workflow_execution_timeout.ToTimedelta()]
    limit = min((each for each in limits if each), default=None)
    text = "the workflow timed out" + (f": it did not end within {limit.total_seconds():g} s" if limit else "")
    return replace(execution, message=None, failure=Failure(text=text, kind="TimedOut"))


async def _cancelled(ended: Ended, execution: Execution) -> Execution:
    return replace(execution, message=f"cancelled; last: {execution.message}" if execution.message else "cancelled")


async def _terminated(ended: Ended, execution: Execution) -> Execution:
    reason = ended.event.workflow_execution_terminated_event_attributes.reason
    return replace(execution, message=f"terminated: {reason}" if reason else "terminated")


ENDINGS: Mapping[str, Callable[[Ended, Execution], Awaitable[Execution]]] = {
    "workflow_execution_completed_event_attributes": _completed,
    "workflow_execution_failed_event_attributes": _failed,
    "workflow_execution_timed_out_event_attributes": _timed_out,
    "workflow_execution_canceled_event_attributes": _cancelled,
    "workflow_execution_terminated_event_attributes": _terminated,
}
