"""tasks/list."""

from __future__ import annotations

from mcp_workflows.conformance_2025.check import Feature, Level, Role, Scenario, When, expect, need
from mcp_workflows.conformance_2025.site import Site

INVALID_PARAMS = -32602
MANY = 5  # tasks that are made to be listed

listing = Scenario(name="listing", title="Listing")


@listing.check(Level.MUST, "Task Listing 4", Feature.LIST, Role.QUICK, when=When.ALONE)
async def shows_what_get_shows(site: Site) -> None:
    """Every task that tasks/get knows is on one of the pages of tasks/list."""
    async with site.session() as session:
        ids = {await site.create(session, Role.QUICK) for _ in range(MANY)}
        listed = {task.get("taskId") for page in await site.pages(session) for task in page}
        missing = ids - listed
        for task_id in missing:
            await site.seen(session, task_id)
    expect(not missing, f"{len(missing)} of {MANY} tasks are not listed")


@listing.check(Level.MUST, "Task Listing 2", Feature.LIST, Role.QUICK, when=When.ALONE)
async def next_cursor(site: Site) -> None:
    """A page has a nextCursor if there are more tasks, and it leads to other tasks."""
    async with site.session() as session:
        for _ in range(MANY):
            await site.create(session, Role.QUICK)
        pages = await site.pages(session)
    need(len(pages) > 1, f"one page was enough for {sum(map(len, pages))} tasks")
    first, second = ({task.get("taskId") for task in page} for page in pages[:2])
    expect(second and not first & second, "the second page shows tasks of the first, or none")


@listing.check(Level.INTEROP, "Listing Tasks", Feature.LIST, Role.QUICK, when=When.ALONE)
async def each_once(site: Site) -> None:
    """A task is on one page only."""
    async with site.session() as session:
        mine = {await site.create(session, Role.QUICK) for _ in range(MANY)}
        found = [task.get("taskId") for page in await site.pages(session) for task in page]
    twice = {one for one in mine if found.count(one) > 1}
    expect(not twice, f"{len(twice)} of {MANY} tasks are listed more than once")


@listing.check(Level.MUST, "Protocol Errors", Feature.LIST, when=When.ALONE)
async def bad_cursor(site: Site) -> None:
    """A cursor that the server never gave: -32602."""
    async with site.session() as session:
        reply = await session.request("tasks/list", {"cursor": "no-such-cursor"})
    expect(reply.code == INVALID_PARAMS, str(reply))
