"""Whom to look at next, on one engine: single looks in their turn, all under one cap, with a sweep now and then."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from heapq import nsmallest
from typing import Final

import anyio
from anyio.lowlevel import checkpoint

from mcp_workflows.adapter import TERMINAL, Status
from mcp_workflows.engines.polling.entry import FOREVER, NEVER, Watched
from mcp_workflows.engines.polling.rate import BATCH, SWEEP_EVERY
from mcp_workflows.engines.polling.schedule import CONFIRM_EVERY, Beat
from mcp_workflows.engines.registry import Glimpse, Sight, glimpse
from mcp_workflows.errors import EngineError

logger = logging.getLogger(__name__)

_PAUSES: Final = (1.0, 30.0)  # seconds after a sweep that failed: from, to
_IDLE: Final = 1.0  # seconds until it is found out that there is something to sweep
_UNSURE: Final = 10  # looks after one sweep at those who were not looked at for long


class Sweeper:
    """Sweeps one engine: in turn with looks, under the same cap; or by the engine's own quota for sweeps."""

    def __init__(self, beat: Beat, sight: Sight) -> None:
        self._beat = beat
        self._sight = sight
        self._swept = NEVER
        self._pause = _PAUSES[0]

    async def run(self) -> None:
        """Sweep an engine with quotas, beside all looks, for ever; what is due for a look stays due."""
        while True:
            pause = _IDLE
            if self._beat.limits.by_quota and self._beat.sweeping:
                pause = self._beat.limits.sweep_every
                await self._sweep(self._wanted())
            await anyio.sleep(pause)

    async def sweep_in_turn(self, due: Sequence[Watched], now: float) -> Sequence[Watched]:
        """Who is due as far as sweeps show them. Returns those found as before, but not looked at for long."""
        if not (batch := self._batch(due, now)):
            return []
        await anyio.sleep(max(0.0, self._swept + SWEEP_EVERY - anyio.current_time()))
        await self._beat.budget.turn()
        self._beat.budget.spend(self, in_turn=True)
        self._beat.budget.made(self)
        self._swept = began = anyio.current_time()
        if not await self._sweep(batch):
            return []
        for watched in batch:
            wanted = self._beat.wanted(watched)
            self._beat.schedule(watched, anyio.current_time() + self._beat.pace(watched.task) if wanted else FOREVER)
        unsure = [each for each in batch if not each.doubtful and began - each.sure > CONFIRM_EVERY]
        return sorted(unsure, key=lambda watched: watched.sure)[:_UNSURE]

    def _batch(self, due: Sequence[Watched], now: float) -> Sequence[Watched]:
        """Who is due, and if there is room, also who is more than halfway there: fewer sweeps see as much."""
        batch = [watched for watched in due if watched.sweepable]
        if batch and len(batch) < BATCH:
            halfway = (watched for watched in self._beat.idle() if watched.at + watched.due <= 2 * now)
            batch = sorted((each for each in halfway if each.sweepable), key=lambda watched: watched.due)
        return batch[:BATCH]

    def _wanted(self) -> Sequence[Watched]:
        """Who is of interest and in no doubt anyhow; those first of whom nothing was heard for longest."""
        beat = self._beat
        wanted = (
            watched
            for watched in beat.watched.values()
            if watched.listed and watched not in beat.doubts and beat.wanted(watched)
        )
        return nsmallest(beat.limits.batch, wanted, key=lambda watched: watched.at)

    async def _sweep(self, batch: Sequence[Watched]) -> bool:
        """Ask for all of them at once; whether there was an answer."""
        began = anyio.current_time()
        try:
            found = await self._sight.sweep(self._beat.engine, [watched.task for watched in batch])
        except EngineError as error:
            self._later(error)
            return False
        self._pause = _PAUSES[0]
        for number, watched in enumerate(batch):
            if number % BATCH == 0:
                await checkpoint()  # 10,000 at once would hold up everybody
            self._compare(watched, found.get(watched.task.id), began)
        return True

    def _compare(self, watched: Watched, found: Glimpse | None, began: float) -> None:
        """With the sweep before it, as sweeps show less than looks; the first one with what is known."""
        known, first = watched.task.execution, watched.mark is None
        before = glimpse(known).mark if first else watched.mark
        watched.mark = None if found is None else found.mark
        changed = found is None or found.status in TERMINAL or found.mark != before
        if first and found is not None and self._beat.limits.by_quota:
            # it shows far less than looks, and these go on anyhow: that one runs says nothing
            changed = found.status not in (known.status, Status.RUNNING)
        if changed or watched.doubtful:
            news = self._beat.limits.by_quota if found is None else found.status is not known.status
            self._beat.doubts.add(watched, began if changed else watched.doubt, news=news)
        elif not watched.stale and watched.at <= began:
            asked = watched.asked >= watched.at
            watched.at, watched.heard, watched.error = began, anyio.current_time(), None
            watched.failing = FOREVER
            if asked:
                watched.tell()  # to who waits for it; followers hear of changes only, and there may be 10,000

    def _later(self, error: EngineError) -> None:
        """What is known stays, and looks go on one by one."""
        logger.warning("engine %r cannot be swept, next try in %g s: %s", self._beat.engine, self._pause, error)
        self._beat.sweep_after = anyio.current_time() + self._pause
        self._pause = min(self._pause * 2, _PAUSES[1])


