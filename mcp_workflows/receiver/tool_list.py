"""The tools on offer at one time, with the service that runs them; replaced as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcp_workflows.errors import INTERNAL_ERROR, RequestError
from mcp_workflows.receiver.task_tools.definitions import (
    DECISIONS,
    FOR_APPROVERS,
    FOR_CARDS,
    FOR_OWN,
    Name,
    TaskTool,
    offered,
    task_tool,
    task_tools,
)
from mcp_workflows.receiver.task_view import page_uri
from mcp_workflows.tasks.service import TaskService
from mcp_workflows.tools.tool import AnyTool, Card, Kind

_DOES = {
    Kind.START: "Runs the workflow {workflow}.",
    Kind.WATCH: "Watches an execution of the workflow {workflow}, started elsewhere, by its id.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """A caller that lists tools."""

    identified: bool
    takes_tasks: bool  # declares the extension (2026-07-28), or has asked for a task in this session (2025-11-25)
    in_core: bool = False  # speaks 2025-11-25: its tool list includes `taskSupport`
    shows_cards: bool = False  # declares MCP Apps
    offered: frozenset[str] | None = None  # the tools that the rules let it call; None: all
    approves: bool = False  # tasks of others may wait for its answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One set of tools; a request uses the same one from its beginning to its end."""

    tools: Mapping[str, AnyTool]  # in the order they are listed
    service: TaskService | None = None  # None: not entered
    my_tasks: bool = False  # clients with tasks get a tool that lists them

    @property
    def hands_over(self) -> bool:
        """True if a client without tasks may get a task id in text, and then needs the task tools."""
        return any(tool.hands_over for tool in self.tools.values())

    @property
    def has_cards(self) -> bool:
        """True if any listed tool has a run card."""
        return any(tool.listed and tool.effective_card is not Card.OFF for tool in self.tools.values())

    @property
    def has_answers_only(self) -> bool:
        """True if any tool leaves answers to the card; clients that show cards then hide `DECISIONS` from the model."""
        return any(tool.effective_card is Card.ANSWERS_ONLY for tool in self.tools.values())

    def card_of(self, name: str, *, shows_cards: bool) -> Card:
        """Return the card of this tool's tasks, which is `off` for a client that shows no cards.

        With `answers_only` for one tool the cards of all tools have it, because the task tools are the same.
        """
        tool = self.tools.get(name) if shows_cards else None
        card = tool.effective_card if tool and tool.listed else Card.OFF
        return Card.ANSWERS_ONLY if card is Card.ON and self.has_answers_only else card

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

    def task_tool(self, name: object, *, shows_cards: bool = False) -> TaskTool | None:
        """Return the task tool of that name; if there are any, each caller may call them, listed or not.

        Only clients that show cards may call `task_find`.
        """
        found = task_tool(name)
        if found is None or not offered(self.tools.values(), my_tasks=self.my_tasks):
            return None
        return None if found.name is Name.FIND and not (shows_cards and self.has_cards) else found

    def visible(self, viewer: Viewer) -> Sequence[AnyTool]:
        """Return the listed tools that this client may call."""
        theirs = self.tools if viewer.offered is None else viewer.offered
        return [
            tool
            for name, tool in self.tools.items()
            if tool.listed and name in theirs and (viewer.identified or tool.kind is Kind.START)
        ]

    def listed(self, viewer: Viewer) -> Sequence[Mapping[str, Any]]:  # Any: any JSON value
        """Return the tools for `tools/list` of this client, with the task tools that it may need."""
        cards = viewer.shows_cards and self.has_cards
        ours = [_listed(tool, viewer, cards=cards) for tool in self.visible(viewer)]
        names = self.task_tools(viewer)
        return [*ours, *(self._task_tool(each, viewer, cards=cards) for each in task_tools() if each.name in names)]

    def _task_tool(self, task_tool: TaskTool, viewer: Viewer, *, cards: bool) -> dict[str, Any]:
        """Return a task tool for `tools/list`, with its visibility if this client gets cards.

        It never names the page: hosts make a new card for each call of a tool with a page.
        """
        if not cards:
            return dict(task_tool.listed)
        is_persons = task_tool.name in DECISIONS and self.has_answers_only
        model = [] if is_persons or task_tool.name not in self._for_model(viewer) else ["model"]
        app = ["app"] if task_tool.name in FOR_CARDS else []
        return {**task_tool.listed, "_meta": {"ui": {"visibility": [*model, *app]}}}

    def task_tools(self, viewer: Viewer) -> frozenset[str]:
        """Return the names of the task tools that the model or the cards of this client may need."""
        wanted = self._for_model(viewer) | (FOR_CARDS if viewer.shows_cards and self.has_cards else frozenset[Name]())
        if not any(tool.model_may_answer for tool in self.tools.values()):
            wanted -= {Name.ANSWER}
        theirs = [tool for name, tool in self.tools.items() if viewer.offered is None or name in viewer.offered]
        if not any(tool.actions for tool in theirs):
            wanted -= {Name.ACTION}
        return frozenset(
            each.name for each in task_tools() if each.name in wanted and (viewer.identified or not each.lists)
        )

    def _for_model(self, viewer: Viewer) -> frozenset[Name]:
        wanted = frozenset({Name.ACTION})
        if self.hands_over and not viewer.takes_tasks:
            wanted |= FOR_OWN
        if self.my_tasks:
            wanted |= {Name.LIST}
        return wanted | FOR_APPROVERS if viewer.approves else wanted


def description_of(tool: AnyTool) -> str:
    """Return the description of a tool, or one made of its workflow."""
    does = _DOES[tool.kind] if tool.message is None else "Sends a message to an execution: {workflow}."
    return tool.description or tool.title or does.format(workflow=tool.workflow)


def _listed(tool: AnyTool, viewer: Viewer, *, cards: bool) -> Mapping[str, Any]:
    """Return a tool for `tools/list`; without output schema if a task id may be returned: SDKs validate results.

    `cards` is true if this client gets cards: then only the model may call the tool, and it names the page of its card.
    """
    page = {} if tool.effective_card is Card.OFF else {"resourceUri": page_uri()}
    promised = not tool.hands_over or (viewer.takes_tasks and not viewer.in_core)
    found: dict[str, Any] = {
        "name": tool.name,
        "title": tool.title,
        "description": description_of(tool),
        "inputSchema": tool.input,
        "outputSchema": tool.promised_output if promised else None,
        "annotations": tool.annotations and tool.annotations.model_dump(exclude_none=True),
        "execution": {"taskSupport": tool.advertised_support} if viewer.in_core else None,
        "_meta": {"ui": {**page, "visibility": ["model"]}} if cards else None,
    }
    return {key: value for key, value in found.items() if value is not None}
