"""Checks of unknown and malformed task ids, and of related-task metadata that names another task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mcp_tasks_conformance.check import JSON, Feature, Level, Scenario, ToolRole, expect
from mcp_tasks_conformance.server_under_test import ServerUnderTest
from mcp_tasks_conformance.traffic import RELATED_TASK, format_json

INVALID_PARAMS = -32602
UNKNOWN: Final = "786512e2-9e0d-44bd-8f29-789f320fe840"
MALFORMED: Final[tuple[Mapping[str, JSON], ...]] = ({"taskId": ""}, {"taskId": 7}, {"taskId": None}, {})

task_ids = Scenario(name="refusing", title="Task ids")


@task_ids.check(Level.MUST, "Protocol Errors", Feature.TASKS)
async def get_unknown(server: ServerUnderTest) -> None:
    """tasks/get of an unknown task is refused: -32602."""
    await _expect_refusal(server, "tasks/get", {"taskId": UNKNOWN})


@task_ids.check(Level.MUST, "Protocol Errors", Feature.TASKS)
async def get_invalid(server: ServerUnderTest) -> None:
    """tasks/get with a taskId that is empty, not a string, or missing is refused: -32602."""
    await _expect_refusal(server, "tasks/get", *MALFORMED)


@task_ids.check(Level.MUST, "Protocol Errors", Feature.TASKS)
async def result_unknown(server: ServerUnderTest) -> None:
    """tasks/result of an unknown task is refused: -32602."""
    await _expect_refusal(server, "tasks/result", {"taskId": UNKNOWN})


@task_ids.check(Level.MUST, "Protocol Errors", Feature.TASKS)
async def result_invalid(server: ServerUnderTest) -> None:
    """tasks/result with a taskId that is empty, not a string, or missing is refused: -32602."""
    await _expect_refusal(server, "tasks/result", *MALFORMED)


@task_ids.check(Level.MUST, "Protocol Errors", Feature.CANCEL)
async def cancel_unknown(server: ServerUnderTest) -> None:
    """tasks/cancel of an unknown task is refused: -32602."""
    await _expect_refusal(server, "tasks/cancel", {"taskId": UNKNOWN})


@task_ids.check(Level.MUST, "Protocol Errors", Feature.CANCEL)
async def cancel_invalid(server: ServerUnderTest) -> None:
    """tasks/cancel with a taskId that is empty, not a string, or missing is refused: -32602."""
    await _expect_refusal(server, "tasks/cancel", *MALFORMED)


@task_ids.check(Level.MUST, "Associating Task-Related Messages 2", ToolRole.QUICK, ToolRole.SLOW)
async def get_ignores_metadata(server: ServerUnderTest) -> None:
    """tasks/get uses taskId, even if related-task in _meta names another task."""
    async with server.session() as session:
        wanted = await server.create_task(session, ToolRole.QUICK)
        other = await server.create_task(session, ToolRole.SLOW)
        reply = await session.request("tasks/get", {"taskId": wanted, **_related_task_meta(other)})
    expect(reply.result.get("taskId") == wanted, str(reply))


@task_ids.check(Level.MUST, "Associating Task-Related Messages 2", ToolRole.QUICK, ToolRole.FAILS)
async def result_ignores_metadata(server: ServerUnderTest) -> None:
    """tasks/result uses taskId, even if related-task in _meta names another task."""
    async with server.session() as session:
        wanted = (await server.run_to_end(session, ToolRole.QUICK))["taskId"]
        other = await server.create_task(session, ToolRole.FAILS)
        reply = await session.request("tasks/result", {"taskId": wanted, **_related_task_meta(other)})
    expect("content" in reply.result and reply.result.get("isError", False) is False, str(reply))


@task_ids.check(Level.MUST, "Associating Task-Related Messages 2", Feature.CANCEL, ToolRole.QUICK, ToolRole.LONG)
async def cancel_ignores_metadata(server: ServerUnderTest) -> None:
    """tasks/cancel uses taskId, even if related-task in _meta names another task."""
    async with server.session() as session:
        ended = (await server.run_to_end(session, ToolRole.QUICK))["taskId"]
        running = await server.create_task(session, ToolRole.LONG)
        reply = await session.request("tasks/cancel", {"taskId": ended, **_related_task_meta(running)})
        status = await server.get_status(session, running)
    expect(reply.code == INVALID_PARAMS and status != "cancelled", f"{reply}; the other task is {status}")


def _related_task_meta(task_id: JSON) -> Mapping[str, JSON]:
    return {"_meta": {RELATED_TASK: {"taskId": task_id}}}


async def _expect_refusal(server: ServerUnderTest, method: str, *all_params: Mapping[str, JSON]) -> None:
    async with server.session() as session:
        for params in all_params:
            reply = await session.request(method, params)
            expect(reply.code == INVALID_PARAMS, f"{method} {format_json(params)}: {reply}")
