"""How often engines are asked: the older a task the slower, and never more than so many times in any second."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import anyio

from mcp_workflows.task import Task

SHORTEST_PACE = timedelta(milliseconds=250)
LONGEST_PACE = timedelta(seconds=5)
_AGE_PER_PACE = 20  # at the age of 60 s, every 3 s


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """How eagerly engines are asked."""

    looks_per_second: float = 50  # at each engine; infinite: no limit
    open_waits: int = 200  # in this process; Temporal allows a namespace 1,200
    fresh_for: float = 1.0  # seconds at most for which a look is good enough for everybody; 0: each look is a new one


SHIPPED: Final = Pacing()


def pace(task: Task, now: datetime) -> timedelta:
    """How often a task is worth a look: the older, the slower."""
    return min(max((now - task.created) / _AGE_PER_PACE, SHORTEST_PACE), LONGEST_PACE)


class Budget:
    """The calls of one engine: at most so many in any second, whoever makes them."""

    def __init__(self, per_second: float) -> None:
        self._limited = math.isfinite(per_second)
        self._most = max(1, round(per_second)) if self._limited else 0
        self._window = self._most / per_second if self._limited else 0.0
        self._spent: deque[float] = deque(maxlen=self._most)
        self._turned = float("-inf")

    @property
    def roomy(self) -> bool:
        """Whether half of it is left: what is asked for in the background always gets the other half."""
        if not self._limited:
            return True
        half = -(-self._most // 2)
        return len(self._spent) < half or self._spent[-half] + self._window <= anyio.current_time()

    def spend(self) -> None:
        """A call is made, whatever is left: what follows waits the longer."""
        self._spent.append(anyio.current_time())

    async def turn(self) -> None:
        """Wait until a call in the background may be made, evenly spread, and count it."""
        while pause := self._delay():  # noqa: ASYNC110  # it waits for time to pass, not for a condition
            await anyio.sleep(pause)
        self._turned = anyio.current_time()
        self.spend()

    def _delay(self) -> float:
        if not self._limited:
            return 0.0
        now = anyio.current_time()
        spread = self._turned + self._window / self._most - now
        full = self._spent[0] + self._window - now if len(self._spent) == self._most else 0.0
        return max(spread, full, 0.0)
