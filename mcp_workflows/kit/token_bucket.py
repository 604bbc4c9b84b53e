"""Token buckets for the quotas of engines: one per API, owner and place, for the whole process.

Other users of the account or project share a quota, so we use only a part of it. If the engine throttles anyway, others
need more, and we use less for a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import isinf
from typing import Final

import anyio

_LEAST: Final = 1 / 16  # of the refill, even after repeated throttling
_RECOVERY: Final = 60.0  # seconds from zero to the full refill
_ONE_THROTTLING: Final = 1.0  # seconds in which all throttling counts once


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketLimits:
    """The limits of a bucket: the number of calls at once, and the number per second after that."""

    bucket: float
    refill: float


UNLIMITED: Final = BucketLimits(bucket=float("inf"), refill=float("inf"))


class Bucket:
    """The tokens of one API; `clock` counts seconds."""

    def __init__(self, limits: BucketLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._level = limits.bucket
        self._at = clock()
        self._share = 1.0  # of the refill, after the last throttling
        self._throttled_at = float("-inf")

    def limit(self, limits: BucketLimits) -> None:
        """Change the limits."""
        self._settle()
        self._limits = limits
        self._level = limits.bucket if limits == UNLIMITED else min(self._level, limits.bucket)

    @property
    def limits(self) -> BucketLimits:
        """The limits without throttling."""
        return self._limits

    @property
    def refill(self) -> float:
        """The current tokens per second: less after throttling, then slowly more again."""
        return self._limits.refill * self._share_at(self._clock())

    @property
    def slowed(self) -> str:
        """The end of a log line about throttling: the current rate; empty without a limit."""
        return "" if isinf(self.refill) else f": {self.refill:.3g} calls per second for now"

    @property
    def spare(self) -> float:
        """The number of tokens that can be used at once and leave the bucket half full."""
        self._settle()
        return float("inf") if self._limits == UNLIMITED else max(0.0, self._level - self._limits.bucket / 2)

    def take(self, time_limit: float) -> float | None:
        """Take a token and return the seconds until it may be used. If they exceed `time_limit`, take none and
        return None."""
        if self._limits == UNLIMITED:
            return 0.0
        self._settle()
        wait = max(0.0, (1.0 - self._level) / self.refill)
        if wait > time_limit:
            return None
        self._level -= 1.0
        return wait

    async def turn(self, time_limit: float) -> bool:
        """Take a token and wait until it may be used. If that would exceed `time_limit`, take none and return False."""
        wait = self.take(time_limit)
        if wait is None:
            return False
        try:
            await anyio.sleep(wait)
        except anyio.get_cancelled_exc_class():
            self.give_back()
            raise
        return True

    def give_back(self) -> None:
        """Return an unused token."""
        self.debit(-1)

    def debit(self, calls: int) -> None:
        """Count calls that were made without a token: an SDK's own retries."""
        self._settle()
        self._level = min(self._limits.bucket, max(self._level - calls, -self._limits.bucket))

    def throttled(self) -> bool:
        """Note that the engine has throttled a call, so the bucket is empty. Return True if this is a new
        throttling."""
        now = self._clock()
        self._settle()
        if self._limits != UNLIMITED:
            self._level = min(self._level, 0.0)
        if now - self._throttled_at < _ONE_THROTTLING:
            return False
        self._share = max(_LEAST, self._share_at(now) / 2)
        self._throttled_at = now
        return True

    def _share_at(self, now: float) -> float:
        return min(1.0, self._share + max(0.0, now - self._throttled_at) / _RECOVERY)

    def _settle(self) -> None:
        """Add the tokens that accrued since the last call."""
        now = self._clock()
        if self._limits != UNLIMITED:
            self._level = min(self._limits.bucket, self._level + (now - self._at) * self.refill)
        self._at = now


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaKey:
    """The identity of a quota, and of its bucket."""

    endpoint: str  # or a name for all endpoints that share the quota
    owner: str | None  # an account, a project; None: not known yet
    place: str  # a region, a location
    operation: str


class Buckets:
    """All buckets of this process; engines with the same owner and place share them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[QuotaKey, Bucket] = {}

    def bucket(self, key: QuotaKey, limits: BucketLimits) -> Bucket:
        """Return the bucket of this key; the last caller sets its limits."""
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = Bucket(limits, self._clock)
        elif bucket.limits != limits:
            bucket.limit(limits)
        return bucket


BUCKETS: Final = Buckets()
