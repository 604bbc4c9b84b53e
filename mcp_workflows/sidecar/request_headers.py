"""Checks of request headers ahead of other code: duplicate headers, `Host`, `Origin`, and CORS."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Collection
from typing import Final, cast

import anyio
from mcp_types import jsonrpc
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

logger = logging.getLogger(__name__)

_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
ONCE: Final = frozenset({b"authorization", b"host", b"mcp-protocol-version", b"mcp-session-id", b"origin"})
_BAD_REQUEST: Final = 400
_FORBIDDEN: Final = 403
_NOT_ACCEPTABLE: Final = 406
_ACCEPT_BOTH: Final = "Not Acceptable: send Accept: application/json, text/event-stream"
_MISDIRECTED: Final = 421
MAX_HEADERS: Final = 64 * 1024  # bytes of the request line and all headers, or of all trailers
REQUEST_SECONDS: Final = 20.0  # for the headers of a request, and for each part of its body
_PROGRESS: Final = 64 * 1024  # bytes of such a part
_MAX_REST: Final = 32 * 2**20  # bytes of a body that are read after a refusal, so that the client reads the refusal
_REST_PAUSE: Final = 0.5  # seconds without data that end the reading
_REST_SECONDS: Final = 5.0  # for all of the rest
_TOO_LATE: Final = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_LONG: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"

_METHODS: Final = ("GET", "POST", "DELETE", "OPTIONS")
_ASKED: Final = frozenset({"authorization", "content-type", "accept", "accept-language", "content-language"}) | {
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-session-id",
}
_PARAMETER: Final = "mcp-param-"  # 2026-07-28: the prefix of headers that tools define
_SHOWN: Final = ("Mcp-Session-Id", "Mcp-Protocol-Version", "WWW-Authenticate", "Retry-After")
_PRIVATE_NETWORK: Final = "access-control-request-private-network"


def hosts_of(address: str) -> set[str]:
    """Return the accepted hosts of a server that listens on an address: the address, and the names of loopback."""
    own = f"[{ipaddress.IPv6Address(address.partition('%')[0])}]" if ":" in address else address.lower()
    return {f"{name}:*" for name in (*_LOOPBACK, own)}


def is_allowed(value: str, allowed: Collection[str]) -> bool:
    """True if a header is one of these hosts or origins, which are normalized by `host` and `origin`."""
    value = value.lower()
    name, _, port = value.rpartition(":")
    if port == "*":
        return False
    is_port = port.isascii() and port.isdecimal()
    return value in allowed or f"{value}:*" in allowed or (is_port and f"{name}:*" in allowed)


class BoundedHeaders(HttpToolsProtocol):
    """Uvicorn's protocol with a limit on headers, which it buffers in memory (RFC 6585, section 5).

    It counts the bytes of each read, so headers that are complete within the first read pass at any length; uvloop
    reads 256 KiB at a time.
    """

    _unfinished = 0  # bytes since the last part of a body, or since the end of headers or of a request
    _timer: asyncio.TimerHandle | None = None  # until a request must be complete; None: waiting for its response
    _progress = 0  # bytes of the body since the timer was set

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # same signature as uvicorn
        """Start the timer for the first request."""
        super().connection_made(transport)
        self._wait_for_more()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_more(self) -> None:
        self._stop_waiting()
        self._progress = 0
        self._timer = self.loop.call_later(REQUEST_SECONDS, self._close_late)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_late(self) -> None:
        """Close a connection whose request stays incomplete: slow or idle clients could occupy all connections."""
        begun = cast("RequestResponseCycle | None", self.cycle)  # None at first, contrary to its type
        if self.pipeline:  # the body is read only after the response to the previous request
            self._wait_for_more()
        elif not self.transport.is_closing():
            if begun is None or begun.response_complete or not begun.response_started:
                self.transport.write(_TOO_LATE)
            self.transport.close()

    def on_message_begin(self) -> None:
        """Restart the timer for the rest of a request."""
        self._wait_for_more()
        super().on_message_begin()

    def data_received(self, data: bytes) -> None:
        """Parse the data, or close a connection whose headers are too long."""
        self._unfinished += len(data)
        super().data_received(data)
        if self._unfinished > MAX_HEADERS and not self.transport.is_closing():
            logger.warning("a request was refused: it has more than %d bytes of headers", MAX_HEADERS)
            begun = cast("RequestResponseCycle | None", self.cycle)  # None at first, contrary to its type
            if begun is None or begun.response_complete:
                self.transport.write(_TOO_LONG)
            self.transport.close()

    def on_headers_complete(self) -> None:
        """Begin the request; another limit applies to its body."""
        self._unfinished = 0
        self._wait_for_more()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass a part of the body on."""
        self._unfinished = 0
        self._progress += len(body)
        if self._progress >= _PROGRESS:
            self._wait_for_more()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Reset the count for the next request."""
        self._unfinished = 0
        self._stop_waiting()
        super().on_message_complete()


class CleanHeaders:
    """ASGI middleware that strips blanks around values, and refuses duplicates of headers that must be unique.

    Blanks are not part of a value (RFC 9110, section 5.5), but httptools keeps them. With a duplicate header, a proxy
    might check one value while the server uses the other.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: list[tuple[bytes, bytes]] = []
        seen: set[bytes] = set()
        for given, value in scope["headers"]:
            name = given.lower()
            if name in seen:
                await _error(_BAD_REQUEST, f"the header {name.decode()} was sent more than once")(scope, receive, send)
                return
            if name in ONCE:
                seen.add(name)
            headers.append((name, value.strip(b" \t")))
        await self._app({**scope, "headers": headers}, receive, send)


