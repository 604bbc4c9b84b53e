"""Temporal workflows as MCP tasks: the Temporal adapter of mcp-workflows."""

from __future__ import annotations

from mcp_workflows_temporal.adapter import TemporalAdapter
from mcp_workflows_temporal.settings import TemporalOptions, TemporalSettings

__all__ = ["TemporalAdapter", "TemporalOptions", "TemporalSettings"]
