"""Which workflow types ran lately: from the list of executions, as Temporal counts by status only (server 1.32)."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime

from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import ListWorkflowExecutionsRequest

from mcp_workflows.capabilities import Discovered
from mcp_workflows_temporal.frontend import Frontend

PAGE = 1000  # executions
PAGES = 5


async def discover(frontend: Frontend, own_queue: str | None) -> Sequence[Discovered]:
    """The types of the latest executions, the most frequent first; the task queue only if it is not the engine's."""
    counts: Counter[tuple[str, str]] = Counter()
    seen: dict[tuple[str, str], datetime] = {}
    async for row in executions(frontend, page=PAGE, pages=PAGES):
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


async def executions(
    frontend: Frontend, *, workflow: str | None = None, page: int, pages: int = 1
) -> AsyncIterator[WorkflowExecutionInfo]:
    """Rows of the list, open executions first, then as they closed, the latest first; of one workflow type, if given.

    Raw, because the SDK's own list raises ValueError for one paused execution (1.35).
    """
    request = ListWorkflowExecutionsRequest(
        namespace=frontend.client.namespace,
        page_size=page,
        query="" if workflow is None else f"WorkflowType = '{_quoted(workflow)}'",
    )
    for _ in range(pages):
        found = await frontend.client.workflow_service.list_workflow_executions(
            request, retry=True, timeout=frontend.timeout
        )
        for row in found.executions:
            yield row
        if not found.next_page_token:
            return
        request.next_page_token = found.next_page_token


def _quoted(text: str) -> str:
    return text.replace("'", "''")
