"""Rates of looks at engines: slower with a task's age, and limited per second."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import anyio

from mcp_workflows.adapter import Allowance
from mcp_workflows.task import Task

SHORTEST_PACE = timedelta(milliseconds=250)
LONGEST_PACE = timedelta(seconds=5)
_AGE_PER_PACE = 20  # at the age of 60 s, every 3 s
SWEEP_EVERY: Final = 0.2  # seconds at least: engines take fewer lists than looks
BATCH: Final = 500  # executions of one sweep
SLOWEST: Final = 0.1  # looks per second, however much an engine throttles: otherwise no state would ever be seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """The configured rates."""

    looks_per_second: float = 50  # per engine; infinite: no limit
    open_waits: int = 200  # in this process; Temporal allows a namespace 1,200
    fresh_for: float = 4.0  # seconds at most for which a look is shared by all requests; 0: each request looks anew


SHIPPED: Final = Pacing()


@dataclass(frozen=True, slots=True, kw_only=True)
class PollLimits:
    """The rates for one engine now."""

    looks_per_second: float
    sweep_every: float = SWEEP_EVERY
    batch: int = BATCH
    burst: int = 0  # looks beyond that rate, until the quotas are read again
    by_quota: bool = False  # the engine has quotas, and sweeps have one of their own


def limits(pacing: Pacing, allowance: Allowance | None) -> PollLimits:
    """Return the lesser of the configured rates and those that the engine's quotas allow, if it has quotas."""
    if allowance is None:
        return PollLimits(looks_per_second=pacing.looks_per_second)
    allowed = allowance.looks_per_second if allowance.looks_per_second > SLOWEST else SLOWEST
    return PollLimits(
        looks_per_second=min(pacing.looks_per_second, allowed),
        sweep_every=max(allowance.sweep_every, SWEEP_EVERY),
        batch=max(allowance.batch, 1),
        burst=max(0, int(min(allowance.burst, pacing.looks_per_second - allowed))),
        by_quota=True,
    )


def pace(task: Task, now: datetime) -> timedelta:
    """Return the interval between looks at a task; it grows with the task's age."""
    return min(max((now - task.created) / _AGE_PER_PACE, SHORTEST_PACE), LONGEST_PACE)


class Budget:
    """The rate limit of one engine: at most so many calls in any second, from all sources.

    A call counts from the decision to make it (`spend`) until a second after it was made (`made`), so that a stall of
    the event loop or the store does not put the calls of two seconds into one.
    """

    def __init__(self, per_second: float) -> None:
        self._leaving: set[Hashable] = set()  # decided and not made yet
        self._spent: deque[float] = deque()
        self._turned = float("-inf")
        self.limit(per_second)

    def limit(self, per_second: float) -> None:
        """Set a new rate; calls already made still count."""
        self._limited = math.isfinite(per_second)
        self._most = max(1, round(per_second)) if self._limited else 0
        self._window = self._most / per_second if self._limited else 0.0
        self._spent = deque(self._spent, maxlen=self._most)

    @property
    def roomy(self) -> bool:
        """True if half of the limit is left; the other half is for background looks."""
        return not self._limited or not self._until_fewer_than(-(-self._most // 2))

    def spend(self, caller: Hashable, *, in_turn: bool = False) -> None:
        """Count a call that is about to be made, even beyond the limit; later calls wait longer."""
        self._leaving.add(caller)
        if in_turn:
            self._turned = anyio.current_time()

    def borrow(self, caller: Hashable) -> None:
        """Count a call that is made early; turns wait until the rate is met again."""
        self._leaving.add(caller)
        self._turned = max(self._turned, anyio.current_time() - self._spacing) + self._spacing

    @property
    def debt(self) -> float:
        """The seconds without turns, because calls were made early."""
        return max(0.0, self._turned - anyio.current_time())

    def made(self, caller: Hashable) -> None:
        """Note that the call was made now; repeated notes have no effect."""
        if caller in self._leaving:
            self._leaving.discard(caller)
            self._spent.append(anyio.current_time())

    async def turn(self) -> None:
        """Wait until a background call may be made, evenly spread; the caller then calls `spend`."""
        while pause := self._delay():  # noqa: ASYNC110  # it waits for time to pass, not for a condition
            await anyio.sleep(pause)

    def _delay(self) -> float:
        if not self._limited:
            return 0.0
        spread = self._turned + self._spacing - anyio.current_time()
        return max(spread, self._until_fewer_than(self._most), 0.0)

    @property
    def _spacing(self) -> float:
        return self._window / self._most if self._limited else 0.0

    def _until_fewer_than(self, most: int) -> float:
        """Return the seconds until fewer than `most` calls count; an estimate while some of them are not made yet."""
        free = most - len(self._leaving)
        if free <= 0:
            return self._spacing
        if len(self._spent) < free:
            return 0.0
        return max(0.0, self._spent[-free] + self._window - anyio.current_time())
