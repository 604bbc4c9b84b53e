"""A raw client of 2025-11-25 over Streamable HTTP, with no SDK between the tests and the wire."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx2
from anyio.abc import TaskGroup

from tests.support.served import Reply
from tests.support.waiting import TIMEOUT

VERSION = "2025-11-25"
RELATED_TASK = "io.modelcontextprotocol/related-task"
ELICITATION: Mapping[str, Any] = {"elicitation": {"form": {}}}


@dataclass(frozen=True, slots=True)
class Message:
    """A request or notification from the server."""

    body: Mapping[str, Any]
    channel: str  # "GET", or the method of the request whose stream carried the message

    @property
    def method(self) -> str:
        """The JSON-RPC method."""
        return str(self.body.get("method"))

    @property
    def params(self) -> Mapping[str, Any]:
        """The JSON-RPC params; empty if there are none."""
        return self.body.get("params") or {}


Answer = Callable[[Message], Any]  # the ElicitResult for an elicitation; None leaves it unanswered


def accept(message: Message) -> Any:
    """Accept an elicitation, with "Ada" in every field."""
    fields = message.params["requestedSchema"]["properties"]
    return {"action": "accept", "content": dict.fromkeys(fields, "Ada")}


def hold(_: Message) -> None:
    """Leave an elicitation unanswered."""


@dataclass(slots=True)
class PendingRequest:
    """A request in progress."""

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    done: anyio.Event = field(default_factory=anyio.Event)
    received: Reply | None = None

    def disconnect(self) -> None:
        """Close the connection of the request."""
        self.scope.cancel()

    async def reply(self) -> Reply:
        """Return the reply once it arrives."""
        with anyio.fail_after(TIMEOUT):
            await self.done.wait()
        assert self.received is not None
        return self.received


@dataclass(slots=True, kw_only=True)
class Session:
    """A client session; `answer` decides the responses to elicitations."""

    http: httpx2.AsyncClient
    url: str
    group: TaskGroup
    answer: Answer = accept
    id: str = ""
    capabilities: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of the server; empty before `initialize`
    inbox: list[Message] = field(default_factory=list[Message])
    last_id: int = 0  # of the last request
    ids: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> Reply:
        """Send a request and return its reply."""
        number = self.last_id = self.ids()
        body = {"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}}
        with anyio.fail_after(TIMEOUT):
            async with self.http.stream("POST", self.url, json=body, headers=self.headers) as response:
                self.id = response.headers.get("mcp-session-id", self.id)
                return Reply(response.status_code, await self._read(response, method, number))

    def start_request(self, method: str, params: Mapping[str, Any]) -> PendingRequest:
        """Send a request in the background."""
        pending = PendingRequest()

        async def run() -> None:
            with pending.scope:
                pending.received = await self.request(method, params)
            pending.done.set()

        self.group.start_soon(run)
        return pending

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""
        await self._post({"jsonrpc": "2.0", "method": method, "params": params or {}})

    async def respond(self, request: Message, response: Mapping[str, Any]) -> None:
        """Send the `result` or `error` for a request of the server."""
        await self._post({"jsonrpc": "2.0", "id": request.body["id"], **response})

    async def listen(self) -> None:
        """Open the GET stream."""
        opened = anyio.Event()
        self.group.start_soon(self._listen, opened)
        with anyio.fail_after(TIMEOUT):
            await opened.wait()

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request, besides those of `http`."""
        version = {"mcp-protocol-version": VERSION} if self.capabilities else {}
        session = {"mcp-session-id": self.id} if self.id else {}
        return {"accept": "application/json, text/event-stream", **version, **session}

    async def _listen(self, opened: anyio.Event) -> None:
        headers = {**self.headers, "accept": "text/event-stream"}
        async with self.http.stream("GET", self.url, headers=headers) as response:
            assert response.status_code == 200, response.status_code
            opened.set()
            await self._read(response, "GET", None)

    async def _read(self, response: httpx2.Response, channel: str, number: int | None) -> Mapping[str, Any]:
        """Return the response with this id, and take the messages before it."""
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            return json.loads(await response.aread())
        found: Mapping[str, Any] = {}
        async for line in response.aiter_lines():
            body: Mapping[str, Any] = json.loads(line.removeprefix("data:")) if line.startswith("data: {") else {}
            if "method" in body:
                self._receive(Message(body, channel))
            elif body:
                assert body["id"] == number, body
                found = body
        return found

    def _receive(self, message: Message) -> None:
        """Keep a message of the server, and respond to a request."""
        self.inbox.append(message)
        if message.method in ("ping", "elicitation/create"):
            result: Any = {} if message.method == "ping" else self.answer(message)
            if result is not None:
                response = {"result": {**result, "_meta": message.params.get("_meta", {})}}
                self.group.start_soon(self.respond, message, response)

    async def _post(self, body: Mapping[str, Any]) -> None:
        await self.http.post(self.url, json=body, headers=self.headers)


@asynccontextmanager
async def session(
    url: str,
    *,
    token: str | None = None,
    answer: Answer = accept,
    capabilities: Mapping[str, Any] = ELICITATION,
    headers: Mapping[str, str] | None = None,
) -> AsyncGenerator[Session]:
    """Open an initialized session, and close it and its streams at the end."""
    given = {**(headers or {}), **({"authorization": f"Bearer {token}"} if token else {})}
    async with httpx2.AsyncClient(headers=given, timeout=60) as http, anyio.create_task_group() as group:
        client = Session(http=http, url=url, group=group, answer=answer)
        client_info = {"name": "raw", "version": "0"}
        params = {"protocolVersion": VERSION, "capabilities": capabilities, "clientInfo": client_info}
        client.capabilities = (await client.request("initialize", params)).result["capabilities"]
        await client.notify("notifications/initialized")
        try:
            yield client
        finally:
            with anyio.move_on_after(TIMEOUT, shield=True):
                await http.delete(url, headers=client.headers)
            group.cancel_scope.cancel()
