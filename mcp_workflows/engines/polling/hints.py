"""Change hints: a listener per engine, the queue of executions suspected to have changed, and an index by handle."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import monotonic

import anyio
from anyio.abc import TaskGroup

from mcp_workflows.adapter import Adapter
from mcp_workflows.engines.polling.cache_entry import CacheEntry
from mcp_workflows.engines.polling.policy import PollingPolicy
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import EngineError

logger = logging.getLogger(__name__)

Changed = Callable[[str, str], None]  # engine, handle


class HintListeners:
    """The listeners of all engines that report changes, a background task each; a listener ends with its adapter."""

    def __init__(self, engines: Engines, changed: Changed, policy: PollingPolicy) -> None:
        self._engines = engines
        self._policy = policy
        self._changed = changed
        self._listeners: dict[str, _HintListener] = {}

    async def run(self) -> None:
        """Listen to the adapters in use, for ever."""
        async with anyio.create_task_group() as group:
            while True:
                swapped = self._engines.swapped
                self._update(group)
                await swapped.wait()

    def _update(self, group: TaskGroup) -> None:
        """Start listeners for new adapters, and cancel those of adapters that are gone."""
        adapters = self._engines.hinting()
        for name, listener in list(self._listeners.items()):
            if adapters.get(name) is not listener.adapter:
                self._listeners.pop(name).scope.cancel()
        for name, adapter in adapters.items():
            if name not in self._listeners:
                listener = self._listeners[name] = _HintListener(
                    name, adapter, self._engines, self._changed, self._policy.hint_pauses
                )
                group.start_soon(listener.listen)


class _HintListener:
    """Listens to one adapter."""

    def __init__(
        self, engine: str, adapter: Adapter, engines: Engines, changed: Changed, pauses: tuple[float, float]
    ) -> None:
        self.adapter = adapter
        self.scope = anyio.CancelScope()
        self._engine = engine
        self._engines = engines
        self._changed = changed
        self._pauses = pauses
        self._pause = pauses[0]
        self._silent = False  # after an error that was logged

    async def listen(self) -> None:
        """Listen until the adapter says that it never reports changes; try again after errors."""
        with self.scope:
            while not await self._once():
                await anyio.sleep(self._pause)
                self._pause = min(self._pause * 2, self._pauses[1])

    async def _once(self) -> bool:
        """Listen once; return True if the adapter never reports changes, because that is not configured."""
        began = monotonic()
        try:
            await self._engines.hints(self._engine, self._report)
        except EngineError as error:
            if monotonic() - began > self._pauses[1]:
                self._silent, self._pause = False, self._pauses[0]  # it was connected, and nothing changed
            if not self._silent:
                text = "engine %r does not tell what changes, it is only looked at; tried again: %s"
                logger.warning(text, self._engine, error)
            self._silent = True
            return False
        return True

    def _report(self, handle: str) -> None:
        if self._silent:
            logger.info("engine %r tells again what changes", self._engine)
        self._silent, self._pause = False, self._pauses[0]
        self._changed(self._engine, handle)


class SuspectQueue:
    """The entries with a reason to look at them, in the order of the reasons; each entry is in the queue once."""

    def __init__(self) -> None:
        self._entries: dict[CacheEntry, bool] = {}

    def add(self, entry: CacheEntry, since: float, *, urgent: bool) -> None:
        """Queue an entry; looks that began before `since` do not count. `urgent`: it probably ended or asks."""
        entry.suspected_at = max(entry.suspected_at, since)
        if entry.is_suspect:
            self._entries[entry] = urgent or self._entries.get(entry, False)

    def drop(self, entry: CacheEntry) -> None:
        """Remove an entry: a look at it begins, or it is forgotten."""
        self._entries.pop(entry, None)

    def resolve(self, entry: CacheEntry) -> bool:
        """Remove an entry after a look, unless a newer reason came too late for that look; return True if it stays."""
        if not entry.is_suspect:
            self.drop(entry)
        return entry in self._entries

    def __contains__(self, entry: CacheEntry) -> bool:
        return entry in self._entries

    @property
    def urgent(self) -> Sequence[CacheEntry]:
        """The urgent entries without a look in progress."""
        return [entry for entry, urgent in self._entries.items() if urgent and entry.look_in_progress is None]

    @property
    def idle(self) -> Sequence[CacheEntry]:
        """The entries without a look in progress, urgent ones first."""
        idle = [entry for entry in self._entries if entry.look_in_progress is None]
        return sorted(idle, key=lambda entry: not self._entries[entry])


class HandleIndex:
    """The known executions by handle; two tasks may share one execution."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[CacheEntry, ...]] = {}

    def of(self, handle: str) -> Sequence[CacheEntry]:
        """Return the entries of this handle."""
        return self._named.get(handle, ())

    def add(self, entry: CacheEntry) -> bool:
        """Add an entry; return True if it has a handle and was not in the index before."""
        handle = entry.task.handle
        if handle is None or entry in self.of(handle):
            return False
        self._named[handle] = (*self.of(handle), entry)
        return True

    def drop(self, entry: CacheEntry) -> None:
        """Remove an entry."""
        handle = entry.task.handle
        if handle is not None and entry in self.of(handle):
            rest = tuple(each for each in self.of(handle) if each is not entry)
            self._named.pop(handle)
            if rest:
                self._named[handle] = rest
