"""What an operator does to an execution: end it without asking, or make a task of one that somebody else started."""

from __future__ import annotations

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse as Described
from temporalio.api.workflowservice.v1 import TerminateWorkflowExecutionRequest
from temporalio.service import RPCError, RPCStatusCode

from mcp_workflows.adapter import Ref
from mcp_workflows.errors import EngineRefused
from mcp_workflows_temporal.client import Frontend, Handle
from mcp_workflows_temporal.describe import described


async def terminate(frontend: Frontend, handle: Handle, reason: str) -> None:
    """End the whole chain now; its workers hear of it when they next report.

    Raises:
        ExecutionNotFound: there is no such chain.
    """
    request = TerminateWorkflowExecutionRequest(
        namespace=frontend.client.namespace,
        workflow_execution=WorkflowExecution(workflow_id=handle.workflow_id),
        first_execution_run_id=handle.first_run_id,
        reason=reason,
        identity=frontend.client.identity,
    )
    try:
        await frontend.client.workflow_service.terminate_workflow_execution(
            request, retry=True, timeout=frontend.timeout
        )
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        await described(frontend, handle)  # Temporal says the same of an ended chain: that is none of our business


async def adopt(frontend: Frontend, execution_id: str) -> Ref:
    """The chain of a workflow id, or of `id/run id`, running or ended.

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
    """A workflow id may have slashes in it, so the whole is tried first; a run id must be one of that very chain."""
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
    return await described(frontend, Handle(workflow_id=workflow_id, first_run_id=run_id))
