"""Disconnects of clients, in 2025-11-25 too: there the SDK lets a call go on when its stream is closed."""

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


class ClientStream:
    """The client of one HTTP request, and the scopes to cancel when it closes the stream."""

    def __init__(self) -> None:
        self._scopes: set[anyio.CancelScope] = set()
        self.retry_after: float | None = None  # seconds, for the response's header

    def end(self) -> None:
        """Cancel the scopes: the client has disconnected."""
        for scope in tuple(self._scopes):
            scope.cancel()

    @contextmanager
    def needed(self) -> Generator[None]:
        """Cancel the body when the client disconnects; the code after it still runs."""
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)


class DisconnectMiddleware:
    """ASGI middleware that notices when a client closes its connection.

    It also adds `Retry-After` to responses about a limit that time resets.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with its `ClientStream`."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        presence = ClientStream()

        async def received() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                presence.end()
            return message

        def sent(message: Message) -> Awaitable[None]:
            if presence.retry_after is not None and message["type"] == "http.response.start":
                after = (b"retry-after", str(ceil(presence.retry_after)).encode())
                message = {**message, "headers": [*message.get("headers", ()), after]}
            return send(message)

        with suppress(ClientDisconnect):  # the client has left before the end of its request; that is no error
            await self._app({**scope, _PRESENCE: presence}, received, sent)


def note_retry_after(ctx: ServerRequestContext[Any, Any], error: RequestError) -> None:
    """Add the time of a reached limit to the response's headers, for proxies and clients that only know HTTP.

    The status stays that of other JSON-RPC errors: a client that takes 429 for a transport error would not read the
    body.
    """
    presence = None if ctx.request is None else ctx.request.scope.get(_PRESENCE)
    if isinstance(error, LimitReached) and isinstance(presence, ClientStream):
        presence.retry_after = error.retry_after


async def until_disconnected(
    ctx: ServerRequestContext[Any, Any],  # Any: the lifespan and the transport are the user's
    serve: Callable[[], Awaitable[T]],
    *,
    needed: bool,
) -> T:
    """Return the result of `serve`; if `needed`, cancel it when the client disconnects (see `DisconnectMiddleware`)."""
    presence = None if ctx.request is None else ctx.request.scope.get(_PRESENCE)
    if not needed or not isinstance(presence, ClientStream):
        return await serve()
    with presence.needed():
        return await serve()
    raise RequestError(INTERNAL_ERROR, "the client has left")  # nobody reads it
