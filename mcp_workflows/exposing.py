"""Which of the workflows that are marked on their engines become tools; workflows.yaml has the last word; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from pydantic import ValidationError

from mcp_workflows.adapter import Adapter, Exposed, is_fleeting, one_workflow, takes_grace
from mcp_workflows.receiver.companions.definitions import COMPANION_NAMES, offered
from mcp_workflows.tools.compatibility import first, wrong
from mcp_workflows.tools.schema_cost import excess
from mcp_workflows.tools.tool import TaskSupport, Tool

Laying: TypeAlias = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]  # Any: settings of a tool, as in the file
"""What the file says of tools that are not in it, by name: the settings of one, with its defaults and rules."""

NAME_IT = "to offer it, name it in workflows.yaml, under a name of its own"
_PUT_RIGHT = "put that right in the engine, or remove the mark"


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """One marked workflow, and what becomes of it."""

    engine: str
    exposed: Exposed
    tool: Tool | None = None  # the tool it is; None: it is none
    named: str | None = None  # the tool of the file that offers it already
    wrong: str | None = None  # why it is not offered
    hint: str | None = None  # what to do about that

    @property
    def place(self) -> str:
        """Where people find it."""
        return f"{self.exposed.source} (engine {self.engine})"

    def left_out(self, wrong: str, hint: str = NAME_IT) -> Marked:
        """The same, not offered."""
        return replace(self, tool=None, wrong=wrong, hint=hint)


def as_found(_: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Nothing is said of them."""
    return settings


def compose(
    named: Sequence[Tool],
    exposed: Mapping[str, Sequence[Exposed]],
    adapters: Mapping[str, Adapter],
    *,
    my_tasks: bool,
    laying: Laying = as_found,
) -> Sequence[Marked]:
    """What becomes of all that is marked, by engine, beside the tools that are named in the file."""
    seen = [(engine, each) for engine in adapters for each in _once(exposed.get(engine, ()))]
    found = [_seen(engine, each, named, adapters, laying) for engine, each in seen]
    found = [_beside_companions(each, named, my_tasks=my_tasks) for each in found]
    found = [_beside_named(each, named) for each in found]
    return list(_beside_each_other(found))


def offered_tools(named: Sequence[Tool], found: Sequence[Marked]) -> Sequence[Tool]:
    """All that is offered: what the file says first."""
    return [*named, *(each.tool for each in found if each.tool)]


def _once(exposed: Sequence[Exposed]) -> Sequence[Exposed]:
    """Each of them once, always in the same order: pages of an engine may overlap and change places."""
    return sorted({each.source: each for each in exposed}.values(), key=lambda each: (each.name, each.source))


def _seen(
    engine: str, exposed: Exposed, named: Sequence[Tool], adapters: Mapping[str, Adapter], laying: Laying
) -> Marked:
    """By itself: named already, a tool, or none that can be offered."""
    marked = Marked(engine=engine, exposed=exposed)
    ours = (tool for tool in named if tool.engine == engine)
    if already := [tool.name for tool in ours if one_workflow(adapters[engine], tool.workflow, exposed.workflow)]:
        return replace(marked, named=", ".join(already))
    if much := excess(dict(exposed.input)):
        return marked.left_out(f"it cannot be a tool: input: {much}", _PUT_RIGHT)
    try:
        tool = _tool(engine, exposed, adapters[engine], laying)
    except ValidationError as error:
        return marked.left_out(f"it cannot be a tool: {first(error)}", _PUT_RIGHT)
    problems = list(wrong(tool, adapters))
    return marked.left_out(f"it cannot be a tool: {'; '.join(problems)}") if problems else replace(marked, tool=tool)


def _tool(engine: str, exposed: Exposed, adapter: object, laying: Laying) -> Tool:
    said: Mapping[str, Any] = {
        "engine": engine,
        "workflow": exposed.workflow,
        "title": exposed.title,
        "description": exposed.description,
        "input": dict(exposed.input),
        **({"tasks": TaskSupport.FORBIDDEN} if is_fleeting(adapter, exposed.options) else {}),
    }
    settings = {**laying(exposed.name, said), "name": exposed.name, "options": dict(exposed.options)}
    if not takes_grace(adapter):
        settings.pop("cancel", None)  # a default that says nothing of this engine
    return Tool.model_validate(settings)


def _beside_companions(marked: Marked, named: Sequence[Tool], *, my_tasks: bool) -> Marked:
    """The names of companion tools are taken, wherever there may be any."""
    tool = marked.tool
    if tool is None:
        return marked
    if tool.name in COMPANION_NAMES:
        return marked.left_out(f"{tool.name!r} is the name of a companion tool")
    taken = COMPANION_NAMES & {other.name for other in named}
    if taken and tool.hands_over and not offered(named, my_tasks=my_tasks):
        text = f"companion tools come with it, and workflows.yaml has a tool named {', '.join(sorted(taken))}"
        return marked.left_out(text, "rename that one")
    return marked


def _beside_named(marked: Marked, named: Sequence[Tool]) -> Marked:
    for other in named:
        if marked.tool and other.name == marked.tool.name:
            text = (
                f"{other.name!r} is the name of a tool in workflows.yaml, for {other.workflow} (engine {other.engine})"
            )
            return marked.left_out(text)
    return marked


def _beside_each_other(found: Sequence[Marked]) -> Iterator[Marked]:
    """Of several with one name none is offered: nobody could tell which of them a client calls."""
    by_name = defaultdict[str, list[Marked]](list)
    for each in found:
        if each.tool:
            by_name[each.tool.name].append(each)
    for each in found:
        others = [other.place for other in by_name[each.tool.name] if other is not each] if each.tool else []
        yield each.left_out(f"{each.exposed.name!r} would also be the name of {', '.join(others)}") if others else each
