"""The workflows marked as tools on the engines, and whether each is offered."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import ValidationError

from mcp_workflows.adapter import Adapter, Notes, digest, takes_grace
from mcp_workflows.kit.tooling import Exposed
from mcp_workflows.receiver.task_tools.definitions import TASK_TOOL_NAMES, offered
from mcp_workflows.sidecar.config.models import ToolDefaults, no_defaults
from mcp_workflows.sidecar.engine_checks import one_workflow
from mcp_workflows.tools.compatibility import find_problems, first
from mcp_workflows.tools.json_schema import excess
from mcp_workflows.tools.tool import AnyTool, TaskSupport, Tool

logger = logging.getLogger(__name__)
_PINNED = timedelta(days=3650)  # how long an accepted definition is stored
ACCEPT = "mcp-workflows check --accept"
NAMING_HINT = "to offer it, add it to workflows.yaml under another name"
_ENGINE_HINT = "fix that in the engine, or remove the mark"


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedWorkflow:
    """One marked workflow, with its tool or the reason why it has none."""

    engine: str
    exposed: Exposed
    tool: AnyTool | None = None  # None: not offered as a tool
    named: str | None = None  # the tools of the file that already run it
    wrong: str | None = None  # the reason why it is not offered
    hint: str | None = None  # the remedy

    @property
    def place(self) -> str:
        """The engine's name for it, with the engine, for people."""
        return f"{self.exposed.source} (engine {self.engine})"

    def rejected(self, wrong: str, hint: str = NAMING_HINT) -> MarkedWorkflow:
        """Return the same workflow, rejected for this reason."""
        return replace(self, tool=None, wrong=wrong, hint=hint)


async def as_accepted(notes: Notes, found: Exposed, *, accept: bool) -> tuple[Exposed, str | None]:
    """Return a workflow with its accepted definition, and the parts that have changed since, with their digests.

    The first definition seen is accepted. `accept`: accept and return the current one.

    Raises:
        EngineUnavailable: the store is not available.
    """
    place, until = f"pin/{found.source}", datetime.now(UTC) + _PINNED
    now = {"title": found.title, "description": found.description, "input": dict(found.input)}
    before = await notes.get(place)
    if before is None:
        before = await notes.add(place, now, until=until)
        logger.info("tool %s is new and was accepted: digest %s", found.name, digest(before))
    if before == now:
        return found, None
    changed = " and ".join(part for part, words in now.items() if before[part] != words)
    if accept:
        await notes.put(place, now, until=until)
    as_before = replace(found, title=before["title"], description=before["description"], input=before["input"])
    return found if accept else as_before, f"{changed} (digest {digest(now)}, before {digest(before)})"


def compose(
    named: Sequence[AnyTool],
    exposed: Mapping[str, Sequence[Exposed]],
    adapters: Mapping[str, Adapter],
    *,
    my_tasks: bool,
    tool_defaults: ToolDefaults = no_defaults,
) -> Sequence[MarkedWorkflow]:
    """Return a decision about every marked workflow, by engine, given the tools of the file."""
    found: list[MarkedWorkflow] = []
    for engine in adapters:
        once = {each.source: each for each in exposed.get(engine, ())}  # pages of an engine may overlap
        for each in sorted(once.values(), key=lambda each: (each.name, each.source)):  # and their order may change
            marked = _classified(engine, each, named, adapters, tool_defaults)
            found.append(_without_taken_names(marked, named, my_tasks=my_tasks))
    return list(_without_duplicates(found))


def offered_tools(named: Sequence[AnyTool], found: Sequence[MarkedWorkflow]) -> Sequence[AnyTool]:
    """Return all offered tools, those of the file first."""
    return [*named, *(each.tool for each in found if each.tool)]


def _classified(
    engine: str,
    exposed: Exposed,
    named: Sequence[AnyTool],
    adapters: Mapping[str, Adapter],
    tool_defaults: ToolDefaults,
) -> MarkedWorkflow:
    """Decide about one workflow by itself: already in the file, a tool, or rejected."""
    marked = MarkedWorkflow(engine=engine, exposed=exposed)
    ours = (tool for tool in named if tool.engine == engine)
    if already := [tool.name for tool in ours if one_workflow(adapters[engine], tool.workflow, exposed.workflow)]:
        return replace(marked, named=", ".join(already))
    if much := excess(dict(exposed.input)):
        return marked.rejected(f"it cannot be a tool: input: {much}", _ENGINE_HINT)
    try:
        tool = _tool(engine, exposed, adapters[engine], tool_defaults)
    except ValidationError as error:
        return marked.rejected(f"it cannot be a tool: {first(error)}", _ENGINE_HINT)
    problems = list(find_problems(tool, adapters))
    return marked.rejected(f"it cannot be a tool: {'; '.join(problems)}") if problems else replace(marked, tool=tool)


def _tool(engine: str, exposed: Exposed, adapter: Adapter, tool_defaults: ToolDefaults) -> AnyTool:
    said: Mapping[str, Any] = {
        "engine": engine,
        "workflow": exposed.workflow,
        "title": exposed.title,
        "description": exposed.description,
        "input": dict(exposed.input),
        **({"tasks": TaskSupport.FORBIDDEN} if adapter.fleeting(exposed.options) else {}),
    }
    settings = {**tool_defaults(exposed.name, said), "name": exposed.name, "options": dict(exposed.options)}
    if not takes_grace(adapter):
        settings.pop("cancel", None)  # a default that does not apply to this engine
    return Tool.model_validate(settings)


def _without_taken_names(marked: MarkedWorkflow, named: Sequence[AnyTool], *, my_tasks: bool) -> MarkedWorkflow:
    """Reject a workflow if its name is taken by a task tool or in the file, or if its task tools' names are taken."""
    tool = marked.tool
    if tool is None:
        return marked
    if tool.name in TASK_TOOL_NAMES:
        return marked.rejected(f"{tool.name!r} is the name of a task tool")
    taken = TASK_TOOL_NAMES & {other.name for other in named}
    if taken and tool.hands_over and not offered(named, my_tasks=my_tasks):
        text = f"task tools come with it, and workflows.yaml has a tool named {', '.join(sorted(taken))}"
        return marked.rejected(text, "rename that one")
    for other in named:
        if other.name == tool.name:
            of = f"for {other.workflow} (engine {other.engine})"
            return marked.rejected(f"{other.name!r} is the name of a tool in workflows.yaml, {of}")
    return marked


def _without_duplicates(found: Sequence[MarkedWorkflow]) -> Iterator[MarkedWorkflow]:
    """Reject all workflows that share a name: a client could not distinguish them."""
    by_name = defaultdict[str, list[MarkedWorkflow]](list)
    for each in found:
        if each.tool:
            by_name[each.tool.name].append(each)
    for each in found:
        others = [other.place for other in by_name[each.tool.name] if other is not each] if each.tool else []
        yield each.rejected(f"{each.exposed.name!r} would also be the name of {', '.join(others)}") if others else each
