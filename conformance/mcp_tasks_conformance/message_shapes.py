"""Passive checks of the shape of every message that the other checks received."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from mcp_tasks_conformance.check import JSON, Feature, Level, Phase, Scenario, expect, skip_unless
from mcp_tasks_conformance.traffic import STATUSES, TERMINAL, Observation, Traffic, format_json, related_task_id

ISO_8601: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d([.,]\d+)?([Zz]|[+-]\d\d:\d\d)")
REQUIRED: Final = ("taskId", "status", "createdAt", "lastUpdatedAt", "ttl")

message_shapes = Scenario(name="shape", title="Every message")


def parse_timestamp(value: JSON) -> datetime | None:
    """Return the time if it is written as RFC 3339 requires, otherwise None."""
    if not isinstance(value, str) or not ISO_8601.fullmatch(value):
        return None
    try:
        return datetime.fromisoformat(value.upper().replace("Z", "+00:00").replace(",", "."))
    except ValueError:
        return None


def is_number(value: JSON) -> bool:
    """Return True for a JSON number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _expect_all(observations: Iterable[Observation], is_valid: Callable[[Mapping[str, JSON]], bool]) -> None:
    seen = list(observations)
    skip_unless(seen, "no task was seen")
    wrong = [one for one in seen if not is_valid(one.task)]
    expect(
        not wrong,
        f"{len(wrong)} of {len(seen)} tasks; one in {wrong[0].source}: {format_json(wrong[0].task)}" if wrong else "",
    )


@message_shapes.check(Level.MUST, "TTL and Resource Management 1", Feature.TASKS, phase=Phase.PASSIVE)
async def created_at(traffic: Traffic) -> None:
    """Every task has createdAt, an ISO 8601 timestamp (RFC 3339)."""
    _expect_all(traffic.observations(notified=False), lambda task: parse_timestamp(task.get("createdAt")) is not None)


@message_shapes.check(Level.MUST, "TTL and Resource Management 2", Feature.TASKS, phase=Phase.PASSIVE)
async def last_updated_at(traffic: Traffic) -> None:
    """Every task has lastUpdatedAt, an ISO 8601 timestamp (RFC 3339)."""
    _expect_all(
        traffic.observations(notified=False), lambda task: parse_timestamp(task.get("lastUpdatedAt")) is not None
    )


@message_shapes.check(Level.INTEROP, "Task", Feature.TASKS, phase=Phase.PASSIVE)
async def times_in_order(traffic: Traffic) -> None:
    """createdAt of a task never changes, and lastUpdatedAt is not earlier than createdAt."""
    first: dict[str, JSON] = {}
    for one in traffic.observations():
        created = first.setdefault(str(one.task.get("taskId")), one.task.get("createdAt"))
        expect(
            one.task.get("createdAt") == created, f"createdAt was {format_json(created)}, then {format_json(one.task)}"
        )
        begin, end = parse_timestamp(created), parse_timestamp(one.task.get("lastUpdatedAt"))
        expect(begin is None or end is None or begin <= end, format_json(one.task))


@message_shapes.check(Level.MUST, "TTL and Resource Management 4", Feature.TASKS, phase=Phase.PASSIVE)
async def ttl(traffic: Traffic) -> None:
    """tasks/get returns the ttl: a number of ms, or null for no limit."""
    found = (one for one in traffic.observations() if one.source == "tasks/get")
    _expect_all(
        found, lambda task: "ttl" in task and (task["ttl"] is None or (is_number(task["ttl"]) and task["ttl"] >= 0))
    )


@message_shapes.check(Level.MUST, "Task (schema)", Feature.TASKS, phase=Phase.PASSIVE)
async def poll_interval(traffic: Traffic) -> None:
    """pollInterval, where present, is a positive number of ms."""
    wanted = "pollInterval"
    _expect_all(
        traffic.observations(), lambda task: wanted not in task or (is_number(task[wanted]) and task[wanted] > 0)
    )


@message_shapes.check(Level.MUST, "Task Status", Feature.TASKS, phase=Phase.PASSIVE)
async def status(traffic: Traffic) -> None:
    """The status is working, input_required, completed, failed or cancelled."""
    _expect_all(traffic.observations(), lambda task: task.get("status") in STATUSES)


@message_shapes.check(Level.MUST, "Task (schema)", Feature.TASKS, phase=Phase.PASSIVE)
async def status_message(traffic: Traffic) -> None:
    """statusMessage, where present, is a string."""
    _expect_all(traffic.observations(), lambda task: isinstance(task.get("statusMessage", ""), str))


