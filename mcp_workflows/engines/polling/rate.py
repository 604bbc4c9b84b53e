"""How often engines are asked: the older a task the slower, and never more than so many times in any second."""

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
SLOWEST: Final = 0.1  # looks in a second, however much an engine throttles: or nothing would ever be known again


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """How eagerly engines are asked."""

    looks_per_second: float = 50  # at each engine; infinite: no limit
    open_waits: int = 200  # in this process; Temporal allows a namespace 1,200
    fresh_for: float = 4.0  # seconds at most for which a look is good enough for everybody; 0: each look is a new one


SHIPPED: Final = Pacing()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How often one engine is asked now."""

    looks_per_second: float
    sweep_every: float = SWEEP_EVERY
    batch: int = BATCH
    burst: int = 0  # looks beyond that rate, until the quotas are read again
    by_quota: bool = False  # the engine's own: sweeps have a quota beside that of looks


def limits(pacing: Pacing, allowance: Allowance | None) -> Limits:
    """What the configuration and the engine's quotas allow, if it has any: the lesser counts."""
    if allowance is None:
        return Limits(looks_per_second=pacing.looks_per_second)
    allowed = allowance.looks_per_second if allowance.looks_per_second > SLOWEST else SLOWEST
    return Limits(
        looks_per_second=min(pacing.looks_per_second, allowed),
        sweep_every=max(allowance.sweep_every, SWEEP_EVERY),
        batch=max(allowance.batch, 1),
        burst=max(0, int(min(allowance.burst, pacing.looks_per_second - allowed))),
        by_quota=True,
    )


def pace(task: Task, now: datetime) -> timedelta:
    """How often a task is worth a look: the older, the slower."""
    return min(max((now - task.created) / _AGE_PER_PACE, SHORTEST_PACE), LONGEST_PACE)


class Budget:
    """The calls of one engine: at most so many in any second, whoever makes them.

    A call counts from the decision to make it (`spend`) until a second after it was really made (`made`). So a stall of
    the event loop, or of the store that is read in between, does not put the calls of two seconds into one.
    """

    def __init__(self, per_second: float) -> None:
        self._leaving: set[Hashable] = set()  # decided, and not made yet
        self._spent: deque[float] = deque()
        self._turned = float("-inf")
        self.limit(per_second)

    def limit(self, per_second: float) -> None:
        """So many from now on; what was spent stays spent."""
        self._limited = math.isfinite(per_second)
        self._most = max(1, round(per_second)) if self._limited else 0
        self._window = self._most / per_second if self._limited else 0.0
        self._spent = deque(self._spent, maxlen=self._most)

    @property
    def roomy(self) -> bool:
        """Whether half of it is left: what is asked for in the background always gets the other half."""
        return not self._limited or not self._until_fewer_than(-(-self._most // 2))

    def spend(self, who: Hashable, *, in_turn: bool = False) -> None:
        """A call is about to be made, whatever is left: what follows waits the longer."""
        self._leaving.add(who)
        if in_turn:
            self._turned = anyio.current_time()

    def borrow(self, who: Hashable) -> None:
        """A call is about to be made beyond the rate; turns wait until that is made up for."""
        self._leaving.add(who)
        self._turned = max(self._turned, anyio.current_time() - self._spacing) + self._spacing

    @property
    def debt(self) -> float:
        """Seconds for which there are no turns, as calls were made before their time."""
        return max(0.0, self._turned - anyio.current_time())

    def made(self, who: Hashable) -> None:
        """The call is made now; saying so again says nothing."""
        if who in self._leaving:
            self._leaving.discard(who)
            self._spent.append(anyio.current_time())

    async def turn(self) -> None:
        """Wait until a call in the background may be made, evenly spread; whoever makes it spends it."""
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
        """Seconds until fewer calls than that count; a guess while it depends on calls that are not made yet."""
        free = most - len(self._leaving)
        if free <= 0:
            return self._spacing
        if len(self._spent) < free:
            return 0.0
        return max(0.0, self._spent[-free] + self._window - anyio.current_time())
