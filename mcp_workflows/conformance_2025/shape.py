"""What every message has to look like: judged on all that the other checks sent and got."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from mcp_workflows.conformance_2025.check import JSON, Feature, Level, Scenario, When, expect, need
from mcp_workflows.conformance_2025.traffic import ENDED, STATUSES, Sighting, Traffic, related, shown

ISO_8601: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d([.,]\d+)?([Zz]|[+-]\d\d:\d\d)")
REQUIRED: Final = ("taskId", "status", "createdAt", "lastUpdatedAt", "ttl")

shape = Scenario(name="shape", title="Every message")


def moment(value: JSON) -> datetime | None:
    """The point in time, if it is written as RFC 3339 wants it."""
    if not isinstance(value, str) or not ISO_8601.fullmatch(value):
        return None
    try:
        return datetime.fromisoformat(value.upper().replace("Z", "+00:00").replace(",", "."))
    except ValueError:
        return None


def is_number(value: JSON) -> bool:
    """Whether it is a JSON number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _all(sightings: Iterable[Sighting], fine: Callable[[Mapping[str, JSON]], bool]) -> None:
    seen = list(sightings)
    need(seen, "no task was seen")
    wrong = [one for one in seen if not fine(one.task)]
    expect(
        not wrong,
        f"{len(wrong)} of {len(seen)} tasks; one in {wrong[0].source}: {shown(wrong[0].task)}" if wrong else "",
    )


@shape.check(Level.MUST, "TTL and Resource Management 1", Feature.TASKS, when=When.AFTER)
async def created_at(traffic: Traffic) -> None:
    """Every task has createdAt, a timestamp of ISO 8601 (RFC 3339)."""
    _all(traffic.sightings(notified=False), lambda task: moment(task.get("createdAt")) is not None)


@shape.check(Level.MUST, "TTL and Resource Management 2", Feature.TASKS, when=When.AFTER)
async def last_updated_at(traffic: Traffic) -> None:
    """Every task has lastUpdatedAt, a timestamp of ISO 8601 (RFC 3339)."""
    _all(traffic.sightings(notified=False), lambda task: moment(task.get("lastUpdatedAt")) is not None)


@shape.check(Level.INTEROP, "Task", Feature.TASKS, when=When.AFTER)
async def times_in_order(traffic: Traffic) -> None:
    """createdAt of a task never changes, and lastUpdatedAt is not before it."""
    first: dict[str, JSON] = {}
    for one in traffic.sightings():
        created = first.setdefault(str(one.task.get("taskId")), one.task.get("createdAt"))
        expect(one.task.get("createdAt") == created, f"createdAt was {shown(created)}, then {shown(one.task)}")
        begin, end = moment(created), moment(one.task.get("lastUpdatedAt"))
        expect(begin is None or end is None or begin <= end, shown(one.task))


@shape.check(Level.MUST, "TTL and Resource Management 4", Feature.TASKS, when=When.AFTER)
async def ttl(traffic: Traffic) -> None:
    """tasks/get shows the ttl: a number of ms, or null for no limit."""
    found = (one for one in traffic.sightings() if one.source == "tasks/get")
    _all(found, lambda task: "ttl" in task and (task["ttl"] is None or (is_number(task["ttl"]) and task["ttl"] >= 0)))


@shape.check(Level.MUST, "Task (schema)", Feature.TASKS, when=When.AFTER)
async def poll_interval(traffic: Traffic) -> None:
    """pollInterval, if it is there, is a positive number of ms."""
    wanted = "pollInterval"
    _all(traffic.sightings(), lambda task: wanted not in task or (is_number(task[wanted]) and task[wanted] > 0))


@shape.check(Level.MUST, "Task Status", Feature.TASKS, when=When.AFTER)
async def status(traffic: Traffic) -> None:
    """The status is working, input_required, completed, failed or cancelled."""
    _all(traffic.sightings(), lambda task: task.get("status") in STATUSES)


@shape.check(Level.MUST, "Task (schema)", Feature.TASKS, when=When.AFTER)
async def status_message(traffic: Traffic) -> None:
    """statusMessage, if it is there, is a string."""
    _all(traffic.sightings(), lambda task: isinstance(task.get("statusMessage", ""), str))


