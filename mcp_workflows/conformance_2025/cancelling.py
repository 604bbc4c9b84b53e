"""tasks/cancel."""

from __future__ import annotations

import time

import anyio

from mcp_workflows.conformance_2025.check import (
    Feature,
    Level,
    Role,
    Scenario,
    ViolationError,
    expect,
    need,
)
from mcp_workflows.conformance_2025.site import Site, step
from mcp_workflows.conformance_2025.traffic import Reply, shown

INVALID_PARAMS = -32602
MARGIN = 1.5  # times the slow tool's time: by then its work would have ended

cancelling = Scenario(name="cancelling", title="Cancelling")


def _gone(reply: Reply) -> bool:
    """A receiver may delete what was cancelled."""
    return bool(reply.code == INVALID_PARAMS)


@cancelling.check(Level.MUST, "Cancelling Tasks", Feature.CANCEL, Role.LONG)
async def reply_shows_it(site: Site) -> None:
    """tasks/cancel answers with the task, which is cancelled."""
    async with site.session() as session:
        task_id = await site.create(session, Role.LONG)
        reply = await session.request("tasks/cancel", {"taskId": task_id})
    expect(reply.result.get("taskId") == task_id and reply.result.get("status") == "cancelled", str(reply))


@cancelling.check(Level.MUST, "Task Cancellation 2", Feature.CANCEL, Role.LONG)
async def before_the_reply(site: Site) -> None:
    """The task is cancelled before the reply is sent: tasks/get says so at once."""
    async with site.session() as session:
        seen = await session.request("tasks/get", {"taskId": await site.cancelled(session)})
    expect(_gone(seen) or seen.result.get("status") == "cancelled", str(seen))


@cancelling.check(Level.MUST, "Task Cancellation 3", Feature.CANCEL, Role.SLOW)
async def for_ever(site: Site) -> None:
    """A cancelled task stays cancelled, even when its work would have ended since."""
    async with site.session() as session:
        task_id = await site.cancelled(session, Role.SLOW)
        deadline = time.monotonic() + site.settings.seconds * MARGIN
        while time.monotonic() < deadline:
            seen = await session.request("tasks/get", {"taskId": task_id})
            expect(_gone(seen) or seen.result.get("status") == "cancelled", str(seen))
            await anyio.sleep(site.settings.poll)


@cancelling.check(Level.MUST, "Task Cancellation 1", Feature.CANCEL, Role.QUICK)
async def not_if_completed(site: Site) -> None:
    """A completed task cannot be cancelled: -32602."""
    await _refused(site, Role.QUICK)


@cancelling.check(Level.MUST, "Task Cancellation 1", Feature.CANCEL, Role.FAILS)
async def not_if_failed(site: Site) -> None:
    """A failed task cannot be cancelled: -32602."""
    await _refused(site, Role.FAILS)


@cancelling.check(Level.MUST, "Task Cancellation 1", Feature.CANCEL, Role.LONG)
async def not_twice(site: Site) -> None:
    """A cancelled task cannot be cancelled again: -32602."""
    async with site.session() as session:
        reply = await session.request("tasks/cancel", {"taskId": await site.cancelled(session)})
    expect(reply.code == INVALID_PARAMS, str(reply))


@cancelling.check(Level.MUST, "Result Retrieval 2", Feature.CANCEL, Role.LONG)
async def result_is_answered(site: Site) -> None:
    """tasks/result of a cancelled task is answered at once, by a result or an error."""
    async with site.session() as session:
        reply = await session.request("tasks/result", {"taskId": await site.cancelled(session)})
    expect(reply.body, str(reply))


@cancelling.check(Level.MUST, "Result Retrieval 3", Feature.CANCEL, Role.LONG)
async def waiting_result_is_answered(site: Site) -> None:
    """A tasks/result that waits is answered when the task is cancelled."""
    async with site.session() as session:
        task_id = await site.create(session, Role.LONG)
        waiting = await site.waiting(session, task_id)
        need(not waiting.done.is_set(), "tasks/result does not wait")
        await step(session, "tasks/cancel", {"taskId": task_id})
        reply = await waiting.reply(site.settings.patience)
    expect(reply.body, str(reply))


@cancelling.check(Level.MUST, "Task Status Lifecycle 2.2", Feature.CANCEL, Role.ASKS)
async def while_input_is_required(site: Site) -> None:
    """A task that waits for input can be cancelled."""
    async with site.session() as session:
        task_id = await site.create(session, Role.ASKS)
        await site.until(session, task_id, {"input_required"})
        reply = await session.request("tasks/cancel", {"taskId": task_id})
    expect(reply.result.get("status") == "cancelled", str(reply))


async def _refused(site: Site, role: Role) -> None:
    async with site.session() as session:
        task = await site.ended(session, role)
        reply = await session.request("tasks/cancel", {"taskId": task["taskId"]})
    if reply.code != INVALID_PARAMS:
        raise ViolationError(f"the task is {shown(task.get('status'))}: {reply}")
