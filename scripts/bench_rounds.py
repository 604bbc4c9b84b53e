"""The method of `make bench`: rounds that alternate between two servers, and what can be said of their ratio.

Both servers run at the same time on core 0, the client on core 1. A ratio is taken of each round, so that a busy moment
hurts both of its sides; the median of these is reported with a bootstrap interval of 95 %.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

ROUNDS = 20
_RESAMPLES = 2000
_TICK = 0.01  # seconds
_ON_CORE_0 = """
import os, sys
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {0})
os.execv(sys.argv[1], sys.argv[1:])
"""


def pin(core: int) -> None:
    """Keep this process, and what it starts, on one core (where the system can)."""
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {core})


def on_core_0(*argv: str) -> Sequence[str]:
    """The same program, pinned."""
    return [sys.executable, "-c", _ON_CORE_0, *argv]


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, all threads, user and system; Linux: its CPU clock, in ns."""
    return time.clock_gettime((~pid << 3) | 2)  # what clock_getcpuclockid(3) computes


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two: its process, and one operation on it."""

    pid: int
    do: Callable[[], object]
    after: Callable[[object], object] | None = None  # of what it returned; not on the clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The median of per-round ratios, and where it lies with 95 %."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """As the table shows it."""
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds of one operation, one value per round."""

    wall: list[float] = field(default_factory=list[float])  # the median of the round
    cpu: list[float] = field(default_factory=list[float])  # the mean of the round: it is a sum


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Of paired values."""
    return interval([a / b for a, b in zip(ours, theirs, strict=True)])


def interval(values: Sequence[float]) -> Ratio:
    """The median with its bootstrap interval; the same values give the same interval."""
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    low, high = medians[int(0.025 * _RESAMPLES)], medians[int(0.975 * _RESAMPLES)]
    return Ratio(median=statistics.median(values), low=low, high=high)


def alternate(sides: Sequence[Side], *, times: int, rounds: int = ROUNDS) -> Sequence[Measured]:
    """So many rounds; in each, every side does its operation so many times in a row."""
    found = [Measured() for _ in sides]
    for side in sides:
        _round(side, max(1, times // 4), Measured())  # warm
    for number in range(rounds):
        order = list(zip(sides, found, strict=True))
        for side, measured in order if number % 2 else reversed(order):
            _round(side, times, measured)
    return found


def _round(side: Side, times: int, into: Measured) -> None:
    before = cpu_seconds(side.pid)
    walls: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        done = side.do()
        walls.append(time.perf_counter() - began)
        if side.after:
            side.after(done)
    into.cpu.append((cpu_seconds(side.pid) - before) / times)
    into.wall.append(statistics.median(walls))


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@contextmanager
def lags() -> Generator[list[float]]:
    """How much later than it should the event loop gets to what is due, asked every 10 ms."""
    found: list[float] = []

    async def ask() -> None:
        while True:
            due = time.monotonic() + _TICK
            await asyncio.sleep(_TICK)
            found.append(max(0.0, time.monotonic() - due))

    asking = asyncio.create_task(ask())
    try:
        yield found
    finally:
        asking.cancel()


def spread(values: Sequence[float]) -> Mapping[str, float]:
    """Seconds; of nothing, never."""
    values = values or [float("inf")]
    return {"p50": quantile(values, 0.5), "p99": quantile(values, 0.99), "max": max(values)}
