"""The offered tools: those of the configuration, and the workflows that are marked as tools on its engines.

A reload of the configuration keeps the marked workflows, and a search of the engines keeps the configuration.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
from anyio.abc import TaskGroup
from pydantic import ValidationError

from mcp_workflows.access.audit import Event, Record
from mcp_workflows.adapter import Adapter, Notes, digest, takes_grace
from mcp_workflows.errors import EngineError, EngineUnavailable, WorkflowsError
from mcp_workflows.kit.tooling import Exposed, expose_every
from mcp_workflows.receiver.attach import Changes, Workflows, swap
from mcp_workflows.receiver.task_tools.definitions import TASK_TOOL_NAMES, offered
from mcp_workflows.sidecar.config.models import ToolDefaults, no_defaults
from mcp_workflows.sidecar.engine_checks import find_exposed, one_workflow
from mcp_workflows.tools.compatibility import find_problems, first
from mcp_workflows.tools.json_schema import excess
from mcp_workflows.tools.tool import AnyTool, TaskSupport, Tool

logger = logging.getLogger(__name__)
RETRY_AFTER = 30.0  # seconds after a failed search, unless the next one is due before

_PINNED = timedelta(days=3650)  # how long an accepted definition is kept
ACCEPT = "mcp-workflows check --accept"
NAMING_HINT = "to offer it, name it in workflows.yaml, under a name of its own"
_ENGINE_HINT = "put that right in the engine, or remove the mark"


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedWorkflow:
    """One marked workflow, and the tool that it becomes or the reason against it."""

    engine: str
    exposed: Exposed
    tool: AnyTool | None = None  # None: it is not offered as a tool
    named: str | None = None  # the tools of the file that run it already
    wrong: str | None = None  # the reason why it is not offered
    hint: str | None = None  # the way to correct that

    @property
    def place(self) -> str:
        """The engine's name for it, and the engine, for people."""
        return f"{self.exposed.source} (engine {self.engine})"

    def rejected(self, wrong: str, hint: str = NAMING_HINT) -> MarkedWorkflow:
        """Return the same workflow, not offered for this reason."""
        return replace(self, tool=None, wrong=wrong, hint=hint)


async def as_accepted(notes: Notes, found: Exposed, *, accept: bool) -> tuple[Exposed, str | None]:
    """Return a workflow in the words that were accepted, and the parts that have changed since, with their digests.

    The first words that are seen are accepted. `accept`: return and accept those of now.

    Raises:
        EngineUnavailable: the store cannot be used now.
    """
    place, until = f"pin/{found.source}", datetime.now(UTC) + _PINNED
    now = {"title": found.title, "description": found.description, "input": dict(found.input)}
    before = await notes.get(place)
    if before is None:
        before = await notes.add(place, now, until=until)
        logger.info("tool %s is seen for the first time and accepted: digest %s", found.name, digest(before))
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
    """Return a decision about every marked workflow, by engine, beside the tools of the file."""
    found: list[MarkedWorkflow] = []
    for engine in adapters:
        once = {each.source: each for each in exposed.get(engine, ())}  # pages of an engine may overlap
        for each in sorted(once.values(), key=lambda each: (each.name, each.source)):  # and change places
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
    """Decide about one workflow by itself: already in the file, a tool, or not possible as one."""
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
        settings.pop("cancel", None)  # a default, which does not apply to this engine
    return Tool.model_validate(settings)


def _without_taken_names(marked: MarkedWorkflow, named: Sequence[AnyTool], *, my_tasks: bool) -> MarkedWorkflow:
    """Reject a workflow whose name is taken by a task tool or in the file, or whose task tools have taken names."""
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
    """Reject all workflows that share a name: a client could not tell which of them it calls."""
    by_name = defaultdict[str, list[MarkedWorkflow]](list)
    for each in found:
        if each.tool:
            by_name[each.tool.name].append(each)
    for each in found:
        others = [other.place for other in by_name[each.tool.name] if other is not each] if each.tool else []
        yield each.rejected(f"{each.exposed.name!r} would also be the name of {', '.join(others)}") if others else each


