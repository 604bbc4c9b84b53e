"""Executions that were started elsewhere: the workflow types that ran lately, and a task for one execution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse as Described
from temporalio.service import RPCError, RPCStatusCode

from mcp_workflows.adapter import Ref
from mcp_workflows.kit.tooling import Discovered
from mcp_workflows_temporal.client import Frontend, Handle

PAGE = 1000  # executions
PAGES = 5


async def discover(frontend: Frontend, own_queue: str | None) -> Sequence[Discovered]:
    """Return the types of the latest executions, the most frequent first; a task queue only if not the engine's."""
    counts: Counter[tuple[str, str]] = Counter()
    seen: dict[tuple[str, str], datetime] = {}
    async for row in frontend.list_executions("", page=PAGE, pages=PAGES):
        key = row.type.name, row.task_queue
        started = row.start_time.ToDatetime(UTC)
        counts[key] += 1
        seen[key] = max(seen.get(key, started), started)
    return [
        Discovered(
            workflow=workflow,
            options={} if queue in {own_queue, ""} else {"task_queue": queue},
            last_seen=seen[workflow, queue],
            executions=count,
        )
        for (workflow, queue), count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]


async def adopt(frontend: Frontend, execution_id: str) -> Ref:
    """Return the chain of a workflow id, or of `id/run id`, running or ended.

    Raises:
        ExecutionNotFound: there is none.
        EngineRefused: it has a cron schedule.
    """
    info = (await _find(frontend, execution_id)).workflow_execution_info
    await frontend.refuse_cron(info.execution, execution_id, final=True)
    handle = Handle(workflow_id=info.execution.workflow_id, first_run_id=info.first_run_id)
    return Ref(workflow=info.type.name, handle=str(handle))


async def _find(frontend: Frontend, execution_id: str) -> Described:
    """Try the whole text first, as a workflow id may have slashes; a run id must be one of that chain."""
    workflow_id, _, run_id = execution_id.rpartition("/")
    try:
        return await frontend.describe(execution_id)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND or not workflow_id:
            raise
    found = await frontend.describe(workflow_id)
    info = found.workflow_execution_info
    if run_id in (info.execution.run_id, info.first_run_id):
        return found
    return await frontend.describe_chain(Handle(workflow_id=workflow_id, first_run_id=run_id))
