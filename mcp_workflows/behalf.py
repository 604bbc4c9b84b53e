"""On whose behalf: what the engine is told of who calls, and what the task therefore keeps."""

from __future__ import annotations

from collections.abc import Mapping

from mcp_workflows.access import Principal
from mcp_workflows.adapter import JSON
from mcp_workflows.tool import Tool


def on_behalf_of(tool: Tool, principal: Principal, scope: Mapping[str, JSON]) -> Mapping[str, str]:
    """The tool, whose task it is, and what the tool's `on_behalf_of` says of them; of claims only what that names.

    Raises:
        MappingError: see `Tool.told`.
    """
    exactly = principal.id if principal.subject is not None else None  # two issuers may know one subject
    who = {"principal": exactly, "issuer": principal.issuer, "client": principal.client}
    known = {name: value for name, value in who.items() if value is not None}
    return {"tool": tool.name, "owner": principal.subject or principal.id, **known, **tool.told(scope)}
