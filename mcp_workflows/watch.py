"""One look at the engine per execution, however many are waiting; listeners fan out from here."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskGroup

from mcp_workflows.errors import INTERNAL_ERROR, EngineUnavailable, RequestError, WorkflowsError
from mcp_workflows.task import Task

logger = logging.getLogger(__name__)

SHORTEST_PACE = timedelta(milliseconds=250)
LONGEST_PACE = timedelta(seconds=5)
_AGE_PER_PACE = 20  # at the age of 60 s, every 3 s
_FRESH_AT_MOST = 1.0  # seconds
_FORGET_AFTER = 60.0  # seconds without anybody looking

Look = Callable[[Task], Awaitable[Task]]
Listener = Callable[[Task], Awaitable[bool | None]]


def pace(task: Task, now: datetime) -> timedelta:
    """How often a task is worth a look: the older, the slower."""
    return min(max((now - task.created) / _AGE_PER_PACE, SHORTEST_PACE), LONGEST_PACE)


def _freshness(task: Task) -> float:
    """Seconds for which a look at this task is good enough for everybody."""
    return min(pace(task, datetime.now(UTC)).total_seconds() / 2, _FRESH_AT_MOST)


@dataclass(slots=True)
class _Watched:
    """What is known of one execution, and the flight that is finding out more."""

    task: Task | None = None
    error: WorkflowsError | None = None
    began: float = float("-inf")  # of the last look that landed, seconds of the event loop's clock
    at: float = float("-inf")  # when it landed
    heard: float = float("-inf")  # when the last look that got an answer landed
    stale_at: float = float("-inf")  # looks that began before this do not count
    flight: anyio.Event | None = None
    landed: anyio.Event = field(default_factory=anyio.Event)
    nudged: anyio.Event = field(default_factory=anyio.Event)
    followers: int = 0
    looking: bool = False  # whether the loop for the followers is there

    def latest(self, task: Task) -> Task:
        """What was seen last, unless the row at hand is newer: something was done to it since, perhaps elsewhere."""
        seen = self.task
        if seen is None or self.began < self.stale_at or task.updated > seen.updated or task.answered > seen.answered:
            return task
        return seen


class Watch:
    """Single flight, a short cache and back-off by age, for as many executions as there are.

    `look` asks the engine and keeps what it saw; it is called once at a time for each task.
    """

    def __init__(self, look: Look) -> None:
        self._look = look
        self._watched: dict[str, _Watched] = {}
        self._swept = float("-inf")
        self._stopped = False
        self._stack = AsyncExitStack()
        self._group: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self._group = await self._stack.enter_async_context(anyio.create_task_group())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if self._group is not None:
            self._group.cancel_scope.cancel()
        return await self._stack.__aexit__(kind, error, trace)

    async def look(self, task: Task) -> Task:
        """The task after a fresh look, or after one so recent that another is not worth it.

        Raises:
            EngineUnavailable, StoreUnavailable: what the look raised; it too is kept for a moment.
        """
        watched = self._watched.setdefault(task.id, _Watched())
        while watched.began < watched.stale_at or anyio.current_time() - watched.at > _freshness(task):
            await self._fly(task, watched)
        if watched.error is not None:
            raise watched.error
        return watched.latest(task)

    async def follow(self, task: Task, on_change: Listener, *, patience: float = float("inf")) -> Task:
        """Call `on_change` with the task now and at each change a client can see.

        Returns the task when it has ended, or when `on_change` returned True: it has heard enough.

        Raises:
            RequestError: the server is stopping.
            EngineUnavailable, EngineRefused: for `patience` seconds no look got an answer.
        """
        async with self._following(task) as watched:
            told: Task | None = None
            began = anyio.current_time()
            while True:
                if self._stopped:
                    raise RequestError(INTERNAL_ERROR, "the server is stopping; the workflow goes on: ask again later")
                landed, current = watched.landed, watched.latest(task)
                if told is None or current.shown != told.shown:
                    told = current
                    if await on_change(current):
                        return current
                if current.ended:
                    return current
                if watched.error and anyio.current_time() - max(began, watched.heard) > patience:
                    raise watched.error
                await landed.wait()

    def stop(self) -> None:
        """Nobody follows any more, so that a server can stop without waiting for workflows to end."""
        self._stopped = True
        for watched in self._watched.values():
            watched.landed.set()

    def nudge(self, task_id: str) -> None:
        """Something was done to it: the next look is a fresh one, and followers get theirs now."""
        if watched := self._watched.get(task_id):
            watched.stale_at = anyio.current_time()
            watched.nudged.set()

    async def _fly(self, task: Task, watched: _Watched) -> None:
        """Join the flight under way, or start one that lands even if whoever asked goes away."""
        if watched.flight is None:
            watched.flight = anyio.Event()
            self._tasks.start_soon(self._land, task, watched)
        await watched.flight.wait()

    async def _land(self, task: Task, watched: _Watched) -> None:
        began = anyio.current_time()
        try:
            watched.task, watched.error = await self._look(task), None
            watched.heard = anyio.current_time()
        except WorkflowsError as error:
            watched.error = error
        except Exception:  # no request's error, but everybody's watch: see docs/decisions/0002
            logger.exception("a look at a task failed")
            watched.error = EngineUnavailable("the look at it failed; see the log")
        finally:
            watched.began, watched.at = began, anyio.current_time()
            flight, watched.flight = watched.flight, None
            landed, watched.landed = watched.landed, anyio.Event()
            landed.set()
            if flight is not None:
                flight.set()
            self._forget()

    @asynccontextmanager
    async def _following(self, task: Task) -> AsyncGenerator[_Watched]:
        """While anybody follows, somebody looks: one loop per execution, however many follow."""
        watched = self._watched.setdefault(task.id, _Watched())
        watched.followers += 1
        if not watched.looking:
            watched.looking = True
            self._tasks.start_soon(self._keep_looking, task, watched)
        try:
            yield watched
        finally:
            watched.followers -= 1
            watched.nudged.set()

    async def _keep_looking(self, task: Task, watched: _Watched) -> None:
        while watched.followers and not (watched.task or task).ended:
            watched.nudged = anyio.Event()
            await self._fly(task, watched)
            with anyio.move_on_after(pace(task, datetime.now(UTC)).total_seconds()):
                await watched.nudged.wait()
        watched.looking = False

    @property
    def _tasks(self) -> TaskGroup:
        if self._group is None:
            raise RuntimeError("Watch is not entered")
        return self._group

    def _forget(self) -> None:
        """Drop what nobody has looked at for a while; what is known is in the store."""
        now = anyio.current_time()
        if now - self._swept < _FORGET_AFTER:
            return
        self._swept = now
        for task_id, watched in list(self._watched.items()):
            if not (watched.flight or watched.looking) and now - watched.at > _FORGET_AFTER:
                del self._watched[task_id]
