"""The rate limit of calls to one engine."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from time import monotonic

import anyio


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
            self._turned = monotonic()

    def borrow(self, caller: Hashable) -> None:
        """Count a call that is made early; turns wait until the rate is met again."""
        self._leaving.add(caller)
        self._turned = max(self._turned, monotonic() - self._spacing) + self._spacing

    @property
    def debt(self) -> float:
        """The seconds without turns, because calls were made early."""
        return max(0.0, self._turned - monotonic())

    def made(self, caller: Hashable) -> None:
        """Note that the call was made now; repeated notes have no effect."""
        if caller in self._leaving:
            self._leaving.discard(caller)
            self._spent.append(monotonic())

    async def turn(self) -> None:
        """Wait until a background call may be made, evenly spread; the caller then calls `spend`."""
        while pause := self._delay():  # noqa: ASYNC110  # it waits for time to pass, not for a condition
            await anyio.sleep(pause)

    def _delay(self) -> float:
        if not self._limited:
            return 0.0
        spread = self._turned + self._spacing - monotonic()
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
        return max(0.0, self._spent[-free] + self._window - monotonic())
