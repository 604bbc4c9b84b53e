"""Checks of the final status of a task, and of tasks/result."""

from __future__ import annotations

import time
from collections.abc import Mapping

from mcp_tasks_conformance.check import JSON, BlockedError, Level, Scenario, ToolRole, expect, skip_unless
from mcp_tasks_conformance.server_under_test import ServerUnderTest, require_reply
from mcp_tasks_conformance.session import ClientSession
from mcp_tasks_conformance.traffic import RELATED_TASK, TERMINAL, Reply, as_list, as_object, format_json

results = Scenario(name="results", title="Ends and results")


@results.check(Level.MUST, "Task Status", ToolRole.SLOW)
async def completed(server: ServerUnderTest) -> None:
    """A task whose call succeeds is completed."""
    async with server.session() as session:
        task = await server.run_to_end(session, ToolRole.SLOW)
    expect(task.get("status") == "completed", format_json(task))


@results.check(Level.MUST, "Result Retrieval 3", ToolRole.SLOW)
async def blocks(server: ServerUnderTest) -> None:
    """tasks/result of a working task waits until the task has ended."""
    async with server.session() as session:
        task_id = await server.create_task(session, ToolRole.SLOW)
        reply = await session.request("tasks/result", {"taskId": task_id})
        status = await server.get_status(session, task_id)
    expect(status in TERMINAL, f"it came while the task was {status}: {reply}")


@results.check(Level.MUST, "Result Retrieval 4", ToolRole.QUICK)
async def same_as_the_plain_call(server: ServerUnderTest) -> None:
    """tasks/result returns exactly the result of the call without a task."""
    skip_unless(server.task_support(ToolRole.QUICK) == "optional", "the tool of the role quick is not optional")
    async with server.session() as session:
        first, second = [
            await require_reply(session, "tools/call", server.call_params(ToolRole.QUICK)) for _ in range(2)
        ]
        if "content" not in first.result:
            raise BlockedError(f"the call without a task: {first}")
        skip_unless(
            first.result == second.result, "two plain calls return different results; name another tool for quick"
        )
        reply = await _fetch_result(server, session, ToolRole.QUICK)
    plain, task = _normalize(first), _normalize(reply)
    expect(plain == task, f"the call returns {format_json(plain)}, the task {format_json(task)}")


@results.check(Level.MUST, "Result Retrieval 2", ToolRole.QUICK)
async def again(server: ServerUnderTest) -> None:
    """A second tasks/result returns the same as the first."""
    async with server.session() as session:
        task = await server.run_to_end(session, ToolRole.QUICK)
        first, second = [await session.request("tasks/result", {"taskId": task["taskId"]}) for _ in range(2)]
    expect(
        first.body.keys() == second.body.keys() and _normalize(first) == _normalize(second), f"{first}, then {second}"
    )


@results.check(Level.MUST, "Result Retrieval 3", ToolRole.SLOW)
async def two_at_once(server: ServerUnderTest) -> None:
    """Two tasks/result that wait at the same time both return the result."""
    async with server.session() as session:
        task_id = await server.create_task(session, ToolRole.SLOW)
        waiting = [session.start_request("tasks/result", {"taskId": task_id}) for _ in range(2)]
        first, second = [await one.wait_for_reply(server.settings.timeout) for one in waiting]
    expect("content" in first.result and _normalize(first) == _normalize(second), f"{first} and {second}")


@results.check(Level.INTEROP, "Retrieving Task Results", ToolRole.LONG)
async def others_are_served_meanwhile(server: ServerUnderTest) -> None:
    """While tasks/result waits, the server answers ping and tasks/get."""
    async with server.session() as session:
        task_id = await server.create_task(session, ToolRole.LONG)
        waiting = await server.open_result(session, task_id)
        ping = await session.request("ping")
        seen = await session.request("tasks/get", {"taskId": task_id})
        meanwhile = not waiting.done.is_set()
    expect("result" in ping.body and "status" in seen.result, f"ping: {ping}; tasks/get: {seen}")
    expect(meanwhile, "they were answered only after tasks/result")


@results.check(Level.MUST, "Result Retrieval 3", ToolRole.SLOW)
async def after_a_lost_connection(server: ServerUnderTest) -> None:
    """After a client disconnects from tasks/result the task continues, and the next tasks/result returns its result."""
    async with server.session() as session:
        task_id = await server.create_task(session, ToolRole.SLOW)
        (await server.open_result(session, task_id)).disconnect()
        reply = await session.request("tasks/result", {"taskId": task_id})
        status = await server.get_status(session, task_id)
    expect("content" in reply.result and status == "completed", f"the task is {status}: {reply}")


@results.check(Level.SHOULD, "Task Execution Errors", ToolRole.FAILS)
async def is_error_is_failed(server: ServerUnderTest) -> None:
    """A task whose tool result has isError true is failed."""
    async with server.session() as session:
        task = await server.run_to_end(session, ToolRole.FAILS)
    expect(task.get("status") == "failed", format_json(task))


