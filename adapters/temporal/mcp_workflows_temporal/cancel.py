"""Asking an execution to stop: Temporal's own way, or by the signal that a team has agreed on."""

from __future__ import annotations

import uuid

from temporalio.api.common.v1 import Payloads, WorkflowExecution
from temporalio.api.workflowservice.v1 import SignalWorkflowExecutionRequest
from temporalio.service import RPCError, RPCStatusCode

from mcp_workflows_temporal.client import Frontend, Handle
from mcp_workflows_temporal.describe import described, is_open
from mcp_workflows_temporal.options import CancelSignal

CANCELLED_TASKS = uuid.UUID("6f8f5f0e-6f0b-5d0c-9a53-0f7c2f3f6f52")  # the namespace of our request ids


async def cancel(frontend: Frontend, handle: Handle, signal: CancelSignal | None) -> None:
    """Ask the whole chain to stop; a no-op once it has ended.

    Raises:
        ExecutionNotFound: there is no such chain.
    """
    if signal is None:
        await frontend.cancel(handle)
    elif is_open(await described(frontend, handle)):
        await _send(frontend, handle, signal)


async def _send(frontend: Frontend, handle: Handle, signal: CancelSignal) -> None:
    """One signal for each execution, however often it is asked for: Temporal knows the request id again."""
    payloads = await frontend.converter(handle.workflow_id).encode(signal.args)
    request = SignalWorkflowExecutionRequest(
        namespace=frontend.client.namespace,
        workflow_execution=WorkflowExecution(workflow_id=handle.workflow_id),
        signal_name=signal.signal,
        input=Payloads(payloads=payloads),
        identity=frontend.client.identity,
        request_id=str(uuid.uuid5(CANCELLED_TASKS, str(handle))),
    )
    try:
        await frontend.client.workflow_service.signal_workflow_execution(request, retry=True, timeout=frontend.timeout)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        # It was open a moment ago: it has ended.
