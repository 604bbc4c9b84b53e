"""A raw client of any era, in memory: it sends what it is told, and there is neither a port nor an SDK client."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from mcp.server.lowlevel import Server
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from mcp_workflows import Workflows, attach
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.tools.tool import AnyTool
from tests.support.waiting import TIMEOUT

MODERN = "2026-07-28"
ANSWERED = JSONRPCResponse | JSONRPCError

Message = Mapping[str, Any]  # one JSON-RPC message; Any: any JSON value


@dataclass(slots=True)
class Line:
    """One connection of a client that speaks one version, and declares these capabilities."""

    version: str
    capabilities: Message
    write: Callable[[SessionMessage], Awaitable[None]]
    host: str = "raw"
    ids: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)
    waiting: dict[int, anyio.Event] = field(default_factory=dict[int, anyio.Event])
    replies: dict[int, ANSWERED] = field(default_factory=dict[int, ANSWERED])
    notifications: list[JSONRPCNotification] = field(default_factory=list[JSONRPCNotification])
    asked: list[JSONRPCRequest] = field(default_factory=list[JSONRPCRequest])
    answer: Message | None = None  # to whatever the server asks

    async def send(self, method: str, params: Message | None = None, *, meta: Message | None = None) -> Message:
        """One request, and its `result`, or its `error`."""
        number = self.ids()
        landed = self.waiting[number] = anyio.Event()
        whole = {**(params or {}), "_meta": {**self._envelope(), **(meta or {})}}
        request = JSONRPCRequest(jsonrpc="2.0", id=number, method=method, params=whole)
        await self.write(SessionMessage(request))
        with anyio.fail_after(TIMEOUT):
            await landed.wait()
        return self.replies.pop(number).model_dump(by_alias=True, exclude_none=True, include={"result", "error"})

    async def call(self, tool: str, arguments: Message | None = None, **params: Any) -> Message:
        """`tools/call`, with more params if there are."""
        return await self.send("tools/call", {"name": tool, "arguments": arguments or {}, **params})

    async def tool(self, tool: str, arguments: Message | None = None) -> Message:
        """The result of `tools/call`; fails the test on an error."""
        reply = await self.call(tool, arguments)
        assert "result" in reply, reply
        result: Message = reply["result"]
        return result

    async def tools(self) -> Mapping[str, Message]:
        """`tools/list`, by name, in order."""
        return {tool["name"]: tool for tool in (await self.send("tools/list"))["result"]["tools"]}

    async def begin(self) -> None:
        """The handshake, where the version has one."""
        if self.version == MODERN:
            return
        hello = {"protocolVersion": self.version, "capabilities": self.capabilities}
        reply = await self.send("initialize", {**hello, "clientInfo": {"name": self.host, "version": "0"}})
        assert reply["result"]["protocolVersion"] == self.version
        said = JSONRPCNotification(jsonrpc="2.0", method="notifications/initialized")
        await self.write(SessionMessage(said))

    async def listen(self, incoming: AsyncIterable[SessionMessage | Exception]) -> None:
        """Take in what comes, until the connection is closed."""
        async for found in incoming:
            assert isinstance(found, SessionMessage)
            match found.message:
                case JSONRPCResponse(id=int(number)) | JSONRPCError(id=int(number)):
                    self.replies[number] = found.message
                    self.waiting.pop(number).set()
                case JSONRPCRequest() as request:
                    self.asked.append(request)
                    if self.answer is not None:
                        reply = JSONRPCResponse(jsonrpc="2.0", id=request.id, result=dict(self.answer))
                        await self.write(SessionMessage(reply))
                case JSONRPCNotification() as notification:
                    self.notifications.append(notification)
                case _:
                    raise AssertionError(found.message)

    def _envelope(self) -> Message:
        if self.version != MODERN:
            return {}
        return {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientInfo": {"name": self.host, "version": "0"},
            "io.modelcontextprotocol/clientCapabilities": self.capabilities,
        }


@asynccontextmanager
async def line(
    server: Server[Any], version: str = MODERN, capabilities: Message | None = None, *, host: str = "raw"
) -> AsyncGenerator[Line]:
    """A client of that server, connected; as on stdio. `host` is the name that it gives itself."""
    async with (
        create_client_server_memory_streams() as ((incoming, outgoing), ends),
        anyio.create_task_group() as group,
    ):
        group.start_soon(server.run, *ends, server.create_initialization_options())
        client = Line(version, capabilities or {}, outgoing.send, host=host)
        group.start_soon(client.listen, incoming)
        await client.begin()
        yield client
        group.cancel_scope.cancel()


@asynccontextmanager
async def entered(
    tools: Sequence[AnyTool], *, store: str, engine: str = "memory", **settings: Any
) -> AsyncGenerator[tuple[Server[Any], Workflows]]:
    """A lowlevel server with these tools on an engine in memory; it may have many clients."""
    server: Server[Any] = Server("test", version="1")
    engines = {"memory": MemoryAdapter(MemorySettings(name=engine))}
    async with attach(server, tools=tools, engines=engines, store=store, **settings) as workflows:
        yield server, workflows
