"""Tasks of one caller, looked at by another."""

from __future__ import annotations

from mcp_workflows.conformance_2025.check import Feature, Level, Role, Scenario, expect, need
from mcp_workflows.conformance_2025.refusing import UNKNOWN
from mcp_workflows.conformance_2025.site import Site
from mcp_workflows.conformance_2025.traffic import as_object

SECTION = "Task Isolation and Access Control"

isolation = Scenario(name="isolation", title="Isolation")


@isolation.check(Level.MUST, SECTION, Feature.OTHER, Role.QUICK)
async def get(site: Site) -> None:
    """tasks/get of somebody else's task is refused."""
    await _refused(site, "tasks/get")


@isolation.check(Level.MUST, SECTION, Feature.OTHER, Role.QUICK)
async def result(site: Site) -> None:
    """tasks/result of somebody else's task is refused."""
    await _refused(site, "tasks/result")


@isolation.check(Level.MUST, SECTION, Feature.OTHER, Feature.CANCEL, Role.LONG)
async def cancel(site: Site) -> None:
    """tasks/cancel of somebody else's task is refused, and does nothing."""
    async with site.session() as mine, site.session(other=True) as theirs:
        task_id = await site.create(mine, Role.LONG)
        reply = await theirs.request("tasks/cancel", {"taskId": task_id})
        status = await site.status(mine, task_id)
    expect("error" in reply.body and status != "cancelled", f"{reply}; the task is {status}")


@isolation.check(Level.MUST, SECTION, Feature.OTHER, Feature.LIST, Role.QUICK)
async def listed(site: Site) -> None:
    """tasks/list shows nobody else's tasks."""
    async with site.session() as mine, site.session(other=True) as theirs:
        task_id = await site.create(mine, Role.QUICK)
        declared = "list" in as_object(as_object(theirs.initialized.get("capabilities")).get("tasks"))
        need(declared, "tasks.list is not declared to the other identity")
        shown = {task.get("taskId") for page in await site.pages(theirs) for task in page}
    expect(task_id not in shown, "the other identity sees it")


@isolation.check(Level.INTEROP, SECTION, Feature.OTHER, Role.QUICK)
async def looks_like_unknown(site: Site) -> None:
    """Somebody else's task is refused just as one that never was."""
    async with site.session() as mine, site.session(other=True) as theirs:
        task_id = await site.create(mine, Role.QUICK)
        foreign = await theirs.request("tasks/get", {"taskId": task_id})
        unknown = await theirs.request("tasks/get", {"taskId": UNKNOWN})
    told = [str(reply.error).replace(task_id, "ID").replace(UNKNOWN, "ID") for reply in (foreign, unknown)]
    expect(told[0] == told[1], f"{foreign}, but {unknown}")


async def _refused(site: Site, method: str) -> None:
    async with site.session() as mine, site.session(other=True) as theirs:
        task_id = str((await site.ended(mine, Role.QUICK))["taskId"])
        reply = await theirs.request(method, {"taskId": task_id})
    expect("error" in reply.body, str(reply))
