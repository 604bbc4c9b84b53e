"""Google's quotas, and the share of them that this process may use.

They are defined per minute, project and location. A bucket holds a sixth of its share and is refilled with the rest
within a minute, so that no minute exceeds the share.

Source: https://cloud.google.com/workflows/quotas; those of callbacks are estimates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mcp_workflows.kit.token_bucket import UNLIMITED, BucketLimits
from mcp_workflows_google.settings import Quota

PER_MINUTE: Final[Mapping[str, float]] = {
    "get_execution": 6000,
    "list_executions": 1200,
    "write_executions": 6000,
    "list_callbacks": 1200,
    "send_callback": 6000,
    "read_workflows": 1200,
}
_AT_ONCE: Final = 1 / 6
_MINUTE: Final = 60.0  # seconds


def limits(api: str, quota: Quota | None) -> BucketLimits:
    """Return the limits of this process for an API; unlimited without a quota."""
    if quota is None or api not in PER_MINUTE:
        return UNLIMITED
    whole: float = getattr(quota, api) or PER_MINUTE[api]
    share = whole * quota.share / quota.replicas
    return BucketLimits(bucket=max(1.0, share * _AT_ONCE), refill=share * (1 - _AT_ONCE) / _MINUTE)
