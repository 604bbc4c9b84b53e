"""firecrawl-mcp as it is: what the adapter reads of it, and how it fails."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from starlette.responses import JSONResponse, Response

from adapters.mcp.tests.upstreams.firecrawl_upstream import EXPIRES, Firecrawl, firecrawl
from adapters.mcp.tests.upstreams.upstream import error_of, reply_of

pytestmark = [pytest.mark.anyio, pytest.mark.process]


@pytest.fixture
async def api() -> AsyncGenerator[Firecrawl]:
    async with firecrawl() as found:
        yield found


async def started(client: Client) -> str:
    reply = json.loads(await reply_of(client, "firecrawl_agent", prompt="Find the founders"))
    assert list(reply) == ["success", "id"]
    return reply["id"]


async def test_an_agent_is_started_and_looked_at_until_it_has_ended(api: Firecrawl) -> None:
    async with Client(api.server().parameters) as client:
        agent = await started(client)
        assert api.prompts == {agent: "Find the founders"}

        running = {"success": True, "status": "processing", "expiresAt": EXPIRES}
        assert json.loads(await reply_of(client, "firecrawl_agent_status", id=agent)) == running

        api.finish(agent, {"founders": ["Eric"]})
        ended = json.loads(await reply_of(client, "firecrawl_agent_status", id=agent))
        assert (ended["status"], ended["data"]) == ("completed", {"founders": ["Eric"]})


async def test_a_failed_agent_is_a_success_with_a_status(api: Firecrawl) -> None:
    async with Client(api.server().parameters) as client:
        agent = await started(client)
        api.fail(agent, "the page needs a login")
        ended = json.loads(await reply_of(client, "firecrawl_agent_status", id=agent))
        assert (ended["success"], ended["status"], ended["error"]) == (True, "failed", "the page needs a login")


async def test_what_the_api_refuses_is_prose(api: Firecrawl) -> None:
    async with Client(api.server().parameters) as client:
        unknown = await error_of(client, "firecrawl_agent_status", id="nobody")
        assert unknown == "Tool 'firecrawl_agent_status' execution failed: Request failed with status code 404"

        api.answer("start", JSONResponse({"success": False, "error": "Insufficient credits"}, status_code=402))
        refused = await error_of(client, "firecrawl_agent", prompt="x")
        assert refused == "Tool 'firecrawl_agent' execution failed: Insufficient credits"
        with pytest.raises(MCPError, match="parameter validation failed: prompt"):
            await client.call_tool("firecrawl_agent", {})
    assert api.starts == 0


async def test_one_call_starts_up_to_three_agents_behind_a_bad_gateway(api: Firecrawl) -> None:
    api.answer("start", Response(status_code=502), times=2)
    async with Client(api.server().parameters) as client:
        await started(client)
    assert (api.calls["start"], api.starts) == (3, 1)


async def test_a_lost_reply_leaves_an_agent_that_nobody_knows(api: Firecrawl) -> None:
    api.cut("start")
    async with Client(api.server().parameters) as client:
        lost = await error_of(client, "firecrawl_agent", prompt="x")
    assert (lost, api.starts) == ("Tool 'firecrawl_agent' execution failed: stream has been aborted", 1)


async def test_a_call_waits_as_long_as_the_api_does(api: Firecrawl) -> None:
    released = api.hold("start")
    async with Client(api.server().parameters) as client, anyio.create_task_group() as group:
        group.start_soon(started, client)
        while not api.starts:
            await anyio.sleep(0.01)
        await client.list_tools()  # which it answers meanwhile
        released.set()


async def test_it_is_served_over_http_too(api: Firecrawl, tmp_path: Path) -> None:
    with api.over_http(tmp_path) as server:
        async with Client(server.url) as client:
            agent = await started(client)
        server.kill()
        server.start()
        async with Client(server.url) as client:
            assert json.loads(await reply_of(client, "firecrawl_agent_status", id=agent))["status"] == "processing"