_TICK: Final = 0.05  # seconds at least between two rounds
_LOOKS: Final = 10  # of one round, so that sweeps get their turn
_REST: Final = 0.2  # seconds until it is seen whether there is news again, after a burst
_ROUND: Final = 0.5  # seconds of looks at an engine with quotas, so that what is heard meanwhile does not wait long


class Patrol:
    """Goes its rounds for ever."""

    def __init__(self, beat: Beat, sweeper: Sweeper, take_off: Callable[[Watched], None]) -> None:
        self._beat = beat
        self._sweeper = sweeper
        self._take_off = take_off

    async def run(self) -> None:
        """Look at who is due, for ever."""
        beat = self._beat
        while True:
            await self._round()
            await anyio.sleep(_TICK)
            beat.woken = anyio.Event()
            due = min((watched.due for watched in beat.idle()), default=FOREVER)
            beat.asleep_until = NEVER if beat.doubts.idle else due
            with anyio.move_on_after(beat.asleep_until - anyio.current_time()):
                await beat.woken.wait()

    async def _round(self) -> None:
        """One sweep, if it is time for one, and a few looks: where there is doubt first, then who waited most.

        What somebody asked for and was never looked at comes before: nothing can be answered about it meanwhile.
        """
        beat, now = self._beat, anyio.current_time()
        self._rush()
        if debt := beat.budget.debt:
            await anyio.sleep(min(debt, _REST))
            return
        due = [watched for watched in beat.idle() if watched.due <= now]
        due.sort(key=lambda watched: (watched.at > NEVER or watched.asked == NEVER, watched.due))
        unsure: Sequence[Watched] = []
        if beat.sweeping and not beat.limits.by_quota:
            unsure = await self._sweeper.sweep_in_turn(due, now)
            due = [watched for watched in due if not watched.sweepable]
        chosen, chosen_at = self._chosen(due, unsure), anyio.current_time()
        for watched in chosen:
            await beat.budget.turn()
            if watched.flight is None and watched.began < chosen_at:
                beat.budget.spend(watched, in_turn=True)
                self._look(watched)
            self._rush()
            if beat.budget.debt:
                return

    def _rush(self) -> None:
        """Looks before their time where there is news, as many as the engine takes in a burst."""
        for watched in self._beat.doubts.news:
            if not self._beat.take_from_burst():
                return
            self._beat.budget.borrow(watched)
            self._look(watched)

    def _look(self, watched: Watched) -> None:
        self._beat.doubts.drop(watched)
        self._take_off(watched)

    def _chosen(self, due: Sequence[Watched], unsure: Sequence[Watched]) -> Sequence[Watched]:
        """Whom to look at in this round.

        Those in doubt and the others each have half of it when there are enough of both: what sweeps never show is in
        doubt for ever. With quotas nearly all looks at the others are in vain, so that they have less.
        """
        looks, others = _LOOKS, _LOOKS // 2
        if self._beat.limits.by_quota:
            looks = min(max(2, int(self._beat.limits.looks_per_second * _ROUND)), _LOOKS)
            others = max(1, looks // 4)
        doubts = self._beat.doubts.idle[: max(looks - others, looks - len(due))]
        return list(dict.fromkeys([*doubts, *due[:looks], *unsure]))[:looks]
