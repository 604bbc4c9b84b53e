"""Whom to look at next, on one engine: single looks in their turn, all under one cap, with a sweep now and then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import anyio

from mcp_workflows.beat import Beat
from mcp_workflows.sweeper import Sweeper
from mcp_workflows.watched import FOREVER, NEVER, Watched

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
