"""Checks of calls that create a task."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Final

import anyio

from mcp_tasks_conformance.check import JSON, BlockedError, Level, Scenario, ToolRole, expect, skip_unless
from mcp_tasks_conformance.server_under_test import ServerUnderTest
from mcp_tasks_conformance.session import ClientSession
from mcp_tasks_conformance.traffic import Reply, as_object, format_json

DECADE: Final = 10 * 365 * 24 * 3_600_000  # in ms
HOUR: Final = 3_600_000
SECOND: Final = 1000
GRACE: Final = 5  # seconds after its ttl in which a task may still exist
IDS: Final = 6  # to compare
BITS: Final = 64  # of randomness in an id, estimated from its length and alphabet
IMMEDIATE: Final = "io.modelcontextprotocol/model-immediate-response"

creation = Scenario(name="creation", title="Creating tasks")


@creation.check(Level.MUST, "Result Retrieval 1", ToolRole.SLOW)
async def create_task_result(server: ServerUnderTest) -> None:
    """A task-augmented call returns a CreateTaskResult, with the task in `task`."""
    async with server.session() as session:
        reply = await session.request("tools/call", server.call_params(ToolRole.SLOW, task={}))
    expect(isinstance(reply.result.get("task"), dict), str(reply))


@creation.check(Level.INTEROP, "Creating Tasks", ToolRole.QUICK)
async def without_the_result(server: ServerUnderTest) -> None:
    """The CreateTaskResult does not contain the result of the tool."""
    async with server.session() as session:
        result = (await _call_as_task(server, session, ToolRole.QUICK)).result
    extra = sorted(result.keys() & {"content", "structuredContent", "isError"})
    expect(not extra, f"beside the task: {', '.join(extra)}")


@creation.check(Level.SHOULD, "Result Retrieval 1", ToolRole.SLOW)
async def prompt(server: ServerUnderTest) -> None:
    """The CreateTaskResult is sent at once, not when the tool has finished."""
    async with server.session() as session:
        began = time.monotonic()
        task_id = await server.create_task(session, ToolRole.SLOW)
        created = time.monotonic() - began
        await server.wait_for_status(session, task_id)
        total = time.monotonic() - began
    expect(created < total / 2, f"after {created:.1f} s of {total:.1f} s")


@creation.check(Level.MUST, "Task Status Lifecycle 1", ToolRole.SLOW)
async def starts_working(server: ServerUnderTest) -> None:
    """A task begins with the status working."""
    async with server.session() as session:
        task = await _create(server, session, ToolRole.SLOW)
    expect(task.get("status") == "working", f"it begins with {format_json(task.get('status'))}")


@creation.check(Level.MUST, "Task ID Requirements 1", ToolRole.QUICK)
async def id_is_a_string(server: ServerUnderTest) -> None:
    """The task id is a non-empty string."""
    async with server.session() as session:
        task_id = (await _create(server, session, ToolRole.QUICK)).get("taskId")
    expect(isinstance(task_id, str) and task_id, f"taskId is {format_json(task_id)}")


@creation.check(Level.MUST, "Task ID Requirements 2", ToolRole.QUICK)
async def id_is_the_receivers(server: ServerUnderTest) -> None:
    """The receiver generates the task id, and ignores one that the requestor proposes."""
    proposed = f"proposed-{os.urandom(8).hex()}"
    async with server.session() as session:
        reply = await _call_as_task(server, session, ToolRole.QUICK, task={"taskId": proposed})
    expect(as_object(reply.result.get("task")).get("taskId") != proposed, "it took the id of the requestor")


@creation.check(Level.MUST, "Task ID Requirements 3", ToolRole.QUICK)
async def ids_are_unique(server: ServerUnderTest) -> None:
    """Tasks that are created at the same time have different ids."""
    ids = await _create_ids(server)
    expect(len(set(ids)) == len(ids), f"{len(ids)} tasks have {len(set(ids))} ids")


@creation.check(Level.MUST, "Task Isolation and Access Control", ToolRole.QUICK)
async def ids_cannot_be_guessed(server: ServerUnderTest) -> None:
    """Where callers are anonymous, task ids are too random to guess."""
    skip_unless(not server.settings.headers, "this caller has credentials: --header")
    ids = sorted(await _create_ids(server))
    differing = ["".join(letters) for letters in zip(*ids, strict=False) if len(set(letters)) > 1]  # by place
    bits = len(differing) * math.log2(max(len(set("".join(differing))), 1))
    expect(
        bits >= BITS, f"ids such as {format_json(ids[0])} differ in about {bits:.0f} bits, at least {BITS} are wanted"
    )


@creation.check(Level.INTEROP, "Getting Tasks", ToolRole.SLOW)
async def known_at_once(server: ServerUnderTest) -> None:
    """tasks/get finds the task as soon as the CreateTaskResult is received, and returns the same task."""
    async with server.session() as session:
        task = await _create(server, session, ToolRole.SLOW)
        reply = await session.request("tasks/get", {"taskId": task.get("taskId")})
    same = all(reply.result.get(name) == task.get(name) for name in ("taskId", "createdAt"))
    expect(same, f"created as {format_json(task)}, then {reply}")


@creation.check(Level.MAY, "TTL and Resource Management 3", ToolRole.QUICK)
async def ttl_honoured(server: ServerUnderTest) -> None:
    """A requested ttl of one hour is granted unchanged; a receiver may override it."""
    async with server.session() as session:
        task = await _create(server, session, ToolRole.QUICK, task={"ttl": HOUR})
    expect(task.get("ttl") == HOUR, f"overridden: {format_json(task.get('ttl'))} ms")


@creation.check(Level.MUST, "TTL and Resource Management 4", ToolRole.QUICK)
async def ttl_actual(server: ServerUnderTest) -> None:
    """tasks/get returns the ttl of the CreateTaskResult."""
    async with server.session() as session:
        task = await _create(server, session, ToolRole.QUICK, task={"ttl": HOUR})
        ttl = (await server.get_task(session, str(task.get("taskId")))).get("ttl", "none")
    expect(ttl == task.get("ttl"), f"{format_json(task.get('ttl'))}, then {format_json(ttl)}")


@creation.check(Level.SHOULD, "Resource Management 1.2", ToolRole.QUICK)
async def ttl_has_a_maximum(server: ServerUnderTest) -> None:
    """A ttl of ten years is reduced or refused."""
    async with server.session() as session:
        reply = await session.request("tools/call", server.call_params(ToolRole.QUICK, task={"ttl": DECADE}))
    ttl = as_object(reply.result.get("task")).get("ttl")
    expect("error" in reply.body or (isinstance(ttl, int | float) and ttl < DECADE), f"the ttl is {format_json(ttl)}")


@creation.check(Level.SHOULD, "Resource Management 1.3", ToolRole.QUICK)
async def expired_tasks_go(server: ServerUnderTest) -> None:
    """A task is deleted soon after its ttl has elapsed: -32602."""
    async with server.session() as session:
        task = await _create(server, session, ToolRole.QUICK, task={"ttl": SECOND})
        ttl = task.get("ttl")
        skip_unless(
            isinstance(ttl, int | float) and ttl <= 2 * SECOND, f"a ttl of 1 s is overridden: {format_json(ttl)} ms"
        )
        deadline = time.monotonic() + 2 + min(GRACE, server.settings.timeout)
        while (reply := await session.request("tasks/get", {"taskId": task.get("taskId")})).code != -32602:
            expect(time.monotonic() < deadline, f"it is still there: {reply}")
            await anyio.sleep(server.settings.poll_interval)


@creation.check(Level.INTEROP, "Task Parameters", ToolRole.QUICK)
async def ttl_must_be_a_number(server: ServerUnderTest) -> None:
    """A ttl that is not a number is refused with -32602, or replaced by a valid one."""
    async with server.session() as session:
        reply = await session.request("tools/call", server.call_params(ToolRole.QUICK, task={"ttl": "long"}))
    ttl = as_object(reply.result.get("task")).get("ttl", "none")
    expect(reply.code == -32602 or ttl is None or isinstance(ttl, int | float), str(reply))


@creation.check(Level.SHOULD, "Creating Tasks, note", ToolRole.QUICK)
async def immediate_response(server: ServerUnderTest) -> None:
    """The interim message for the model, io.modelcontextprotocol/model-immediate-response, is a string."""
    async with server.session() as session:
        meta = as_object((await _call_as_task(server, session, ToolRole.QUICK)).result.get("_meta"))
    skip_unless(IMMEDIATE in meta, "the server sends none, which it need not")
    expect(isinstance(meta[IMMEDIATE], str), f"it is {format_json(meta[IMMEDIATE])}")


async def _call_as_task(server: ServerUnderTest, session: ClientSession, role: ToolRole, **params: JSON) -> Reply:
    reply = await session.request("tools/call", server.call_params(role, **{"task": {}, **params}))
    if "result" not in reply.body:
        raise BlockedError(f"the call is refused: {reply}")
    return reply


async def _create(
    server: ServerUnderTest, session: ClientSession, role: ToolRole, **params: JSON
) -> Mapping[str, JSON]:
    reply = await _call_as_task(server, session, role, **params)
    if "task" not in reply.result:
        raise BlockedError(f"no task: {reply}")
    return as_object(reply.result["task"])


async def _create_ids(server: ServerUnderTest) -> Sequence[str]:
    async with server.session() as session:
        calls = [session.start_request("tools/call", server.call_params(ToolRole.QUICK, task={})) for _ in range(IDS)]
        tasks = [as_object((await call.wait_for_reply(server.settings.timeout)).result.get("task")) for call in calls]
    if not all("taskId" in task for task in tasks):
        raise BlockedError(f"not every call became a task: {format_json(tasks)}")
    return [str(task["taskId"]) for task in tasks]
