"""Token buckets as AWS keeps them, one per API, account and Region: of this whole process, whatever engines it has.

AWS's quotas are shared with everybody else in the account, so that only a share is used; when AWS throttles all the
same, somebody else needs more, and we need less for a while.
Source: https://docs.aws.amazon.com/step-functions/latest/dg/service-quotas.html (API action throttling)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from mcp_workflows_stepfunctions.settings import Quota, Rate

_WELL_SERVED: Final = frozenset({"us-east-1", "us-west-2", "eu-west-1"})
_LEAST: Final = 1 / 16  # of the refill, however often we are throttled
_RECOVERY: Final = 60.0  # seconds from nothing to the whole refill
_ONE_THROTTLING: Final = 1.0  # seconds: what is throttled in that time has one cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """A bucket: so many calls at once, and so many per second from then on."""

    bucket: float
    refill: float


def _limits(bucket: float, refill: float) -> Limits:
    return Limits(bucket=bucket, refill=refill)


UNLIMITED: Final = _limits(float("inf"), float("inf"))

# operation: (where AWS is biggest, elsewhere)
DEFAULTS: Final[Mapping[str, tuple[Limits, Limits]]] = {
    "start_execution": (_limits(1300, 300), _limits(800, 150)),
    "describe_execution": (_limits(300, 15), _limits(250, 10)),
    "get_execution_history": (_limits(400, 20), _limits(400, 20)),
    "list_executions": (_limits(200, 5), _limits(100, 2)),
    "stop_execution": (_limits(1000, 200), _limits(500, 25)),
    "send_task_success": (_limits(3000, 500), _limits(1500, 300)),
    "send_task_failure": (_limits(3000, 500), _limits(1500, 300)),
    "describe_state_machine": (_limits(200, 20), _limits(200, 20)),
    "describe_state_machine_alias": (_limits(200, 1), _limits(200, 1)),
    "list_state_machines": (_limits(100, 5), _limits(100, 5)),
    "get_resources": (_limits(10, 5), _limits(10, 5)),  # of tags: 15/s, and no bucket is told
}
_OVERRIDES: Final[Mapping[str, str]] = {"send_task_success": "send_task", "send_task_failure": "send_task"}


def limits(operation: str, region: str, quota: Quota | None) -> Limits:
    """What this process may use of an API; None: as much as it likes."""
    if quota is None or operation not in DEFAULTS:
        return UNLIMITED
    big, small = DEFAULTS[operation]
    whole: Limits | Rate = big if region in _WELL_SERVED else small
    whole = getattr(quota, _OVERRIDES.get(operation, operation), None) or whole
    share = quota.share / quota.replicas
    return Limits(bucket=max(1.0, whole.bucket * share), refill=whole.refill * share)


class Bucket:
    """The tokens of one API; `clock` gives seconds."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._level = limits.bucket
        self._at = clock()
        self._share = 1.0  # of the refill, after the last throttling
        self._throttled_at = float("-inf")

    def limit(self, limits: Limits) -> None:
        """Have these limits from now on."""
        self._settle()
        self._limits = limits
        self._level = limits.bucket if limits == UNLIMITED else min(self._level, limits.bucket)

    @property
    def limits(self) -> Limits:
        """What it may hold and get, when nobody throttles us."""
        return self._limits

    @property
    def refill(self) -> float:
        """Tokens per second now: less after AWS has throttled us, and slowly more again."""
        return self._limits.refill * self._share_at(self._clock())

    @property
    def spare(self) -> float:
        """Tokens that may be used at once and leave it half full."""
        self._settle()
        return float("inf") if self._limits == UNLIMITED else max(0.0, self._level - self._limits.bucket / 2)

    def take(self, patience: float) -> float | None:
        """Take a token: seconds to wait until it may be used; None if that were longer than `patience`: none taken."""
        if self._limits == UNLIMITED:
            return 0.0
        self._settle()
        wait = max(0.0, (1.0 - self._level) / self.refill)
        if wait > patience:
            return None
        self._level -= 1.0
        return wait

    def give_back(self) -> None:
        """A token that was taken was not used."""
        self.debit(-1)

    def debit(self, calls: int) -> None:
        """So many calls were made without asking: botocore's own retries."""
        self._settle()
        self._level = min(self._limits.bucket, max(self._level - calls, -self._limits.bucket))

    def throttled(self) -> bool:
        """AWS has throttled a call: its bucket is empty, whatever we thought. Returns whether that is news."""
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
        """Fill in what has come in since the last time."""
        now = self._clock()
        if self._limits != UNLIMITED:
            self._level = min(self._limits.bucket, self._level + (now - self._at) * self.refill)
        self._at = now


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Whose quota it is."""

    endpoint: str
    account: str | None
    region: str
    operation: str


class Buckets:
    """All buckets of this process; engines of one account and Region have the same ones."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[Key, Bucket] = {}

    def bucket(self, key: Key, limits: Limits) -> Bucket:
        """The bucket of this key; who asks last says how large it is."""
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = Bucket(limits, self._clock)
        elif bucket.limits != limits:
            bucket.limit(limits)
        return bucket


BUCKETS: Final = Buckets()
