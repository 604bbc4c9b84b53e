"""Ended tasks are given out as they were rendered: to their owner, and not beyond their time."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from mcp_workflows.adapter import Status
from mcp_workflows.receiver.result_cache import LARGEST, MOST, ResultCache
from mcp_workflows.wire.commands import TaskView

CREATED = datetime(2026, 1, 1, tzinfo=UTC)
LATER = CREATED + timedelta(seconds=1)
VIEW = TaskView(
    task_id="t",
    tool="t",
    cancelled=False,
    status=Status.SUCCEEDED,
    message=None,
    progress=None,
    created=CREATED,
    updated=LATER,
    ttl_ms=60_000,
    poll_interval_ms=250,
    requests={},
    result={"content": []},
    error=None,
    meta={},
)


def test_an_ended_task_is_found_by_its_owner_alone() -> None:
    ended = ResultCache()
    ended.keep(VIEW, "me", {"taskId": "t"})
    found = ended.find("t", "me", LATER)
    assert found is not None
    assert (found.copy(), found.task) == ({"taskId": "t"}, VIEW)
    assert ended.find("t", "you", LATER) is None


def test_an_ended_task_is_not_found_once_it_has_expired() -> None:
    ended = ResultCache()
    ended.keep(VIEW, "me", {"taskId": "t"})
    assert ended.find("t", "me", CREATED + timedelta(seconds=60)) is None


def test_a_task_that_goes_on_is_not_kept() -> None:
    ended = ResultCache()
    ended.keep(replace(VIEW, status=Status.RUNNING), "me", {"taskId": "t"})
    assert ended.find("t", "me", LATER) is None


def test_what_was_given_out_can_be_changed_without_changing_what_is_kept() -> None:
    ended = ResultCache()
    ended.keep(VIEW, "me", {"taskId": "t"})
    found = ended.find("t", "me", LATER)
    assert found is not None
    found.copy()["resultType"] = "complete"
    assert found.copy() == {"taskId": "t"}


def test_memory_is_bounded_by_number_and_size() -> None:
    ended = ResultCache()
    for number in range(MOST + 1):
        ended.keep(replace(VIEW, task_id=str(number)), "me", {"taskId": str(number)})
    ended.keep(replace(VIEW, task_id="large"), "me", {"text": "x" * LARGEST})
    assert ended.find("0", "me", LATER) is None
    assert ended.find("1", "me", LATER) is not None
    assert ended.find("large", "me", LATER) is None
