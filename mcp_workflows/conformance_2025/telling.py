"""What the server tells while a task works: progress, and changes of status."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import anyio

from mcp_workflows.conformance_2025.check import JSON, Level, Role, Scenario, expect, need
from mcp_workflows.conformance_2025.session import Session
from mcp_workflows.conformance_2025.site import Site
from mcp_workflows.conformance_2025.traffic import Message, as_object, related, shown

QUIET = 0.5  # seconds to listen on after the end of a task

telling = Scenario(name="telling", title="Progress and status")


@telling.check(Level.MUST, "Progress page", Role.COUNTS)
async def progress_increases(site: Site) -> None:
    """Progress of a task has the token of its call, and every value is greater than the one before."""
    seen, _, _ = await _progress(site)
    values: Sequence[JSON] = [one.params.get("progress") for one in seen]
    numbers = [value for value in values if isinstance(value, int | float)]
    rising = all(before < after for before, after in pairwise(numbers))
    expect(rising and len(numbers) == len(values), f"the values are {shown(values)}")


@telling.check(Level.INTEROP, "Task Progress Notifications", Role.COUNTS)
async def progress_after_the_creation(site: Site) -> None:
    """The progress token stays valid after the CreateTaskResult: progress goes on to be told."""
    seen, created, _ = await _progress(site)
    expect(any(one.at > created for one in seen), "none came after the CreateTaskResult")


@telling.check(Level.MUST, "Progress page", Role.COUNTS)
async def progress_ends_with_the_task(site: Site) -> None:
    """No progress is told after the task has ended."""
    seen, _, ended = await _progress(site)
    late = [one for one in seen if one.at > ended]
    expect(not late, f"{len(late)} of {len(seen)} came later")


@telling.check(Level.MUST, "Associating Task-Related Messages 1", Role.COUNTS)
async def progress_names_the_task(site: Site) -> None:
    """Progress of a task names the task in _meta."""
    seen, _, _ = await _progress(site)
    wrong = [one for one in seen if related(one.params) is None]
    expect(not wrong, f"{len(wrong)} of {len(seen)} do not: {shown(wrong[0].params) if wrong else ''}")


@telling.check(Level.MAY, "Task Notifications 1", Role.SLOW)
async def status_is_notified(site: Site) -> None:
    """A client that listens is sent notifications/tasks/status when the task ends."""
    async with site.session() as session:
        need(await session.listen(), "the server has no stream for it: GET is refused")
        task_id = await site.create(session, Role.SLOW)
        await site.until(session, task_id)
        await anyio.sleep(QUIET)
        told = [one for one in session.inbox if one.method == "notifications/tasks/status"]
    ends = [one for one in told if one.params.get("taskId") == task_id and one.params.get("status") == "completed"]
    expect(ends, f"{len(told)} were sent, none of the end")


async def _progress(site: Site) -> tuple[Sequence[Message], float, float]:
    """The progress of one task; when it was created, and when its end was first seen."""
    token = "conformance-progress"  # noqa: S105  # of progress
    async with site.session() as session:
        await session.listen()
        task_id = await site.create(session, Role.COUNTS, _meta={"progressToken": token})
        created = time.monotonic()
        await site.until(session, task_id)
        ended = time.monotonic()
        await anyio.sleep(QUIET)
        seen = _of_progress(session)
    need(seen, "the server told no progress, which it need not")
    wrong = [one for one in seen if one.params.get("progressToken") != token]
    expect(not wrong, f"another token: {shown(wrong[0].params) if wrong else ''}")
    return seen, created, ended + site.settings.poll


def _of_progress(session: Session) -> Sequence[Message]:
    return [one for one in session.inbox if one.method == "notifications/progress" and as_object(one.body)]
