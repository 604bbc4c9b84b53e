"""Limits that the SDK lacks on sessions and GET streams of 2025-11-25 and before.

It counts the sessions of all callers together, not those of each; and its GET streams outlive their token.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import ceil
from typing import Final

from mcp.server.streamable_http import LAST_EVENT_ID_HEADER, MCP_SESSION_ID_HEADER
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_workflows.access import Principal
from mcp_workflows.errors import LimitReached
from mcp_workflows.metering import Meters, whose_meter
from mcp_workflows.receiver.envelope import AnyServer, streamable_http_of
from mcp_workflows.receiver.streams import while_admitted

SPARE: Final = 1000  # sessions that may have ended and are still remembered here, beside as many as are open

_SESSION: Final = MCP_SESSION_ID_HEADER.encode()
_VERSION: Final = MCP_PROTOCOL_VERSION_HEADER.encode()
_WITH_SESSIONS: Final = frozenset(version.encode() for version in HANDSHAKE_PROTOCOL_VERSIONS)
_LAST_EVENT: Final = LAST_EVENT_ID_HEADER.encode()
_NONE: Final = ""  # no session has this id
_FIRST_ERROR: Final = 400
_UNAUTHORIZED: Final = 401
_TOO_MANY_REQUESTS: Final = 429


@dataclass(slots=True, eq=False)
class _Place:
    """What counts for a caller: a session, or a request that may open one."""

    session: str | None = None  # None: it is under way


class Sessions:
    """In front of the SDK's own application: who has too many sessions opens no other.

    Which sessions there are is in the SDK's own table alone, however they end; here is whose they are.
    """

    def __init__(
        self, app: ASGIApp, live: Collection[str], sender: Callable[[Request], Principal], meters: Meters
    ) -> None:
        """`live`: the ids of the sessions there are, as they come and go."""
        self._app = app
        self._live = live
        self._sender = sender
        self._meters = meters
        self._of: dict[str, set[_Place]] = {}
        self._opened = 0  # since all were looked at

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse what would open one session too many."""
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
        """A place for one more; nothing is awaited in here, so requests at the same moment do not pass together."""
        who = whose_meter(principal)
        self._forget_ended(who)
        self._meters.open_session(principal, len(self._of.get(who, ())))
        place = _Place()
        self._of.setdefault(who, set()).add(place)
        return place

    async def _open(self, who: str, place: _Place, scope: Scope, receive: Receive, send: Send) -> None:
        async def said(message: Message) -> None:
            if message["type"] == "http.response.start":
                place.session = _opened_by(message)
            await send(message)

        try:
            await self._app(scope, receive, said)
        finally:
            place.session = place.session or _NONE
            self._forget_ended(who)
            self._look_at_all_sometimes()

    def _forget_ended(self, who: str) -> None:
        places = self._of.get(who, set[_Place]())
        places -= {place for place in places if place.session is not None and place.session not in self._live}
        if not places:
            self._of.pop(who, None)

    def _look_at_all_sometimes(self) -> None:
        """Who does not come again is forgotten too."""
        self._opened += 1
        if self._opened > SPARE + len(self._live):
            self._opened = 0
            for who in tuple(self._of):
                self._forget_ended(who)


class StandaloneStreams:
    """In front of the SDK's own application: a GET stream ends with the token that it came with.

    There is one for each session, and sessions are counted. Where a server keeps no sessions, the streams are.
    `Last-Event-ID` is taken off where no events are kept, so the client gets a new stream: the SDK would not answer.
    """

    def __init__(
        self, app: ASGIApp, sender: Callable[[Request], Principal], meters: Meters, *, resumes: bool, counts: bool
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
    """Serve a stream, and end it as HTTP does when the principal would not be let in any more."""
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


@contextmanager
def bounded(
    server: AnyServer, sender: Callable[[Request], Principal], meters: Meters, *, sessions: bool
) -> Generator[None]:
    """While in here, the streams and, if wanted, the sessions of each caller are bounded on a server over HTTP."""
    sdks = streamable_http_of(server)
    if sdks is None:
        yield
        return
    inner = sdks.asgi_app  # reads the body, so what is refused was read
    app = front = inner.app
    if sessions and not sdks.stateless:
        live = sdks._server_instances  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        front = Sessions(app, live, sender, meters)
    resumes = sdks.event_store is not None and not sdks.stateless
    inner.app = StandaloneStreams(front, sender, meters, resumes=resumes, counts=sdks.stateless)
    try:
        yield
    finally:
        inner.app = app


def _may_open(scope: Scope) -> bool:
    """Whether the SDK would open a session for this: it comes in none, in a version that has them or without one."""
    version: bytes | None = None
    for name, value in scope["headers"]:
        if name == _SESSION:
            return False
        if version is None and name == _VERSION:
            version = value
    return version is None or version in _WITH_SESSIONS


def _opened_by(message: Message) -> str:
    """The id of the session that a response says was opened."""
    if message["status"] >= _FIRST_ERROR:
        return _NONE
    return Headers(raw=message["headers"]).get(MCP_SESSION_ID_HEADER, _NONE)


def _refusal(reached: LimitReached) -> Response:
    """The error as an answer of HTTP: there is no session in which to answer; the SDK's refusals look like this."""
    error = {"code": reached.code, "message": reached.message, "data": reached.data}
    after = {"Retry-After": str(ceil(reached.retry_after or 0))}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, _TOO_MANY_REQUESTS, after)
