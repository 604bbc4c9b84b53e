"""What is offered to clients at one time: the tools, and the bridge that serves them; swapped as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from mcp_workflows.bridge import Bridge
from mcp_workflows.tool import Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One set of tools: a request sees one of them from its beginning to its end."""

    tools: Mapping[str, Tool]
    listed: Sequence[Mapping[str, Any]]  # as `tools/list` shows them; Any: any JSON value
    bridge: Bridge | None  # None: not entered

    @classmethod
    def of(cls, tools: Mapping[str, Tool], bridge: Bridge | None = None) -> Self:
        """The offer of these tools, in their order."""
        return cls(tools=tools, listed=[_listed(tool) for tool in tools.values() if tool.listed], bridge=bridge)

    def shows(self, name: object) -> bool:
        """Whether clients can call a tool of that name."""
        return isinstance(name, str) and name in self.tools and self.tools[name].listed


def _listed(tool: Tool) -> Mapping[str, Any]:
    """A tool as `tools/list` shows it."""
    found: dict[str, Any] = {
        "name": tool.name,
        "title": tool.title,
        "description": tool.description or tool.title or f"Runs the workflow {tool.workflow}.",
        "inputSchema": tool.input,
        "outputSchema": tool.output,
        "annotations": tool.annotations and tool.annotations.model_dump(exclude_none=True),
    }
    return {key: value for key, value in found.items() if value is not None}
