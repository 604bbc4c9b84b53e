"""Hints: engines that tell by themselves which executions may have changed, listened to for as long as they can."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import anyio
from anyio.abc import TaskGroup

from mcp_workflows.adapter import Adapter
from mcp_workflows.engines.polling.entry import Watched
from mcp_workflows.engines.registry import Sight
from mcp_workflows.errors import EngineError

logger = logging.getLogger(__name__)

PAUSES = (1.0, 60.0)  # seconds after an error: from, to; and as long without one, and it is over

Changed = Callable[[str, str], None]  # engine, handle


class Hearing:
    """One task in the background for each adapter that has hints; it goes with its adapter."""

    def __init__(self, sight: Sight, changed: Changed) -> None:
        self._sight = sight
        self._changed = changed
        self._ears: dict[str, _Ear] = {}

    async def run(self) -> None:
        """Listen to the adapters in use, for ever."""
        async with anyio.create_task_group() as group:
            while True:
                swapped = self._sight.swapped
                self._attend(group)
                await swapped.wait()

    def _attend(self, group: TaskGroup) -> None:
        """To those that are new; not any more to those that are gone."""
        adapters = self._sight.hinting()
        for name, ear in list(self._ears.items()):
            if adapters.get(name) is not ear.adapter:
                self._ears.pop(name).scope.cancel()
        for name, adapter in adapters.items():
            if name not in self._ears:
                ear = self._ears[name] = _Ear(name, adapter, self._sight, self._changed)
                group.start_soon(ear.listen)


class _Ear:
    """One adapter that is listened to."""

    def __init__(self, engine: str, adapter: Adapter, sight: Sight, changed: Changed) -> None:
        self.adapter = adapter
        self.scope = anyio.CancelScope()
        self._engine = engine
        self._sight = sight
        self._changed = changed
        self._pause = PAUSES[0]
        self._silent = False  # and it was said in the log

    async def listen(self) -> None:
        """Until it says that it never tells anything, again and again after errors."""
        with self.scope:
            while not await self._once():
                await anyio.sleep(self._pause)
                self._pause = min(self._pause * 2, PAUSES[1])

    async def _once(self) -> bool:
        """Whether it never tells anything: it is not configured."""
        began = anyio.current_time()
        try:
            await self._sight.hints(self._engine, self._hear)
        except EngineError as error:
            if anyio.current_time() - began > PAUSES[1]:
                self._silent, self._pause = False, PAUSES[0]  # nothing changed, but it would have been told
            if not self._silent:
                text = "engine %r does not tell what changes, it is only looked at; tried again: %s"
                logger.warning(text, self._engine, error)
            self._silent = True
            return False
        return True

    def _hear(self, handle: str) -> None:
        if self._silent:
            logger.info("engine %r tells again what changes", self._engine)
        self._silent, self._pause = False, PAUSES[0]
        self._changed(self._engine, handle)


class Doubts:
    """Whom there is a reason to look at, in the order the reasons came; each is there once."""

    def __init__(self) -> None:
        self._news: dict[Watched, bool] = {}

    def add(self, watched: Watched, since: float, *, news: bool) -> None:
        """Looks that began before `since` do not count; `news`: it has probably ended, or asks."""
        watched.doubt = max(watched.doubt, since)
        if watched.doubtful:
            self._news[watched] = news or self._news.get(watched, False)

    def drop(self, watched: Watched) -> None:
        """It is looked at, or nobody wants to know."""
        self._news.pop(watched, None)

    def landed(self, watched: Watched) -> bool:
        """A look at it is over. Whether there still is a reason: one that came too late for that look."""
        if not watched.doubtful:
            self.drop(watched)
        return watched in self._news

    def __contains__(self, watched: Watched) -> bool:
        return watched in self._news

    @property
    def news(self) -> Sequence[Watched]:
        """Those nobody looks at just now that have probably ended, or ask."""
        return [watched for watched, news in self._news.items() if news and watched.flight is None]

    @property
    def idle(self) -> Sequence[Watched]:
        """Those nobody looks at just now, news first."""
        idle = [watched for watched in self._news if watched.flight is None]
        return sorted(idle, key=lambda watched: not self._news[watched])


class Handles:
    """The executions that are known, by handle; two tasks may be of one execution."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[Watched, ...]] = {}

    def of(self, handle: str) -> Sequence[Watched]:
        """Those of this handle."""
        return self._named.get(handle, ())

    def add(self, watched: Watched) -> bool:
        """Whether its handle is known, and was not before."""
        handle = watched.task.handle
        if handle is None or watched in self.of(handle):
            return False
        self._named[handle] = (*self.of(handle), watched)
        return True

    def drop(self, watched: Watched) -> None:
        """It is not known any more."""
        handle = watched.task.handle
        if handle is not None and watched in self.of(handle):
            rest = tuple(each for each in self.of(handle) if each is not watched)
            self._named.pop(handle)
            if rest:
                self._named[handle] = rest
