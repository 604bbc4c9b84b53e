"""The start, status and result tools of any MCP server as one MCP task: the MCP adapter of mcp-workflows."""

from __future__ import annotations

from mcp_workflows_mcp.adapter import McpAdapter
from mcp_workflows_mcp.settings import McpOptions, McpSettings

__all__ = ["McpAdapter", "McpOptions", "McpSettings"]
