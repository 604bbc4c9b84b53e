"""The status of many executions from one list call for hundreds of ids: a hint which of them to describe.

Rows have status and memo. They lag behind (a few ms on the dev server, seconds with Elasticsearch), and show neither
the chain of a run, nor that it is stuck, nor a requested cancellation: `describe` confirms each difference.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import partial

from mcp_workflows_temporal_worker.contract import MEMO_INPUT, MEMO_STATUS
from temporalio.api.enums.v1 import WorkflowExecutionStatus as State
from temporalio.api.workflow.v1 import WorkflowExecutionInfo

from mcp_workflows.adapter import Execution, Ref, Status
from mcp_workflows.errors import ExecutionNotFound
from mcp_workflows_temporal.client import Frontend, Handle, quoted
from mcp_workflows_temporal.describe import READ_FIELDS
from mcp_workflows_temporal.labels import as_mapping, as_text, read_progress, read_questions
from mcp_workflows_temporal.payloads import decode_known
from mcp_workflows_temporal.status import STATUSES

BATCH = 200  # ids in one query: larger queries save little, and one call must not take long
UNQUOTABLE = frozenset('"\\')  # ids with these, or unprintable ones, are not found by a query (server 1.32)
OPEN = frozenset({State.WORKFLOW_EXECUTION_STATUS_RUNNING, State.WORKFLOW_EXECUTION_STATUS_PAUSED})


async def describe_many(frontend: Frontend, refs: Sequence[Ref]) -> Mapping[str, Execution]:
    """Return the executions in the list, by handle; those that the list does not show (yet) are left out."""
    plain = (ref for ref in refs if not ref.gates)  # the state of a gate is in the history, not in the list
    by_id = {handle.workflow_id: ref for ref in plain if (handle := _handle(ref)) and _quotable(handle.workflow_id)}
    found: dict[str, Execution] = {}
    for ids in _batches(list(by_id)):
        rows: dict[str, WorkflowExecutionInfo] = {}
        async for row in _rows(frontend, ids):
            workflow_id = row.execution.workflow_id
            rows[workflow_id] = max(rows.get(workflow_id, row), row, key=_recency)
        for workflow_id, row in rows.items():
            if workflow_id in by_id:  # a query may find others
                found[by_id[workflow_id].handle] = await _read_row(frontend, row)
    return found


def _recency(row: WorkflowExecutionInfo) -> tuple[bool, int]:
    """Order the runs of one id: the current one is open, or started last."""
    return row.status in OPEN, row.start_time.ToNanoseconds()


def _rows(frontend: Frontend, ids: Sequence[str]) -> AsyncIterator[WorkflowExecutionInfo]:
    query = f"WorkflowId IN ({', '.join(map(quoted, ids))}) AND ExecutionStatus != 'ContinuedAsNew'"
    return frontend.list_executions(query, page=2 * BATCH)  # some have more than one run


def _batches(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    yield from (ids[start : start + BATCH] for start in range(0, len(ids), BATCH))


def _quotable(workflow_id: str) -> bool:
    return workflow_id.isprintable() and not UNQUOTABLE & set(workflow_id)


def _handle(ref: Ref) -> Handle | None:
    try:
        return Handle.parse(ref.handle)
    except ExecutionNotFound:
        return None


async def _read_row(frontend: Frontend, row: WorkflowExecutionInfo) -> Execution:
    """Return the execution in a row: its status, message, progress and questions."""
    memo = await decode_known(partial(frontend.converter, row.execution.workflow_id), row.memo.fields, READ_FIELDS)
    status, asked = as_mapping(memo.get(MEMO_STATUS)), as_mapping(memo.get(MEMO_INPUT))
    asked_by_run = asked.get("run") == row.execution.run_id and row.status == State.WORKFLOW_EXECUTION_STATUS_RUNNING
    requests = read_questions(asked if asked_by_run else {})
    return Execution(
        status=Status.INPUT_REQUIRED if requests else STATUSES.get(row.status, Status.RUNNING),
        message=as_text(status.get("message")),
        progress=read_progress(status),
        requests=requests,
        execution_id=row.execution.workflow_id,
    )
