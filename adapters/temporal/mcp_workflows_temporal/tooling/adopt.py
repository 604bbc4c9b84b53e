"""Adoption: a task for an execution that was started elsewhere."""

from __future__ import annotations

from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse as Described
from temporalio.service import RPCError, RPCStatusCode

from mcp_workflows.adapter import Ref
from mcp_workflows.errors import EngineRefused
from mcp_workflows_temporal.client import Frontend, Handle


async def adopt(frontend: Frontend, execution_id: str) -> Ref:
    """Return the chain of a workflow id, or of `id/run id`, running or ended.

    Raises:
        ExecutionNotFound: there is none.
        EngineRefused: it has a cron schedule.
    """
    info = (await _find(frontend, execution_id)).workflow_execution_info
    started = (await frontend.first_event(info.execution)).workflow_execution_started_event_attributes
    if started.cron_schedule:
        raise EngineRefused(f"{execution_id} has a cron schedule: it never ends, so it cannot be a task", final=True)
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
