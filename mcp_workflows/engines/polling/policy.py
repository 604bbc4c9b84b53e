"""The limits of polling: the intervals, the lifetimes of known states, and the call rate of an engine."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import anyio

from mcp_workflows.adapter import Allowance
from mcp_workflows.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class PollingPolicy:
    """The numbers of polling, with their reasons. Times are in seconds, rates in calls per second and engine.

    The first three rates are server settings; the others fit every engine that was measured.
    """

    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    polls_per_second: float | None = None  # infinite: unlimited; None: see `limits`
    open_waits: int = 200  # long polls of this process; Temporal allows 1,200 per namespace
    fresh_for: float = 4.0  # maximum time for which requests share a poll; 0: each request polls

    # the interval between polls of one execution: it grows with the age of the task
    shortest_interval: float = 0.25
    longest_interval: float = 5.0
    age_per_interval: float = 20.0  # at an age of 60 s, every 3 s
    early: float = 0.8  # fraction of an interval: a client that asks earlier is too fast
    stale_intervals: float = 2.0  # intervals for which a known state is returned when no poll is allowed

    # how long executions are polled after the last request for them
    interest: float = 10.0  # minimum
    forget_after: float = 60.0  # their states are in the store

    # replicas
    wanted_for: float = 25.0  # after a replica has asked another one to poll an execution
    owner_grace: float = 1.0  # until a replica polls an execution that its owner should have polled

    # batches: one call for many executions
    batch_from: int = 20  # executions: fewer are polled individually
    batch_every: float = 0.2  # minimum: engines accept fewer lists than polls
    batch: int = 500  # executions per batch
    confirm_every: float = 60.0  # batches are late and incomplete
    confirmed_at_once: int = 10  # polls after a batch, for entries whose last poll is long ago
    batch_check_every: float = 1.0  # between checks for a batch to poll
    batch_pauses: tuple[float, float] = (1.0, 30.0)  # after a failed batch: minimum, maximum

    # quotas of the engine
    fewest_polls: float = 0.1  # per second, even when throttled: otherwise no state would ever be observed
    allowance_every: float = 1.0  # an allowance shrinks when the engine throttles, and grows again
    longest_load_interval: float = 300.0  # the duration of throttling is unknown

    # hints: reports of the engine that an execution has changed
    urgent_every: float = 10.0  # until then, further hints about the same execution are not urgent
    watch_pauses: tuple[float, float] = (
        1.0,
        60.0,
    )  # after an error: (min, max); a call that lasts `max` resets it

    # long polls
    wait_rest: float = 1.0  # after a wait returned, because the execution may not have ended

    # the background loop
    polls_per_round: int = 10  # small, so that batches get their turn
    round_seconds: float = 0.5  # of polls of an engine with quotas, so that new hints do not wait long
    tick: float = 0.05  # minimum between rounds
    burst_rest: float = 0.2  # between checks for urgent entries after a burst
    restart_after: float = 1.0  # after a background loop failed

    def interval(self, task: Task) -> float:
        """Return the seconds between polls of a task of this age."""
        age = (self.clock() - task.created).total_seconds()
        return min(max(age / self.age_per_interval, self.shortest_interval), self.longest_interval)

    def limits(self, allowance: Allowance | None, replicas: int = 1) -> PollLimits:
        """Return the lower of these rates and those that the engine's quotas allow, if it has quotas.

        `replicas` share these rates. An allowance applies only to this process.

        Without a setting, polls of workflows that run in this process are unlimited.
        """
        usual = math.inf if allowance is not None and allowance.runs_here is not None else USUAL_POLLS
        most = (usual if self.polls_per_second is None else self.polls_per_second) / replicas
        batch_every = self.batch_every * replicas
        if allowance is None:
            return PollLimits(polls_per_second=most, batch_every=batch_every, batch=self.batch)
        allowed = allowance.polls_per_second
        allowed = allowed if allowed > self.fewest_polls else self.fewest_polls  # also for NaN
        return PollLimits(
            polls_per_second=min(most, allowed),
            batch_every=max(allowance.batch_every, batch_every),
            batch=max(allowance.batch, 1),
            burst=int(max(0.0, min(allowance.burst, most - allowed))),
            by_quota=math.isfinite(allowed),
        )


USUAL_POLLS: Final = 50.0  # per second
DEFAULT_POLICY: Final = PollingPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class PollLimits:
    """The current rates for one engine."""

    polls_per_second: float
    batch_every: float
    batch: int
    burst: int = 0  # extra polls until the quotas are read again
    by_quota: bool = False  # the engine has quotas, with a separate one for batches


class CallRateLimiter:
    """The rate limit of one engine: a maximum number of calls in any second, from all sources.

    A call counts from the decision to make it (`reserve`) until a second after it was made (`made`). So a stall of the
    event loop or the store does not merge the calls of two seconds into one.
    """

    def __init__(self, per_second: float) -> None:
        self._reserved: set[Hashable] = set()  # decided but not made
        self._made: deque[float] = deque()
        self._last_slot = float("-inf")
        self.limit(per_second)

    def limit(self, per_second: float) -> None:
        """Set a new rate; calls already made still count."""
        self._limited = math.isfinite(per_second)
        self._most = max(1, round(per_second)) if self._limited else 0
        self._window = self._most / per_second if self._limited else 0.0
        self._made = deque(self._made, maxlen=self._most)

    @property
    def has_capacity(self) -> bool:
        """True if half of the limit is unused; the other half is for background polls."""
        return not self._limited or not self._until_fewer_than(-(-self._most // 2))

    def reserve(self, caller: Hashable, *, in_slot: bool = False) -> None:
        """Count a call that is about to be made, even beyond the limit; later calls wait longer."""
        self._reserved.add(caller)
        if in_slot:
            self._last_slot = anyio.current_time()

    def reserve_early(self, caller: Hashable) -> None:
        """Count an early call; turns wait until the rate is met again."""
        self._reserved.add(caller)
        self._last_slot = max(self._last_slot, anyio.current_time() - self._spacing) + self._spacing

    @property
    def wait_after_early(self) -> float:
        """The seconds without turns after early calls."""
        return max(0.0, self._last_slot - anyio.current_time())

    def made(self, caller: Hashable) -> None:
        """Record that the call was made now; repeated records have no effect."""
        if caller in self._reserved:
            self._reserved.discard(caller)
            if self._limited:
                self._made.append(anyio.current_time())

    async def wait_for_slot(self) -> None:
        """Wait until a background call may be made, evenly spaced; the caller then calls `reserve`."""
        while pause := self._delay():  # noqa: ASYNC110  # waits for time to pass, not for a condition
            await anyio.sleep(pause)

    def _delay(self) -> float:
        if not self._limited:
            return 0.0
        spread = self._last_slot + self._spacing - anyio.current_time()
        return max(spread, self._until_fewer_than(self._most), 0.0)

    @property
    def _spacing(self) -> float:
        return self._window / self._most if self._limited else 0.0

    def _until_fewer_than(self, most: int) -> float:
        """Return the seconds until fewer than `most` calls count; an estimate while some are not made yet."""
        free = most - len(self._reserved)
        if free <= 0:
            return self._spacing
        if len(self._made) < free:
            return 0.0
        return max(0.0, self._made[-free] + self._window - anyio.current_time())
