"""Notifications of changed tools: clients of 2026-07-28 subscribe to them, and older ones get them unasked."""

from __future__ import annotations

import logging
from typing import Any

import anyio
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.subscriptions import SubscriptionBus, ToolsListChanged
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_workflows.receiver.envelope import plain
from mcp_workflows.receiver.v2025_11_25.session import connection_of

logger = logging.getLogger(__name__)

_PATIENCE = 5.0  # seconds for a client that does not read


class Changes:
    """Middleware that keeps the connections of older clients; `tools_changed` notifies all clients."""

    def __init__(self, bus: SubscriptionBus) -> None:
        self._bus = bus
        self._older: set[Connection] = set()

    async def serve(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Declare the capability to older clients, and keep their connections until they close."""
        result = await call_next(ctx)
        if ctx.method == "notifications/initialized" and ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            self._remember(connection_of(ctx))
        return _with_capability(result) if ctx.method == "initialize" else result

    async def tools_changed(self) -> None:
        """Send `notifications/tools/list_changed` to all clients that want it, with a short timeout for each."""
        await self._bus.publish(ToolsListChanged())
        async with anyio.create_task_group() as group:
            for connection in list(self._older):
                group.start_soon(_tell, connection)

    def _remember(self, connection: Connection) -> None:
        if connection not in self._older:
            self._older.add(connection)
            connection.exit_stack.callback(self._older.discard, connection)


async def _tell(connection: Connection) -> None:
    with anyio.move_on_after(_PATIENCE) as waiting:
        await connection.send_tool_list_changed()
    if waiting.cancelled_caught:
        logger.warning("a client does not read: it was not told that the tools have changed")


def _with_capability(result: HandlerResult) -> HandlerResult:
    """Return the answer to `initialize` with `capabilities.tools.listChanged` (spec 2025-11-25: server/tools)."""
    found = plain(result)
    capabilities: dict[str, Any] = found.get("capabilities", {})
    tools: dict[str, Any] = capabilities.get("tools", {})
    return {**found, "capabilities": {**capabilities, "tools": {**tools, "listChanged": True}}}
