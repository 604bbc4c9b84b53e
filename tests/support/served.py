"""A real server on a real port, and a raw client that sends what it is told: no SDK between us and the wire."""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import anyio
import httpx2
import uvicorn
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from pydantic import AnyHttpUrl
from starlette.applications import Starlette

from mcp_workflows import Tool, Workflows, attach
from mcp_workflows.adapter import Adapter
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.store.protocol import Store
from mcp_workflows.tools.tool import AnyTool
from tests.support.stopwatch import stopwatch
from tests.support.waiting import TIMEOUT

VERSION = "2026-07-28"
EXTENSION = "io.modelcontextprotocol/tasks"
TASKS: Mapping[str, Any] = {"extensions": {EXTENSION: {}}, "elicitation": {"form": {}}}
ENDED = frozenset({"completed", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Reply:
    """One JSON-RPC response with its HTTP status, and the notifications that came before it."""

    status: int
    body: Mapping[str, Any]
    notifications: Sequence[Mapping[str, Any]] = ()

    @property
    def result(self) -> Mapping[str, Any]:
        """The result; fails the test on an error."""
        assert "result" in self.body, self.body
        return self.body["result"]

    @property
    def error(self) -> Mapping[str, Any]:
        """The error; fails the test on a result."""
        assert "error" in self.body, self.body
        return self.body["error"]

    @property
    def code(self) -> int:
        """The code of the error."""
        return self.error["code"]


@dataclass(slots=True)
class Peer:
    """A client on the wire of 2026-07-28."""

    http: httpx2.AsyncClient
    url: str
    capabilities: Mapping[str, Any] = field(default_factory=lambda: TASKS)
    token: str | None = None
    ids: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)

    async def send(self, method: str, params: Mapping[str, Any] | None = None, **options: Any) -> Reply:
        """One request, its response and what the stream carried before it; `options` as in `response`."""
        async with self.stream(method, params, **options) as (status, frames):
            seen = [frame async for frame in frames]
        return Reply(status, seen[-1], seen[:-1])

    @asynccontextmanager
    async def stream(
        self, method: str, params: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncGenerator[tuple[int, AsyncIterator[Mapping[str, Any]]]]:
        """The frames of one response, as they come; `options` as in `response`."""
        async with self.response(method, params, **options) as response:
            yield response.status_code, _frames(response)

    @asynccontextmanager
    async def response(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str | None] | None = None,
        capabilities: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[httpx2.Response]:
        """One response, as it comes."""
        envelope = {
            "io.modelcontextprotocol/protocolVersion": VERSION,
            "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "0"},
            "io.modelcontextprotocol/clientCapabilities": self.capabilities if capabilities is None else capabilities,
            **(meta or {}),
        }
        body = {"jsonrpc": "2.0", "id": self.ids(), "method": method, "params": {**(params or {}), "_meta": envelope}}
        sent = self._headers(method, params or {}) | dict(headers or {})
        kept = {name: value for name, value in sent.items() if value is not None}
        async with self.http.stream("POST", self.url, json=body, headers=kept, timeout=60) as response:
            yield response

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **more: Any) -> Reply:
        """`tools/call`; `params` adds to its params."""
        params = {"name": tool, "arguments": arguments or {}, **more.pop("params", {})}
        return await self.send("tools/call", params, **more)

    async def get(self, task_id: str) -> Mapping[str, Any]:
        """`tasks/get`."""
        return (await self.send("tasks/get", {"taskId": task_id})).result

    async def until(self, task_id: str, *statuses: str, within: float = TIMEOUT) -> Mapping[str, Any]:
        """The task once it has one of these statuses (any terminal one, if none is named)."""
        seen: Mapping[str, Any] = {}
        with anyio.fail_after(within):
            while (seen := await self.get(task_id))["status"] not in (statuses or ENDED):
                await anyio.sleep(0.05)
        return seen

    async def answer(self, task_id: str, **responses: Any) -> Reply:
        """`tasks/update`."""
        return await self.send("tasks/update", {"taskId": task_id, "inputResponses": responses})

    def _headers(self, method: str, params: Mapping[str, Any]) -> dict[str, str | None]:
        name = params.get("name") or params.get("uri") or params.get("taskId")
        return {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": VERSION,
            "mcp-method": method,
            "mcp-name": name if isinstance(name, str) and name.isascii() and name.isprintable() else None,
            "authorization": f"Bearer {self.token}" if self.token else None,
        }


async def _frames(response: httpx2.Response) -> AsyncIterator[Mapping[str, Any]]:
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        text = (await response.aread()).decode()
        yield json.loads(text) if text.startswith("{") else {"text": text}
        return
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            yield json.loads(line.removeprefix("data:"))


class Tokens:
    """Every token is good, and names its subject, then its scopes: `bob+orders:approve`."""

    async def verify_token(self, token: str) -> AccessToken:
        """What the token says of itself."""
        subject, *scopes = token.split("+")
        return AccessToken(token=token, client_id="client", scopes=scopes, subject=subject)


def memory_tools() -> list[Tool]:
    """One tool for each workflow of the engine in memory."""
    names = ("echo", "sleep", "forever", "stubborn", "ask", "ask_two", "ask_in_turn", "fail", "protocol_error")
    return [Tool(name=name, engine="memory", workflow=name) for name in names]


@dataclass(frozen=True, slots=True)
class Site:
    """What is served, to be looked at from inside."""

    workflows: Workflows
    url: str


@asynccontextmanager
async def site(
    *,
    store: Store | str,
    tools: Sequence[AnyTool] | None = None,
    adapters: Mapping[str, Adapter] | None = None,
    authenticated: bool = False,
    port: int = 0,
    transport: Mapping[str, Any] | None = None,
    **settings: Any,
) -> AsyncGenerator[Site]:
    """A lowlevel server with our tools, on this port or a free one of this machine."""

    @asynccontextmanager
    async def lifespan(_: Server[Any]) -> AsyncGenerator[None]:
        async with workflows:
            yield

    server: Server[Any] = Server(
        "test", version="1", lifespan=lifespan, on_subscriptions_listen=ListenHandler(InMemorySubscriptionBus())
    )
    workflows = attach(
        server,
        tools=memory_tools() if tools is None else tools,
        engines=adapters or {"memory": MemoryAdapter(MemorySettings())},
        store=store,
        **settings,
    )
    app = server.streamable_http_app(**(_auth() if authenticated else {}), **(transport or {}))
    async with serving(app, port=port) as url:
        yield Site(workflows, url)


def _auth() -> dict[str, Any]:
    address = AnyHttpUrl("http://127.0.0.1/mcp")
    settings = AuthSettings(issuer_url=address, resource_server_url=address, validate_token_resource=False)
    return {"auth": settings, "token_verifier": Tokens()}


@asynccontextmanager
async def serving(
    app: Starlette, *, port: int = 0, http: Any = "auto"
) -> AsyncGenerator[str]:  # Any: as uvicorn has it
    """The application under uvicorn, in this very event loop; the URL of its `/mcp`."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named, or asyncio keeps Nagle's
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
    except OSError:
        listening.close()  # or the next test would be blamed
        raise
    listening.listen()
    settings = uvicorn.Config(
        app, http=http, log_config=None, lifespan="on", timeout_graceful_shutdown=1, proxy_headers=False
    )
    server = _Prompt(settings)
    async with anyio.create_task_group() as group:
        group.start_soon(server.serve, [listening])
        with anyio.fail_after(TIMEOUT):
            await server.begun.wait()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        finally:
            server.end()


class _Prompt(uvicorn.Server):
    """It ends when it shall: uvicorn looks every 0.1 s whether that is so, which a thousand tests wait for."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.begun, self._over = anyio.Event(), anyio.Event()

    def end(self) -> None:
        self.should_exit = True  # streams of events look at it
        self._over.set()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._over.set()

    async def main_loop(self) -> None:
        await self.on_tick(0)  # makes the headers of answers
        self.begun.set()
        await self._over.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does it: who is being served has a second."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with anyio.move_on_after(self.config.timeout_graceful_shutdown):
            while self.server_state.connections or self.server_state.tasks:
                await anyio.sleep(0.005)
        for task in self.server_state.tasks:
            task.cancel()
        await self.lifespan.shutdown()


@asynccontextmanager
async def peer(url: str, **settings: Any) -> AsyncGenerator[Peer]:
    """A client of that server."""
    async with httpx2.AsyncClient(timeout=60) as http:
        yield Peer(http, url, **settings)


async def told(client: Peer, task_id: str, text: str, *, within: float = TIMEOUT) -> Mapping[str, Any]:
    """The task once its message says so; every answer on the way comes in time and is not terminal."""
    with anyio.fail_after(within):
        while True:
            with stopwatch() as seconds:
                seen = await client.get(task_id)
                assert seconds() < 6, "an engine in trouble must not make its clients wait"
            assert seen["status"] not in ENDED, seen
            if text in seen.get("statusMessage", ""):
                return seen
            await anyio.sleep(0.05)
