"""Limits in front of the SDK's HTTP application: on bodies, and on sessions and GET streams of 2025-11-25.

The SDK limits only the sessions of all callers together, its GET streams outlive their token, and it parses bodies of
any shape.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import ceil
from typing import Final

from mcp.server.streamable_http import LAST_EVENT_ID_HEADER, MCP_SESSION_ID_HEADER
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import jsonrpc
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_workflows.access import Principal
from mcp_workflows.access.limit_settings import MAX_JSON_VALUES, Limits
from mcp_workflows.access.rate_limits import RateLimits, whose_meter
from mcp_workflows.adapter import JSON
from mcp_workflows.errors import LimitReached
from mcp_workflows.receiver.context import AnyServer
from mcp_workflows.receiver.streams import while_admitted
from mcp_workflows.tools.json_schema import has_more_values

_AROUND: Final = 1_000  # JSON values of a message apart from its arguments and answers
SPARE: Final = 1000  # ended sessions that may still be remembered here, besides the open ones

_SESSION: Final = MCP_SESSION_ID_HEADER.encode()
_VERSION: Final = MCP_PROTOCOL_VERSION_HEADER.encode()
_WITH_SESSIONS: Final = frozenset(version.encode() for version in HANDSHAKE_PROTOCOL_VERSIONS)
_LAST_EVENT: Final = LAST_EVENT_ID_HEADER.encode()
_NONE: Final = ""  # the id of no session
_FIRST_ERROR: Final = 400
_UNAUTHORIZED: Final = 401
_TOO_MANY_REQUESTS: Final = 429
_CONTENT_TOO_LARGE: Final = 413


@dataclass(slots=True, eq=False)
class _Place:
    """One place in a caller's quota: a session, or a request that may open one."""

    session: str | None = None  # None: the request is in progress


class Sessions:
    """ASGI middleware that limits the sessions of each caller.

    The SDK's table lists the live sessions, however they end; this class adds their owners.
    """

    def __init__(
        self, app: ASGIApp, live: Collection[str], sender: Callable[[Request], Principal], meters: RateLimits
    ) -> None:
        """`live`: the ids of the live sessions, maintained by the SDK."""
        self._app = app
        self._live = live
        self._sender = sender
        self._meters = meters
        self._of: dict[str, set[_Place]] = {}
        meters.sessions = self._counts
        self._opened = 0  # since the last check of all callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it if it would open too many sessions."""
        if not _may_open(scope):
            await self._app(scope, receive, send)
            return
        principal = self._sender(Request(scope))
        try:
            place = self._take(principal)
        except LimitReached as reached:
            await _refusal(reached)(scope, receive, send)
            return
        await self._open(whose_meter(principal), place, scope, receive, send)

    def _take(self, principal: Principal) -> _Place:
        """Reserve a place. There is no await in here, so that concurrent requests cannot exceed the limit."""
        owner = whose_meter(principal)
        self._forget_ended(owner)
        self._meters.open_session(principal, len(self._of.get(owner, ())))
        place = _Place()
        self._of.setdefault(owner, set()).add(place)
        return place

    async def _open(self, owner: str, place: _Place, scope: Scope, receive: Receive, send: Send) -> None:
        async def said(message: Message) -> None:
            if message["type"] == "http.response.start":
                place.session = _opened_by(message)
            await send(message)

        try:
            await self._app(scope, receive, said)
        finally:
            place.session = place.session or _NONE
            self._forget_ended(owner)
            self._forget_all_ended()

    def _forget_ended(self, owner: str) -> None:
        places = self._of.get(owner, set[_Place]())
        places -= {place for place in places if place.session is not None and place.session not in self._live}
        if not places:
            self._of.pop(owner, None)

    def _forget_all_ended(self) -> None:
        """Remove the ended sessions of callers that did not return."""
        self._opened += 1
        if self._opened > SPARE + len(self._live):
            self._opened = 0
            self._counts()

    def _counts(self) -> Mapping[str, int]:
        """Return the number of sessions of each caller."""
        for owner in tuple(self._of):
            self._forget_ended(owner)
        return {owner: len(places) for owner, places in self._of.items()}


