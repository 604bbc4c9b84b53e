"""The call that a start would make."""

from __future__ import annotations

from collections.abc import Mapping

from mcp_workflows.adapter import JSON, Start
from mcp_workflows_mcp.client import render_call
from mcp_workflows_mcp.settings import McpSettings
from mcp_workflows_mcp.start import order_scope


def preview(settings: McpSettings, start: Start) -> Mapping[str, JSON]:
    """Return the tool and its arguments.

    Raises:
        EngineRefused: they cannot be made of these values.
    """
    name, arguments = render_call(settings.start, order_scope(start, settings))
    return {"tool": name, "arguments": arguments}
