"""mcp-jenkins as it is: what the adapter reads of it, and how it fails."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from starlette.responses import Response

from adapters.mcp.tests.upstreams.jenkins_upstream import JOB, Jenkins, jenkins
from adapters.mcp.tests.upstreams.upstream import error_of, structured

pytestmark = [pytest.mark.anyio, pytest.mark.process]

ORDER: dict[str, Any] = {"fullname": JOB, "build_type": "buildWithParameters"}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[Jenkins]:
    async with jenkins(tmp_path) as found:
        yield found


async def started(client: Client, key: str = "key-1") -> int:
    reply = await structured(client, "build_item", **ORDER, data={"VERSION": "1.2", "MCP_KEY": key})
    assert list(reply) == ["result"]
    return reply["result"]


async def test_a_build_is_started_and_looked_at_until_it_has_ended(server: Jenkins) -> None:
    async with Client(server.server().parameters) as client:
        item = await started(client)
        number = server.items[item].build
        assert number is not None
        assert await structured(client, "get_build_parameters", fullname=JOB) == {"VERSION": "1.2", "MCP_KEY": "key-1"}
        build = await structured(client, "get_build", fullname=JOB)
        assert (build["number"], build["building"], "result" in build) == (number, True, False)
        running = await structured(client, "get_running_builds")
        assert [each["number"] for each in running["result"]] == [number]

        server.finish(number, "FAILURE")
        build = await structured(client, "get_build", fullname=JOB, number=number)
        assert (build["building"], build["result"]) == (False, "FAILURE")


async def test_an_item_of_the_queue_never_tells_its_build(server: Jenkins) -> None:
    server.has_executors = False
    async with Client(server.server().parameters) as client:
        item = await started(client)
        waiting = await structured(client, "get_queue_item", id=item)
        assert waiting["why"] == "Waiting for next available executor"
        server.begin(item)
        assert set(await structured(client, "get_queue_item", id=item)) == set(waiting) - {"why"}


async def test_results_are_wrapped_and_the_reply_says_so(server: Jenkins) -> None:
    async with Client(server.server().parameters) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        schema = tools["build_item"].output_schema
        assert schema is not None
        assert schema["x-fastmcp-wrap-result"] is True
        assert "x-fastmcp-wrap-result" not in (tools["get_build"].output_schema or {})
        reply = await client.call_tool("build_item", {**ORDER, "data": {}})
        assert (reply.meta or {})["fastmcp"] == {"wrap_result": True}


async def test_a_build_is_stopped_and_stopping_it_again_does_nothing(server: Jenkins) -> None:
    async with Client(server.server().parameters) as client:
        await started(client)
        for _ in range(2):
            reply = await client.call_tool("stop_build", {"fullname": JOB, "number": 2})
            assert (reply.is_error, reply.content, reply.structured_content) == (False, [], None)
        assert server.builds[2].result == "ABORTED"


async def test_a_build_asks_for_input_and_takes_it_once(server: Jenkins) -> None:
    flag = {"type": "BooleanParameterDefinition", "name": "OK", "definition": {"defaultVal": False}}
    answer = {"fullname": JOB, "number": 2, "input_id": "Approve"}
    async with Client(server.server().parameters) as client:
        await started(client)
        assert await structured(client, "get_pending_inputs", fullname=JOB) == {"result": []}
        server.ask(2, "Approve", "Ship it?", [flag])
        asked = (await structured(client, "get_pending_inputs", fullname=JOB))["result"]
        assert asked == [{"id": "Approve", "message": "Ship it?", "proceedText": "Proceed", "inputs": [flag]}]

        assert "declares OK but got no value for OK" in await error_of(client, "submit_input", **answer)
        taken = await structured(client, "submit_input", **answer, parameters={"OK": True})
        assert taken == {"fullname": JOB, "number": 2, "inputId": "Approve", "action": "proceed"}
        assert server.builds[2].answers == {"Approve": {"parameter": [{"name": "OK", "value": True}]}}
        late = await error_of(client, "submit_input", **answer, parameters={"OK": True})
        assert (
            late == "Error calling tool 'submit_input': No pending input Approve for release #2. Pending inputs: none"
        )


async def test_an_input_that_is_declined_aborts_the_build(server: Jenkins) -> None:
    async with Client(server.server().parameters) as client:
        await started(client)
        server.ask(2, "Approve", "Ship it?")
        await structured(client, "submit_input", fullname=JOB, number=2, input_id="Approve", action="abort")
        assert (await structured(client, "get_build", fullname=JOB))["result"] == "ABORTED"


async def test_errors_are_prose_with_urls(server: Jenkins) -> None:
    async with Client(server.server().parameters) as client:
        unknown = await error_of(client, "get_build", fullname=JOB, number=99)
        path = f"/job/{JOB}/99/api/json?depth=0"
        assert unknown == f"Error calling tool 'get_build': 404 Client Error: Not Found for url: {server.url}{path}"
        server.builds.clear()
        nothing = await error_of(client, "get_build", fullname=JOB)
        assert nothing == f"Error calling tool 'get_build': No build found for job: {JOB}"
        refused = await error_of(client, "build_item", fullname=JOB, build_type="none")
        assert refused.startswith("1 validation error for call[build_item]\nbuild_type\n")
        server.answer("start", Response(status_code=500))
        assert "500 Server Error" in await error_of(client, "build_item", **ORDER)
    assert server.starts == 0


async def test_a_lost_reply_leaves_a_build_with_the_key(server: Jenkins) -> None:
    server.cut("start")
    async with Client(server.server().parameters) as client:
        lost = await error_of(client, "build_item", **ORDER, data={"MCP_KEY": "key-1"})
        assert lost.startswith("Error calling tool 'build_item': ('Connection broken: IncompleteRead(0 bytes read")
        assert (await structured(client, "get_build_parameters", fullname=JOB)) == {"MCP_KEY": "key-1"}


async def test_a_server_that_is_killed_leaves_a_build_with_the_key(server: Jenkins) -> None:
    released = server.hold("start")
    upstream = server.server()
    async with Client(upstream.parameters) as client, anyio.create_task_group() as group:

        async def start() -> None:
            with pytest.raises(MCPError, match="Connection closed"):
                await started(client)

        group.start_soon(start)
        while not server.starts:
            await anyio.sleep(0.01)
        [process] = upstream.processes()
        process.kill()
    released.set()
    async with Client(upstream.parameters) as client:
        assert (await structured(client, "get_build_parameters", fullname=JOB))["MCP_KEY"] == "key-1"


async def test_it_is_served_over_http_too(server: Jenkins) -> None:
    with server.over_http() as upstream:
        async with Client(upstream.url) as client:
            await started(client)
        upstream.kill()
        upstream.start()
        async with Client(upstream.url) as client:
            assert (await structured(client, "get_build", fullname=JOB))["building"]