@message_shapes.check(Level.MUST, "Task Status Lifecycle 2.3", Feature.TASKS, phase=Phase.PASSIVE)
async def the_end_is_final(traffic: Traffic) -> None:
    """The status of a completed, failed or cancelled task never changes."""
    for seen in _group_by_task(traffic).values():
        ends = [one for one in seen if one.task.get("status") in TERMINAL]
        for end in ends[:1]:
            later = [
                one for one in seen if one.sent_at > end.received_at and one.task.get("status") != end.task["status"]
            ]
            expect(
                not later, f"{end.task['status']} in {end.source}, then {format_json(later[0].task) if later else ''}"
            )


@message_shapes.check(Level.SHOULD, "Associating Task-Related Messages 2", Feature.TASKS, phase=Phase.PASSIVE)
async def no_related_task(traffic: Traffic) -> None:
    """Results of tasks/get, tasks/list and tasks/cancel carry no related-task metadata: they contain the id already."""
    found = list(traffic.results("tasks/get", "tasks/list", "tasks/cancel"))
    skip_unless(found, "no such result was seen")
    wrong = {one.method for one in found if related_task_id(one.reply.result) is not None}
    expect(not wrong, f"it is in results of {', '.join(sorted(wrong))}")


@message_shapes.check(Level.MUST, "Related Task Metadata", Feature.TASKS, phase=Phase.PASSIVE)
async def related_task_in_result(traffic: Traffic) -> None:
    """Every result of tasks/result names its task in _meta."""
    found = list(traffic.results("tasks/result"))
    skip_unless(found, "no result of tasks/result was seen")
    wrong = [one for one in found if related_task_id(one.reply.result) != one.params.get("taskId")]
    expect(not wrong, f"{len(wrong)} of {len(found)}; one of them: {wrong[0].reply}" if wrong else "")


@message_shapes.check(Level.MUST, "Related Task Metadata", Feature.TASKS, phase=Phase.PASSIVE)
async def related_task_in_requests(traffic: Traffic) -> None:
    """Every elicitation/create of a task names the task in _meta."""
    asked = traffic.sent_by_server("elicitation/create")
    found = [one for one in asked if one.channel != "tools/call"]  # questions before the task exists
    skip_unless(found, "the server asked nothing")
    ids = set(traffic.created_ids())
    wrong = [one for one in found if related_task_id(one.params) not in ids]
    expect(not wrong, f"{len(wrong)} of {len(found)}; one of them: {format_json(wrong[0].params)}" if wrong else "")


@message_shapes.check(Level.SHOULD, "Protocol Errors", Feature.TASKS, phase=Phase.PASSIVE)
async def errors_say_why(traffic: Traffic) -> None:
    """Every error has a message."""
    found = [one for one in traffic.exchanges if "error" in one.reply.body]
    skip_unless(found, "no error was seen")
    wrong = [
        one for one in found if not isinstance(one.reply.error.get("message"), str) or not one.reply.error["message"]
    ]
    expect(not wrong, f"{wrong[0].method}: {wrong[0].reply}" if wrong else "")


@message_shapes.check(Level.SHOULD, "Input Required Status, note", Feature.TASKS, phase=Phase.PASSIVE)
async def get_is_no_stream(traffic: Traffic) -> None:
    """tasks/get returns JSON and no event stream: the client polls."""
    found = list(traffic.results("tasks/get"))
    skip_unless(found, "no result of tasks/get was seen")
    streams = sum(one.reply.is_event_stream for one in found)
    expect(streams == 0, f"{streams} of {len(found)} were event streams")


@message_shapes.check(Level.MUST, "Task Status Notification", Feature.TASKS, phase=Phase.PASSIVE)
async def status_notification(traffic: Traffic) -> None:
    """notifications/tasks/status contains the whole task."""
    found = list(traffic.sent_by_server("notifications/tasks/status"))
    skip_unless(found, "the server sent none, which it need not")
    wrong = [one for one in found if not all(name in one.params for name in REQUIRED)]
    expect(not wrong, f"{len(wrong)} of {len(found)}; one of them: {format_json(wrong[0].params)}" if wrong else "")


@message_shapes.check(Level.SHOULD, "Task Notifications 3", Feature.TASKS, phase=Phase.PASSIVE)
async def status_notification_without_meta(traffic: Traffic) -> None:
    """notifications/tasks/status carries no related-task metadata."""
    found = list(traffic.sent_by_server("notifications/tasks/status"))
    skip_unless(found, "the server sent none, which it need not")
    wrong = [one for one in found if related_task_id(one.params) is not None]
    expect(not wrong, f"{len(wrong)} of {len(found)} do")


def _group_by_task(traffic: Traffic) -> Mapping[str, Sequence[Observation]]:
    tasks: dict[str, list[Observation]] = defaultdict(list)
    for one in traffic.observations():
        tasks[str(one.task.get("taskId"))].append(one)
    return tasks
