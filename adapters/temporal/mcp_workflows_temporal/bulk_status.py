"""A cheap look at many executions at once: one list call for hundreds of ids, as the hint which of them to describe.

Its rows have status and memo. They lag behind (a few ms on the dev server, seconds with Elasticsearch), and do not tell
which chain a run belongs to, whether it is stuck, or whether it was asked to cancel: `describe` confirms what differs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

from temporalio.api.enums.v1 import WorkflowExecutionStatus as State
from temporalio.api.workflow.v1 import WorkflowExecutionInfo

from mcp_workflows.adapter import Execution, Ref
from mcp_workflows.errors import ExecutionNotFound
from mcp_workflows_temporal.client import Frontend, Handle
from mcp_workflows_temporal.describe import glance
from mcp_workflows_temporal.listing import listed, quoted

AT_ONCE = 200  # ids in one query: more are hardly cheaper each, and one call must not take long
UNQUOTABLE = frozenset('"\\')  # ids with these, or with what cannot be printed, are not found by a query (server 1.32)
OPEN = frozenset({State.WORKFLOW_EXECUTION_STATUS_RUNNING, State.WORKFLOW_EXECUTION_STATUS_PAUSED})


async def describe_many(frontend: Frontend, refs: Sequence[Ref]) -> Mapping[str, Execution]:
    """What the list tells, by handle; executions it does not show (yet) are left out."""
    plain = (ref for ref in refs if not ref.gates)  # whether a gate is open is in the history, not in the list
    by_id = {handle.workflow_id: ref for ref in plain if (handle := _handle(ref)) and _quotable(handle.workflow_id)}
    found: dict[str, Execution] = {}
    for ids in _pages(list(by_id)):
        rows: dict[str, WorkflowExecutionInfo] = {}
        async for row in _rows(frontend, ids):
            workflow_id = row.execution.workflow_id
            rows[workflow_id] = max(rows.get(workflow_id, row), row, key=_currency)
        for workflow_id, row in rows.items():
            if workflow_id in by_id:  # whatever the query found
                found[by_id[workflow_id].handle] = await glance(frontend, row)
    return found


def _currency(row: WorkflowExecutionInfo) -> tuple[bool, int]:
    """Of several runs of one id the current one: it is open, or it started last."""
    return row.status in OPEN, row.start_time.ToNanoseconds()


def _rows(frontend: Frontend, ids: Sequence[str]) -> AsyncIterator[WorkflowExecutionInfo]:
    query = f"WorkflowId IN ({', '.join(map(quoted, ids))}) AND ExecutionStatus != 'ContinuedAsNew'"
    return listed(frontend, query, page=2 * AT_ONCE)  # some have more than one run


def _pages(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    yield from (ids[start : start + AT_ONCE] for start in range(0, len(ids), AT_ONCE))


def _quotable(workflow_id: str) -> bool:
    return workflow_id.isprintable() and not UNQUOTABLE & set(workflow_id)


def _handle(ref: Ref) -> Handle | None:
    try:
        return Handle.parse(ref.handle)
    except ExecutionNotFound:
        return None
