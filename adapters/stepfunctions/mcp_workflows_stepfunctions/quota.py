"""AWS's quotas, and the share of them for this process.

Source: https://docs.aws.amazon.com/step-functions/latest/dg/service-quotas.html (API action throttling)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mcp_workflows.kit.token_bucket import UNLIMITED, BucketLimits
from mcp_workflows_stepfunctions.settings import Quota, Rate

_WELL_SERVED: Final = frozenset({"us-east-1", "us-west-2", "eu-west-1"})


def _limits(bucket: float, refill: float) -> BucketLimits:
    return BucketLimits(bucket=bucket, refill=refill)


# operation: (in AWS's largest Regions, elsewhere)
DEFAULTS: Final[Mapping[str, tuple[BucketLimits, BucketLimits]]] = {
    "start_execution": (_limits(1300, 300), _limits(800, 150)),
    "describe_execution": (_limits(300, 15), _limits(250, 10)),
    "get_execution_history": (_limits(400, 20), _limits(400, 20)),
    "list_executions": (_limits(200, 5), _limits(100, 2)),
    "stop_execution": (_limits(1000, 200), _limits(500, 25)),
    "send_task_success": (_limits(3000, 500), _limits(1500, 300)),
    "send_task_failure": (_limits(3000, 500), _limits(1500, 300)),
    "describe_state_machine": (_limits(200, 20), _limits(200, 20)),
    "describe_state_machine_alias": (_limits(200, 1), _limits(200, 1)),
    "describe_state_machine_for_execution": (_limits(200, 1), _limits(200, 1)),
    "list_state_machines": (_limits(100, 5), _limits(100, 5)),
    "get_resources": (_limits(10, 5), _limits(10, 5)),  # of tags: 15/s; AWS gives no bucket
}
_OVERRIDES: Final[Mapping[str, str]] = {"send_task_success": "send_task", "send_task_failure": "send_task"}


def limits(operation: str, region: str, quota: Quota | None) -> BucketLimits:
    """Return the share of this process in the quota of an operation; no limit if `quota` is None."""
    if quota is None or operation not in DEFAULTS:
        return UNLIMITED
    big, small = DEFAULTS[operation]
    whole: BucketLimits | Rate = big if region in _WELL_SERVED else small
    whole = getattr(quota, _OVERRIDES.get(operation, operation), None) or whole
    share = quota.share / quota.replicas
    return BucketLimits(bucket=max(1.0, whole.bucket * share), refill=whole.refill * share)
