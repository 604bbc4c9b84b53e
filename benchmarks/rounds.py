"""Measure in rounds that alternate between servers, and report the median of the ratios with its interval.

Both servers run at the same time on core 0, the client on core 1. A ratio is taken of each round, so that a busy moment
hurts both of its sides; the median of these is reported with a bootstrap interval of 95 %.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

ROUNDS = 20
_RESAMPLES = 2000
_ON_CORE_0 = """
import os, sys
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {0})
os.execv(sys.argv[1], sys.argv[1:])
"""


def pin(core: int) -> None:
    """Keep this process, and its children, on one core (where the system can)."""
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {core})


def on_core_0(*argv: str) -> Sequence[str]:
    """Return the command line of a program that runs on core 0."""
    return [sys.executable, "-c", _ON_CORE_0, *argv]


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, all threads, user and system; Linux: its CPU clock, in ns."""
    return time.clock_gettime((~pid << 3) | 2)  # the id that clock_getcpuclockid(3) computes


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A process, and one operation on it."""

    pid: int
    do: Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A median, and its interval of 95 %."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return the text of the table."""
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds of one operation, a value for each round."""

    wall: list[float] = field(default_factory=list[float])  # the median of the round
    mean: list[float] = field(default_factory=list[float])
    cpu: list[float] = field(default_factory=list[float])  # the mean of the round: it is a sum

    @property
    def ms(self) -> str:
        """The median, in milliseconds."""
        return f"{statistics.median(self.wall) * 1e3:.2f}"

    @property
    def cpu_us(self) -> str:
        """The median of the CPU time, in microseconds."""
        return f"{statistics.median(self.cpu) * 1e6:.0f}"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Return the ratio of paired values."""
    return interval([a / b for a, b in zip(ours, theirs, strict=True)])


def interval(values: Sequence[float]) -> Ratio:
    """Return the median with its bootstrap interval; the same values give the same interval."""
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    low, high = medians[int(0.025 * _RESAMPLES)], medians[int(0.975 * _RESAMPLES)]
    return Ratio(median=statistics.median(values), low=low, high=high)


def alternate(sides: Sequence[Side], *, times: int, rounds: int = ROUNDS) -> Sequence[Measured]:
    """Run so many rounds; in each, every side does its operation so many times in a row."""
    found = [Measured() for _ in sides]
    for side in sides:
        run_round(side, max(1, times // 4), Measured())  # warms up
    for number in range(rounds):
        order = list(zip(sides, found, strict=True))
        for side, measured in order if number % 2 else reversed(order):
            run_round(side, times, measured)
    return found


def run_round(side: Side, times: int, into: Measured) -> None:
    """Let a side do its operation so many times in a row."""
    before = cpu_seconds(side.pid)
    walls: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        side.do()
        walls.append(time.perf_counter() - began)
    into.cpu.append((cpu_seconds(side.pid) - before) / times)
    into.wall.append(statistics.median(walls))
    into.mean.append(statistics.mean(walls))


def spread(values: Sequence[float]) -> Mapping[str, float]:
    """Return p50, p99 and the maximum; infinity if there are no values."""
    ordered = sorted(values) or [float("inf")]
    return {"p50": ordered[len(ordered) // 2], "p99": ordered[int(0.99 * len(ordered))], "max": ordered[-1]}