@results.check(Level.MUST, "Result Retrieval 4", ToolRole.FAILS)
async def is_error_is_returned(server: ServerUnderTest) -> None:
    """tasks/result of a task whose tool result has isError true returns that result, and no JSON-RPC error."""
    async with server.session() as session:
        reply = await _fetch_result(server, session, ToolRole.FAILS)
    expect(reply.result.get("isError") is True, str(reply))


@results.check(Level.SHOULD, "Task Execution Errors", ToolRole.BREAKS)
async def error_is_failed(server: ServerUnderTest) -> None:
    """A task whose call ends with a JSON-RPC error is failed."""
    async with server.session() as session:
        task = await server.run_to_end(session, ToolRole.BREAKS)
    expect(task.get("status") == "failed", format_json(task))


@results.check(Level.MUST, "Task Execution Errors", ToolRole.BREAKS)
async def error_is_returned(server: ServerUnderTest) -> None:
    """tasks/result of a task whose call ends with a JSON-RPC error returns the same error."""
    async with server.session() as session:
        reply = await _fetch_result(server, session, ToolRole.BREAKS)
        optional = server.task_support(ToolRole.BREAKS) == "optional"
        plain = (
            (await require_reply(session, "tools/call", server.call_params(ToolRole.BREAKS))).error
            if optional
            else reply.error
        )
    expect(isinstance(reply.code, int), str(reply))
    expect(reply.error == plain, f"the call ends with {format_json(plain)}, the task with {format_json(reply.error)}")


@results.check(Level.SHOULD, "Task Execution Errors", ToolRole.FAILS)
async def failure_has_a_message(server: ServerUnderTest) -> None:
    """tasks/get of a failed task gives the reason in statusMessage."""
    async with server.session() as session:
        tasks = [
            await server.run_to_end(session, role)
            for role in (ToolRole.FAILS, ToolRole.BREAKS)
            if server.skip_reason(role) is None
        ]
    wrong = [task for task in tasks if task.get("status") == "failed" and not task.get("statusMessage")]
    expect(not wrong, format_json(wrong))


@results.check(Level.INTEROP, "Task Execution Errors", ToolRole.FAILS)
async def failure_message_is_the_tools(server: ServerUnderTest) -> None:
    """statusMessage of a failed task contains the text of the tool's result: many clients show nothing else."""
    async with server.session() as session:
        task = await server.run_to_end(session, ToolRole.FAILS)
        reply = await require_reply(session, "tasks/result", {"taskId": task["taskId"]})
    content = reply.result.get("content")
    text = next((as_object(one).get("text") for one in as_list(content)), None)
    skip_unless(isinstance(text, str), f"the tool's result has no text: {reply}")
    message = task.get("statusMessage")
    said = isinstance(message, str) and any(line in message for line in str(text).splitlines() if line.strip())
    expect(said, f"the tool says {format_json(text)}, statusMessage is {format_json(message)}")


@results.check(Level.INTEROP, "Task Isolation and Access Control", ToolRole.QUICK)
async def in_another_session(server: ServerUnderTest) -> None:
    """The same caller can read a task in a new session."""
    async with server.session() as session:
        task_id = await server.create_task(session, ToolRole.QUICK)
    async with server.session() as session:
        reply = await session.request("tasks/get", {"taskId": task_id})
    expect(reply.result.get("taskId") == task_id, str(reply))


@results.check(Level.INTEROP, "Cancellation page", ToolRole.SLOW)
async def not_cancelled_with_the_request(server: ServerUnderTest) -> None:
    """notifications/cancelled for the call that created the task does not end the task; only tasks/cancel does."""
    async with server.session() as session:
        task_id = await server.create_task(session, ToolRole.SLOW)
        await session.notify("notifications/cancelled", {"requestId": session.last_id, "reason": "conformance"})
        task = await server.wait_for_status(session, task_id)
    expect(task.get("status") == "completed", format_json(task))


async def _fetch_result(server: ServerUnderTest, session: ClientSession, role: ToolRole) -> Reply:
    task = await server.run_to_end(session, role)
    began = time.monotonic()
    reply = await session.request("tasks/result", {"taskId": task["taskId"]})
    if not reply.body:
        raise BlockedError(f"tasks/result after {time.monotonic() - began:.1f} s: {reply}")
    return reply


def _normalize(reply: Reply) -> Mapping[str, JSON]:
    """Return the error, or the result without its related task and with isError explicit."""
    if "error" in reply.body:
        return reply.error
    meta = {name: value for name, value in as_object(reply.result.get("_meta")).items() if name != RELATED_TASK}
    rest = {"isError": False, **{name: value for name, value in reply.result.items() if name != "_meta"}}
    return {**rest, "_meta": meta} if meta else rest
