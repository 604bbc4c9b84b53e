"""What becomes of a task, and how its result is fetched."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from mcp_workflows.conformance_2025.check import JSON, BlockedError, Level, Role, Scenario, expect, need
from mcp_workflows.conformance_2025.session import Session
from mcp_workflows.conformance_2025.site import Site, step
from mcp_workflows.conformance_2025.traffic import ENDED, RELATED, Reply, as_list, as_object, shown

SHORT: Final = 0.25  # of the slow tool's time: a reply within it cannot be its result

results = Scenario(name="results", title="Ends and results")


@results.check(Level.MUST, "Task Status", Role.SLOW)
async def completed(site: Site) -> None:
    """A task whose call succeeds is completed."""
    async with site.session() as session:
        task = await site.ended(session, Role.SLOW)
    expect(task.get("status") == "completed", shown(task))


@results.check(Level.MUST, "Result Retrieval 3", Role.SLOW)
async def blocks(site: Site) -> None:
    """tasks/result of a working task waits until the task has ended."""
    async with site.session() as session:
        task_id = await site.create(session, Role.SLOW)
        reply = await session.request("tasks/result", {"taskId": task_id})
        status = await site.status(session, task_id)
    expect(status in ENDED, f"it came while the task was {status}: {reply}")


@results.check(Level.MUST, "Result Retrieval 4", Role.QUICK)
async def same_as_the_plain_call(site: Site) -> None:
    """tasks/result returns exactly what the call without a task returns."""
    need(site.support(Role.QUICK) == "optional", "the tool of the role quick is not optional")
    async with site.session() as session:
        first, second = [await step(session, "tools/call", site.call(Role.QUICK)) for _ in range(2)]
        if "content" not in first.result:
            raise BlockedError(f"the call without a task: {first}")
        need(first.result == second.result, "two plain calls return different results; name another tool for quick")
        reply = await _result_of(site, session, Role.QUICK)
    plain, task = _bare(first), _bare(reply)
    expect(plain == task, f"the call returns {shown(plain)}, the task {shown(task)}")


@results.check(Level.MUST, "Result Retrieval 2", Role.QUICK)
async def again(site: Site) -> None:
    """tasks/result can be asked twice, and returns the same."""
    async with site.session() as session:
        task = await site.ended(session, Role.QUICK)
        first, second = [await session.request("tasks/result", {"taskId": task["taskId"]}) for _ in range(2)]
    expect(first.body.keys() == second.body.keys() and _bare(first) == _bare(second), f"{first}, then {second}")


@results.check(Level.MUST, "Result Retrieval 3", Role.SLOW)
async def two_at_once(site: Site) -> None:
    """Two tasks/result that wait at the same time both get the result."""
    async with site.session() as session:
        task_id = await site.create(session, Role.SLOW)
        waiting = [session.open("tasks/result", {"taskId": task_id}) for _ in range(2)]
        first, second = [await one.reply(site.settings.patience) for one in waiting]
    expect("content" in first.result and _bare(first) == _bare(second), f"{first} and {second}")


@results.check(Level.INTEROP, "Retrieving Task Results", Role.LONG)
async def others_are_served_meanwhile(site: Site) -> None:
    """While tasks/result waits, ping and tasks/get are answered."""
    async with site.session() as session:
        task_id = await site.create(session, Role.LONG)
        waiting = await site.waiting(session, task_id)
        ping = await session.request("ping")
        seen = await session.request("tasks/get", {"taskId": task_id})
        meanwhile = not waiting.done.is_set()
    expect("result" in ping.body and "status" in seen.result, f"ping: {ping}; tasks/get: {seen}")
    expect(meanwhile, "they were answered only after tasks/result")


@results.check(Level.MUST, "Result Retrieval 3", Role.SLOW)
async def after_a_lost_connection(site: Site) -> None:
    """A client that disconnects from tasks/result may ask again; the task goes on meanwhile."""
    async with site.session() as session:
        task_id = await site.create(session, Role.SLOW)
        (await site.waiting(session, task_id)).drop()
        reply = await session.request("tasks/result", {"taskId": task_id})
        status = await site.status(session, task_id)
    expect("content" in reply.result and status == "completed", f"the task is {status}: {reply}")


@results.check(Level.SHOULD, "Task Execution Errors", Role.FAILS)
async def is_error_is_failed(site: Site) -> None:
    """A task whose tool result has isError is failed."""
    async with site.session() as session:
        task = await site.ended(session, Role.FAILS)
    expect(task.get("status") == "failed", shown(task))


@results.check(Level.MUST, "Result Retrieval 4", Role.FAILS)
async def is_error_is_returned(site: Site) -> None:
    """tasks/result of such a task returns that result, with isError, and no JSON-RPC error."""
    async with site.session() as session:
        reply = await _result_of(site, session, Role.FAILS)
    expect(reply.result.get("isError") is True, str(reply))


@results.check(Level.SHOULD, "Task Execution Errors", Role.BREAKS)
async def error_is_failed(site: Site) -> None:
    """A task whose call ends with a JSON-RPC error is failed."""
    async with site.session() as session:
        task = await site.ended(session, Role.BREAKS)
    expect(task.get("status") == "failed", shown(task))


@results.check(Level.MUST, "Task Execution Errors", Role.BREAKS)
async def error_is_returned(site: Site) -> None:
    """tasks/result of such a task returns that same JSON-RPC error."""
    async with site.session() as session:
        reply = await _result_of(site, session, Role.BREAKS)
        optional = site.support(Role.BREAKS) == "optional"
        plain = (await step(session, "tools/call", site.call(Role.BREAKS))).error if optional else reply.error
    expect(isinstance(reply.code, int), str(reply))
    expect(reply.error == plain, f"the call ends with {shown(plain)}, the task with {shown(reply.error)}")


@results.check(Level.SHOULD, "Task Execution Errors", Role.FAILS)
async def failure_has_a_message(site: Site) -> None:
    """tasks/get of a failed task says why in statusMessage."""
    async with site.session() as session:
        tasks = [await site.ended(session, role) for role in (Role.FAILS, Role.BREAKS) if site.lacks(role) is None]
    wrong = [task for task in tasks if task.get("status") == "failed" and not task.get("statusMessage")]
    expect(not wrong, shown(wrong))


@results.check(Level.INTEROP, "Task Execution Errors", Role.FAILS)
async def failure_message_is_the_tools(site: Site) -> None:
    """statusMessage of a failed task holds the text of the tool: many clients show nothing else."""
    async with site.session() as session:
        task = await site.ended(session, Role.FAILS)
        reply = await step(session, "tasks/result", {"taskId": task["taskId"]})
    content = reply.result.get("content")
    text = next((as_object(one).get("text") for one in as_list(content)), None)
    need(isinstance(text, str), f"the tool's result has no text: {reply}")
    message = task.get("statusMessage")
    said = isinstance(message, str) and any(line in message for line in str(text).splitlines() if line.strip())
    expect(said, f"the tool says {shown(text)}, statusMessage is {shown(message)}")


@results.check(Level.INTEROP, "Task Isolation and Access Control", Role.QUICK)
async def in_another_session(site: Site) -> None:
    """The same caller finds a task again in a new session."""
    async with site.session() as session:
        task_id = await site.create(session, Role.QUICK)
    async with site.session() as session:
        reply = await session.request("tasks/get", {"taskId": task_id})
    expect(reply.result.get("taskId") == task_id, str(reply))


@results.check(Level.INTEROP, "Cancellation page", Role.SLOW)
async def not_cancelled_with_the_request(site: Site) -> None:
    """notifications/cancelled for the call that made the task does not end the task: tasks/cancel would."""
    async with site.session() as session:
        task_id = await site.create(session, Role.SLOW)
        await session.notify("notifications/cancelled", {"requestId": session.last_id, "reason": "conformance"})
        task = await site.until(session, task_id)
    expect(task.get("status") == "completed", shown(task))


async def _result_of(site: Site, session: Session, role: Role) -> Reply:
    task = await site.ended(session, role)
    began = time.monotonic()
    reply = await session.request("tasks/result", {"taskId": task["taskId"]})
    if not reply.body:
        raise BlockedError(f"tasks/result after {time.monotonic() - began:.1f} s: {reply}")
    return reply


def _bare(reply: Reply) -> Mapping[str, JSON]:
    """What a reply says, without what names the task; isError is false unless said."""
    if "error" in reply.body:
        return reply.error
    meta = {name: value for name, value in as_object(reply.result.get("_meta")).items() if name != RELATED}
    bare = {"isError": False, **{name: value for name, value in reply.result.items() if name != "_meta"}}
    return {**bare, "_meta": meta} if meta else bare
