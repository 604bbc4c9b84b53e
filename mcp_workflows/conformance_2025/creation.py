"""A call that becomes a task."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Final

import anyio

from mcp_workflows.conformance_2025.check import JSON, BlockedError, Level, Role, Scenario, expect, need
from mcp_workflows.conformance_2025.session import Session
from mcp_workflows.conformance_2025.site import Site
from mcp_workflows.conformance_2025.traffic import Reply, as_object, shown

DECADE: Final = 10 * 365 * 24 * 3_600_000  # in ms
HOUR: Final = 3_600_000
SECOND: Final = 1000
GRACE: Final = 5  # seconds an expired task may still be there
IDS: Final = 6
BITS: Final = 64  # what an id that nobody can guess holds at least, by its length and the letters seen
IMMEDIATE: Final = "io.modelcontextprotocol/model-immediate-response"

creation = Scenario(name="creation", title="Creating tasks")


@creation.check(Level.MUST, "Result Retrieval 1", Role.SLOW)
async def create_task_result(site: Site) -> None:
    """A task-augmented call is answered by a CreateTaskResult: the task in `task`."""
    async with site.session() as session:
        reply = await session.request("tools/call", site.call(Role.SLOW, task={}))
    expect(isinstance(reply.result.get("task"), dict), str(reply))


@creation.check(Level.INTEROP, "Creating Tasks", Role.QUICK)
async def without_the_result(site: Site) -> None:
    """The CreateTaskResult does not hold the result of the tool."""
    async with site.session() as session:
        result = (await _call(site, session, Role.QUICK)).result
    extra = sorted(result.keys() & {"content", "structuredContent", "isError"})
    expect(not extra, f"beside the task: {', '.join(extra)}")


@creation.check(Level.SHOULD, "Result Retrieval 1", Role.SLOW)
async def prompt(site: Site) -> None:
    """The CreateTaskResult comes at once, not when the work is done."""
    async with site.session() as session:
        began = time.monotonic()
        task_id = await site.create(session, Role.SLOW)
        created = time.monotonic() - began
        await site.until(session, task_id)
        total = time.monotonic() - began
    expect(created < total / 2, f"after {created:.1f} s of {total:.1f} s")


@creation.check(Level.MUST, "Task Status Lifecycle 1", Role.SLOW)
async def starts_working(site: Site) -> None:
    """A task begins with the status working."""
    async with site.session() as session:
        task = await _created(site, session, Role.SLOW)
    expect(task.get("status") == "working", f"it begins with {shown(task.get('status'))}")


@creation.check(Level.MUST, "Task ID Requirements 1", Role.QUICK)
async def id_is_a_string(site: Site) -> None:
    """The task id is a string, and not empty."""
    async with site.session() as session:
        task_id = (await _created(site, session, Role.QUICK)).get("taskId")
    expect(isinstance(task_id, str) and task_id, f"taskId is {shown(task_id)}")


@creation.check(Level.MUST, "Task ID Requirements 2", Role.QUICK)
async def id_is_the_receivers(site: Site) -> None:
    """The receiver makes the task id up, whatever the requestor proposes."""
    proposed = f"proposed-{os.urandom(8).hex()}"
    async with site.session() as session:
        reply = await _call(site, session, Role.QUICK, task={"taskId": proposed})
    expect(as_object(reply.result.get("task")).get("taskId") != proposed, "it took the id of the requestor")


@creation.check(Level.MUST, "Task ID Requirements 3", Role.QUICK)
async def ids_are_unique(site: Site) -> None:
    """Tasks that are created at the same time have different ids."""
    ids = await _ids(site)
    expect(len(set(ids)) == len(ids), f"{len(ids)} tasks have {len(set(ids))} ids")


@creation.check(Level.MUST, "Task Isolation and Access Control", Role.QUICK)
async def ids_cannot_be_guessed(site: Site) -> None:
    """Where callers are anonymous, a task id is random enough that nobody guesses it."""
    need(not site.settings.headers, "this caller has credentials: --header")
    ids = sorted(await _ids(site))
    differing = ["".join(letters) for letters in zip(*ids, strict=False) if len(set(letters)) > 1]  # by place
    bits = len(differing) * math.log2(max(len(set("".join(differing))), 1))
    expect(bits >= BITS, f"ids such as {shown(ids[0])} differ in about {bits:.0f} bits, at least {BITS} are wanted")


@creation.check(Level.INTEROP, "Getting Tasks", Role.SLOW)
async def known_at_once(site: Site) -> None:
    """tasks/get knows the task as soon as its id is told, and shows the same task."""
    async with site.session() as session:
        task = await _created(site, session, Role.SLOW)
        seen = await session.request("tasks/get", {"taskId": task.get("taskId")})
    same = all(seen.result.get(name) == task.get(name) for name in ("taskId", "createdAt"))
    expect(same, f"created as {shown(task)}, then {seen}")


@creation.check(Level.MAY, "TTL and Resource Management 3", Role.QUICK)
async def ttl_honoured(site: Site) -> None:
    """A requested ttl of one hour is taken as it is; receivers may override it."""
    async with site.session() as session:
        task = await _created(site, session, Role.QUICK, task={"ttl": HOUR})
    expect(task.get("ttl") == HOUR, f"overridden: {shown(task.get('ttl'))} ms")


@creation.check(Level.MUST, "TTL and Resource Management 4", Role.QUICK)
async def ttl_actual(site: Site) -> None:
    """tasks/get shows the ttl that the task was created with."""
    async with site.session() as session:
        task = await _created(site, session, Role.QUICK, task={"ttl": HOUR})
        seen = await site.seen(session, str(task.get("taskId")))
    expect(seen.get("ttl", "none") == task.get("ttl"), f"{shown(task.get('ttl'))}, then {shown(seen.get('ttl'))}")


@creation.check(Level.SHOULD, "Resource Management 1.2", Role.QUICK)
async def ttl_has_a_maximum(site: Site) -> None:
    """A ttl of ten years is cut down or refused."""
    async with site.session() as session:
        reply = await session.request("tools/call", site.call(Role.QUICK, task={"ttl": DECADE}))
    ttl = as_object(reply.result.get("task")).get("ttl")
    expect("error" in reply.body or (isinstance(ttl, int | float) and ttl < DECADE), f"the ttl is {shown(ttl)}")


@creation.check(Level.SHOULD, "Resource Management 1.3", Role.QUICK)
async def expired_tasks_go(site: Site) -> None:
    """A task whose ttl is over is soon deleted: -32602."""
    async with site.session() as session:
        task = await _created(site, session, Role.QUICK, task={"ttl": SECOND})
        ttl = task.get("ttl")
        need(isinstance(ttl, int | float) and ttl <= 2 * SECOND, f"a ttl of 1 s is overridden: {shown(ttl)} ms")
        deadline = time.monotonic() + 2 + min(GRACE, site.settings.patience)
        while (reply := await session.request("tasks/get", {"taskId": task.get("taskId")})).code != -32602:
            expect(time.monotonic() < deadline, f"it is still there: {reply}")
            await anyio.sleep(site.settings.poll)


@creation.check(Level.INTEROP, "Task Parameters", Role.QUICK)
async def ttl_must_be_a_number(site: Site) -> None:
    """A ttl that is no number is refused with -32602, or replaced by one."""
    async with site.session() as session:
        reply = await session.request("tools/call", site.call(Role.QUICK, task={"ttl": "long"}))
    ttl = as_object(reply.result.get("task")).get("ttl", "none")
    expect(reply.code == -32602 or ttl is None or isinstance(ttl, int | float), str(reply))


@creation.check(Level.SHOULD, "Creating Tasks, note", Role.QUICK)
async def immediate_response(site: Site) -> None:
    """What the model is to be told meanwhile, io.modelcontextprotocol/model-immediate-response, is a string."""
    async with site.session() as session:
        meta = as_object((await _call(site, session, Role.QUICK)).result.get("_meta"))
    need(IMMEDIATE in meta, "the server sends none, which it need not")
    expect(isinstance(meta[IMMEDIATE], str), f"it is {shown(meta[IMMEDIATE])}")


async def _call(site: Site, session: Session, role: Role, **params: JSON) -> Reply:
    reply = await session.request("tools/call", site.call(role, **{"task": {}, **params}))
    if "result" not in reply.body:
        raise BlockedError(f"the call is refused: {reply}")
    return reply


async def _created(site: Site, session: Session, role: Role, **params: JSON) -> Mapping[str, JSON]:
    reply = await _call(site, session, role, **params)
    if "task" not in reply.result:
        raise BlockedError(f"no task: {reply}")
    return as_object(reply.result["task"])


async def _ids(site: Site) -> Sequence[str]:
    async with site.session() as session:
        calls = [session.open("tools/call", site.call(Role.QUICK, task={})) for _ in range(IDS)]
        tasks = [as_object((await call.reply(site.settings.patience)).result.get("task")) for call in calls]
    if not all("taskId" in task for task in tasks):
        raise BlockedError(f"not every call became a task: {shown(tasks)}")
    return [str(task["taskId"]) for task in tasks]
