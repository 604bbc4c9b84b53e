"""Checks of tasks/list."""

from __future__ import annotations

from mcp_tasks_conformance.check import Feature, Level, Phase, Scenario, ToolRole, expect, skip_unless
from mcp_tasks_conformance.server_under_test import ServerUnderTest

INVALID_PARAMS = -32602
MANY = 5  # tasks that are made to be listed

task_list = Scenario(name="listing", title="Listing")


@task_list.check(Level.MUST, "Task Listing 4", Feature.LIST, ToolRole.QUICK, phase=Phase.SEQUENTIAL)
async def shows_what_get_shows(server: ServerUnderTest) -> None:
    """Every task that tasks/get finds is on a page of tasks/list."""
    async with server.session() as session:
        ids = {await server.create_task(session, ToolRole.QUICK) for _ in range(MANY)}
        listed = {task.get("taskId") for page in await server.list_pages(session) for task in page}
        missing = ids - listed
        for task_id in missing:
            await server.get_task(session, task_id)
    expect(not missing, f"{len(missing)} of {MANY} tasks are not listed")


@task_list.check(Level.MUST, "Task Listing 2", Feature.LIST, ToolRole.QUICK, phase=Phase.SEQUENTIAL)
async def next_cursor(server: ServerUnderTest) -> None:
    """A page has a nextCursor if there are more tasks, and the next page shows other tasks."""
    async with server.session() as session:
        for _ in range(MANY):
            await server.create_task(session, ToolRole.QUICK)
        pages = await server.list_pages(session)
    skip_unless(len(pages) > 1, f"one page was enough for {sum(map(len, pages))} tasks")
    first, second = ({task.get("taskId") for task in page} for page in pages[:2])
    expect(second and not first & second, "the second page shows tasks of the first, or none")


@task_list.check(Level.INTEROP, "Listing Tasks", Feature.LIST, ToolRole.QUICK, phase=Phase.SEQUENTIAL)
async def each_once(server: ServerUnderTest) -> None:
    """A task is on one page only."""
    async with server.session() as session:
        mine = {await server.create_task(session, ToolRole.QUICK) for _ in range(MANY)}
        found = [task.get("taskId") for page in await server.list_pages(session) for task in page]
    twice = {one for one in mine if found.count(one) > 1}
    expect(not twice, f"{len(twice)} of {MANY} tasks are listed more than once")


@task_list.check(Level.MUST, "Protocol Errors", Feature.LIST, phase=Phase.SEQUENTIAL)
async def bad_cursor(server: ServerUnderTest) -> None:
    """A cursor that the server did not issue is refused: -32602."""
    async with server.session() as session:
        reply = await session.request("tasks/list", {"cursor": "no-such-cursor"})
    expect(reply.code == INVALID_PARAMS, str(reply))
