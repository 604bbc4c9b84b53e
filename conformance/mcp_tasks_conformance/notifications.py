"""Checks of progress and status notifications."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import anyio

from mcp_tasks_conformance.check import JSON, Level, Scenario, ToolRole, expect, skip_unless
from mcp_tasks_conformance.server_under_test import ServerUnderTest
from mcp_tasks_conformance.traffic import Message, format_json, related_task_id

QUIET = 0.5  # seconds to listen on after the end of a task

notifications = Scenario(name="telling", title="Progress and status")


@notifications.check(Level.MUST, "Progress page", ToolRole.COUNTS)
async def progress_increases(server: ServerUnderTest) -> None:
    """Progress of a task carries the progress token of its call, and every value is greater than the one before."""
    seen, _, _ = await _collect_progress(server)
    values: Sequence[JSON] = [one.params.get("progress") for one in seen]
    numbers = [value for value in values if isinstance(value, int | float)]
    rising = all(before < after for before, after in pairwise(numbers))
    expect(rising and len(numbers) == len(values), f"the values are {format_json(values)}")


@notifications.check(Level.INTEROP, "Task Progress Notifications", ToolRole.COUNTS)
async def progress_after_the_creation(server: ServerUnderTest) -> None:
    """The progress token stays valid after the CreateTaskResult: progress notifications continue."""
    seen, created, _ = await _collect_progress(server)
    expect(any(one.received_at > created for one in seen), "none came after the CreateTaskResult")


@notifications.check(Level.MUST, "Progress page", ToolRole.COUNTS)
async def progress_ends_with_the_task(server: ServerUnderTest) -> None:
    """No progress is notified after the task has ended."""
    seen, _, ended = await _collect_progress(server)
    late = [one for one in seen if one.received_at > ended]
    expect(not late, f"{len(late)} of {len(seen)} came later")


@notifications.check(Level.MUST, "Associating Task-Related Messages 1", ToolRole.COUNTS)
async def progress_names_the_task(server: ServerUnderTest) -> None:
    """Every progress notification of a task names the task in _meta."""
    seen, _, _ = await _collect_progress(server)
    wrong = [one for one in seen if related_task_id(one.params) is None]
    expect(not wrong, f"{len(wrong)} of {len(seen)} do not: {format_json(wrong[0].params) if wrong else ''}")


@notifications.check(Level.MAY, "Task Notifications 1", ToolRole.SLOW)
async def status_is_notified(server: ServerUnderTest) -> None:
    """A client with the GET stream open receives notifications/tasks/status when the task ends."""
    async with server.session() as session:
        skip_unless(await session.listen(), "the server has no stream for it: GET is refused")
        task_id = await server.create_task(session, ToolRole.SLOW)
        await server.wait_for_status(session, task_id)
        await anyio.sleep(QUIET)
        notified = [one for one in session.inbox if one.method == "notifications/tasks/status"]
    ends = [one for one in notified if one.params.get("taskId") == task_id and one.params.get("status") == "completed"]
    expect(ends, f"{len(notified)} were sent, none of the end")


async def _collect_progress(server: ServerUnderTest) -> tuple[Sequence[Message], float, float]:
    """Run a task, and return its progress notifications, and the times at which it was created and seen to end."""
    token = "conformance-progress"  # noqa: S105  # a progress token
    async with server.session() as session:
        await session.listen()
        task_id = await server.create_task(session, ToolRole.COUNTS, _meta={"progressToken": token})
        created = time.monotonic()
        await server.wait_for_status(session, task_id)
        ended = time.monotonic()
        await anyio.sleep(QUIET)
        seen = [one for one in session.inbox if one.method == "notifications/progress"]
    skip_unless(seen, "the server told no progress, which it need not")
    wrong = [one for one in seen if one.params.get("progressToken") != token]
    expect(not wrong, f"another token: {format_json(wrong[0].params) if wrong else ''}")
    return seen, created, ended + server.settings.poll_interval
