"""The state of an execution: a single poll, or a cheap batch poll of many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC
from functools import partial

from mcp_workflows_temporal_worker.contract import MEMO_INPUT, MEMO_STATUS
from temporalio.api.enums.v1 import WorkflowExecutionStatus as State
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo, PendingChildExecutionInfo, WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse as Described
from temporalio.converter import DataConverter

from mcp_workflows.adapter import MAX_STEPS, TERMINAL, Execution, ExecutionStep, Failure, Ref, Status
from mcp_workflows.errors import ExecutionNotFound
from mcp_workflows_temporal.client import STATUSES, Frontend, Handle, Run, quoted
from mcp_workflows_temporal.diagnosis import status_message
from mcp_workflows_temporal.gate_rules import GateRequests
from mcp_workflows_temporal.gates import Gates
from mcp_workflows_temporal.payloads import UndecodableError, as_mapping, as_text, decode, read_failure, read_memo
from mcp_workflows_temporal.questions import ProgressQueries, own_questions, read_progress, read_questions

BATCH = 200  # ids in one query: larger queries save little, and one call must not take long
_UNQUOTABLE = frozenset('"\\')  # ids with these, or unprintable ones, are not found by a query (server 1.32)
_PAUSED, _RUNNING = State.WORKFLOW_EXECUTION_STATUS_PAUSED, State.WORKFLOW_EXECUTION_STATUS_RUNNING


async def describe(frontend: Frontend, ref: Ref, gates: Gates, queried: ProgressQueries) -> Execution:
    """Return an execution after one call, or two once it has ended; more only for gates and queried progress.

    An ended one needs only one call if a long poll has just returned its close event.
    """
    handle = Handle.parse(ref.handle)
    found = await frontend.describe_chain(handle)
    info = found.workflow_execution_info
    memo = await read_memo(frontend, info, MEMO_INPUT, MEMO_STATUS)
    status = as_mapping(memo.get(MEMO_STATUS))
    state, message = STATUSES.get(info.status, Status.RUNNING), as_text(status.get("message"))
    own = read_progress(status)
    seen = partial(
        Execution,
        progress=own,
        cancel_requested=found.workflow_extended_info.cancel_requested,
        execution_id=handle.workflow_id,
        url=frontend.place.page(handle.workflow_id, info.execution.run_id),
    )
    if state in TERMINAL:
        event, execution = await frontend.close_event(info), seen(status=state, message=message)
        return await _ended(frontend.converter(handle.workflow_id), found, event, execution)
    paused = info.status == _PAUSED  # its questions wait with it
    waiting = GateRequests() if paused else await gates.read(frontend, ref, found)
    requests = {**await own_questions(frontend, found, {} if paused else memo), **waiting.requests}
    progress, told = (None, None) if paused else await queried.read(Run.of(frontend, found), ref.options)
    text = await status_message(frontend, found, message or told)
    return seen(
        status=Status.INPUT_REQUIRED if requests else state,
        message="; ".join(filter(None, (text, waiting.message))) or None,
        requests=requests,
        progress=progress or own,
        steps=tuple([*map(_activity, found.pending_activities), *map(_child, found.pending_children)][:MAX_STEPS]),
    )


def _activity(each: PendingActivityInfo) -> ExecutionStep:
    """Return an activity as a step; a retried one has no time, as it changes."""
    began = each.attempt == 1 and each.last_started_time.seconds
    at = each.last_started_time.ToDatetime(UTC) if began else None
    return ExecutionStep(name=each.activity_type.name, status=Status.RUNNING, at=at)


def _child(each: PendingChildExecutionInfo) -> ExecutionStep:
    return ExecutionStep(name=each.workflow_type_name, status=Status.RUNNING)


async def _ended(converter: DataConverter, found: Described, event: HistoryEvent, execution: Execution) -> Execution:
    """Return the execution according to its close event."""
    match event.WhichOneof("attributes"):
        case "workflow_execution_completed_event_attributes":
            payloads = event.workflow_execution_completed_event_attributes.result.payloads
            try:
                return replace(execution, output=await decode(converter, payloads[0]) if payloads else None)
            except UndecodableError as error:
                text = f"the workflow completed, but its result cannot be read here ({error})"
                failure = Failure(text=text, kind="UndecodableResult")
                return replace(execution, status=Status.FAILED, message=None, failure=failure)
        case "workflow_execution_failed_event_attributes":
            failed = event.workflow_execution_failed_event_attributes.failure
            return replace(execution, message=None, failure=await read_failure(converter, failed))
        case "workflow_execution_timed_out_event_attributes":
            config = found.execution_config
            limits = [config.workflow_run_timeout.ToTimedelta(), config.workflow_execution_timeout.ToTimedelta()]
            limit = min((each for each in limits if each), default=None)
            text = "the workflow timed out" + (f": it did not end within {limit.total_seconds():g} s" if limit else "")
            return replace(execution, message=None, failure=Failure(text=text, kind="TimedOut"))
        case "workflow_execution_canceled_event_attributes":
            message = f"cancelled; last: {execution.message}" if execution.message else "cancelled"
            return replace(execution, message=message)
        case "workflow_execution_terminated_event_attributes":
            reason = event.workflow_execution_terminated_event_attributes.reason
            return replace(execution, message=f"terminated: {reason}" if reason else "terminated")
        case _:  # a retry or continue-as-new closed it in the meantime: the chain continues
            return replace(execution, status=Status.RUNNING)


async def describe_many(frontend: Frontend, refs: Sequence[Ref]) -> Mapping[str, Execution]:
    """Return the executions in list calls for hundreds of ids, by handle: a hint what to describe.

    The rows have status and memo. They lag behind (a few ms on the dev server, seconds with Elasticsearch), and show
    neither the chain of a run, nor that it is stuck, nor a requested cancellation: `describe` confirms each difference.
    """
    by_id: dict[str, Ref] = {}
    for ref in refs:
        try:
            workflow_id = Handle.parse(ref.handle).workflow_id
        except ExecutionNotFound:
            continue
        is_quotable = workflow_id.isprintable() and not _UNQUOTABLE & set(workflow_id)
        if is_quotable and not ref.gates and not ref.options.get("progress"):  # the list has neither
            by_id[workflow_id] = ref
    found: dict[str, Execution] = {}
    ids = list(by_id)
    for start in range(0, len(ids), BATCH):
        listed = ", ".join(map(quoted, ids[start : start + BATCH]))
        query = f"WorkflowId IN ({listed}) AND ExecutionStatus != 'ContinuedAsNew'"
        rows: dict[str, WorkflowExecutionInfo] = {}
        async for row in frontend.list_executions(query, page=2 * BATCH):  # some have several runs
            workflow_id = row.execution.workflow_id
            rows[workflow_id] = max(rows.get(workflow_id, row), row, key=_recency)
        for workflow_id, row in rows.items():
            if workflow_id in by_id:  # a query may find others
                found[by_id[workflow_id].handle] = await _read_row(frontend, row)
    return found


def _recency(row: WorkflowExecutionInfo) -> tuple[bool, int]:
    """Order the runs of one id: the current one is open, or started last."""
    return row.status in {_RUNNING, _PAUSED}, row.start_time.ToNanoseconds()


async def _read_row(frontend: Frontend, row: WorkflowExecutionInfo) -> Execution:
    """Return the execution in a row: its status, message, progress and questions."""
    memo = await read_memo(frontend, row, MEMO_INPUT, MEMO_STATUS)
    status, asked = as_mapping(memo.get(MEMO_STATUS)), as_mapping(memo.get(MEMO_INPUT))
    asked_by_run = asked.get("run") == row.execution.run_id and row.status == _RUNNING
    requests = read_questions(asked if asked_by_run else {})
    return Execution(
        status=Status.INPUT_REQUIRED if requests else STATUSES.get(row.status, Status.RUNNING),
        message=as_text(status.get("message")),
        progress=read_progress(status),
        requests=requests,
        execution_id=row.execution.workflow_id,
    )
