"""FastMCP's tasks as they are: the extension of 2026-07-28."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.client import Client, ClientRequestContext
from mcp.shared.exceptions import MCPError

from adapters.mcp.tests.upstreams.fastmcp_upstream import TaskServer
from adapters.mcp.tests.upstreams.upstream import error_of, structured
from mcp_workflows import TasksClient
from mcp_workflows.client import TaskHandle, TaskNotFound, TaskState
from mcp_workflows.errors import TaskCancelled

pytestmark = [pytest.mark.anyio, pytest.mark.process]

EXTENSION = "io.modelcontextprotocol/tasks"


@pytest.fixture
def site(tmp_path: Path) -> TaskServer:
    return TaskServer(folder=tmp_path)


async def started(tasks: TasksClient, client: Client, tool: str, **arguments: Any) -> TaskHandle:
    handle = await tasks.start(client, tool, arguments)
    assert isinstance(handle, TaskHandle)
    return handle


async def looked_at(handle: TaskHandle, *, until: str) -> TaskState:
    """Return the task once it has this status."""
    with anyio.fail_after(10):
        while (seen := await handle.status()).status != until:
            await anyio.sleep(0.02)
    return seen


async def test_a_task_is_started_and_looked_at_until_it_has_ended(site: TaskServer) -> None:
    tasks = TasksClient()
    async with Client(site.server().parameters, extensions=[tasks]) as client:
        assert client.protocol_version == "2026-07-28"
        assert EXTENSION in (client.server_capabilities.extensions or {})
        handle = await started(tasks, client, "build", name="shop")
        seen = await looked_at(handle, until="working")
        assert seen.poll_interval_ms == 5000
        site.finish("shop")
        await looked_at(handle, until="completed")
        assert (await handle.result()).structured_content == {"built": "shop"}
    assert site.starts("shop") == 1


async def test_a_tool_that_raises_is_a_completed_task_with_an_error(site: TaskServer) -> None:
    tasks = TasksClient()
    async with Client(site.server().parameters, extensions=[tasks]) as client:
        handle = await started(tasks, client, "fail")
        await looked_at(handle, until="completed")
        result = await handle.result()
        assert result.is_error
        assert "Error calling tool 'fail': no luck" in str(result.content)


async def test_a_task_asks_and_goes_on_with_the_answer(site: TaskServer) -> None:
    asked: list[str] = []

    async def approve(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(params.message)
        return types.ElicitResult(action="accept", content={"approved": True})

    tasks = TasksClient()
    async with Client(site.server().parameters, extensions=[tasks], elicitation_callback=approve) as client:
        handle = await started(tasks, client, "release", version="1.2")
        seen = await looked_at(handle, until="input_required")
        [key] = seen.input_requests or {}
        assert key.startswith(f"{handle.id}:")
        assert (await handle.result()).structured_content == {"result": "released 1.2"}
    assert asked == ["Release 1.2?"]


async def test_a_task_is_cancelled_and_cancelling_it_again_does_nothing(site: TaskServer) -> None:
    tasks = TasksClient()
    async with Client(site.server().parameters, extensions=[tasks]) as client:
        handle = await started(tasks, client, "build", name="shop")
        await handle.cancel()
        await handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle.result()


async def test_no_tool_says_that_its_calls_become_tasks(site: TaskServer) -> None:
    async with Client(site.server().parameters) as client:
        assert not any(tool.execution for tool in (await client.list_tools()).tools)
        assert await structured(client, "plain") == {"result": "done"}
        assert await error_of(client, "fail") == "Error calling tool 'fail': no luck"


async def test_in_the_earlier_revision_tools_say_that_they_take_tasks_but_the_server_has_none(site: TaskServer) -> None:
    async with Client(site.server().parameters, mode="legacy") as client:
        assert (client.protocol_version, client.server_capabilities.tasks) == ("2025-11-25", None)
        supports = {
            tool.name: tool.execution and tool.execution.task_support for tool in (await client.list_tools()).tools
        }
        assert supports == {"build": "optional", "fail": "optional", "release": "optional", "plain": None}
        request = types.GetTaskRequest(params=types.GetTaskRequestParams(task_id="x"))
        with pytest.raises(MCPError, match="'tasks/get' is not available at protocol version '2025-11-25'"):
            await client.session.send_request(request, types.GetTaskResult)


async def test_wrong_arguments_start_no_task(site: TaskServer) -> None:
    tasks = TasksClient()
    async with Client(site.server().parameters, extensions=[tasks]) as client:
        refused = await tasks.start(client, "build", {})
        assert isinstance(refused, types.CallToolResult)
        assert refused.is_error
        assert "1 validation error for call[" in str(refused.content)


async def test_a_task_outlives_its_connection_but_not_its_server(site: TaskServer) -> None:
    tasks = TasksClient()
    with site.over_http() as server:
        async with Client(server.url, extensions=[tasks]) as client:
            handle = await started(tasks, client, "build", name="shop")
        async with Client(server.url, extensions=[tasks]) as client:
            await looked_at(tasks.handle(client, handle.id), until="working")
        server.kill()
        server.start()
        async with Client(server.url, extensions=[tasks]) as client:
            with pytest.raises(TaskNotFound):
                await tasks.handle(client, handle.id).status()
