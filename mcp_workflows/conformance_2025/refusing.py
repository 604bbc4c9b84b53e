"""Task ids that name nothing, and metadata that names something else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mcp_workflows.conformance_2025.check import JSON, Feature, Level, Role, Scenario, expect
from mcp_workflows.conformance_2025.site import Site
from mcp_workflows.conformance_2025.traffic import RELATED, Reply, shown

INVALID_PARAMS = -32602
UNKNOWN: Final = "786512e2-9e0d-44bd-8f29-789f320fe840"
MALFORMED: Final[tuple[Mapping[str, JSON], ...]] = ({"taskId": ""}, {"taskId": 7}, {"taskId": None}, {})

refusing = Scenario(name="refusing", title="Task ids")


@refusing.check(Level.MUST, "Protocol Errors", Feature.TASKS)
async def get_unknown(site: Site) -> None:
    """tasks/get of an unknown task: -32602."""
    await _refused(site, "tasks/get", {"taskId": UNKNOWN})


@refusing.check(Level.MUST, "Protocol Errors", Feature.TASKS)
async def get_invalid(site: Site) -> None:
    """tasks/get with a taskId that is empty, no string, or missing: -32602."""
    await _refused(site, "tasks/get", *MALFORMED)


@refusing.check(Level.MUST, "Protocol Errors", Feature.TASKS)
async def result_unknown(site: Site) -> None:
    """tasks/result of an unknown task: -32602."""
    await _refused(site, "tasks/result", {"taskId": UNKNOWN})


@refusing.check(Level.MUST, "Protocol Errors", Feature.TASKS)
async def result_invalid(site: Site) -> None:
    """tasks/result with a taskId that is empty, no string, or missing: -32602."""
    await _refused(site, "tasks/result", *MALFORMED)


@refusing.check(Level.MUST, "Protocol Errors", Feature.CANCEL)
async def cancel_unknown(site: Site) -> None:
    """tasks/cancel of an unknown task: -32602."""
    await _refused(site, "tasks/cancel", {"taskId": UNKNOWN})


@refusing.check(Level.MUST, "Protocol Errors", Feature.CANCEL)
async def cancel_invalid(site: Site) -> None:
    """tasks/cancel with a taskId that is empty, no string, or missing: -32602."""
    await _refused(site, "tasks/cancel", *MALFORMED)


@refusing.check(Level.MUST, "Associating Task-Related Messages 2", Role.QUICK, Role.SLOW)
async def get_ignores_metadata(site: Site) -> None:
    """tasks/get takes the task from taskId, even if related-task in _meta names another."""
    reply, wanted, _ = await _mixed(site, "tasks/get")
    expect(reply.result.get("taskId") == wanted, str(reply))


@refusing.check(Level.MUST, "Associating Task-Related Messages 2", Role.QUICK, Role.FAILS)
async def result_ignores_metadata(site: Site) -> None:
    """tasks/result takes the task from taskId, even if related-task in _meta names another."""
    async with site.session() as session:
        wanted = (await site.ended(session, Role.QUICK))["taskId"]
        other = await site.create(session, Role.FAILS)
        reply = await session.request("tasks/result", {"taskId": wanted, **_meta(other)})
    expect("content" in reply.result and reply.result.get("isError", False) is False, str(reply))


@refusing.check(Level.MUST, "Associating Task-Related Messages 2", Feature.CANCEL, Role.QUICK, Role.LONG)
async def cancel_ignores_metadata(site: Site) -> None:
    """tasks/cancel takes the task from taskId, even if related-task in _meta names another."""
    async with site.session() as session:
        ended = (await site.ended(session, Role.QUICK))["taskId"]
        running = await site.create(session, Role.LONG)
        reply = await session.request("tasks/cancel", {"taskId": ended, **_meta(running)})
        status = await site.status(session, running)
    expect(reply.code == INVALID_PARAMS and status != "cancelled", f"{reply}; the other task is {status}")


def _meta(task_id: JSON) -> Mapping[str, JSON]:
    return {"_meta": {RELATED: {"taskId": task_id}}}


async def _mixed(site: Site, method: str) -> tuple[Reply, str, str]:
    async with site.session() as session:
        wanted, other = await site.create(session, Role.QUICK), await site.create(session, Role.SLOW)
        return await session.request(method, {"taskId": wanted, **_meta(other)}), wanted, other


async def _refused(site: Site, method: str, *all_params: Mapping[str, JSON]) -> None:
    async with site.session() as session:
        for params in all_params:
            reply = await session.request(method, params)
            expect(reply.code == INVALID_PARAMS, f"{method} {shown(params)}: {reply}")
