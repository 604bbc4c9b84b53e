"""Google Cloud Workflows executions as MCP tasks: the Google adapter of mcp-workflows."""

from __future__ import annotations

from mcp_workflows_google.adapter import GoogleAdapter
from mcp_workflows_google.settings import GoogleOptions, GoogleSettings

__all__ = ["GoogleAdapter", "GoogleOptions", "GoogleSettings"]
