"""A server's own tool functions and our workflows: handing over, and unit tests without an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.client import Client
from mcp.server.mcpserver import MCPServer

from mcp_workflows import GateQuestion, TaskSupport, Tool, Workflows, attach
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.errors import RequestError
from tests.support.client_2025 import session
from tests.support.served import Peer, peer, serving

pytestmark = pytest.mark.anyio

TEXT = {"type": "string"}
ORDER = {"type": "object", "properties": {"order_id": TEXT, "note": TEXT}, "required": ["order_id"]}
YES = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}


def shop(folder: Path) -> tuple[MCPServer[None], Workflows]:
    """A server whose own tool looks first, and lets a workflow do the rest."""

    @asynccontextmanager
    async def lifespan(_: MCPServer[None]) -> AsyncGenerator[None]:
        async with workflows:
            yield

    server: MCPServer[None] = MCPServer("shop", lifespan=lifespan)

    @server.tool()
    async def refund(order_id: str) -> types.CallToolResult:  # pyright: ignore[reportUnusedFunction]  # the decorator took it
        """Give the money back."""
        if order_id == "unknown":
            return types.CallToolResult(content=[types.TextContent(type="text", text="no such order")], is_error=True)
        if order_id == "small":
            return types.CallToolResult(content=[types.TextContent(type="text", text="done at once")])
        done = await workflows.hand_over("refund_order", {"order_id": order_id, "note": None})
        if order_id == "too late":
            raise ValueError("failed after it handed over")
        return done

    gate = GateQuestion(when={"after_seconds": 0}, message="Refund {{order_id}}?", schema=YES, send="{{answer.ok}}")
    tools = [
        Tool(name="refund_order", engine="memory", workflow="echo", listed=False, input=ORDER),
        Tool(name="approve_order", engine="memory", workflow="gated", questions={"approve": gate}),
        Tool(name="long_order", engine="memory", workflow="sleep", tasks=TaskSupport.REQUIRED),
    ]
    engines = {"memory": MemoryAdapter(MemorySettings(name=str(folder)))}
    workflows = attach(server, tools=tools, engines=engines, store=f"sqlite:///{folder}/tasks.db")
    return server, workflows


@pytest.fixture
async def client(tmp_path: Path) -> AsyncGenerator[Peer]:
    server, _ = shop(tmp_path)
    async with serving(server.streamable_http_app()) as url, peer(url) as found:
        yield found


async def test_a_function_that_hands_over_answers_with_a_task(client: Peer) -> None:
    created = (await client.call("refund", {"order_id": "A1"})).result
    assert created["resultType"] == "task"
    assert (await client.until(created["taskId"]))["result"]["structuredContent"] == {"order_id": "A1"}


async def test_for_a_client_without_tasks_the_call_waits_for_the_workflow(client: Peer) -> None:
    result = (await client.call("refund", {"order_id": "A1"}, capabilities={})).result
    assert result["structuredContent"] == {"order_id": "A1"}


async def test_a_function_that_is_asked_to_be_a_task_of_2025_11_25_says_that_it_is_none(tmp_path: Path) -> None:
    server, _ = shop(tmp_path)
    async with serving(server.streamable_http_app()) as url, session(url) as client:
        call = {"name": "refund", "arguments": {"order_id": "small"}}
        assert (await client.request("tools/call", {**call, "task": {}})).code == -32601
        assert (await client.request("tools/call", call)).result["content"][0]["text"] == "done at once"


async def test_a_tool_that_is_not_listed_cannot_be_called(client: Peer) -> None:
    names = [tool["name"] for tool in (await client.send("tools/list")).result["tools"]]
    assert names == ["refund", "approve_order", "long_order"]
    assert "refund_order" in str((await client.call("refund_order", {"order_id": "A1"})).body)
    assert "taskId" not in str((await client.call("refund_order", {"order_id": "A1"})).body)


async def test_one_call_is_handed_over_once(tmp_path: Path) -> None:
    server, workflows = shop(tmp_path)

    @server.tool()
    async def twice() -> types.CallToolResult:  # pyright: ignore[reportUnusedFunction]  # the decorator took it
        await workflows.hand_over("refund_order", {"order_id": "A1"})
        with pytest.raises(RequestError, match="works once per call"):
            await workflows.hand_over("refund_order", {"order_id": "A2"})
        return types.CallToolResult(content=[])

    async with Client(server) as client:
        result: Any = await client.call_tool("twice", {})
    assert result.structured_content == {"order_id": "A1"}


async def test_what_a_function_left_in_the_background_cannot_hand_over_after_the_call(tmp_path: Path) -> None:
    server, workflows = shop(tmp_path)
    left: list[Context] = []

    @server.tool()
    async def leave() -> str:  # pyright: ignore[reportUnusedFunction]  # the decorator took it
        left.append(copy_context())
        return "left"

    async with Client(server) as client:
        await client.call_tool("leave", {})
        late = asyncio.get_running_loop().create_task(workflows.hand_over("refund_order", {}), context=left[0])
        with pytest.raises(RequestError, match="inside a tool function"):
            await late


# --- unit tests of a server, without an engine


async def test_a_workflow_does_what_the_test_says(tmp_path: Path) -> None:
    server, workflows = shop(tmp_path)
    async with workflows.testing() as t:
        t.succeed({"refunded": 5})
        async with Client(server) as client:
            result = await client.call_tool("refund", {"order_id": "A1"})
    assert result.structured_content == {"refunded": 5}
    assert [start.arguments for start in t.starts] == [[{"order_id": "A1"}]]


async def test_it_asks_and_goes_on_with_the_answer(tmp_path: Path) -> None:
    server, workflows = shop(tmp_path)
    async with workflows.testing() as t:
        t.progress("looking", 1, 2)
        t.ask("Sure?", YES)
        t.succeed("fine")
        async with serving(server.streamable_http_app()) as url, peer(url) as client:
            task_id = (await client.call("long_order")).result["taskId"]
            asked = await client.until(task_id, "input_required")
            assert asked["statusMessage"] == "looking (1 of 2)"
            (key,) = asked["inputRequests"]
            await client.answer(task_id, **{key: {"action": "accept", "content": {"ok": True}}})
            assert (await client.until(task_id))["result"]["content"][0]["text"] == "fine"
    assert t.answers == [{"action": "accept", "content": {"ok": True}}]


async def test_a_gate_opens_and_what_it_sends_is_seen(tmp_path: Path) -> None:
    server, workflows = shop(tmp_path)
    async with workflows.testing() as t:
        t.open_gate("approve", tool="approve_order")
        t.succeed(1)
        async with serving(server.streamable_http_app()) as url, peer(url) as client:
            task_id = (await client.call("approve_order", {"order_id": "A1"})).result["taskId"]
            asked = (await client.until(task_id, "input_required"))["inputRequests"]
            ((key, request),) = asked.items()
            assert request["params"]["message"] == "Refund «A1»?"
            await client.answer(task_id, **{key: {"action": "accept", "content": {"ok": False}}})
            await client.until(task_id)
    assert t.answers[0]["send"] is False


async def test_a_lost_reply_starts_once_and_loses_nothing(tmp_path: Path) -> None:
    server, workflows = shop(tmp_path)
    async with workflows.testing() as t:
        t.lose_reply()
        t.succeed("there")
        async with serving(server.streamable_http_app()) as url, peer(url) as client:
            task_id = (await client.call("approve_order", {"order_id": "A1"})).result["taskId"]
            assert (await client.until(task_id))["result"]["content"][0]["text"] == "there"
    assert len(t.starts) == 1


async def test_an_engine_that_is_down_is_told_and_comes_back(tmp_path: Path) -> None:
    server, workflows = shop(tmp_path)
    async with workflows.testing() as t, serving(server.streamable_http_app()) as url, peer(url) as client:
        task_id = (await client.call("long_order")).result["taskId"]
        t.go_down()
        with anyio.fail_after(60):
            while "as the test wants it" not in (await client.get(task_id)).get("statusMessage", ""):
                await anyio.sleep(0.05)
        t.come_back()
        t.succeed()
        assert (await client.until(task_id))["status"] == "completed"
