"""Limits: what may be set, how long a task can be read, what is metered of whom, and what is too large."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError

from mcp_workflows.access import ANONYMOUS, Principal
from mcp_workflows.access.audit import Event, Record
from mcp_workflows.access.limit_settings import UNLIMITED, Limits, ToolLimits
from mcp_workflows.access.rate_limits import MOST_KNOWN, MOST_SHOWN, RateLimits
from mcp_workflows.adapter import JSON, Execution, Failure, Status
from mcp_workflows.errors import LIMIT_REACHED, LimitReached
from mcp_workflows.tasks.results import keepable
from mcp_workflows.tools.json_schema import check_size

MS, HOUR, DAY = timedelta(milliseconds=1), timedelta(hours=1), timedelta(days=1)
DOCUMENT = Path(__file__).parents[2] / "docs" / "secure" / "limits.md"
ANNA, BEN = Principal(id="anna"), Principal(id="ben")


class Clock:
    """Seconds, which pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def stranger(address: str) -> Principal:
    """An anonymous caller, from there."""
    return Principal(id=ANONYMOUS.id, identified=False, peer=address)


def meters(**limits: int | None) -> tuple[RateLimits, Clock, list[Record]]:
    """RateLimits with these limits alone, their clock, and what they put on record."""
    clock, records = Clock(), list[Record]()
    return RateLimits(UNLIMITED.model_copy(update=limits), audit=records.append, clock=clock), clock, records


# --- settings


@pytest.mark.parametrize("name", sorted(Limits.model_fields))
def test_every_limit_can_be_switched_off(name: str) -> None:
    assert getattr(Limits.model_validate({name: None}), name) is None


WRONG: Sequence[dict[str, JSON]] = (
    {"open_listens": 0},
    {"polls_per_minute": -1},
    {"creates_per_minute": 1.5},
    {"x": 1},
)


@pytest.mark.parametrize("wrong", WRONG)
def test_what_can_be_no_limit_is_refused(wrong: dict[str, JSON]) -> None:
    with pytest.raises(ValidationError):
        Limits.model_validate(wrong)


def test_the_default_ttl_is_not_longer_than_any_may_be() -> None:
    with pytest.raises(ValidationError, match=r"default_ttl: 2d is longer than limits.max_ttl, 1d"):
        Limits(default_ttl=2 * DAY, max_ttl=DAY)


def test_the_documented_defaults_are_those_of_the_models() -> None:
    documented = dict(re.findall(r"`(\w+)` \((\w+)\)", DOCUMENT.read_text(encoding="utf-8")))  # a tool's come last
    written = {"1d": DAY, "null": None}
    defaults = {name: field.default for name, field in (Limits.model_fields | ToolLimits.model_fields).items()}
    assert {name: written.get(value, value) for name, value in documented.items() if name != "max_result"} == {
        name: default if default is None or isinstance(default, timedelta) else str(default)
        for name, default in defaults.items()
    }


# --- ttl: what is asked, of the tool, default, longest, whether the caller has a name -> what comes of it

TTLS = [
    (None, None, None, None, True, 90 * DAY),  # the store's retention
    (None, 7 * DAY, None, None, True, 7 * DAY),
    (None, None, 5 * DAY, None, True, 5 * DAY),
    (None, 7 * DAY, 5 * DAY, None, True, 7 * DAY),
    (HOUR, 7 * DAY, None, None, True, HOUR),
    (30 * DAY, 7 * DAY, None, 60 * DAY, True, 7 * DAY),  # the tool's is the longest of its tasks
    (100 * DAY, None, None, None, True, 90 * DAY),
    (100 * DAY, None, None, 365 * DAY, True, 100 * DAY),
    (100 * DAY, None, 5 * DAY, 30 * DAY, True, 30 * DAY),
    (None, None, None, 30 * DAY, True, 30 * DAY),
    (None, 60 * DAY, None, 30 * DAY, True, 30 * DAY),  # a tool that was found on its engine
    (timedelta(0), None, None, None, True, timedelta(minutes=1)),
    (timedelta(0), None, None, timedelta(seconds=1), True, timedelta(seconds=1)),
    (None, None, None, None, False, DAY),
    (30 * DAY, 7 * DAY, None, None, False, DAY),
    (HOUR, None, None, None, False, HOUR),
    (timedelta.max, None, None, None, True, 90 * DAY),
]


@pytest.mark.parametrize(("asked", "tool", "usual", "longest", "identified", "expected"), TTLS)
def test_how_long_a_task_can_be_read(
    asked: timedelta | None,
    tool: timedelta | None,
    usual: timedelta | None,
    longest: timedelta | None,
    identified: bool,
    expected: timedelta,
) -> None:
    limits = Limits(default_ttl=usual, max_ttl=longest)
    asked_ms = None if asked is None else asked // MS
    assert limits.ttl(asked_ms=asked_ms, tool=tool, retention=90 * DAY, identified=identified) == expected


# --- polls


def test_who_polls_too_fast_hears_when_to_come_again_and_others_notice_nothing() -> None:
    metered, clock, records = meters(polls_per_minute=10)
    for _ in range(10):
        metered.count_poll(ANNA)
    with pytest.raises(LimitReached, match="at most 10 requests about tasks in a minute") as reached:
        metered.count_poll(ANNA)
    assert reached.value.code == LIMIT_REACHED
    assert reached.value.data == {"retryAfterMs": 6000}
    metered.count_poll(BEN)
    clock.now += 6
    metered.count_poll(ANNA)
    assert [(record.event, record.principal) for record in records] == [(Event.LIMIT, "anna")]


def test_a_request_about_many_tasks_counts_as_many() -> None:
    metered, clock, _ = meters(polls_per_minute=60)
    metered.count_poll(ANNA, 100)
    clock.now += 40
    with pytest.raises(LimitReached):
        metered.count_poll(ANNA)
    clock.now += 1
    metered.count_poll(ANNA)


