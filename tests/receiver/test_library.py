"""As a library: our tools beside the user's own, on both kinds of server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer

from mcp_workflows import Question, Tool, Workflows, attach
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.errors import ConfigError
from tests.support.served import Peer, memory_tools, peer, serving

pytestmark = pytest.mark.anyio

ASKS = Tool(
    name="asks",
    engine="memory",
    workflow="echo",
    questions={"reason": Question(message="Why?", schema={"type": "string"})},
)


NAMED = {"type": "object", "properties": {"order": {"type": "string"}}}


def engines() -> Mapping[str, MemoryAdapter]:
    return {"memory": MemoryAdapter(MemorySettings())}


def own_server(store: Path, *tools: Tool, **settings: Any) -> MCPServer[Any]:
    """An ordinary server with a tool of its own, and ours."""

    @asynccontextmanager
    async def lifespan(_: MCPServer[Any]) -> AsyncGenerator[None]:
        async with workflows:
            yield

    server: MCPServer[Any] = MCPServer("own", lifespan=lifespan, **settings)

    @server.tool()
    def greet(name: str) -> str:
        """Say hello."""
        return f"Hello, {name}!"

    assert callable(greet)
    workflows = attach(server, tools=tools, engines=engines(), store=f"sqlite:///{store}/tasks.db")
    assert isinstance(workflows, Workflows)
    return server


@asynccontextmanager
async def client_of(server: MCPServer[Any]) -> AsyncGenerator[Peer]:
    async with serving(server.streamable_http_app()) as url, peer(url) as client:
        yield client


async def test_our_tools_stand_beside_the_servers_own(tmp_path: Path) -> None:
    async with client_of(own_server(tmp_path, *memory_tools())) as client:
        names = [tool["name"] for tool in (await client.send("tools/list")).result["tools"]]
        assert names == ["greet", *(tool.name for tool in memory_tools())]
        greeted = (await client.call("greet", {"name": "Ada"})).result
        assert greeted["content"][0]["text"] == "Hello, Ada!"
        created = (await client.call("echo", {"a": 1})).result
        assert created["resultType"] == "task"
        assert created["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "own"
        assert (await client.until(created["taskId"]))["status"] == "completed"


async def test_the_servers_own_middleware_sees_our_calls(tmp_path: Path) -> None:
    seen: list[str] = []

    async def audit(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        seen.append(ctx.method)
        return await call_next(ctx)

    async with client_of(own_server(tmp_path, *memory_tools(), middleware=[audit])) as client:
        created = (await client.call("echo", {"a": 1})).result
        await client.get(created["taskId"])
    assert seen == ["tools/call", "tasks/get"]


async def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    greet = Tool(name="greet", engine="memory", workflow="echo")
    with pytest.RaisesGroup(ConfigError, flatten_subgroups=True, allow_unwrapped=True) as raised:
        async with Client(own_server(tmp_path, greet)):
            pytest.fail("it must not start")
    assert "greet" in str(raised.value)


@pytest.mark.parametrize(
    ("tools", "complaint"),
    [
        ([Tool(name="a", engine="other", workflow="w")], "no engine named 'other'"),
        ([ASKS, ASKS], "two tools are named 'asks'"),
        (
            [ASKS.model_copy(update={"input": {"type": "object", "additionalProperties": False}})],
            "takes no 'reason'",
        ),
        (
            [Tool(name="a", engine="memory", workflow="echo", input=NAMED, args=["{{ordr}}"])],
            "args: there is no argument 'ordr'",
        ),
        ([Tool(name="a", engine="memory", workflow="echo", options={"queue": 1})], "options.queue: Extra inputs"),
    ],
)
def test_what_cannot_work_is_refused_when_attaching(tools: list[Tool], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        attach(Server("own"), tools=tools, engines=engines())


@pytest.mark.parametrize("wrong", [MemoryAdapter, MemorySettings(), None])
def test_an_engine_that_is_no_adapter_is_refused_when_attaching(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="engine 'memory' is not an adapter: pass an instance"):
        attach(Server("own"), tools=memory_tools(), engines={"memory": wrong})


def test_a_server_that_is_not_one_of_the_sdk_is_refused_when_attaching() -> None:
    other: Any = object()
    with pytest.raises(ConfigError, match="MCPServer or Server of the MCP SDK, not a object: attach to an MCPServer"):
        attach(other, tools=memory_tools(), engines=engines())


async def test_requests_before_it_is_entered_say_what_is_missing() -> None:
    server: Server[Any] = Server("own")
    attach(server, tools=memory_tools(), engines=engines(), store="sqlite:///:memory:")
    async with serving(server.streamable_http_app()) as url, peer(url) as client:
        assert "lifespan" in (await client.call("echo")).error["message"]
