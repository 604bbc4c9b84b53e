"""Checks of access to the tasks of another caller."""

from __future__ import annotations

from mcp_tasks_conformance.check import Feature, Level, Scenario, ToolRole, expect, skip_unless
from mcp_tasks_conformance.server_under_test import ServerUnderTest
from mcp_tasks_conformance.task_ids import UNKNOWN
from mcp_tasks_conformance.traffic import as_object

SECTION = "Task Isolation and Access Control"

isolation = Scenario(name="isolation", title="Isolation")


@isolation.check(Level.MUST, SECTION, Feature.SECOND_IDENTITY, ToolRole.QUICK)
async def get(server: ServerUnderTest) -> None:
    """tasks/get of another caller's task is refused."""
    await _expect_refusal(server, "tasks/get")


@isolation.check(Level.MUST, SECTION, Feature.SECOND_IDENTITY, ToolRole.QUICK)
async def result(server: ServerUnderTest) -> None:
    """tasks/result of another caller's task is refused."""
    await _expect_refusal(server, "tasks/result")


@isolation.check(Level.MUST, SECTION, Feature.SECOND_IDENTITY, Feature.CANCEL, ToolRole.LONG)
async def cancel(server: ServerUnderTest) -> None:
    """tasks/cancel of another caller's task is refused, and has no effect."""
    async with server.session() as mine, server.session(other=True) as theirs:
        task_id = await server.create_task(mine, ToolRole.LONG)
        reply = await theirs.request("tasks/cancel", {"taskId": task_id})
        status = await server.get_status(mine, task_id)
    expect("error" in reply.body and status != "cancelled", f"{reply}; the task is {status}")


@isolation.check(Level.MUST, SECTION, Feature.SECOND_IDENTITY, Feature.LIST, ToolRole.QUICK)
async def listed(server: ServerUnderTest) -> None:
    """tasks/list shows no tasks of other callers."""
    async with server.session() as mine, server.session(other=True) as theirs:
        task_id = await server.create_task(mine, ToolRole.QUICK)
        declared = "list" in as_object(as_object(theirs.initialize_result.get("capabilities")).get("tasks"))
        skip_unless(declared, "tasks.list is not declared to the other identity")
        listed_ids = {task.get("taskId") for page in await server.list_pages(theirs) for task in page}
    expect(task_id not in listed_ids, "the other identity sees it")


@isolation.check(Level.INTEROP, SECTION, Feature.SECOND_IDENTITY, ToolRole.QUICK)
async def looks_like_unknown(server: ServerUnderTest) -> None:
    """Another caller's task is refused in the same way as a task that does not exist."""
    async with server.session() as mine, server.session(other=True) as theirs:
        task_id = await server.create_task(mine, ToolRole.QUICK)
        foreign = await theirs.request("tasks/get", {"taskId": task_id})
        unknown = await theirs.request("tasks/get", {"taskId": UNKNOWN})
    errors = [str(reply.error).replace(task_id, "ID").replace(UNKNOWN, "ID") for reply in (foreign, unknown)]
    expect(errors[0] == errors[1], f"{foreign}, but {unknown}")


async def _expect_refusal(server: ServerUnderTest, method: str) -> None:
    async with server.session() as mine, server.session(other=True) as theirs:
        task_id = str((await server.run_to_end(mine, ToolRole.QUICK))["taskId"])
        reply = await theirs.request(method, {"taskId": task_id})
    expect("error" in reply.body, str(reply))
