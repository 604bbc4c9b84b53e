"""Token buckets for the quotas of engines: one per API, owner and place, for this whole process.

Quotas are shared with all other users of the account or project, so that only a share is used. If the engine throttles
all the same, others need more, and we use less for a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import isinf
from typing import Final

import anyio

_LEAST: Final = 1 / 16  # of the refill, even if we are often throttled
_RECOVERY: Final = 60.0  # seconds from nothing to the whole refill
_ONE_THROTTLING: Final = 1.0  # seconds in which all throttling has one cause


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketLimits:
    """The size of a bucket: so many calls at once, and so many per second from then on."""

    bucket: float
    refill: float


UNLIMITED: Final = BucketLimits(bucket=float("inf"), refill=float("inf"))


class Bucket:
    """The tokens of one API; `clock` gives seconds."""

    def __init__(self, limits: BucketLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._level = limits.bucket
        self._at = clock()
        self._share = 1.0  # of the refill, after the last throttling
        self._throttled_at = float("-inf")

    def limit(self, limits: BucketLimits) -> None:
        """Use this size from now on."""
        self._settle()
        self._limits = limits
        self._level = limits.bucket if limits == UNLIMITED else min(self._level, limits.bucket)

    @property
    def limits(self) -> BucketLimits:
        """The size of the bucket when the engine does not throttle us."""
        return self._limits

    @property
    def refill(self) -> float:
        """Tokens per second now: less after the engine has throttled us, and slowly more again."""
        return self._limits.refill * self._share_at(self._clock())

    @property
    def slowed(self) -> str:
        """The end of a log line about throttling: the present rate; empty if there is no limit."""
        return "" if isinf(self.refill) else f": {self.refill:.3g} calls per second for now"

    @property
    def spare(self) -> float:
        """Tokens that may be used at once and leave the bucket half full."""
        self._settle()
        return float("inf") if self._limits == UNLIMITED else max(0.0, self._level - self._limits.bucket / 2)

    def take(self, time_limit: float) -> float | None:
        """Take a token; return the seconds until it may be used. If that exceeds `time_limit`, take none: None."""
        if self._limits == UNLIMITED:
            return 0.0
        self._settle()
        wait = max(0.0, (1.0 - self._level) / self.refill)
        if wait > time_limit:
            return None
        self._level -= 1.0
        return wait

    async def turn(self, time_limit: float) -> bool:
        """Take a token and wait until it may be used; False if that would exceed `time_limit`: none is taken."""
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
        """Give back a token that was taken and not used."""
        self.debit(-1)

    def debit(self, calls: int) -> None:
        """Count calls that were made without a token: an SDK's own retries."""
        self._settle()
        self._level = min(self._limits.bucket, max(self._level - calls, -self._limits.bucket))

    def throttled(self) -> bool:
        """Note that the engine has throttled a call, so that the bucket is empty. Return True if that is news."""
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
        """Add the tokens that came in since the last time."""
        now = self._clock()
        if self._limits != UNLIMITED:
            self._level = min(self._limits.bucket, self._level + (now - self._at) * self.refill)
        self._at = now


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaKey:
    """The quota that a bucket is for."""

    endpoint: str  # or a name for all endpoints that share the quota
    owner: str | None  # an account, a project; None: not known yet
    place: str  # a region, a location
    operation: str


class Buckets:
    """All buckets of this process; engines of one owner and place share theirs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[QuotaKey, Bucket] = {}

    def bucket(self, key: QuotaKey, limits: BucketLimits) -> Bucket:
        """Return the bucket of this key; the last caller sets its size."""
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = Bucket(limits, self._clock)
        elif bucket.limits != limits:
            bucket.limit(limits)
        return bucket


BUCKETS: Final = Buckets()
