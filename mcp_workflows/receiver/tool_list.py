"""What is offered to clients at one time: the tools, and the service that serves them; swapped as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcp_workflows.errors import INTERNAL_ERROR, RequestError
from mcp_workflows.receiver.companions.definitions import (
    FOR_APPROVERS,
    FOR_OWN,
    Companion,
    Name,
    companion,
    companions,
    offered,
)
from mcp_workflows.tasks.service import TaskService
from mcp_workflows.tools.tool import Kind, TaskSupport, Tool

_DOES = {
    Kind.START: "Runs the workflow {workflow}.",
    Kind.WATCH: "Watches an execution of the workflow {workflow} that was started elsewhere, by its id.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """Who lists tools."""

    identified: bool
    takes_tasks: bool  # it declares the extension (2026-07-28), or has asked for a task in this session (2025-11-25)
    in_core: bool = False  # it speaks 2025-11-25: its tools say whether they make tasks
    offered: frozenset[str] | None = None  # the tools that their rules let it call; None: all
    approves: bool = False  # tasks of others may wait for its answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One set of tools: a request sees one of them from its beginning to its end."""

    tools: Mapping[str, Tool]  # in the order they are listed
    service: TaskService | None = None  # None: not entered
    my_tasks: bool = False  # whether clients with tasks get a list of them too

    @property
    def hands_over(self) -> bool:
        """Whether a client without tasks may get a handle, and needs the companion tools."""
        return any(tool.hands_over for tool in self.tools.values())

    @property
    def entered(self) -> TaskService:
        """What serves the commands.

        Raises:
            RequestError: nothing does yet.
        """
        if self.service is None:
            raise RequestError(INTERNAL_ERROR, "workflows are not entered: enter them in the server's lifespan")
        return self.service

    def shows(self, name: object) -> bool:
        """Whether clients can call a tool of that name."""
        return isinstance(name, str) and name in self.tools and self.tools[name].listed

    def companion(self, name: object) -> Companion | None:
        """The companion tool of that name, which everybody can call where there are any, listed for them or not."""
        found = companion(name)
        return found if found and offered(self.tools.values(), my_tasks=self.my_tasks) else None

    def listed(self, viewer: Viewer) -> Sequence[Mapping[str, Any]]:  # Any: any JSON value
        """The tools as `tools/list` shows them to this client, and the companions it may need."""
        theirs = self.tools if viewer.offered is None else viewer.offered
        shown = (tool for name, tool in self.tools.items() if tool.listed and name in theirs)
        ours = [_listed(tool, viewer) for tool in shown if viewer.identified or tool.kind is Kind.START]
        names = self.companions(viewer)
        return [*ours, *(dict(companion.listed) for companion in companions() if companion.name in names)]

    def companions(self, viewer: Viewer) -> frozenset[str]:
        """The names of the companion tools this client may need."""
        wanted: set[Name] = set()
        if self.hands_over and not viewer.takes_tasks:
            wanted |= FOR_OWN
        if self.my_tasks:
            wanted |= {Name.LIST}
        if viewer.approves:
            wanted |= FOR_APPROVERS
        return frozenset(
            each.name for each in companions() if each.name in wanted and (viewer.identified or not each.lists)
        )


def _listed(tool: Tool, viewer: Viewer) -> Mapping[str, Any]:
    """A tool as `tools/list` shows it; a handle would break the promise of an output schema, and SDKs raise then."""
    promised = not tool.hands_over or (viewer.takes_tasks and not viewer.in_core)
    support = TaskSupport.REQUIRED if tool.needs_tasks else tool.tasks
    found: dict[str, Any] = {
        "name": tool.name,
        "title": tool.title,
        "description": tool.description or tool.title or _DOES[tool.kind].format(workflow=tool.workflow),
        "inputSchema": tool.input,
        "outputSchema": tool.output if promised else None,
        "annotations": tool.annotations and tool.annotations.model_dump(exclude_none=True),
        "execution": {"taskSupport": support.value} if viewer.in_core else None,
    }
    return {key: value for key, value in found.items() if value is not None}
