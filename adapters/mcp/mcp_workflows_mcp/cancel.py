"""Cancelling: one call, for an execution that still runs."""

from __future__ import annotations

from collections.abc import Mapping

from mcp_workflows.adapter import JSON
from mcp_workflows.errors import EngineRefused
from mcp_workflows_mcp.definition import ToolsDefinition
from mcp_workflows_mcp.error_translation import change_error, holds
from mcp_workflows_mcp.handle import Handle
from mcp_workflows_mcp.look import look
from mcp_workflows_mcp.upstream import Upstream


async def cancel(upstream: Upstream, definition: ToolsDefinition, handle: Handle, options: Mapping[str, JSON]) -> None:
    """Ask to cancel it, unless it has ended.

    Raises:
        EngineRefused: the definition has no tool for it, or the tool refuses.
        ExecutionNotFound, EngineUnavailable: see `look`.
    """
    how = definition.cancel
    if how is None:
        raise EngineRefused("this server has no tool that cancels an execution (cancel)")
    seen = await look(upstream, definition, handle, options)
    if seen.execution.terminal:
        return
    reply = await upstream.call(how, seen.scope)
    if reply.is_error and not holds(how.late_if, reply.within(seen.scope)):
        raise change_error(reply)