class Discovery:
    """Keeps the offered tools up to date, and notifies clients of a changed list."""

    def __init__(
        self,
        workflows: Workflows,
        changes: Changes,
        tools: Sequence[AnyTool],
        tool_defaults: ToolDefaults = no_defaults,
    ) -> None:
        self._workflows = workflows
        self._changes = changes
        self._named = tools
        self._laying = tool_defaults
        self._exposed: Mapping[str, Sequence[Exposed]] = {}
        self._changed: dict[tuple[str, str], str | None] = {}  # parts of a definition, as last logged
        self._reported = frozenset[str]()
        self._discovering: dict[str, tuple[Adapter, anyio.CancelScope]] = {}
        self._lock = anyio.Lock()
        self._renewed = anyio.Event()

    @property
    def discovers(self) -> bool:
        """True if any engine is asked for marked workflows."""
        return any(expose_every(adapter) is not None for adapter in self._workflows.adapters.values())

    async def reload(
        self, tools: Sequence[AnyTool], engines: Mapping[str, Adapter], tool_defaults: ToolDefaults = no_defaults
    ) -> None:
        """Offer these tools from now on, and the marked workflows of unchanged engines.

        Raises:
            ConfigError: they cannot be used; nothing has changed.
        """
        async with self._lock:
            now = self._workflows.adapters
            kept = {name: found for name, found in self._exposed.items() if engines.get(name) is now[name]}
            changed = await self._offer(tools, kept, engines, tool_defaults)
        self._renewed.set()
        if changed:
            await self._changes.tools_changed()

    async def discover(self) -> None:
        """Ask each engine once for its marked workflows."""
        async with anyio.create_task_group() as group:
            for name, adapter in self._workflows.adapters.items():
                if expose_every(adapter) is not None:
                    group.start_soon(self._discover_and_log, name, adapter)

    async def run(self) -> None:
        """Ask each engine for its marked workflows, at its own interval, for ever."""
        async with anyio.create_task_group() as group:
            while True:
                self._renewed = anyio.Event()
                self._discover_all(group)
                await self._renewed.wait()

    def _discover_all(self, group: TaskGroup) -> None:
        adapters = self._workflows.adapters
        for name, (adapter, scope) in list(self._discovering.items()):
            if adapters.get(name) is not adapter:
                scope.cancel()
                del self._discovering[name]
        for name, adapter in adapters.items():
            if name not in self._discovering and expose_every(adapter) is not None:
                self._discovering[name] = adapter, anyio.CancelScope()
                group.start_soon(self._keep_discovering, name, *self._discovering[name])

    async def _keep_discovering(self, engine: str, adapter: Adapter, scope: anyio.CancelScope) -> None:
        down = False
        with scope:
            while (every := expose_every(adapter)) is not None:
                down = await self._discover_and_log(engine, adapter, was_down=down)
                await anyio.sleep(min(every, RETRY_AFTER) if down else every)

    async def _discover_and_log(self, engine: str, adapter: Adapter, was_down: bool = False) -> bool:
        """Search one engine and return whether that failed; log an outage once, as an error if people must act."""
        wrong = await self._discover(engine, adapter)
        if wrong and not was_down:
            level = logging.WARNING if isinstance(wrong, EngineUnavailable) else logging.ERROR
            logger.log(level, "engine %r: cannot see what is marked there, what was offered stays: %s", engine, wrong)
        elif was_down and not wrong:
            logger.info("engine %r: what is marked there can be seen again", engine)
        return wrong is not None

    async def _discover(self, engine: str, adapter: Adapter) -> WorkflowsError | None:
        """Search one engine once; return the error if that failed."""
        try:
            found = [await self._accepted(engine, each) for each in await find_exposed(self._workflows.engines, engine)]
        except EngineError as error:
            return error
        async with self._lock:
            if self._workflows.adapters.get(engine) is not adapter:
                return None  # a reload has replaced it meanwhile
            try:
                exposed = {**self._exposed, engine: found}
                changed = await self._offer(self._named, exposed, self._workflows.adapters, self._laying)
            except WorkflowsError as error:
                return error
        if changed:
            await self._changes.tools_changed()
        return None

    async def _accepted(self, engine: str, found: Exposed) -> Exposed:
        """Return a workflow as it may be offered; log and record a changed definition once."""
        offered, changed = await as_accepted(self._workflows.notes(engine), found, accept=not found.pin)
        if changed and self._changed.get((engine, found.source)) != changed:
            then = f"the accepted one stays until {ACCEPT} is run" if found.pin else "it is offered as it is now"
            logger.warning("engine %r: tool %s has another %s; %s", engine, found.name, changed, then)
            outcome = "withheld" if found.pin else "offered"
            record = Record(event=Event.CHANGE, principal=None, tool=found.name, engine=engine, outcome=outcome)
            self._workflows.audit(replace(record, workflow=found.workflow, reason=changed))
        self._changed[engine, found.source] = changed
        return offered

    async def _offer(
        self,
        named: Sequence[AnyTool],
        exposed: Mapping[str, Sequence[Exposed]],
        engines: Mapping[str, Adapter],
        tool_defaults: ToolDefaults,
    ) -> bool:
        """Offer these tools and return whether the list that clients see has changed."""
        marked = compose(named, exposed, engines, my_tasks=self._workflows.my_tasks, tool_defaults=tool_defaults)
        before, tools = self._workflows.tools, offered_tools(named, marked)
        listed = False
        if engines != self._workflows.adapters or tools != list(before.values()):
            listed = await swap(self._workflows, tools=tools, engines=engines)
        self._log_changes(marked, before.keys() - {tool.name for tool in self._named})
        self._named, self._exposed, self._laying = named, exposed, tool_defaults
        return listed

    def _log_changes(self, marked: Sequence[MarkedWorkflow], found_before: Set[str]) -> None:
        """Log added and removed tools; log a rejected workflow once, as long as its reason stays."""
        wrong = frozenset(f"not offered: {each.place}: {each.wrong}; {each.hint}" for each in marked if each.wrong)
        for text in sorted(wrong - self._reported):
            logger.error("%s", text)
        self._reported = wrong
        for each in marked:
            if each.tool and each.tool.name not in found_before:
                logger.info("tool %s is offered: marked is %s", each.tool.name, each.place)
        for name in sorted(found_before - self._workflows.tools.keys()):
            logger.info("tool %s is not marked any more and not offered; its tasks can still be read", name)
