"""Whom to look at next, on one engine: sweeps over many, single looks in their turn, all under one cap."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

import anyio

from mcp_workflows.adapter import TERMINAL
from mcp_workflows.errors import EngineError
from mcp_workflows.pacing import Budget, Pacing, pace
from mcp_workflows.sight import Glimpse, Sight, glimpse
from mcp_workflows.task import Task
from mcp_workflows.watched import FOREVER, NEVER, Watched

logger = logging.getLogger(__name__)

SWEEP_FROM: Final = 20  # executions: fewer are looked at one by one
BATCH: Final = 500  # executions of one sweep
SWEEP_EVERY: Final = 0.2  # seconds at least: engines take fewer lists than looks
CONFIRM_EVERY: Final = 60.0  # seconds: sweeps lag behind and do not show everything
_SWEEP_PAUSES: Final = (1.0, 30.0)  # seconds after a sweep that failed: from, to
_TICK: Final = 0.05  # seconds at least between two rounds
_LOOKS: Final = 10  # of one round, so that sweeps get their turn
_FRESH_ENOUGH: Final = 2  # paces: what is known is given out for so long when an engine is asked for too many
_OF_INTEREST: Final = 10.0  # seconds at least since somebody asked
FORGET_AFTER: Final = 60.0  # seconds without anybody asking


class Patrol:
    """The executions of one engine that somebody wants to know of, and when each is looked at."""

    def __init__(self, engine: str, sight: Sight, pacing: Pacing, take_off: Callable[[Watched], None]) -> None:
        self.watched: dict[str, Watched] = {}
        self.budget = Budget(pacing.looks_per_second)
        self._engine = engine
        self._sight = sight
        self._pacing = pacing
        self._take_off = take_off
        self._doubts: dict[Watched, bool] = {}  # whom sweeps gave a reason to look at, and whether its status is new
        self._swept = NEVER
        self._sweep_after = NEVER
        self._sweep_pause = _SWEEP_PAUSES[0]
        self._woken = anyio.Event()
        self._asleep_until = FOREVER
        self._forgot = NEVER

    # --- for the watch

    def pace(self, task: Task) -> float:
        """Seconds between two looks at it, by its age and by how many others there are."""
        many = len(self.watched)
        round_trip = many * SWEEP_EVERY / BATCH if self._sweeping else many / self._pacing.looks_per_second
        return max(pace(task, datetime.now(UTC)).total_seconds(), round_trip)

    def fresh(self, watched: Watched, since: float) -> bool:
        """Whether what is known is as good as a new look: seen after `since`, or a moment ago."""
        if watched.stale:
            return False
        age = anyio.current_time() - watched.at
        fresh_for = self._pacing.fresh_for
        return watched.began >= since or age <= min(self._age_pace(watched) / 2, fresh_for)

    def good_enough(self, watched: Watched) -> bool:
        """Whether what is known may be given out when there is no room for another look."""
        return not watched.stale and anyio.current_time() - watched.at <= _FRESH_ENOUGH * self.pace(watched.task)

    def expect(self, watched: Watched, due: float) -> None:
        """It is worth a look then, if not before."""
        if due < watched.due:
            self._schedule(watched, due)

    def mind(self, watched: Watched) -> None:
        """Somebody asked: as long as that goes on, sweeps take it along."""
        watched.asked = anyio.current_time()
        if self._sweeping:
            self.expect(watched, watched.at + self.pace(watched.task))

    def landed(self, watched: Watched) -> None:
        """It was looked at: when is the next time?"""
        now = anyio.current_time()
        wanted = watched.followers or (self._sweeping and now - watched.asked < self._interest(watched))
        self._schedule(watched, now + self.pace(watched.task) if wanted and not watched.task.ended else FOREVER)
        self._forget(now)

    # --- the rounds

    async def run(self) -> None:
        """Look at who is due, for ever."""
        while True:
            await self._round()
            await anyio.sleep(_TICK)
            self._woken = anyio.Event()
            due = min((watched.due for watched in self._idle()), default=FOREVER)
            self._asleep_until = NEVER if self._doubts else due
            with anyio.move_on_after(self._asleep_until - anyio.current_time()):
                await self._woken.wait()

    def _schedule(self, watched: Watched, due: float) -> None:
        watched.due = due
        if due < self._asleep_until:
            self._woken.set()

    async def _round(self) -> None:
        """One sweep, if it is time for one, and a few looks: where sweeps are in doubt first, then who waited most.

        What somebody asked for and was never looked at comes before: nothing can be answered about it meanwhile.

        Each kind has half of them when there are enough of both: what sweeps never show is in doubt for ever.
        """
        now = anyio.current_time()
        due = [watched for watched in self._idle() if watched.due <= now]
        due.sort(key=lambda watched: (watched.at > NEVER or watched.asked == NEVER, watched.due))
        unsure: Sequence[Watched] = []
        if self._sweeping:
            unsure = await self._sweep(self._batch(due, now))
            due = [watched for watched in due if not watched.sweepable]
        doubts = sorted(self._doubts, key=lambda watched: not self._doubts[watched])
        share = max(_LOOKS // 2, _LOOKS - len(due))
        for watched in [*doubts[:share], *due, *unsure][:_LOOKS]:
            await self.budget.turn()
            self._doubts.pop(watched, None)
            if watched.flight is None:
                self._take_off(watched)

    def _idle(self) -> Sequence[Watched]:
        return [watched for watched in self.watched.values() if watched.flight is None]

    # --- sweeps

    def _batch(self, due: Sequence[Watched], now: float) -> Sequence[Watched]:
        """Who is due, and if there is room, also who is more than halfway there: fewer sweeps see as much."""
        batch = [watched for watched in due if watched.sweepable]
        if batch and len(batch) < BATCH:
            halfway = (watched for watched in self._idle() if watched.at + watched.due <= 2 * now)
            batch = sorted((each for each in halfway if each.sweepable), key=lambda watched: watched.due)
        return batch[:BATCH]

    @property
    def _sweeping(self) -> bool:
        many = len(self.watched) > SWEEP_FROM
        return many and self._sight.sweeps(self._engine) and anyio.current_time() >= self._sweep_after

    async def _sweep(self, batch: Sequence[Watched]) -> Sequence[Watched]:
        """Ask for all of them at once. Returns those of whom all is as before, but who were not looked at for long."""
        if not batch:
            return []
        await anyio.sleep(max(0.0, self._swept + SWEEP_EVERY - anyio.current_time()))
        await self.budget.turn()
        self._swept = began = anyio.current_time()
        try:
            found = await self._sight.sweep(self._engine, [watched.task for watched in batch])
        except EngineError as error:
            self._sweep_later(error)
            return []
        self._sweep_pause = _SWEEP_PAUSES[0]
        for watched in batch:
            self._compare(watched, found.get(watched.task.id), began)
        unsure = [each for each in batch if not each.doubtful and began - each.sure > CONFIRM_EVERY]
        return sorted(unsure, key=lambda watched: watched.sure)[:_LOOKS]

    def _compare(self, watched: Watched, found: Glimpse | None, began: float) -> None:
        """With the sweep before it, as sweeps show less than looks; the first one with what is known."""
        known, now = watched.task.execution, anyio.current_time()
        before = glimpse(known).mark if watched.mark is None else watched.mark
        watched.mark = None if found is None else found.mark
        wanted = watched.followers or now - watched.asked < self._interest(watched)
        self._schedule(watched, now + self.pace(watched.task) if wanted else FOREVER)
        if found is None or found.status in TERMINAL or found.mark != before:
            watched.doubt = began
        if watched.doubtful:
            news = found is not None and found.status is not known.status
            self._doubts[watched] = news or self._doubts.get(watched, False)
        elif not watched.stale and watched.at <= began:
            watched.at, watched.heard, watched.error = began, now, None
            watched.tell()

    def _sweep_later(self, error: EngineError) -> None:
        """What is known stays, and looks go on one by one."""
        logger.warning("engine %r cannot be swept, next try in %g s: %s", self._engine, self._sweep_pause, error)
        self._sweep_after = anyio.current_time() + self._sweep_pause
        self._sweep_pause = min(self._sweep_pause * 2, _SWEEP_PAUSES[1])

    # --- who is of interest

    def _age_pace(self, watched: Watched) -> float:
        return pace(watched.task, datetime.now(UTC)).total_seconds()

    def _interest(self, watched: Watched) -> float:
        return max(_OF_INTEREST, 3 * self.pace(watched.task))

    def _forget(self, now: float) -> None:
        """Drop what nobody has asked for lately; what is known is in the store."""
        if now - self._forgot < FORGET_AFTER / 10:
            return
        self._forgot = now
        for task_id, watched in list(self.watched.items()):
            idle = not (watched.flight or watched.followers)
            if idle and (watched.task.ended or now - watched.asked > max(FORGET_AFTER, self._interest(watched))):
                del self.watched[task_id]
