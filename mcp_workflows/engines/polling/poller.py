"""One look at the engine per execution, however many are waiting; listeners fan out from here."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskGroup

from mcp_workflows.engines.polling.entry import FOREVER, Watched
from mcp_workflows.engines.polling.hints import Hearing
from mcp_workflows.engines.polling.long_poll import Waiting
from mcp_workflows.engines.polling.loop import Patrol, Sweeper
from mcp_workflows.engines.polling.rate import SHIPPED, Pacing
from mcp_workflows.engines.polling.schedule import Beat
from mcp_workflows.engines.registry import Sight
from mcp_workflows.errors import EngineUnavailable, ServerStopping, WorkflowsError
from mcp_workflows.task import Task
from mcp_workflows.telemetry import of_no_trace

logger = logging.getLogger(__name__)

_AGAIN_AFTER = 1.0  # seconds, when a patrol or a sweeper broke

Look = Callable[[Task, Task | None, Callable[[], None]], Awaitable[tuple[Task, str | None]]]
Listener = Callable[[Task], Awaitable[bool | None]]


class Watch:
    """Single flight, a short cache and back-off by age and load, for as many executions as there are.

    `look` asks the engine and keeps what it saw; it is called once at a time for each task, with the row if that was
    read just now, and says when it asks. It returns the task, and why that could not be saved, if so. What sweeps,
    waits and hints tell (`sight`) only decides when.
    """

    def __init__(self, look: Look, sight: Sight, pacing: Pacing = SHIPPED) -> None:
        self._look = look
        self._sight = sight
        self._pacing = pacing
        self._beats: dict[str, Beat] = {}
        self._waiting = Waiting(sight, pacing.open_waits, self.nudge)
        self._hearing = Hearing(sight, self._hint)
        self._following: dict[str, Watched] = {}
        self._stopped = False
        self._stack = AsyncExitStack()
        self._group: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self._group = await self._stack.enter_async_context(anyio.create_task_group())
        self._group.start_soon(self._hearing.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if self._group is not None:
            self._group.cancel_scope.cancel()
        return await self._stack.__aexit__(kind, error, trace)

    async def look(self, task: Task, *, urgent: bool = False) -> Task:
        """The task, read just now, after a fresh look, or after one so recent that another is not worth it.

        What could not be saved is returned all the same: see `unsaved`.

        When the engine is asked for too many, what is known is good enough for longer (see `pace`), unless it is
        urgent; and who is not known at all waits for its turn.

        Raises:
            EngineError, StoreError: what the look raised; it too is kept for a moment.
        """
        beat = self._beat(task.engine)
        watched = beat.known(task)
        began = anyio.current_time()
        beat.mind(watched)
        row: Task | None = task
        while not beat.fresh(watched, began):
            if watched.flight or watched.stale or urgent or beat.budget.roomy:
                await self._fly(watched, row)
            else:
                beat.expect(watched, began)
                if beat.good_enough(watched):
                    break
                await watched.landing().wait()
            row = None  # it may have changed meanwhile
        if watched.error is not None:
            raise watched.error
        return watched.latest(task)

    def latest(self, task: Task) -> Task:
        """The task, read just now, or what was seen of it last, if that is newer."""
        watched = self._beat(task.engine).watched.get(task.id)
        return task if watched is None else watched.latest(task)

    def unsaved(self, task: Task) -> str | None:
        """Why what was seen of it last is not in the store; None: it is."""
        watched = self._beat(task.engine).watched.get(task.id)
        return None if watched is None else watched.unsaved

    def pace(self, task: Task) -> float:
        """Seconds after which it is worth asking again: the older it is and the more there are, the longer."""
        return self._beat(task.engine).pace(task)

    def age(self, task: Task) -> float:
        """Seconds since the engine last answered about it."""
        beat = self._beat(task.engine)
        watched = beat.watched.get(task.id)
        return 0.0 if watched is None else beat.age(watched)

    async def follow(self, task: Task, on_change: Listener, *, patience: float = float("inf")) -> Task:
        """Call `on_change` with the task now and at each change a client can see.

        Returns the task when it has ended, or when `on_change` returned True: it has heard enough.

        Raises:
            ServerStopping: it is.
            EngineUnavailable, EngineRefused: for `patience` seconds no look got an answer, not even that the engine
                turns us away for now.
        """
        async with self._followed(task) as watched:
            told: Task | None = None
            began = anyio.current_time()
            while True:
                if self._stopped:
                    raise ServerStopping
                landed = watched.landing()
                current = watched.latest(task) if told is None else watched.since(told)
                if told is None or current.shown != told.shown:
                    told = current
                    if await on_change(current):
                        return current
                if current.ended:
                    return current
                if watched.error and anyio.current_time() - max(began, watched.failing) > patience:
                    raise watched.error
                await landed.wait()

    def stop(self) -> None:
        """Nobody follows any more, so that a server can stop without waiting for workflows to end."""
        self._stopped = True
        for watched in self._following.values():
            watched.landing().set()

    @property
    def stopped(self) -> bool:
        """Whether nobody follows any more."""
        return self._stopped

    def note(self, task: Task) -> None:
        """What was done to it counts at once for those who follow, also when the engine gives no answer."""
        for beat in self._beats.values():
            if watched := beat.watched.get(task.id):
                watched.task = watched.latest(task)
                watched.tell()

    def nudge(self, task_id: str) -> None:
        """Something was done to it: the next look is a fresh one, and followers get theirs now."""
        for beat in self._beats.values():
            if watched := beat.watched.get(task_id):
                watched.stale_at = anyio.current_time()
                self._look_for_followers(watched)

    def _hint(self, engine: str, handle: str) -> None:
        """The engine says that it may have changed; what nobody watches is nobody's business."""
        if beat := self._beats.get(engine):
            beat.hint(handle)

    # --- flights

    async def _fly(self, watched: Watched, row: Task | None) -> None:
        """Join the flight under way, or start one that lands even if whoever asked goes away."""
        if watched.flight is None:
            self._beat(watched.task.engine).budget.spend(watched)
            self._take_off(watched, row)
        if watched.flight is not None:
            await watched.flight.wait()

    def _take_off(self, watched: Watched, row: Task | None = None) -> None:
        watched.flight = anyio.Event()
        self._tasks.start_soon(self._land, watched, row)

    async def _land(self, watched: Watched, row: Task | None) -> None:
        began, beat = anyio.current_time(), self._beat(watched.task.engine)
        asks = partial(beat.budget.made, watched)
        try:
            watched.task, watched.unsaved = await self._look(watched.task, row, asks)
            watched.error = None
            watched.sure, watched.heard = began, anyio.current_time()
        except WorkflowsError as error:
            watched.error = error
        except Exception:  # no request's error, but everybody's watch: see docs/decisions/0002
            logger.exception("a look at a task failed")
            watched.error = EngineUnavailable("the look at it failed; see the log")
        finally:
            asks()  # or it never came to that
            watched.began, watched.at = began, anyio.current_time()
            watched.failing = _failing_since(watched)
            watched.land()
            beat.landed(watched)
            self._look_for_followers(watched)

    def _look_for_followers(self, watched: Watched) -> None:
        """Those who follow what something was done to do not wait for its turn."""
        if watched.followers and watched.task.ended is None:
            self._waiting.want(self._tasks, watched.task)
            if watched.stale and watched.flight is None:
                self._beat(watched.task.engine).budget.spend(watched)
                self._take_off(watched)

    # --- who is known and followed

    @asynccontextmanager
    async def _followed(self, task: Task) -> AsyncGenerator[Watched]:
        """While anybody follows, somebody looks."""
        beat = self._beat(task.engine)
        watched = beat.known(task)
        watched.followers += 1
        self._following[task.id] = watched
        self._look_for_followers(watched)
        beat.follow(watched)
        try:
            yield watched
        finally:
            watched.followers -= 1
            if not watched.followers:
                del self._following[task.id]
                self._waiting.drop(task.id)

    def _beat(self, engine: str) -> Beat:
        found = self._beats.get(engine)
        if found is None:
            found = self._beats[engine] = Beat(engine, self._sight, self._pacing)
            sweeper = Sweeper(found, self._sight)
            for run in (Patrol(found, sweeper, self._take_off).run, sweeper.run):
                self._tasks.start_soon(self._keep_going, run)
        return found

    async def _keep_going(self, run: Callable[[], Awaitable[None]]) -> None:
        """A patrol and a sweeper never end: see docs/decisions/0002. They belong to nobody, whoever came first."""
        of_no_trace()
        while True:
            try:
                await run()
            except Exception:
                logger.exception("what looks at an engine in the background broke, goes on in %g s", _AGAIN_AFTER)
                await anyio.sleep(_AGAIN_AFTER)

    @property
    def _tasks(self) -> TaskGroup:
        if self._group is None:
            raise RuntimeError("Watch is not entered")
        return self._group


def _failing_since(watched: Watched) -> float:
    """Since when its looks get no answer, after one that landed just now; to be turned away is an answer."""
    throttled = isinstance(watched.error, EngineUnavailable) and watched.error.throttled
    return FOREVER if watched.error is None or throttled else min(watched.failing, watched.at)
