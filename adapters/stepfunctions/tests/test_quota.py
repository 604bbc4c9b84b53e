"""Token buckets: what AWS allows, our share of it, and what we do when AWS throttles all the same."""

from __future__ import annotations

import pytest
from mcp_workflows_stepfunctions.client import DEFAULTS, limits
from mcp_workflows_stepfunctions.settings import Quota

from mcp_workflows.kit.token_bucket import UNLIMITED, Bucket, BucketLimits, Buckets, QuotaKey


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def bucket(clock: Clock, size: float = 3, refill: float = 2) -> Bucket:
    return Bucket(BucketLimits(bucket=size, refill=refill), clock)


@pytest.mark.parametrize(
    ("operation", "region", "expected"),
    [
        ("describe_execution", "us-east-1", (150, 7.5)),
        ("describe_execution", "eu-central-1", (125, 5)),
        ("list_executions", "eu-west-1", (100, 2.5)),
        ("get_execution_history", "ap-south-1", (200, 10)),
        ("describe_state_machine_alias", "us-east-1", (100, 0.5)),
    ],
)
def test_half_of_aws_default_quotas_is_ours(operation: str, region: str, expected: tuple[float, float]) -> None:
    assert limits(operation, region, Quota()) == BucketLimits(bucket=expected[0], refill=expected[1])


def test_replicas_divide_the_share_and_one_call_at_once_is_always_left() -> None:
    quota = Quota(share=0.75, replicas=3)
    assert limits("describe_execution", "us-east-1", quota) == BucketLimits(bucket=75, refill=3.75)
    assert limits("describe_state_machine_alias", "us-east-1", Quota(share=0.001)).bucket == 1


def test_an_account_with_other_quotas_says_so_per_api() -> None:
    quota = Quota.model_validate(
        {"describe_execution": {"bucket": 1000, "refill": 100}, "send_task": {"bucket": 8, "refill": 4}}
    )
    assert limits("describe_execution", "us-east-1", quota) == BucketLimits(bucket=500, refill=50)
    for operation in ("send_task_success", "send_task_failure"):
        assert limits(operation, "us-east-1", quota) == BucketLimits(bucket=4, refill=2)


def test_without_a_quota_and_for_apis_that_have_none_nothing_is_held_back(clock: Clock) -> None:
    assert limits("describe_execution", "us-east-1", None) == UNLIMITED
    assert limits("receive_message", "us-east-1", Quota()) == UNLIMITED
    free = Bucket(UNLIMITED, clock)
    free.throttled()
    free.debit(10)
    assert [free.take(0) for _ in range(1000)] == [0] * 1000
    free.limit(BucketLimits(bucket=1, refill=1))
    assert [free.take(0) for _ in range(2)] == [0, None]
    free.limit(UNLIMITED)
    assert [free.take(0) for _ in range(2)] == [0, 0]


def test_a_bucket_is_spent_at_once_and_refilled_evenly(clock: Clock) -> None:
    mine = bucket(clock)
    assert [mine.take(1) for _ in range(5)] == [0, 0, 0, 0.5, 1.0]
    assert mine.take(1) is None
    clock.now += 0.5
    assert mine.take(1) == 1.0
    clock.now += 100
    assert [mine.take(0) for _ in range(4)] == [0, 0, 0, None]


def test_who_stops_waiting_gives_the_token_back(clock: Clock) -> None:
    mine = bucket(clock, size=1, refill=1)
    assert (mine.take(0), mine.take(1)) == (0, 1)
    mine.give_back()
    assert mine.take(1) == 1


def test_retries_that_botocore_made_are_paid_for(clock: Clock) -> None:
    mine = bucket(clock)
    mine.debit(2)
    assert [mine.take(0), mine.take(0)] == [0, None]


def test_a_throttling_halves_the_refill_and_it_grows_back(clock: Clock) -> None:
    mine = bucket(clock, size=100, refill=10)
    assert mine.throttled()
    assert mine.refill == 5
    assert mine.take(0) is None
    assert mine.take(0.2) == pytest.approx(0.2)
    assert not mine.throttled()  # in the same second: the same cause
    assert mine.refill == 5
    clock.now += 6
    assert mine.refill == pytest.approx(6)
    clock.now += 60
    assert mine.refill == 10


def test_it_never_stops_asking_altogether(clock: Clock) -> None:
    mine = bucket(clock, size=100, refill=16)
    for _ in range(20):
        mine.throttled()
        clock.now += 1
    assert mine.refill >= 1


def test_engines_of_one_account_and_region_share_a_bucket_and_others_do_not(clock: Clock) -> None:
    all_of_them = Buckets(clock)
    two = BucketLimits(bucket=2, refill=1)
    key = QuotaKey(endpoint="e", owner="1", place="r", operation="describe_execution")
    mine = all_of_them.bucket(key, two)
    assert all_of_them.bucket(key, two) is mine
    other = QuotaKey(endpoint="e", owner="2", place="r", operation="describe_execution")
    assert all_of_them.bucket(other, two) is not mine
    mine.take(0)
    assert all_of_them.bucket(key, BucketLimits(bucket=1, refill=1)).take(0) == 0
    assert mine.take(0) is None


def test_every_quota_of_the_settings_is_of_an_api_that_has_one() -> None:
    names = set(Quota.model_fields) - {"share", "replicas", "send_task"}
    assert names <= DEFAULTS.keys()


def test_what_is_spare_leaves_half_of_the_bucket(clock: Clock) -> None:
    tokens = bucket(clock, size=10, refill=1)
    assert tokens.spare == 5
    for _ in range(4):
        tokens.take(0)
    assert tokens.spare == 1
    for _ in range(3):
        tokens.take(0)
    assert tokens.spare == 0
    clock.now += 4
    assert tokens.spare == 2
    assert Bucket(UNLIMITED, clock).spare == float("inf")
