"""Long polls: a bounded number of open calls that return when an execution has ended."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup

from mcp_workflows.engines.polling.policy import PollingPolicy
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import EngineError
from mcp_workflows.task import Task

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _LongPoll:
    """One execution to wait for, with or without a slot."""

    task: Task
    pause: float  # seconds until it queues again
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class LongPolls:
    """Open waits for followed executions, as many as there are slots; the latest come first.

    A wait is only a hint to look. Executions without a slot are looked at as often as without long polls.
    """

    def __init__(self, engines: Engines, policy: PollingPolicy, refresh_now: Callable[[str], None]) -> None:
        self._engines = engines
        self._policy = policy
        self._refresh_now = refresh_now
        self._open = 0
        self._polls: dict[str, _LongPoll] = {}
        self._queue: dict[str, _LongPoll] = {}  # those without a slot, in the order they came

    def add(self, group: TaskGroup, task: Task) -> None:
        """Wait for the task now, or when a slot is free."""
        if task.id in self._polls or task.handle is None or not self._engines.can_wait(task.engine):
            return
        self._polls[task.id] = self._queue[task.id] = _LongPoll(task, self._policy.wait_rest)
        self._fill(group)

    def drop(self, task_id: str) -> None:
        """Free the slot of a task that has ended or is not followed any more."""
        self._queue.pop(task_id, None)
        if poll := self._polls.pop(task_id, None):
            poll.scope.cancel()

    def _fill(self, group: TaskGroup) -> None:
        while self._queue and self._open < self._policy.open_waits:
            _, poll = self._queue.popitem()
            self._open += 1
            group.start_soon(self._run, group, poll)

    async def _run(self, group: TaskGroup, poll: _LongPoll) -> None:
        """Wait once, free the slot, pause, and queue again."""
        with poll.scope:
            try:
                await self._wait(poll)
            finally:
                self._open -= 1
                self._fill(group)
            await anyio.sleep(poll.pause)
            poll.scope = anyio.CancelScope()
            self._queue[poll.task.id] = poll
        self._fill(group)

    async def _wait(self, poll: _LongPoll) -> None:
        shortest, longest = self._policy.wait_pauses
        try:
            await self._engines.wait(poll.task)
        except EngineError as error:
            logger.info("engine %r cannot be waited for now, only looked at: %s", poll.task.engine, error)
            poll.pause = min(max(poll.pause * 2, shortest), longest)
        else:
            poll.pause = self._policy.wait_rest
            self._refresh_now(poll.task.id)
