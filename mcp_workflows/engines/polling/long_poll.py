"""Open waits: a bounded number of executions that engines tell us about by themselves when they end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup

from mcp_workflows.engines.registry import Sight
from mcp_workflows.errors import EngineError
from mcp_workflows.task import Task

logger = logging.getLogger(__name__)

REST = 1.0  # seconds before one that returned is waited for again: it may not have ended
PAUSES = (1.0, 60.0)  # seconds after an error: from, to


@dataclass(slots=True, eq=False)
class _Wish:
    """One execution to wait for, with or without a slot."""

    task: Task
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    pause: float = REST  # until it queues again


class Waiting:
    """Who is followed and can be waited for: as many as there are slots, those who came last first.

    What it tells is a hint; whoever has no slot is looked at as often as without it.
    """

    def __init__(self, sight: Sight, slots: int, nudge: Callable[[str], None]) -> None:
        self._sight = sight
        self._slots = slots
        self._nudge = nudge
        self._open = 0
        self._wishes: dict[str, _Wish] = {}
        self._queue: dict[str, _Wish] = {}  # those without a slot, in the order they came

    def want(self, group: TaskGroup, task: Task) -> None:
        """Wait for it from now on, if there is a slot, or when there is one."""
        if task.id in self._wishes or task.handle is None or not self._sight.waits(task.engine):
            return
        self._wishes[task.id] = self._queue[task.id] = _Wish(task)
        self._fill(group)

    def drop(self, task_id: str) -> None:
        """It has ended, or nobody follows it any more: its slot is somebody else's."""
        self._queue.pop(task_id, None)
        if wish := self._wishes.pop(task_id, None):
            wish.scope.cancel()

    def _fill(self, group: TaskGroup) -> None:
        while self._queue and self._open < self._slots:
            _, wish = self._queue.popitem()
            self._open += 1
            group.start_soon(self._attend, group, wish)

    async def _attend(self, group: TaskGroup, wish: _Wish) -> None:
        """One wait; then its slot is free, and it queues again after a rest."""
        with wish.scope:
            try:
                await self._wait(wish)
            finally:
                self._open -= 1
                self._fill(group)
            await anyio.sleep(wish.pause)
            wish.scope = anyio.CancelScope()
            self._queue[wish.task.id] = wish
        self._fill(group)

    async def _wait(self, wish: _Wish) -> None:
        shortest, longest = PAUSES
        try:
            await self._sight.wait(wish.task)
        except EngineError as error:
            logger.info("engine %r cannot be waited for now, only looked at: %s", wish.task.engine, error)
            wish.pause = min(max(wish.pause * 2, shortest), longest)
        else:
            wish.pause = REST
            self._nudge(wish.task.id)