@shape.check(Level.MUST, "Task Status Lifecycle 2.3", Feature.TASKS, when=When.AFTER)
async def the_end_is_final(traffic: Traffic) -> None:
    """A task that was completed, failed or cancelled never has another status again."""
    for seen in _by_task(traffic).values():
        ends = [one for one in seen if one.task.get("status") in ENDED]
        for end in ends[:1]:
            later = [one for one in seen if one.sent > end.at and one.task.get("status") != end.task["status"]]
            expect(not later, f"{end.task['status']} in {end.source}, then {shown(later[0].task) if later else ''}")


@shape.check(Level.SHOULD, "Associating Task-Related Messages 2", Feature.TASKS, when=When.AFTER)
async def no_related_task(traffic: Traffic) -> None:
    """Results of tasks/get, tasks/list and tasks/cancel carry no related-task metadata: the id is there already."""
    found = list(traffic.replies("tasks/get", "tasks/list", "tasks/cancel"))
    need(found, "no such result was seen")
    wrong = {one.method for one in found if related(one.reply.result) is not None}
    expect(not wrong, f"it is in results of {', '.join(sorted(wrong))}")


@shape.check(Level.MUST, "Related Task Metadata", Feature.TASKS, when=When.AFTER)
async def related_task_in_result(traffic: Traffic) -> None:
    """Every result of tasks/result names its task in _meta."""
    found = list(traffic.replies("tasks/result"))
    need(found, "no result of tasks/result was seen")
    wrong = [one for one in found if related(one.reply.result) != one.params.get("taskId")]
    expect(not wrong, f"{len(wrong)} of {len(found)}; one of them: {wrong[0].reply}" if wrong else "")


@shape.check(Level.MUST, "Related Task Metadata", Feature.TASKS, when=When.AFTER)
async def related_task_in_requests(traffic: Traffic) -> None:
    """Every elicitation/create that comes of a task names it in _meta."""
    asked = traffic.sent_by_server("elicitation/create")
    found = [one for one in asked if one.channel != "tools/call"]  # which asks before there is a task
    need(found, "the server asked nothing")
    ids = set(traffic.created())
    wrong = [one for one in found if related(one.params) not in ids]
    expect(not wrong, f"{len(wrong)} of {len(found)}; one of them: {shown(wrong[0].params)}" if wrong else "")


@shape.check(Level.SHOULD, "Protocol Errors", Feature.TASKS, when=When.AFTER)
async def errors_say_why(traffic: Traffic) -> None:
    """Every error has a message."""
    found = [one for one in traffic.exchanges if "error" in one.reply.body]
    need(found, "no error was seen")
    wrong = [
        one for one in found if not isinstance(one.reply.error.get("message"), str) or not one.reply.error["message"]
    ]
    expect(not wrong, f"{wrong[0].method}: {wrong[0].reply}" if wrong else "")


@shape.check(Level.SHOULD, "Input Required Status, note", Feature.TASKS, when=When.AFTER)
async def get_is_no_stream(traffic: Traffic) -> None:
    """tasks/get is answered by JSON, and not upgraded to an event stream: the client polls."""
    found = list(traffic.replies("tasks/get"))
    need(found, "no result of tasks/get was seen")
    streams = sum(one.reply.sse for one in found)
    expect(streams == 0, f"{streams} of {len(found)} were event streams")


@shape.check(Level.MUST, "Task Status Notification", Feature.TASKS, when=When.AFTER)
async def status_notification(traffic: Traffic) -> None:
    """notifications/tasks/status shows the whole task."""
    found = list(traffic.sent_by_server("notifications/tasks/status"))
    need(found, "the server sent none, which it need not")
    wrong = [one for one in found if not all(name in one.params for name in REQUIRED)]
    expect(not wrong, f"{len(wrong)} of {len(found)}; one of them: {shown(wrong[0].params)}" if wrong else "")


@shape.check(Level.SHOULD, "Task Notifications 3", Feature.TASKS, when=When.AFTER)
async def status_notification_without_meta(traffic: Traffic) -> None:
    """notifications/tasks/status carries no related-task metadata."""
    found = list(traffic.sent_by_server("notifications/tasks/status"))
    need(found, "the server sent none, which it need not")
    wrong = [one for one in found if related(one.params) is not None]
    expect(not wrong, f"{len(wrong)} of {len(found)} do")


def _by_task(traffic: Traffic) -> Mapping[str, Sequence[Sighting]]:
    tasks: dict[str, list[Sighting]] = defaultdict(list)
    for one in traffic.sightings():
        tasks[str(one.task.get("taskId"))].append(one)
    return tasks
