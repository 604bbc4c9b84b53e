"""The rate limit of calls to one engine."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from time import monotonic

import anyio


class CallRateLimiter:
    """The rate limit of one engine: at most so many calls in any second, from all sources.

    A call counts from the decision to make it (`reserve`) until a second after it was made (`made`), so that a stall of
    the event loop or the store does not put the calls of two seconds into one.
    """

    def __init__(self, per_second: float) -> None:
        self._reserved: set[Hashable] = set()  # decided and not made yet
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
        """True if half of the limit is left; the other half is for background looks."""
        return not self._limited or not self._until_fewer_than(-(-self._most // 2))

    def reserve(self, caller: Hashable, *, in_slot: bool = False) -> None:
        """Count a call that is about to be made, even beyond the limit; later calls wait longer."""
        self._reserved.add(caller)
        if in_slot:
            self._last_slot = monotonic()

    def reserve_early(self, caller: Hashable) -> None:
        """Count a call that is made early; turns wait until the rate is met again."""
        self._reserved.add(caller)
        self._last_slot = max(self._last_slot, monotonic() - self._spacing) + self._spacing

    @property
    def wait_after_early(self) -> float:
        """The seconds without turns, because calls were made early."""
        return max(0.0, self._last_slot - monotonic())

    def made(self, caller: Hashable) -> None:
        """Note that the call was made now; repeated notes have no effect."""
        if caller in self._reserved:
            self._reserved.discard(caller)
            self._made.append(monotonic())

    async def wait_for_slot(self) -> None:
        """Wait until a background call may be made, evenly spread; the caller then calls `reserve`."""
        while pause := self._delay():  # noqa: ASYNC110  # it waits for time to pass, not for a condition
            await anyio.sleep(pause)

    def _delay(self) -> float:
        if not self._limited:
            return 0.0
        spread = self._last_slot + self._spacing - monotonic()
        return max(spread, self._until_fewer_than(self._most), 0.0)

    @property
    def _spacing(self) -> float:
        return self._window / self._most if self._limited else 0.0

    def _until_fewer_than(self, most: int) -> float:
        """Return the seconds until fewer than `most` calls count; an estimate while some of them are not made yet."""
        free = most - len(self._reserved)
        if free <= 0:
            return self._spacing
        if len(self._made) < free:
            return 0.0
        return max(0.0, self._made[-free] + self._window - monotonic())
