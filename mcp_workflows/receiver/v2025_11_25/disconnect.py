"""A client that leaves, on the wire of 2025-11-25 too: there the SDK lets a call go on whose stream was closed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from math import ceil
from typing import Any, TypeVar

import anyio
from mcp.server.context import ServerRequestContext
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_workflows.errors import INTERNAL_ERROR, LimitReached, RequestError

_PRESENCE = "mcp_workflows.presence"  # its place in the ASGI scope

T = TypeVar("T")


class Presence:
    """The client of one HTTP request, and what ends when it closes the stream."""

    def __init__(self) -> None:
        self._scopes: set[anyio.CancelScope] = set()
        self.retry_after: float | None = None  # seconds, for the response's header

    def end(self) -> None:
        """The client has left."""
        for scope in tuple(self._scopes):
            scope.cancel()

    @contextmanager
    def needed(self) -> Generator[None]:
        """What goes on in here is cancelled when the client leaves; what follows goes on."""
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)


class Attentive:
    """ASGI middleware that hears when a client closes its connection, whoever is told of it.

    It also adds `Retry-After` to responses that tell of a limit which time makes up for.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with its `Presence`."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        presence = Presence()

        async def heard() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                presence.end()
            return message

        def said(message: Message) -> Awaitable[None]:
            if presence.retry_after is not None and message["type"] == "http.response.start":
                after = (b"retry-after", str(ceil(presence.retry_after)).encode())
                message = {**message, "headers": [*message.get("headers", ()), after]}
            return send(message)

        with suppress(ClientDisconnect):  # before it had said all: nobody is there to be told, and nothing is wrong
            await self._app({**scope, _PRESENCE: presence}, heard, said)


def note_retry_after(ctx: ServerRequestContext[Any, Any], error: RequestError) -> None:
    """What the response tells of its error in a header too, for proxies and clients that know HTTP alone.

    The status stays that of any JSON-RPC error: who takes 429 for trouble on the way would never read the error.
    """
    presence = None if ctx.request is None else ctx.request.scope.get(_PRESENCE)
    if isinstance(error, LimitReached) and isinstance(presence, Presence):
        presence.retry_after = error.retry_after


async def until_disconnected(
    ctx: ServerRequestContext[Any, Any],  # Any: the lifespan and the transport are the user's
    serve: Callable[[], Awaitable[T]],
    *,
    needed: bool,
) -> T:
    """What `serve` returns; where the client is needed, it is cancelled when that leaves, if `Attentive` hears it."""
    presence = None if ctx.request is None else ctx.request.scope.get(_PRESENCE)
    if not needed or not isinstance(presence, Presence):
        return await serve()
    with presence.needed():
        return await serve()
    raise RequestError(INTERNAL_ERROR, "the client has left")  # nobody reads it
