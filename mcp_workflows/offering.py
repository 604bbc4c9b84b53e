"""What a sidecar offers now: the tools of its file, and beside them the workflows that are marked on its engines.

The only place that knows both, so that a reload keeps what was found, and a look keeps what was reloaded.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set

import anyio
from anyio.abc import TaskGroup

from mcp_workflows.adapter import Adapter, Exposed, expose_every
from mcp_workflows.errors import EngineError, EngineUnavailable, WorkflowsError
from mcp_workflows.exposing import Laying, Marked, as_found, compose, offered_tools
from mcp_workflows.receiver.attach import Changes, Workflows, swap
from mcp_workflows.tools.tool import Tool

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
