"""server-everything as it is: a server with tasks in the core of 2025-11-25."""

from __future__ import annotations

from pathlib import Path

import anyio
import mcp_types as types
import pytest
from mcp.client import Client, ClientRequestContext
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError

from adapters.mcp.tests.upstreams.everything_upstream import TOOL, everything, everything_over_http
from adapters.mcp.tests.upstreams.upstream import error_of, reply_of
from mcp_workflows.client import TaskState
from mcp_workflows.client.v2025_11_25 import InCoreTaskRequests

pytestmark = [pytest.mark.anyio, pytest.mark.process]


async def answered(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
    assert isinstance(params, types.ElicitRequestFormParams)
    assert params.message.startswith('The research query "python" could have multiple interpretations.')
    assert params.requested_schema["properties"]["interpretation"]["oneOf"][1]["const"] == "snake"
    return types.ElicitResult(action="accept", content={"interpretation": "snake"})


class Research:
    """Tasks of one client, and what was seen of them."""

    def __init__(self, client: Client) -> None:
        self._session = client.session
        self.tasks = InCoreTaskRequests(client.session, self._see)
        self.seen: list[str] = []

    async def _see(self, state: TaskState) -> None:
        self.seen.append(state.status)

    async def started(self, **arguments: object) -> str:
        return (await self.tasks.start(TOOL, {"topic": "python", **arguments}, None)).task_id

    async def look(self, task_id: str) -> types.GetTaskResult:
        request = types.GetTaskRequest(params=types.GetTaskRequestParams(task_id=task_id))
        return await self._session.send_request(request, types.GetTaskResult)

    async def cancel(self, task_id: str) -> types.CancelTaskResult:
        request = types.CancelTaskRequest(params=types.CancelTaskRequestParams(task_id=task_id))
        return await self._session.send_request(request, types.CancelTaskResult)


async def test_a_task_of_a_client_that_cannot_be_asked_runs_to_its_result() -> None:
    async with Client(everything().parameters) as client:
        tasks = client.server_capabilities.tasks
        assert (client.protocol_version, tasks is not None) == ("2025-11-25", True)
        research = Research(client)
        task_id = await research.started(ambiguous=True)
        seen = await research.look(task_id)
        assert (seen.status, seen.status_message, seen.ttl, seen.poll_interval) == (
            "working",
            "Gathering sources...",
            300_000,
            1000,
        )
        result = await research.tasks.result(task_id)
        assert "# Research Report: python" in str(result.content)
        assert set(research.seen) == {"working", "completed"}


async def clarified(server: StdioServerParameters | str) -> None:
    async with Client(server, elicitation_callback=answered) as client:
        research = Research(client)
        result = await research.tasks.result(await research.started(ambiguous=True))
        assert "python (snake)" in str(result.content)


async def test_a_question_comes_on_the_stream_of_the_result(tmp_path: Path) -> None:
    with everything_over_http(tmp_path) as server:
        async with anyio.create_task_group() as group:
            group.start_soon(clarified, everything().parameters)
            group.start_soon(clarified, server.url)


async def test_a_question_waits_until_the_result_is_asked_for() -> None:
    async def never(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        raise AssertionError("the result was not asked for")

    async with Client(everything().parameters, elicitation_callback=never) as client:
        research = Research(client)
        task_id = await research.started(ambiguous=True)
        with anyio.fail_after(10):
            while (seen := await research.look(task_id)).status != "input_required":
                await anyio.sleep(0.1)
        assert seen.status_message == 'Found multiple interpretations for "python". Requesting clarification...'
        assert (await research.cancel(task_id)).status == "cancelled"


async def test_a_task_is_cancelled_once() -> None:
    async with Client(everything().parameters) as client:
        research = Research(client)
        task_id = await research.started()
        cancelled = await research.cancel(task_id)
        assert (cancelled.status, cancelled.status_message) == ("cancelled", "Client cancelled task execution.")
        with pytest.raises(MCPError, match="Cannot cancel task in terminal status: cancelled"):
            await research.cancel(task_id)


async def test_a_plain_call_of_a_task_and_a_task_of_a_plain_tool_are_refused() -> None:
    async with Client(everything().parameters) as client:
        supports = {
            tool.name: tool.execution.task_support for tool in (await client.list_tools()).tools if tool.execution
        }
        assert (supports[TOOL], supports["echo"]) == ("required", "forbidden")
        text = await error_of(client, TOOL, topic="python")
        assert text == f"MCP error -32601: Tool {TOOL} requires task augmentation (taskSupport: 'required')"
        research = Research(client)
        with pytest.raises(MCPError, match="Invalid task creation result"):
            await research.tasks.start("echo", {"message": "hi"}, None)
        with pytest.raises(MCPError, match="Invalid task creation result"):
            await research.tasks.start(TOOL, {}, None)
        assert await reply_of(client, "echo", message="hi") == "Echo: hi"


async def test_a_task_is_known_to_its_own_session_only(tmp_path: Path) -> None:
    with everything_over_http(tmp_path) as server:
        async with Client(server.url) as client, Client(server.url) as other:
            task_id = await Research(client).started()
            assert (await Research(client).look(task_id)).status == "working"
            with pytest.raises(MCPError, match="Failed to retrieve task: Task not found"):
                await Research(other).look(task_id)