class StandaloneStreams:
    """ASGI middleware that ends a GET stream when the token of its request expires or is revoked.

    Each session has one such stream, and sessions are limited; on a server without sessions the streams are limited.
    Without an event store, remove `Last-Event-ID`, so that the client gets a new stream: otherwise the SDK would not
    reply.
    """

    def __init__(
        self, app: ASGIApp, sender: Callable[[Request], Principal], meters: RateLimits, *, resumes: bool, counts: bool
    ) -> None:
        self._app = app
        self._sender = sender
        self._meters = meters
        self._resumes = resumes
        self._counts = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        if not self._resumes:
            scope = {**scope, "headers": [each for each in scope["headers"] if each[0] != _LAST_EVENT]}
        principal = self._sender(Request(scope))
        try:
            with self._meters.listening(principal) if self._counts else nullcontext():
                await _until_refused(self._app, principal, scope, receive, send)
        except LimitReached as reached:
            await _refusal(reached)(scope, receive, send)


async def _until_refused(app: ASGIApp, principal: Principal, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a stream, and end it once the principal is no longer admitted."""
    begun = False

    async def sent(message: Message) -> None:
        nonlocal begun
        begun = True
        await send(message)

    async def serve() -> bool:
        await app(scope, receive, sent)
        return True

    if await while_admitted(principal, serve):
        return
    if begun:
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    else:
        await Response(status_code=_UNAUTHORIZED)(scope, receive, send)


class BodyLimit:
    """ASGI middleware that refuses a body with too many JSON values before it is parsed.

    Parsing takes time and memory. The body arrives in one piece, as the SDK limits its bytes first.
    """

    def __init__(self, app: ASGIApp, most_values: int) -> None:
        self._app = app
        self._most_values = most_values

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or reply with 413."""
        whole = await receive()
        body: bytes = whole.get("body", b"")
        if has_more_values(body, self._most_values + _AROUND):
            await self._refusal()(scope, receive, send)
            return

        unread = [whole]

        async def received() -> Message:
            return unread.pop() if unread else await receive()

        await self._app(scope, received, send)

    def _refusal(self) -> Response:
        most = self._most_values + _AROUND
        text = f"the body holds more than {most} JSON values: send less, or a link to it"
        return _error(_CONTENT_TOO_LARGE, jsonrpc.INVALID_REQUEST, text)


@contextmanager
def limit_requests(
    server: AnyServer, sender: Callable[[Request], Principal], meters: RateLimits, limits: Limits
) -> Generator[None]:
    """Apply these limits to the server's HTTP application within this context."""
    try:
        sdks = server.session_manager
    except RuntimeError:  # served without HTTP
        yield
        return
    inner = sdks.asgi_app  # reads the body, so a refused body was read
    app = front = inner.app
    if limits.sessions_per_principal is not None and not sdks.stateless:
        live = sdks._server_instances  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        front = Sessions(app, live, sender, meters)
    resumes = sdks.event_store is not None and not sdks.stateless
    front = StandaloneStreams(front, sender, meters, resumes=resumes, counts=sdks.stateless)
    inner.app = BodyLimit(front, MAX_JSON_VALUES)
    try:
        yield
    finally:
        inner.app = app


def _may_open(scope: Scope) -> bool:
    """True if the SDK would open a session for this request: no session id, and a version with sessions."""
    version: bytes | None = None
    for name, value in scope["headers"]:
        if name == _SESSION:
            return False
        if version is None and name == _VERSION:
            version = value
    return version is None or version in _WITH_SESSIONS


def _opened_by(message: Message) -> str:
    """Return the id of the session that a response opens."""
    if message["status"] >= _FIRST_ERROR:
        return _NONE
    return Headers(raw=message["headers"]).get(MCP_SESSION_ID_HEADER, _NONE)


def _refusal(reached: LimitReached) -> Response:
    after = {"Retry-After": str(ceil(reached.retry_after or 0))}
    return _error(_TOO_MANY_REQUESTS, reached.code, reached.message, data=reached.data, headers=after)


def _error(
    status: int, code: int, message: str, *, data: JSON = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an HTTP error in the form of the SDK's refusals; there is no JSON-RPC request yet."""
    error = {"code": code, "message": message, **({} if data is None else {"data": data})}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, status, headers)
