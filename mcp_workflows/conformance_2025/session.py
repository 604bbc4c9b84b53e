"""One MCP session over Streamable HTTP, in raw JSON-RPC: what is sent is what was meant, however wrong."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import anyio
import httpx2
from anyio.abc import TaskGroup

from mcp_workflows.conformance_2025.answers import Answer, accept, answered
from mcp_workflows.conformance_2025.check import JSON, BlockedError, CheckError, ViolationError
from mcp_workflows.conformance_2025.traffic import Exchange, Message, Reply, Traffic, as_object

VERSION: Final = "2025-11-25"
ELICITATION: Final[Mapping[str, JSON]] = {"elicitation": {"form": {}}}
CLIENT: Final = {"name": "mcp-workflows-conformance-2025", "version": "1"}
AGAIN = 0.5  # seconds until a stream that the server has closed is opened again
LINGER = 0.2  # seconds a stream is read on after the response: servers close it at once
REFUSED = frozenset({404, 405, 501})  # no stream for messages of the server


@dataclass(slots=True, kw_only=True)
class Pending:
    """A request that is under way; `drop` closes its connection."""

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    done: anyio.Event = field(default_factory=anyio.Event)
    outcome: Reply | ViolationError | BlockedError | None = None

    def drop(self) -> None:
        """Close the connection, as a client does that is gone."""
        self.scope.cancel()

    async def reply(self, within: float) -> Reply:
        """Its reply.

        Raises:
            ViolationError: there is none in that time.
        """
        with anyio.move_on_after(within):
            await self.done.wait()
        match self.outcome:
            case Reply():
                return self.outcome
            case None:
                raise ViolationError(f"no reply within {within:g} s")
            case error:
                raise error


@dataclass(slots=True, kw_only=True)
class Session:
    """A client of one server; `answer` decides what becomes of the server's questions."""

    http: httpx2.AsyncClient
    url: str
    headers: Mapping[str, str]
    traffic: Traffic
    group: TaskGroup
    patience: float
    answer: Answer = accept
    id: str | None = None
    version: str = VERSION
    initialized: Mapping[str, JSON] = field(default_factory=dict[str, JSON])
    inbox: list[Message] = field(default_factory=list[Message])
    listening: bool = False
    last_id: int = 0  # of the last request
    _ids: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)

    async def initialize(self, version: str, capabilities: Mapping[str, JSON]) -> None:
        """The handshake.

        Raises:
            BlockedError: the server does not take part in it.
        """
        params = {"protocolVersion": version, "capabilities": capabilities, "clientInfo": CLIENT}
        reply = await self.request("initialize", params)
        if not reply.result:
            raise BlockedError(f"initialize at {version}: {reply}")
        self.initialized = reply.result
        self.version = str(reply.result.get("protocolVersion"))
        await self._post({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def request(self, method: str, params: Mapping[str, JSON] | None = None) -> Reply:
        """Send one request, and wait for its reply.

        Raises:
            ViolationError: there is none in time.
            BlockedError: the connection broke.
        """
        try:
            with anyio.fail_after(self.patience):
                return await self._request(method, params)
        except TimeoutError:
            raise ViolationError(f"no reply to {method} within {self.patience:g} s") from None
        except httpx2.HTTPError as error:
            raise BlockedError(f"{method}: the connection broke: {error or type(error).__name__}") from error

    def open(self, method: str, params: Mapping[str, JSON]) -> Pending:
        """Send one request, and go on."""
        pending = Pending()

        async def run() -> None:
            with pending.scope:
                try:
                    pending.outcome = await self.request(method, params)
                except (ViolationError, BlockedError) as error:
                    pending.outcome = error
            pending.done.set()

        self.group.start_soon(run)
        return pending

    async def notify(self, method: str, params: Mapping[str, JSON]) -> None:
        """Send a notification."""
        await self._post({"jsonrpc": "2.0", "method": method, "params": params})

    async def respond(self, asked: Message, response: Mapping[str, JSON]) -> None:
        """Send the response to a request of the server."""
        await self._post({"jsonrpc": "2.0", "id": asked.body.get("id"), **response})

    async def listen(self) -> bool:
        """Open the stream for messages that belong to no request; whether the server has one."""
        opened = anyio.Event()
        self.group.start_soon(self._listen, opened)
        with anyio.move_on_after(self.patience):
            await opened.wait()
        return self.listening

    async def close(self) -> None:
        """Tell the server that the session is over."""
        if self.id is not None:
            with anyio.move_on_after(5, shield=True):
                await self._quietly(self.http.delete(self.url, headers=self._headers()))

    async def _request(self, method: str, params: Mapping[str, JSON] | None) -> Reply:
        number, began = self._ids(), time.monotonic()
        self.last_id = number
        body = {"jsonrpc": "2.0", "id": number, "method": method, **({} if params is None else {"params": params})}
        async with self.http.stream("POST", self.url, json=body, headers=self._headers()) as response:
            self.id = response.headers.get("mcp-session-id", self.id)
            if _is_sse(response):
                found = await self._response(response, method, number)
            else:
                found = _read(await response.aread())
            reply = Reply(
                http_status=response.status_code,
                body=found,
                sse=_is_sse(response),
                seconds=time.monotonic() - began,
            )
        self.traffic.exchanges.append(Exchange(method=method, params=params or {}, reply=reply, sent=began))
        return reply

    async def _response(self, response: httpx2.Response, method: str, number: int) -> Mapping[str, JSON]:
        """The response on an event stream; where the server closed it before, on the one that takes it up."""
        last = ""
        async with aclosing(_events(response)) as events:
            async for event, number_of_event in events:
                last = number_of_event
                if event.get("id") == number and "method" not in event:
                    with anyio.move_on_after(LINGER):
                        await self._rest(events, method)
                    return event
                self._take(event, method)
        return await self._resumed(last, method, number) if last else {}

    async def _resumed(self, last: str, method: str, number: int) -> Mapping[str, JSON]:
        await anyio.sleep(AGAIN)
        headers = self._headers(**{"accept": "text/event-stream", "last-event-id": last})
        async with self.http.stream("GET", self.url, headers=headers) as response:
            return await self._response(response, method, number) if _is_sse(response) else {}

    async def _rest(self, events: AsyncIterator[tuple[Mapping[str, JSON], str]], channel: str) -> None:
        async for event, _ in events:
            self._take(event, channel)

    async def _listen(self, opened: anyio.Event) -> None:
        headers = self._headers(accept="text/event-stream")
        while True:
            try:
                async with self.http.stream("GET", self.url, headers=headers) as response:
                    self.listening = _is_sse(response)
                    opened.set()
                    if not self.listening and response.status_code in REFUSED:
                        return
                    async with aclosing(_events(response)) as events:
                        await self._rest(events, "GET")
            except httpx2.HTTPError:
                opened.set()
            await anyio.sleep(AGAIN)

    def _take(self, event: Mapping[str, JSON], channel: str) -> None:
        """Keep what the server sent of itself, and answer it if it asks."""
        if "method" not in event:
            return
        message = Message(body=event, channel=channel)
        self.inbox.append(message)
        self.traffic.messages.append(message)
        response = answered(message, self.answer) if "id" in event else None
        if response is not None:
            self.group.start_soon(partial(self.respond, message, response))

    async def _post(self, body: Mapping[str, JSON]) -> None:
        await self._quietly(self.http.post(self.url, json=body, headers=self._headers(), timeout=self.patience))

    async def _quietly(self, sending: Awaitable[httpx2.Response]) -> None:
        """Nobody waits for what comes back; a lost connection shows with the next request."""
        try:
            await sending
        except httpx2.HTTPError:
            return

    def _headers(self, **more: str) -> Mapping[str, str]:
        headers = {"accept": "application/json, text/event-stream", **self.headers, **more}
        if self.initialized:
            headers["mcp-protocol-version"] = self.version
        return headers if self.id is None else {**headers, "mcp-session-id": self.id}


@asynccontextmanager
async def opened(
    http: httpx2.AsyncClient,
    url: str,
    headers: Mapping[str, str],
    traffic: Traffic,
    patience: float,
    *,
    version: str = VERSION,
    capabilities: Mapping[str, JSON] = ELICITATION,
) -> AsyncGenerator[Session]:
    """A session, initialized; its streams are closed at the end."""
    wrong: Exception | None = None  # not raised within the group, which would wrap it
    async with anyio.create_task_group() as group:
        session = Session(http=http, url=url, headers=headers, traffic=traffic, group=group, patience=patience)
        try:
            await session.initialize(version, capabilities)
            yield session
        except (CheckError, AttributeError, LookupError, TypeError, ValueError) as error:
            wrong = error
        finally:
            await session.close()
            group.cancel_scope.cancel()
    if wrong is not None:
        raise wrong


def _is_sse(response: httpx2.Response) -> bool:
    return response.headers.get("content-type", "").startswith("text/event-stream")


def _read(content: bytes) -> Mapping[str, JSON]:
    try:
        return as_object(json.loads(content))
    except ValueError:
        return {}


async def _events(response: httpx2.Response) -> AsyncGenerator[tuple[Mapping[str, JSON], str]]:
    """The JSON-RPC messages of a stream, and the id of the last event; priming events have no data."""
    async for event in httpx2.EventSource(response):
        yield _read(event.data.encode()), event.id