def _error(status: int, text: str) -> Response:
    error = {"code": jsonrpc.INVALID_REQUEST, "message": text}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, status)


class ReadableRefusals:
    """ASGI middleware that lets a client read the reason for a refusal.

    A client that is still sending its body would get a broken pipe, so a limited amount of the rest is read first. The
    SDK's 406 of 2026-07-28 has no body.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        is_whole, is_explained = False, False

        async def received() -> Message:
            nonlocal is_whole
            message = await receive()
            is_whole = message["type"] != "http.request" or not message.get("more_body", False)
            return message

        async def sent(message: Message) -> None:
            nonlocal is_explained
            if message["type"] == "http.response.start" and message["status"] >= _BAD_REQUEST:
                rest = 0 if b"expect" in dict(scope["headers"]) else _MAX_REST
                with anyio.move_on_after(_REST_SECONDS):
                    while not is_whole and rest > 0:
                        part: Message = {}
                        with anyio.move_on_after(_REST_PAUSE):
                            part = await received()
                        rest -= len(part.get("body", b"")) or _MAX_REST
                headers = Headers(raw=message["headers"])
                if message["status"] == _NOT_ACCEPTABLE and headers.get("content-length", "0") == "0":
                    is_explained = True
                    await _error(_NOT_ACCEPTABLE, _ACCEPT_BOTH)(scope, receive, send)
            if not is_explained:
                await send(message)

        await self._app(scope, received, sent if scope["type"] == "http" else send)


class AllowedHosts:
    """ASGI middleware that protects a server on this machine or its network from web pages.

    A page could reach it by a domain that resolves to this address (DNS rebinding), visible in `Host`, or from its own
    origin, visible in `Origin`.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str], origins: Collection[str] | None = None) -> None:
        """`origins` None: accept any origin."""
        self._app = app
        self._hosts, self._origins = hosts, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "http" and (refusal := self._refusal(Headers(scope=scope))) is not None:
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, headers: Headers) -> Response | None:
        name, source = headers.get("host", ""), headers.get("origin")
        if source is not None and self._origins is not None and not is_allowed(source, self._origins):
            logger.warning(
                "a request was refused: its Origin, %r, is not allowed; see server.cors and server.allowed_origins",
                source[:100],
            )
            return PlainTextResponse("Invalid Origin header", _FORBIDDEN)
        if not is_allowed(name, self._hosts):
            logger.warning(
                "a request was refused: its Host, %r, is not allowed; if it is yours, see server.allowed_hosts",
                name[:100],
            )
            return PlainTextResponse("Invalid Host header", _MISDIRECTED)
        return None


class Cors(CORSMiddleware):
    """ASGI middleware that lets pages of these origins call one path, in both revisions, and read the replies.

    It must be outside of all middleware that refuses requests, because a preflight has no token.
    """

    def __init__(self, app: ASGIApp, origins: Collection[str], path: str) -> None:
        super().__init__(app, origins, allow_methods=_METHODS, allow_headers=["*"], expose_headers=_SHOWN)
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reply to a preflight; pass other requests on."""
        if scope["type"] == "http" and scope["path"] == self._path:
            await super().__call__(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def preflight_response(self, request_headers: Headers) -> Response:
        """Allow the headers that clients send, and `Mcp-Param-*`, whose names tools define."""
        asked = request_headers.get("access-control-request-headers", "")
        names = {name.strip().lower() for name in asked.split(",") if name.strip()}
        if refused := sorted(name for name in names - _ASKED if not name.startswith(_PARAMETER)):
            return PlainTextResponse(f"Disallowed CORS headers: {', '.join(refused)}"[:500], _BAD_REQUEST)
        known = MutableHeaders(raw=list(request_headers.raw))
        private = _PRIVATE_NETWORK in known
        del known[_PRIVATE_NETWORK]
        answer = super().preflight_response(known)
        if private and "access-control-allow-origin" in answer.headers:
            answer.headers["Access-Control-Allow-Private-Network"] = "true"  # the configuration names the origin
        return answer
