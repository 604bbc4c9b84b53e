"""Watches: open calls to engines that report changes, so that the poller observes an execution at once.

An engine may report changes of all its executions (`Hints`), or return from a call when one execution has ended
(`Waits`). Both only suggest a poll: executions without a watch are polled as often as usual.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup

from mcp_workflows.adapter import Adapter, Waits
from mcp_workflows.engines.polling.policy import PollingPolicy
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import EngineError
from mcp_workflows.task import Task

logger = logging.getLogger(__name__)

Changed = Callable[[str, str], None]  # engine, handle


class _Backoff:
    """The pause after an error: it doubles from the shortest to the longest, and a success resets it."""

    def __init__(self, pauses: tuple[float, float]) -> None:
        self._shortest, self.longest = pauses
        self.failing = False
        self._next = self._shortest

    def fail(self) -> float:
        """Return the seconds until the next attempt."""
        pause, self._next = self._next, min(self._next * 2, self.longest)
        self.failing = True
        return pause

    def succeed(self) -> None:
        """Reset the pause to the shortest."""
        self.failing, self._next = False, self._shortest


class HintListeners:
    """The listeners of all engines that report changes, one background task each; a listener ends with its adapter."""

    def __init__(self, engines: Engines, changed: Changed, policy: PollingPolicy) -> None:
        self._engines = engines
        self._pauses = policy.watch_pauses
        self._changed = changed
        self._listening: dict[str, tuple[Adapter, anyio.CancelScope]] = {}

    async def run(self) -> None:
        """Listen to the adapters in use, until cancelled."""
        async with anyio.create_task_group() as group:
            while True:
                swapped = self._engines.swapped
                self._update(group)
                await swapped.wait()

    def _update(self, group: TaskGroup) -> None:
        """Start listeners for new adapters, and cancel those of removed adapters."""
        adapters = self._engines.hinting()
        for name, (adapter, scope) in list(self._listening.items()):
            if adapters.get(name) is not adapter:
                del self._listening[name]
                scope.cancel()
        for name, adapter in adapters.items():
            if name not in self._listening:
                scope = anyio.CancelScope()
                self._listening[name] = adapter, scope
                group.start_soon(self._listen, name, scope)

    async def _listen(self, engine: str, scope: anyio.CancelScope) -> None:
        """Listen until the adapter returns because it never reports changes; retry after errors."""
        backoff = _Backoff(self._pauses)

        def report(handle: str) -> None:
            if backoff.failing:
                logger.info("engine %r reports changes again", engine)
            backoff.succeed()
            self._changed(engine, handle)

        with scope:
            while True:
                began = anyio.current_time()
                try:
                    await self._engines.hints(engine, report)
                except EngineError as error:
                    if anyio.current_time() - began > backoff.longest:
                        backoff.succeed()  # it was connected, and nothing changed
                    if not backoff.failing:
                        text = "engine %r cannot report changes and is polled until it can: %s"
                        logger.warning(text, engine, error)
                    await anyio.sleep(backoff.fail())
                else:
                    return


@dataclass(slots=True, eq=False)
class _Wait:
    """One execution to wait for, with or without a slot."""

    task: Task
    backoff: _Backoff
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class LongPolls:
    """Open waits for followed executions, limited by slots; the newest come first."""

    def __init__(self, engines: Engines, policy: PollingPolicy, refresh_now: Callable[[str], None]) -> None:
        self._engines = engines
        self._policy = policy
        self._refresh_now = refresh_now
        self._open = 0
        self._waits: dict[str, _Wait] = {}
        self._queue: dict[str, _Wait] = {}  # without a slot, oldest first

    @property
    def task_ids(self) -> Sequence[str]:
        """The executions with a wait."""
        return list(self._waits)

    def add(self, group: TaskGroup, task: Task) -> None:
        """Wait for the task now, or when a slot is free."""
        if task.id in self._waits or task.handle is None or not self._engines.has(task.engine, Waits):
            return
        self._waits[task.id] = self._queue[task.id] = _Wait(task, _Backoff(self._policy.watch_pauses))
        self._fill(group)

    def drop(self, task_id: str) -> None:
        """Free the slot of a task that has ended or is no longer followed."""
        self._queue.pop(task_id, None)
        if wait := self._waits.pop(task_id, None):
            wait.scope.cancel()

    def _fill(self, group: TaskGroup) -> None:
        while self._queue and self._open < self._policy.open_waits:
            _, wait = self._queue.popitem()
            self._open += 1
            group.start_soon(self._run, group, wait)

    async def _run(self, group: TaskGroup, wait: _Wait) -> None:
        """Wait once, free the slot, pause, and queue again."""
        with wait.scope:
            try:
                pause = await self._once(wait)
            finally:
                self._open -= 1
                self._fill(group)
            await anyio.sleep(pause)
            wait.scope = anyio.CancelScope()
            self._queue[wait.task.id] = wait
        self._fill(group)

    async def _once(self, wait: _Wait) -> float:
        """Return the seconds until the next wait; the execution may not have ended when a wait returns."""
        try:
            await self._engines.wait(wait.task)
        except EngineError as error:
            logger.info("engine %r cannot report changes now and is only polled: %s", wait.task.engine, error)
            return wait.backoff.fail()
        wait.backoff.succeed()
        self._refresh_now(wait.task.id)
        return self._policy.wait_rest