def test_callers_without_a_name_are_metered_by_their_address() -> None:
    metered, _, _ = meters(polls_per_minute=1)
    metered.count_poll(stranger("192.0.2.1"))
    metered.count_poll(stranger("192.0.2.2"))
    metered.count_poll(stranger("2001:db8::1"))
    for again in ("192.0.2.1", "::ffff:192.0.2.2", "2001:db8::2"):  # of IPv6 they have a whole network
        with pytest.raises(LimitReached):
            metered.count_poll(stranger(again))


def test_memory_of_principals_is_bounded() -> None:
    metered, clock, _ = meters(polls_per_minute=1)
    metered.count_poll(ANNA)
    for number in range(MOST_KNOWN):
        clock.now += 0.001
        metered.count_poll(Principal(id=f"p{number}"))
    metered.count_poll(ANNA)  # forgotten


# --- look-ups that find nothing


def test_a_known_caller_hears_of_the_limit_for_what_is_not_there_and_goes_on_with_what_is() -> None:
    metered, clock, _ = meters(failed_lookups_per_minute=2)
    metered.count_failed_lookup(ANNA)
    metered.count_failed_lookup(ANNA)
    with pytest.raises(LimitReached, match="at most 2 requests in a minute for tasks that are not found"):
        metered.count_failed_lookup(ANNA)
    metered.check_lookup(ANNA, "hers")
    clock.now += 30
    metered.count_failed_lookup(ANNA)


def test_a_caller_without_a_name_who_guesses_is_told_the_same_of_every_id_but_their_own() -> None:
    metered, clock, _ = meters(failed_lookups_per_minute=2)
    eve, friend = stranger("192.0.2.1"), stranger("192.0.2.2")
    metered.remember_shown(eve, "hers")
    for _ in range(2):
        metered.check_lookup(eve, "nobodys")
        metered.count_failed_lookup(eve)
    told: list[tuple[str, JSON]] = []
    for task_id in ("nobodys", "a-friends"):
        with pytest.raises(LimitReached) as reached:
            metered.check_lookup(eve, task_id)  # before anybody looks whether it is there
        told.append((reached.value.message, reached.value.data))
    assert told[0] == told[1]
    metered.check_lookup(eve, "hers")
    metered.check_lookup(friend, "a-friends")
    clock.now += 30
    metered.check_lookup(eve, "nobodys")


def test_calls_that_start_nothing_are_metered_by_caller_and_those_that_start_something_are_not() -> None:
    here, clock, _ = meters(creates_per_minute=60)
    for _ in range(60):
        assert here.check_start(ANNA) is None
        here.started_nothing(ANNA)
    reached = here.check_start(ANNA)
    assert reached is not None
    assert (reached.code, reached.retry_after) == (LIMIT_REACHED, 1.0)
    assert "at most 60 calls of one caller may fail to start anything in a minute: try again in 1 s" in reached.message
    assert here.check_start(BEN) is None
    clock.now += 1
    assert here.check_start(ANNA) is here.check_start(ANNA) is None
    here.started_nothing(ANNA)
    assert here.check_start(ANNA)


def test_memory_of_tasks_that_were_shown_is_bounded() -> None:
    metered, _, _ = meters(failed_lookups_per_minute=1)
    eve = stranger("192.0.2.1")
    for number in range(MOST_SHOWN + 1):
        metered.remember_shown(eve, f"t{number}")
    metered.count_failed_lookup(eve)
    with pytest.raises(LimitReached):
        metered.check_lookup(eve, "t0")
    metered.check_lookup(eve, "t1")


# --- what stays open


def test_only_so_many_requests_stay_open_for_one_and_for_all() -> None:
    metered, _, records = meters(open_listens_per_principal=1, open_listens=2)
    with metered.listening(ANNA):
        with pytest.raises(LimitReached, match="at most 1 requests of one caller") as reached, metered.listening(ANNA):
            pass
        assert reached.value.retry_after is None
        with (
            metered.listening(BEN),
            pytest.raises(LimitReached, match="at most 2 requests of all callers"),
            metered.listening(Principal(id="carl")),
        ):
            pass
    with metered.listening(ANNA), metered.listening(BEN):
        pass
    assert len(records) == 2


# --- sizes


def test_what_is_too_large_is_refused_with_its_size() -> None:
    check_size("Arguments of charge", {"a": "é"}, 10)
    with pytest.raises(LimitReached, match=r"Arguments of charge: 11 bytes of JSON, and at most 10 are accepted"):
        check_size("Arguments of charge", {"a": "éx"}, 10)
    check_size("Arguments of charge", "x" * 100, None)


def test_a_result_that_is_too_large_to_be_kept_says_so_and_where_it_is() -> None:
    ended = Execution(status=Status.SUCCEEDED, output="x" * 100, execution_id="wf-1")
    assert keepable(ended, 102) is ended
    kept = keepable(ended, 101)
    assert kept.status is Status.SUCCEEDED
    assert kept.output["isError"]
    assert "102 bytes, over the limit of 101" in kept.output["content"][0]["text"]
    assert "wf-1" in kept.output["content"][0]["text"]
    assert "xxx" not in kept.output["content"][0]["text"]
    assert keepable(ended, None) is ended


def test_a_failure_that_is_too_large_is_cut() -> None:
    failed = Execution(status=Status.FAILED, failure=Failure(text="y" * 5000, data={"z": 1}))
    failure = keepable(failed, 4000).failure
    assert failure is not None
    assert len(failure.text) < 2200
    assert failure.text.startswith("yyy")
    assert "over the limit of 4000" in failure.text
    assert failure.data is None
