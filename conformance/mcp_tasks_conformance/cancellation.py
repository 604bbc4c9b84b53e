"""Checks of tasks/cancel."""

from __future__ import annotations

import time

import anyio

from mcp_tasks_conformance.check import (
    Feature,
    Level,
    Scenario,
    ToolRole,
    ViolationError,
    expect,
    skip_unless,
)
from mcp_tasks_conformance.server_under_test import ServerUnderTest, require_reply
from mcp_tasks_conformance.traffic import Reply, format_json

INVALID_PARAMS = -32602
MARGIN = 1.5  # times the duration of the slow tool: its work would have ended by then

cancellation = Scenario(name="cancelling", title="Cancelling")


@cancellation.check(Level.MUST, "Cancelling Tasks", Feature.CANCEL, ToolRole.LONG)
async def reply_shows_it(server: ServerUnderTest) -> None:
    """tasks/cancel returns the task with the status cancelled."""
    async with server.session() as session:
        task_id = await server.create_task(session, ToolRole.LONG)
        reply = await session.request("tasks/cancel", {"taskId": task_id})
    expect(reply.result.get("taskId") == task_id and reply.result.get("status") == "cancelled", str(reply))


@cancellation.check(Level.MUST, "Task Cancellation 2", Feature.CANCEL, ToolRole.LONG)
async def before_the_reply(server: ServerUnderTest) -> None:
    """The task is cancelled before the reply is sent: the next tasks/get shows it."""
    async with server.session() as session:
        reply = await session.request("tasks/get", {"taskId": await server.create_cancelled(session)})
    expect(_is_cancelled(reply), str(reply))


@cancellation.check(Level.MUST, "Task Cancellation 3", Feature.CANCEL, ToolRole.SLOW)
async def for_ever(server: ServerUnderTest) -> None:
    """A cancelled task stays cancelled, even after the time its work would have taken."""
    async with server.session() as session:
        task_id = await server.create_cancelled(session, ToolRole.SLOW)
        deadline = time.monotonic() + server.settings.slow_seconds * MARGIN
        while time.monotonic() < deadline:
            reply = await session.request("tasks/get", {"taskId": task_id})
            expect(_is_cancelled(reply), str(reply))
            await anyio.sleep(server.settings.poll_interval)


@cancellation.check(Level.MUST, "Task Cancellation 1", Feature.CANCEL, ToolRole.QUICK)
async def not_if_completed(server: ServerUnderTest) -> None:
    """A completed task cannot be cancelled: -32602."""
    await _expect_refusal(server, ToolRole.QUICK)


@cancellation.check(Level.MUST, "Task Cancellation 1", Feature.CANCEL, ToolRole.FAILS)
async def not_if_failed(server: ServerUnderTest) -> None:
    """A failed task cannot be cancelled: -32602."""
    await _expect_refusal(server, ToolRole.FAILS)


@cancellation.check(Level.MUST, "Task Cancellation 1", Feature.CANCEL, ToolRole.LONG)
async def not_twice(server: ServerUnderTest) -> None:
    """A cancelled task cannot be cancelled again: -32602."""
    async with server.session() as session:
        reply = await session.request("tasks/cancel", {"taskId": await server.create_cancelled(session)})
    expect(reply.code == INVALID_PARAMS, str(reply))


@cancellation.check(Level.MUST, "Result Retrieval 2", Feature.CANCEL, ToolRole.LONG)
async def result_is_answered(server: ServerUnderTest) -> None:
    """tasks/result of a cancelled task returns at once, with a result or an error."""
    async with server.session() as session:
        reply = await session.request("tasks/result", {"taskId": await server.create_cancelled(session)})
    expect(reply.body, str(reply))


@cancellation.check(Level.MUST, "Result Retrieval 3", Feature.CANCEL, ToolRole.LONG)
async def waiting_result_is_answered(server: ServerUnderTest) -> None:
    """A waiting tasks/result returns when the task is cancelled."""
    async with server.session() as session:
        task_id = await server.create_task(session, ToolRole.LONG)
        pending = await server.open_result(session, task_id)
        skip_unless(not pending.done.is_set(), "tasks/result does not wait")
        await require_reply(session, "tasks/cancel", {"taskId": task_id})
        reply = await pending.wait_for_reply(server.settings.timeout)
    expect(reply.body, str(reply))


@cancellation.check(Level.MUST, "Task Status Lifecycle 2.2", Feature.CANCEL, ToolRole.ASKS)
async def while_input_is_required(server: ServerUnderTest) -> None:
    """A task that waits for input can be cancelled."""
    async with server.session() as session:
        task_id = await server.create_task(session, ToolRole.ASKS)
        await server.wait_for_status(session, task_id, {"input_required"})
        reply = await session.request("tasks/cancel", {"taskId": task_id})
    expect(reply.result.get("status") == "cancelled", str(reply))


def _is_cancelled(reply: Reply) -> bool:
    """Return True if `tasks/get` shows a cancelled task, or none: a receiver may delete a cancelled task."""
    return bool(reply.code == INVALID_PARAMS) or reply.result.get("status") == "cancelled"


async def _expect_refusal(server: ServerUnderTest, role: ToolRole) -> None:
    async with server.session() as session:
        task = await server.run_to_end(session, role)
        reply = await session.request("tasks/cancel", {"taskId": task["taskId"]})
    if reply.code != INVALID_PARAMS:
        raise ViolationError(f"the task is {format_json(task.get('status'))}: {reply}")
