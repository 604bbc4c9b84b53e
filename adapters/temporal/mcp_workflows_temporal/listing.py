"""Rows of Temporal's list of executions; it lags a little behind the executions themselves.

Raw calls, because the SDK's own list raises ValueError for one paused execution (1.35).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import ListWorkflowExecutionsRequest

from mcp_workflows_temporal.client import Frontend


def quoted(text: str) -> str:
    """A text as a query takes it."""
    return "'{}'".format(text.replace("'", "''"))


async def listed(
    frontend: Frontend, query: str, *, page: int, pages: int | None = None
) -> AsyncIterator[WorkflowExecutionInfo]:
    """What a query finds, `page` rows a call, at most so many pages; open executions first, then as they closed."""
    request = ListWorkflowExecutionsRequest(namespace=frontend.client.namespace, page_size=page, query=query)
    while pages is None or pages > 0:
        found = await frontend.client.workflow_service.list_workflow_executions(
            request, retry=True, timeout=frontend.timeout
        )
        for row in found.executions:
            yield row
        if not found.next_page_token:
            return
        request.next_page_token = found.next_page_token
        pages = None if pages is None else pages - 1
