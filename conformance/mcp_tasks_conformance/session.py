"""An MCP client session over Streamable HTTP in raw JSON-RPC, so that the suite can also send invalid messages."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import anyio
import httpx2
from anyio.abc import TaskGroup

from mcp_tasks_conformance.answers import Answer, accept, build_response
from mcp_tasks_conformance.check import JSON, BlockedError, CheckError, ViolationError
from mcp_tasks_conformance.traffic import Exchange, Message, Reply, Traffic, as_object

VERSION: Final = "2025-11-25"
MODERN: Final = "2026-07-28"  # the revision without sessions; the suite speaks it for Events
ELICITATION: Final[Mapping[str, JSON]] = {"elicitation": {"form": {}}}
CLIENT: Final = {"name": "mcp-workflows-conformance-2025", "version": "1"}
RECONNECT_DELAY = 0.5  # seconds until a stream that the server closed is opened again
LINGER = 0.2  # seconds to read on after the response: a compliant server closes the stream at once
NO_STREAM_STATUSES = frozenset({404, 405, 501})  # HTTP statuses of a server without a GET stream


@dataclass(slots=True, kw_only=True)
class PendingRequest:
    """A request in progress."""

    id: int
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    done: anyio.Event = field(default_factory=anyio.Event)
    outcome: Reply | ViolationError | BlockedError | None = None

    def disconnect(self) -> None:
        """Close the connection of the request."""
        self.scope.cancel()

    async def wait_for_reply(self, timeout: float) -> Reply:  # noqa: ASYNC109  # a late reply is a violation
        """Return the reply once it arrives.

        Raises:
            ViolationError: no reply within `timeout` seconds.
            BlockedError: the connection broke.
        """
        with anyio.move_on_after(timeout):
            await self.done.wait()
        match self.outcome:
            case Reply():
                return self.outcome
            case None:
                raise ViolationError(f"no reply within {timeout:g} s")
            case error:
                raise error


@dataclass(slots=True, kw_only=True)
class ClientSession:
    """A client session with one server; `answer` decides the responses to elicitations."""

    http: httpx2.AsyncClient
    url: str
    headers: Mapping[str, str]
    traffic: Traffic
    group: TaskGroup
    timeout: float  # seconds for each request
    answer: Answer = accept
    id: str | None = None
    version: str = VERSION
    capabilities: Mapping[str, JSON] = field(default_factory=dict[str, JSON])  # of the client
    initialize_result: Mapping[str, JSON] = field(default_factory=dict[str, JSON])  # at 2026-07-28 of server/discover
    inbox: list[Message] = field(default_factory=list[Message])
    is_listening: bool = False
    last_id: int = 0  # of the last request
    _ids: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)

    async def initialize(self, version: str, capabilities: Mapping[str, JSON]) -> None:
        """Negotiate the protocol version and capabilities; at 2026-07-28 ask for those of the server.

        Raises:
            BlockedError: the server returned no result.
        """
        self.capabilities = capabilities
        if version == MODERN:
            self.version = version
            reply = await self.request("server/discover")
            if not reply.result:
                raise BlockedError(f"server/discover at {version}: {reply}")
            self.initialize_result = reply.result
            return
        params = {"protocolVersion": version, "capabilities": capabilities, "clientInfo": CLIENT}
        reply = await self.request("initialize", params)
        if not reply.result:
            raise BlockedError(f"initialize at {version}: {reply}")
        self.initialize_result = reply.result
        self.version = str(reply.result.get("protocolVersion"))
        await self._post({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def request(self, method: str, params: Mapping[str, JSON] | None = None) -> Reply:
        """Send a request and return its reply.

        Raises:
            ViolationError: no reply in time.
            BlockedError: the connection broke.
        """
        return await self._numbered(self._ids(), method, params, self.timeout)

    async def _numbered(self, number: int, method: str, params: Mapping[str, JSON] | None, limit: float) -> Reply:
        try:
            with anyio.fail_after(limit):
                return await self._request(number, method, params)
        except TimeoutError:
            raise ViolationError(f"no reply to {method} within {limit:g} s") from None
        except httpx2.HTTPError as error:
            raise BlockedError(f"{method}: the connection broke: {error or type(error).__name__}") from error

    def start_request(self, method: str, params: Mapping[str, JSON], *, endless: bool = False) -> PendingRequest:
        """Send a request in the background; an `endless` one may stay without a reply."""
        pending = PendingRequest(id=self._ids())

        async def run() -> None:
            with pending.scope:
                try:
                    limit = math.inf if endless else self.timeout
                    pending.outcome = await self._numbered(pending.id, method, params, limit)
                except (ViolationError, BlockedError) as error:
                    pending.outcome = error
            pending.done.set()

        self.group.start_soon(run)
        return pending

    async def notify(self, method: str, params: Mapping[str, JSON]) -> None:
        """Send a notification."""
        await self._post({"jsonrpc": "2.0", "method": method, "params": params})

    async def respond(self, request: Message, response: Mapping[str, JSON]) -> None:
        """Send the `result` or `error` for a request of the server."""
        await self._post({"jsonrpc": "2.0", "id": request.body.get("id"), **response})

    async def listen(self) -> bool:
        """Open the GET stream, and return False if the server has none."""
        opened = anyio.Event()
        self.group.start_soon(self._listen, opened)
        with anyio.move_on_after(self.timeout):
            await opened.wait()
        return self.is_listening

    async def close(self) -> None:
        """End the session on the server."""
        if self.id is not None:
            with anyio.move_on_after(5, shield=True):
                await _ignore_errors(self.http.delete(self.url, headers=self._headers()))

    async def _request(self, number: int, method: str, params: Mapping[str, JSON] | None) -> Reply:
        sent_at = time.monotonic()
        self.last_id = number
        sent, headers = params, self._headers()
        if self.version == MODERN:
            sent, headers = {**(params or {}), "_meta": self._envelope()}, self._headers(**{"mcp-method": method})
        body = {"jsonrpc": "2.0", "id": number, "method": method, **({} if sent is None else {"params": sent})}
        async with self.http.stream("POST", self.url, json=body, headers=headers) as response:
            self.id = response.headers.get("mcp-session-id", self.id)
            is_event_stream = _is_event_stream(response)
            if is_event_stream:
                found = await self._read_response(response, method, number)
            else:
                found = _parse_object(await response.aread())
            reply = Reply(http_status=response.status_code, body=found, is_event_stream=is_event_stream)
        self.traffic.exchanges.append(Exchange(method=method, params=params or {}, reply=reply, sent_at=sent_at))
        return reply

    async def _read_response(self, response: httpx2.Response, method: str, number: int) -> Mapping[str, JSON]:
        """Return the response from an event stream; if the server closed the stream early, resume it first."""
        last = ""
        async with aclosing(_read_events(response)) as events:
            async for event, event_id in events:
                last = event_id
                if event.get("id") == number and "method" not in event:
                    with anyio.move_on_after(LINGER):
                        await self._drain(events, method)
                    return event
                self._receive(event, method)
        return await self._resume(last, method, number) if last else {}

    async def _resume(self, last: str, method: str, number: int) -> Mapping[str, JSON]:
        await anyio.sleep(RECONNECT_DELAY)
        headers = self._headers(**{"accept": "text/event-stream", "last-event-id": last})
        async with self.http.stream("GET", self.url, headers=headers) as response:
            return await self._read_response(response, method, number) if _is_event_stream(response) else {}

    async def _drain(self, events: AsyncIterator[tuple[Mapping[str, JSON], str]], channel: str) -> None:
        async for event, _ in events:
            self._receive(event, channel)

    async def _listen(self, opened: anyio.Event) -> None:
        headers = self._headers(accept="text/event-stream")
        while True:
            try:
                async with self.http.stream("GET", self.url, headers=headers) as response:
                    self.is_listening = _is_event_stream(response)
                    opened.set()
                    if not self.is_listening and response.status_code in NO_STREAM_STATUSES:
                        return
                    async with aclosing(_read_events(response)) as events:
                        await self._drain(events, "GET")
            except httpx2.HTTPError:
                opened.set()
            await anyio.sleep(RECONNECT_DELAY)

    def _receive(self, event: Mapping[str, JSON], channel: str) -> None:
        """Record a request or notification of the server, and respond to a request."""
        if "method" not in event:
            return
        message = Message(body=event, channel=channel)
        self.inbox.append(message)
        self.traffic.messages.append(message)
        response = build_response(message, self.answer) if "id" in event else None
        if response is not None:
            self.group.start_soon(partial(self.respond, message, response))

    async def _post(self, body: Mapping[str, JSON]) -> None:
        await _ignore_errors(self.http.post(self.url, json=body, headers=self._headers(), timeout=self.timeout))

    def _envelope(self) -> Mapping[str, JSON]:
        """Return the `_meta` of each request at 2026-07-28."""
        named = {"protocolVersion": self.version, "clientInfo": CLIENT, "clientCapabilities": self.capabilities}
        return {f"io.modelcontextprotocol/{name}": value for name, value in named.items()}

    def _headers(self, **more: str) -> Mapping[str, str]:
        headers = {"accept": "application/json, text/event-stream", **self.headers, **more}
        if self.initialize_result or self.version == MODERN:
            headers["mcp-protocol-version"] = self.version
        return headers if self.id is None else {**headers, "mcp-session-id": self.id}


@asynccontextmanager
async def open_session(
    http: httpx2.AsyncClient,
    url: str,
    headers: Mapping[str, str],
    traffic: Traffic,
    timeout: float,  # noqa: ASYNC109  # of each request, not of the session
    *,
    version: str = VERSION,
    capabilities: Mapping[str, JSON] = ELICITATION,
) -> AsyncGenerator[ClientSession]:
    """Open an initialized session, and close it and its streams at the end."""
    failure: Exception | None = None  # raised outside the task group, which would wrap it in an ExceptionGroup
    async with anyio.create_task_group() as group:
        session = ClientSession(http=http, url=url, headers=headers, traffic=traffic, group=group, timeout=timeout)
        try:
            await session.initialize(version, capabilities)
            yield session
        except (CheckError, AttributeError, LookupError, TypeError, ValueError) as error:
            failure = error
        finally:
            await session.close()
            group.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _ignore_errors(sending: Awaitable[httpx2.Response]) -> None:
    """Await an HTTP exchange whose response is not needed; the next request reports a lost connection."""
    try:
        await sending
    except httpx2.HTTPError:
        return


def _is_event_stream(response: httpx2.Response) -> bool:
    return response.headers.get("content-type", "").startswith("text/event-stream")


def _parse_object(content: bytes) -> Mapping[str, JSON]:
    try:
        return as_object(json.loads(content))
    except ValueError:
        return {}


async def _read_events(response: httpx2.Response) -> AsyncGenerator[tuple[Mapping[str, JSON], str]]:
    """Yield the JSON-RPC messages of a stream, each with the id of its event; a priming event has no message."""
    async for event in httpx2.EventSource(response):
        yield _parse_object(event.data.encode()), event.id
