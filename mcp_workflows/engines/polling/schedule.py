"""The executions of one engine that somebody wants to know of, and how often each is worth asking for."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import anyio

from mcp_workflows.engines.polling.entry import FOREVER, NEVER, Watched
from mcp_workflows.engines.polling.hints import Doubts, Handles
from mcp_workflows.engines.polling.rate import Budget, Limits, Pacing, limits, pace
from mcp_workflows.engines.registry import Sight
from mcp_workflows.task import Task

SWEEP_FROM: Final = 20  # executions: fewer are looked at one by one
CONFIRM_EVERY: Final = 60.0  # seconds: sweeps lag behind and do not show everything
LONGEST_TOLD: Final = 300.0  # seconds: of an engine that throttles, nobody knows for how long
ALLOWANCE_EVERY: Final = 1.0  # seconds: it shrinks when we are throttled, and grows again
_EARLY: Final = 0.8  # of a pace: who asks before that is too fast
_FRESH_ENOUGH: Final = 2  # paces: what is known is given out for so long when an engine is asked for too many
_NEWS_EVERY: Final = 10.0  # seconds: hints at one execution that come sooner are looked at in their turn
_OF_INTEREST: Final = 10.0  # seconds at least since somebody asked
FORGET_AFTER: Final = 60.0  # seconds without anybody asking


class Beat:
    """What is known of each, when it is due, what the engine allows; the patrol and the sweeper act on it."""

    def __init__(self, engine: str, sight: Sight, pacing: Pacing) -> None:
        self.engine = engine
        self.watched: dict[str, Watched] = {}
        self.doubts = Doubts()
        self.woken = anyio.Event()
        self.asleep_until = FOREVER
        self.sweep_after = NEVER
        self._sight = sight
        self._pacing = pacing
        self._handles = Handles()
        self._limits = limits(pacing, sight.allowance(engine))
        self._limits_read = anyio.current_time()
        self._budget = Budget(self._limits.looks_per_second)
        self._burst = self._limits.burst
        self._forgot = NEVER

    # --- what the engine allows

    @property
    def limits(self) -> Limits:
        """How often the engine may be asked, as it was told a moment ago."""
        self._read()
        return self._limits

    @property
    def budget(self) -> Budget:
        """What is left of it."""
        self._read()
        return self._budget

    def _read(self) -> None:
        if anyio.current_time() - self._limits_read >= ALLOWANCE_EVERY:
            self._limits_read = anyio.current_time()
            self._limits = limits(self._pacing, self._sight.allowance(self.engine))
            self._budget.limit(self._limits.looks_per_second)
            self._burst = self._limits.burst

    def take_from_burst(self) -> bool:
        """Whether the engine takes one more look before its time now; then it counts as made."""
        self._read()
        self._burst -= (allowed := self._burst > 0)
        return allowed

    @property
    def sweeping(self) -> bool:
        """Whether there are so many that sweeps tell what looks do not."""
        many, allowed = len(self.watched), self.limits
        if many <= SWEEP_FROM or anyio.current_time() < self.sweep_after or not self._sight.sweeps(self.engine):
            return False
        return not allowed.by_quota or many / allowed.looks_per_second > allowed.sweep_every

    # --- how often

    def pace(self, task: Task) -> float:
        """Seconds between two questions of a client for it, by its age and by how many others there are."""
        return max(_age_pace(task), self._told)

    @property
    def _told(self) -> float:
        """What the number of executions makes of it.

        With quotas, a sweep tells only that executions still run; all else is as old as the last look. So it is the
        time that looks at all of them take; yet a minute at most, as by then a sweep has found who ended.
        """
        many = len(self.watched)
        if not many:  # as with ended tasks only, which are asked for again and again
            return 0.0
        allowed = self.limits
        looks, sweeps = many / allowed.looks_per_second, many * allowed.sweep_every / allowed.batch
        if not allowed.by_quota:
            return sweeps if self.sweeping else looks
        if not self.sweeping:
            return min(looks, LONGEST_TOLD)
        return max(allowed.sweep_every, sweeps, min(looks, CONFIRM_EVERY))

    def _look_pace(self, task: Task) -> float:
        """Seconds between two looks at it in the background; with quotas the queue makes it longer by itself."""
        return _age_pace(task) if self.limits.by_quota else self.pace(task)

    def age(self, watched: Watched) -> float:
        """Seconds since the engine last answered about it; with quotas since the last look, see `_told`."""
        looked = self.limits.by_quota and watched.sure > NEVER
        return anyio.current_time() - (watched.sure if looked else watched.heard)

    def fresh(self, watched: Watched, since: float) -> bool:
        """Whether what is known is as good as a new look: seen after `since`, or sooner than it is worth asking again.

        Who polls as it is told to, give or take, always gets a new one.
        """
        if watched.stale:
            return False
        age = anyio.current_time() - watched.at
        return watched.began >= since or age <= min(_EARLY * _age_pace(watched.task), self._pacing.fresh_for)

    def good_enough(self, watched: Watched) -> bool:
        """Whether what is known may be given out when there is no room for another look."""
        trip = len(self.watched) / self.limits.looks_per_second if self.limits.by_quota else 0.0
        longest = _FRESH_ENOUGH * max(self.pace(watched.task), trip)
        return not watched.stale and anyio.current_time() - watched.at <= longest

    # --- who

    def known(self, task: Task) -> Watched:
        """What is known of it, from now on."""
        found = self.watched.get(task.id)
        if found is None:
            found = self.watched[task.id] = Watched(task)
            self._handles.add(found)
        return found

    def idle(self) -> Iterator[Watched]:
        """Those nobody looks at just now."""
        return (watched for watched in self.watched.values() if watched.flight is None)

    def wanted(self, watched: Watched) -> bool:
        """Whether somebody follows it, or asked lately."""
        return bool(watched.followers) or anyio.current_time() - watched.asked < self._interest(watched)

    def mind(self, watched: Watched) -> None:
        """Somebody asked: as long as that goes on, sweeps take it along."""
        watched.asked = anyio.current_time()
        if self.sweeping:
            self.expect(watched, self._next(watched))

    def follow(self, watched: Watched) -> None:
        """Somebody follows it."""
        self.expect(watched, max(anyio.current_time(), self._next(watched)))

    def expect(self, watched: Watched, due: float) -> None:
        """It is worth a look then, if not before."""
        if due < watched.due:
            self.schedule(watched, due)

    def schedule(self, watched: Watched, due: float) -> None:
        """It is worth a look then."""
        watched.due = due
        if due < self.asleep_until:
            self.woken.set()

    def hint(self, handle: str) -> None:
        """The engine says that it may have changed: looks that began before do not count.

        More of them soon after are no news: whoever may write hints could keep all others from being looked at.
        """
        now = anyio.current_time()
        for watched in self._handles.of(handle):
            if not watched.task.ended:
                if news := now - watched.hinted >= _NEWS_EVERY:
                    watched.hinted = now
                self.doubts.add(watched, now, news=news)
                self.woken.set()

    def landed(self, watched: Watched) -> None:
        """It was looked at: when is the next time?"""
        if self._handles.add(watched) and self._sight.hears(self.engine) and not watched.task.ended:
            self.doubts.add(watched, anyio.current_time(), news=True)  # what was told before that nobody heard
        if self.doubts.landed(watched):
            self.woken.set()
        wanted = watched.followers or watched.doubtful or (self.sweeping and self.wanted(watched))
        due = anyio.current_time() + self._look_pace(watched.task)
        self.schedule(watched, due if watched.unsaved_end or (wanted and not watched.task.ended) else FOREVER)
        self._forget()

    def _next(self, watched: Watched) -> float:
        """When the next look at it is due, if somebody wants to know."""
        last = watched.began if self.limits.by_quota else watched.at
        return last + self._look_pace(watched.task)

    def _interest(self, watched: Watched) -> float:
        return max(_OF_INTEREST, 3 * self.pace(watched.task))

    def _forget(self) -> None:
        """Drop what nobody has asked for lately; what is known is in the store."""
        now = anyio.current_time()
        if now - self._forgot < FORGET_AFTER / 10:
            return
        self._forgot = now
        for task_id, watched in list(self.watched.items()):
            idle = not (watched.flight or watched.followers or watched.unsaved_end)
            if idle and (watched.task.ended or now - watched.asked > max(FORGET_AFTER, self._interest(watched))):
                del self.watched[task_id]
                self.doubts.drop(watched)
                self._handles.drop(watched)


def _age_pace(task: Task) -> float:
    return pace(task, datetime.now(UTC)).total_seconds()
