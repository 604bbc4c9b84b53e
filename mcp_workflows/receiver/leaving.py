"""A client that leaves, on the wire of 2025-11-25 too: there the SDK lets a call go on whose stream was closed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import anyio
from mcp.server.context import ServerRequestContext
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_workflows.errors import INTERNAL_ERROR, RequestError

_PRESENCE = "mcp_workflows.presence"  # its place in the ASGI scope

T = TypeVar("T")


class Presence:
    """The client of one HTTP request, and what ends when it closes the stream."""

    def __init__(self) -> None:
        self._scopes: set[anyio.CancelScope] = set()

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
    """ASGI middleware that hears when a client closes its connection, whoever is told of it."""

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

        with suppress(ClientDisconnect):  # before it had said all: nobody is there to be told, and nothing is wrong
            await self._app({**scope, _PRESENCE: presence}, heard, send)


async def while_there(
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
