"""Token buckets: what a quota allows, and what becomes of it when the engine throttles all the same."""

from __future__ import annotations

import pytest

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


def test_without_a_limit_nothing_is_held_back(clock: Clock) -> None:
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


def test_attempts_beyond_the_first_are_paid_for(clock: Clock) -> None:
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
