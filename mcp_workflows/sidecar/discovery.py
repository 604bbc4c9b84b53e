"""Discovery keeps the offered tools up to date: those of the configuration, and workflows marked on its engines.

A reload of the configuration keeps the marked workflows, and a search of the engines keeps the configuration.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

import anyio
from anyio.abc import TaskGroup

from mcp_workflows.access.audit import Event, Record
from mcp_workflows.adapter import Adapter
from mcp_workflows.errors import EngineError, EngineUnavailable, WorkflowsError
from mcp_workflows.events.notifications import Channels
from mcp_workflows.kit.tooling import Exposed, expose_every
from mcp_workflows.receiver.attach import Changes, Workflows, swap
from mcp_workflows.sidecar.config.models import ToolDefaults, no_defaults
from mcp_workflows.sidecar.engine_checks import find_exposed
from mcp_workflows.sidecar.marked_workflows import ACCEPT, MarkedWorkflow, as_accepted, compose, offered_tools
from mcp_workflows.tools.tool import AnyTool

logger = logging.getLogger(__name__)
RETRY_AFTER = 30.0  # seconds after a failed search, unless the next one is due earlier


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
        self._changed: dict[tuple[str, str], str | None] = {}  # changed parts of a definition, as last logged
        self._reported = frozenset[str]()
        self._discovering: dict[str, tuple[Adapter, anyio.CancelScope]] = {}
        self._lock = anyio.Lock()
        self._renewed = anyio.Event()

    @property
    def discovers(self) -> bool:
        """True if any engine is searched for marked workflows."""
        return any(expose_every(adapter) is not None for adapter in self._workflows.adapters.values())

    async def reload(
        self,
        tools: Sequence[AnyTool],
        engines: Mapping[str, Adapter],
        tool_defaults: ToolDefaults = no_defaults,
        channels: Channels | None = None,
    ) -> None:
        """Offer these tools, and keep the marked workflows of unchanged engines.

        Raises:
            ConfigError: the tools cannot be used; nothing has changed.
        """
        async with self._lock:
            now = self._workflows.adapters
            kept = {name: found for name, found in self._exposed.items() if engines.get(name) is now[name]}
            changed = await self._offer(tools, kept, engines, tool_defaults, channels)
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
        """Search each engine for its marked workflows, at its own interval, until cancelled."""
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
        """Search one engine and return True if that failed; log an outage once, as an error if people must act."""
        wrong = await self._discover(engine, adapter)
        if wrong and not was_down:
            level = logging.WARNING if isinstance(wrong, EngineUnavailable) else logging.ERROR
            logger.log(level, "engine %r: cannot list marked workflows; offered tools stay: %s", engine, wrong)
        elif was_down and not wrong:
            logger.info("engine %r: marked workflows can be listed again", engine)
        return wrong is not None

    async def _discover(self, engine: str, adapter: Adapter) -> WorkflowsError | None:
        """Search one engine once; return the error if that failed."""
        try:
            found = [await self._accepted(engine, each) for each in await find_exposed(self._workflows.engines, engine)]
        except EngineError as error:
            return error
        async with self._lock:
            if self._workflows.adapters.get(engine) is not adapter:
                return None  # a reload has replaced it in the meantime
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
            then = f"the accepted one stays until {ACCEPT} is run" if found.pin else "the new one is offered"
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
        channels: Channels | None = None,
    ) -> bool:
        """Offer these tools and return True if the list for clients has changed."""
        marked = compose(named, exposed, engines, my_tasks=self._workflows.my_tasks, tool_defaults=tool_defaults)
        before, tools = self._workflows.tools, offered_tools(named, marked)
        listed = False
        are_new = channels not in (None, self._workflows.channels)
        if engines != self._workflows.adapters or tools != list(before.values()) or are_new:
            listed = await swap(self._workflows, tools=tools, engines=engines, notify=channels)
        self._log_changes(marked, before.keys() - {tool.name for tool in self._named})
        self._named, self._exposed, self._laying = named, exposed, tool_defaults
        return listed

    def _log_changes(self, marked: Sequence[MarkedWorkflow], found_before: Set[str]) -> None:
        """Log added and removed tools; log a rejected workflow once, while its reason remains the same."""
        wrong = frozenset(f"not offered: {each.place}: {each.wrong}; {each.hint}" for each in marked if each.wrong)
        for text in sorted(wrong - self._reported):
            logger.error("%s", text)
        self._reported = wrong
        for each in marked:
            if each.tool and each.tool.name not in found_before:
                logger.info("tool %s is offered: %s is marked", each.tool.name, each.place)
        for name in sorted(found_before - self._workflows.tools.keys()):
            logger.info("tool %s is no longer marked or offered; its tasks can still be read", name)
