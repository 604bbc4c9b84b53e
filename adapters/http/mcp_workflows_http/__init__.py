"""Any job API as MCP tasks, described in YAML: the HTTP adapter of mcp-workflows."""

from __future__ import annotations

from mcp_workflows_http.adapter import HttpAdapter
from mcp_workflows_http.settings import HttpOptions, HttpSettings

__all__ = ["HttpAdapter", "HttpOptions", "HttpSettings"]
