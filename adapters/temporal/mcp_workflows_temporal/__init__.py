"""Temporal workflows as MCP tasks: the Temporal adapter of mcp-workflows.

Loaded on first use, name by name: a worker that imports `mcp_workflows_temporal.workflow` inside its sandbox
loads nothing else of this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp_workflows_temporal.adapter import TemporalAdapter
    from mcp_workflows_temporal.options import TemporalOptions
    from mcp_workflows_temporal.settings import TemporalSettings

__all__ = ["TemporalAdapter", "TemporalOptions", "TemporalSettings"]

_HOMES = {
    "TemporalAdapter": "mcp_workflows_temporal.adapter",
    "TemporalOptions": "mcp_workflows_temporal.options",
    "TemporalSettings": "mcp_workflows_temporal.settings",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
