"""The DBOS adapter of mcp-workflows, and the functions that its workflows import: `ask`, `progress` and `tool`."""

from __future__ import annotations

from mcp_workflows_dbos.adapter import DbosAdapter
from mcp_workflows_dbos.module import tool
from mcp_workflows_dbos.serializer import TypedJsonSerializer
from mcp_workflows_dbos.settings import DbosOptions, DbosSettings
from mcp_workflows_dbos.workflow import Answer, McpError, ask, progress

__all__ = [
    "Answer",
    "DbosAdapter",
    "DbosOptions",
    "DbosSettings",
    "McpError",
    "TypedJsonSerializer",
    "ask",
    "progress",
    "tool",
]
