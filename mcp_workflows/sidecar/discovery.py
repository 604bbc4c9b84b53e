"""What a sidecar offers now: the tools of its file, and beside them the workflows that are marked on its engines.

The only place that knows both, so that a reload keeps what was found, and a look keeps what was reloaded.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import anyio
from anyio.abc import TaskGroup
from pydantic import ValidationError

from mcp_workflows.adapter import Adapter, Exposed, expose_every, is_fleeting, one_workflow, takes_grace
from mcp_workflows.errors import EngineError, EngineUnavailable, WorkflowsError
from mcp_workflows.receiver.attach import Changes, Workflows, swap
from mcp_workflows.receiver.companions.definitions import COMPANION_NAMES, offered
from mcp_workflows.tools.compatibility import find_problems, first
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
    problems = list(find_problems(tool, adapters))
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


logger = logging.getLogger(__name__)

AGAIN_AFTER = 30.0  # seconds after a look that failed, if the next one is not due before


class Offering:
    """Has the workflows offer what there is, and tells clients when that is another list."""

    def __init__(
        self, workflows: Workflows, changes: Changes, tools: Sequence[Tool], laying: Laying = as_found
    ) -> None:
        self._workflows = workflows
        self._changes = changes
        self._named = tools
        self._laying = laying
        self._exposed: Mapping[str, Sequence[Exposed]] = {}
        self._told = frozenset[str]()
        self._looking: dict[str, tuple[Adapter, anyio.CancelScope]] = {}
        self._lock = anyio.Lock()
        self._renewed = anyio.Event()

    @property
    def looks(self) -> bool:
        """Whether any engine is looked at for marked workflows."""
        return any(expose_every(adapter) is not None for adapter in self._workflows.adapters.values())

    async def reload(self, tools: Sequence[Tool], engines: Mapping[str, Adapter], laying: Laying = as_found) -> None:
        """Offer these from now on, and what was found on those engines that are as they were.

        Raises:
            ConfigError: they cannot be used; all is as it was.
        """
        async with self._lock:
            now = self._workflows.adapters
            kept = {name: found for name, found in self._exposed.items() if engines.get(name) is now[name]}
            changed = await self._offer(tools, kept, engines, laying)
        self._renewed.set()
        if changed:
            await self._changes.tools_changed()

    async def look(self) -> None:
        """Look once at each engine that is to be looked at."""
        async with anyio.create_task_group() as group:
            for name, adapter in self._workflows.adapters.items():
                if expose_every(adapter) is not None:
                    group.start_soon(self._look_and_tell, name, adapter)

    async def run(self) -> None:
        """For ever: look at each engine that is to be looked at, as often as it says."""
        async with anyio.create_task_group() as group:
            while True:
                self._renewed = anyio.Event()
                self._look_at_all(group)
                await self._renewed.wait()

    def _look_at_all(self, group: TaskGroup) -> None:
        adapters = self._workflows.adapters
        for name, (adapter, scope) in list(self._looking.items()):
            if adapters.get(name) is not adapter:
                scope.cancel()
                del self._looking[name]
        for name, adapter in adapters.items():
            if name not in self._looking and expose_every(adapter) is not None:
                self._looking[name] = adapter, anyio.CancelScope()
                group.start_soon(self._keep_looking, name, *self._looking[name])

    async def _keep_looking(self, engine: str, adapter: Adapter, scope: anyio.CancelScope) -> None:
        down = False
        with scope:
            while (every := expose_every(adapter)) is not None:
                down = await self._look_and_tell(engine, adapter, was_down=down)
                await anyio.sleep(min(every, AGAIN_AFTER) if down else every)

    async def _look_and_tell(self, engine: str, adapter: Adapter, was_down: bool = False) -> bool:
        """Whether it was in vain; an outage is told once, loudly if somebody has to do something."""
        wrong = await self._look(engine, adapter)
        if wrong and not was_down:
            level = logging.WARNING if isinstance(wrong, EngineUnavailable) else logging.ERROR
            logger.log(level, "engine %r: cannot see what is marked there, what was offered stays: %s", engine, wrong)
        elif was_down and not wrong:
            logger.info("engine %r: what is marked there can be seen again", engine)
        return wrong is not None

    async def _look(self, engine: str, adapter: Adapter) -> WorkflowsError | None:
        """One look, and what kept it from succeeding."""
        try:
            found = await self._workflows.exposed(engine)
        except EngineError as error:
            return error
        async with self._lock:
            if self._workflows.adapters.get(engine) is not adapter:
                return None  # it was reloaded meanwhile
            try:
                exposed = {**self._exposed, engine: found}
                changed = await self._offer(self._named, exposed, self._workflows.adapters, self._laying)
            except WorkflowsError as error:
                return error
        if changed:
            await self._changes.tools_changed()
        return None

    async def _offer(
        self,
        named: Sequence[Tool],
        exposed: Mapping[str, Sequence[Exposed]],
        engines: Mapping[str, Adapter],
        laying: Laying,
    ) -> bool:
        """Whether that changes what clients see listed."""
        marked = compose(named, exposed, engines, my_tasks=self._workflows.my_tasks, laying=laying)
        before, tools = self._workflows.tools, offered_tools(named, marked)
        listed = False
        if engines != self._workflows.adapters or tools != list(before.values()):
            listed = await swap(self._workflows, tools=tools, engines=engines)
        self._tell(marked, before.keys() - {tool.name for tool in self._named})
        self._named, self._exposed, self._laying = named, exposed, laying
        return listed

    def _tell(self, marked: Sequence[Marked], found_before: Set[str]) -> None:
        """Say what has come and gone; what is wrong only once, for as long as it is."""
        wrong = frozenset(f"not offered: {each.place}: {each.wrong}; {each.hint}" for each in marked if each.wrong)
        for text in sorted(wrong - self._told):
            logger.error("%s", text)
        self._told = wrong
        for each in marked:
            if each.tool and each.tool.name not in found_before:
                logger.info("tool %s is offered: marked is %s", each.tool.name, each.place)
        for name in sorted(found_before - self._workflows.tools.keys()):
            logger.info("tool %s is not marked any more and not offered; its tasks can still be read", name)
