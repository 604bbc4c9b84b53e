"""A sidecar in this very process, to be looked at from inside; and a raw client of 2025-11-25."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.sidecar.app import Sidecar, build, http_app
from mcp_workflows.sidecar.config.load import load_config
from mcp_workflows.sidecar.config.models import Config
from mcp_workflows.store.protocol import TaskFilter
from mcp_workflows.task import Task
from tests.support.served import VERSION, serving

OLD = "2025-11-25"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A configuration with an engine in memory of its own."""

    config: Config
    sidecar: Sidecar
    engine: MemoryAdapter

    async def tasks(self) -> list[Task]:
        """All that is in the store."""
        async with self.config.store.open() as store:
            return list(await store.list_all(TaskFilter(live_only=False)))


def scene(folder: Path, tools: str, server: str = "", store: str = "sqlite:///tasks.db") -> Scene:
    """These tools (YAML) of the engine `here`."""
    path = folder / "workflows.yaml"
    name = f"{folder.parent.name}-{folder.name}"
    engine = f"engines: {{here: {{adapter: memory, name: {name}}}}}"
    path.write_text(f"server: {{{server}}}\nstore: {store}\n{engine}\ntools:\n{tools}")
    config = load_config(path, {})
    return Scene(config=config, sidecar=build(config), engine=MemoryAdapter(MemorySettings(name=name)))


@asynccontextmanager
async def over_http(found: Scene, *, http: Any = "auto") -> AsyncGenerator[str]:  # Any: as uvicorn has it
    """The sidecar's application on a free port; its URL."""
    async with serving(http_app(found.sidecar, found.config, "127.0.0.1", 0), http=http) as url:
        yield url


@dataclass(slots=True)
class Elder:
    """A client on the wire of 2025-11-25."""

    http: httpx2.AsyncClient
    url: str
    headers: dict[str, str]
    ids: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)

    @asynccontextmanager
    async def stream(self, method: str, params: Mapping[str, Any] | None = None) -> AsyncGenerator[httpx2.Response]:
        """One request and its response, as it comes."""
        body = {"jsonrpc": "2.0", "id": self.ids(), "method": method, "params": params or {}}
        async with self.http.stream("POST", self.url, json=body, headers=self.headers, timeout=60) as response:
            yield response

    async def send(self, method: str, params: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """One request, and the last frame of its response; empty if there was none."""
        async with self.stream(method, params) as response:
            frames = [frame async for frame in data_of(response)]
        return frames[-1] if frames else {}

    async def call(self, tool: str) -> Mapping[str, Any]:
        """`tools/call`, without a task."""
        return await self.send("tools/call", {"name": tool, "arguments": {}})

    async def respond(self, number: object, result: Mapping[str, Any]) -> None:
        """The answer to a request of the server."""
        body = {"jsonrpc": "2.0", "id": number, "result": result}
        (await self.http.post(self.url, json=body, headers=self.headers)).raise_for_status()

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """One notification."""
        body = {"jsonrpc": "2.0", "method": method, "params": params or {}}
        (await self.http.post(self.url, json=body, headers=self.headers)).raise_for_status()


async def data_of(response: httpx2.Response) -> AsyncIterator[Mapping[str, Any]]:
    """The JSON of a response, or of its events."""
    if not response.headers["content-type"].startswith("text/event-stream"):
        yield json.loads(await response.aread())
        return
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            yield json.loads(line.removeprefix("data:"))


def hello(capabilities: Mapping[str, Any]) -> Mapping[str, Any]:
    """The params of `initialize`."""
    return {"protocolVersion": OLD, "capabilities": capabilities, "clientInfo": {"name": "raw", "version": "0"}}


@asynccontextmanager
async def elder(url: str, capabilities: Mapping[str, Any] | None = None, **headers: str) -> AsyncGenerator[Elder]:
    """A client with a session, and perhaps more headers."""
    async with httpx2.AsyncClient() as http:
        found = Elder(http, url, {"accept": "application/json, text/event-stream", **headers})
        async with found.stream("initialize", hello(capabilities or {})) as response:
            found.headers |= {"mcp-session-id": response.headers["mcp-session-id"], "mcp-protocol-version": OLD}
            await response.aread()
        await found.notify("notifications/initialized")
        yield found


@dataclass(slots=True)
class Pipe:
    """The client's end of stdio."""

    outgoing: MemoryObjectSendStream[SessionMessage | Exception]
    incoming: MemoryObjectReceiveStream[SessionMessage]

    async def send(self, method: str, params: Mapping[str, Any], number: int | None = None) -> None:
        """A request, or without a number a notification."""
        body = {"jsonrpc": "2.0", "method": method, "params": params} | ({} if number is None else {"id": number})
        await self.outgoing.send(SessionMessage(jsonrpc_message_adapter.validate_python(body, by_name=False)))


MODERN: Mapping[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "0"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


@asynccontextmanager
async def over_stdio(found: Scene) -> AsyncGenerator[Pipe]:
    """The sidecar's server on what stdio is to it; the client closes it at the end, and it ends."""
    outgoing, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, incoming = anyio.create_memory_object_stream[SessionMessage](100)
    server = found.sidecar.server
    async with incoming, anyio.create_task_group() as group:
        group.start_soon(server.run, read, write, server.create_initialization_options())
        async with outgoing:
            yield Pipe(outgoing, incoming)
