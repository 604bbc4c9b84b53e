"""Cancellation: Temporal's own, or the signal that a tool names for it; and termination, for operators."""

from __future__ import annotations

from uuid import UUID, uuid5

from temporalio.service import RPCError, RPCStatusCode

from mcp_workflows_temporal.client import Frontend, Handle
from mcp_workflows_temporal.options import CancelSignal
from mcp_workflows_temporal.status import is_open

REQUEST_IDS = UUID("6f8f5f0e-6f0b-5d0c-9a53-0f7c2f3f6f52")  # the UUID namespace of our request ids


async def cancel(frontend: Frontend, handle: Handle, signal: CancelSignal | None) -> None:
    """Request the cancellation of the whole chain; do nothing once it has ended.

    The request id is the same for each call, so that Temporal keeps one signal for each execution.

    Raises:
        ExecutionNotFound: there is no such chain.
    """
    if signal is None:
        await frontend.request_cancel(handle)
    elif is_open(await frontend.describe_chain(handle)):
        try:
            request_id = str(uuid5(REQUEST_IDS, str(handle)))
            await frontend.signal(handle.execution, signal.signal, signal.args, request_id)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            # It was open a moment ago: it has ended.


async def terminate(frontend: Frontend, handle: Handle, reason: str) -> None:
    """Terminate the whole chain; its workers learn of it when they next report.

    Raises:
        ExecutionNotFound: there is no such chain.
    """
    try:
        await frontend.terminate(handle, reason)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        await frontend.describe_chain(handle)  # Temporal gives the same error for a chain that has ended
