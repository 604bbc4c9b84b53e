"""The tools on offer at one time, with the service that runs them; replaced as a whole."""

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
    """A caller that lists tools."""

    identified: bool
    takes_tasks: bool  # declares the extension (2026-07-28), or has asked for a task in this session (2025-11-25)
    in_core: bool = False  # speaks 2025-11-25: its tool list includes `taskSupport`
    offered: frozenset[str] | None = None  # the tools that the rules let it call; None: all
    approves: bool = False  # tasks of others may wait for its answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One set of tools; a request uses the same one from its beginning to its end."""

    tools: Mapping[str, Tool]  # in the order they are listed
    service: TaskService | None = None  # None: not entered
    my_tasks: bool = False  # clients with tasks get a tool that lists them

    @property
    def hands_over(self) -> bool:
        """True if a client without tasks may get a task id in text, and then needs the companion tools."""
        return any(tool.hands_over for tool in self.tools.values())

    @property
    def task_service(self) -> TaskService:
        """The task service.

        Raises:
            RequestError: the workflows are not entered yet.
        """
        if self.service is None:
            raise RequestError(INTERNAL_ERROR, "workflows are not entered: enter them in the server's lifespan")
        return self.service

    def shows(self, name: object) -> bool:
        """Return True if clients can call a tool of that name."""
        return isinstance(name, str) and name in self.tools and self.tools[name].listed

    def companion(self, name: object) -> Companion | None:
        """Return the companion tool of that name; if there are any, each caller may call them, listed or not."""
        found = companion(name)
        return found if found and offered(self.tools.values(), my_tasks=self.my_tasks) else None

    def listed(self, viewer: Viewer) -> Sequence[Mapping[str, Any]]:  # Any: any JSON value
        """Return the tools for `tools/list` of this client, with the companion tools that it may need."""
        theirs = self.tools if viewer.offered is None else viewer.offered
        shown = (tool for name, tool in self.tools.items() if tool.listed and name in theirs)
        ours = [_listed(tool, viewer) for tool in shown if viewer.identified or tool.kind is Kind.START]
        names = self.companions(viewer)
        return [*ours, *(dict(companion.listed) for companion in companions() if companion.name in names)]

    def companions(self, viewer: Viewer) -> frozenset[str]:
        """Return the names of the companion tools that this client may need."""
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
    """Return a tool for `tools/list`; without output schema if a task id may be returned: SDKs validate results."""
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
