"""A limit on the JSON values in the body of a request, before anything parses it: that takes long, and much memory."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from mcp_types import jsonrpc
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_workflows.receiver.envelope import AnyServer, streamable_http_of
from mcp_workflows.sizing import has_more_values

_AROUND: Final = 1_000  # values of a message beside its arguments and answers
_TOO_LARGE: Final = 413


class BodyLimit:
    """The SDK's own application, but for bodies with too many JSON values."""

    def __init__(self, app: ASGIApp, most_values: int) -> None:
        self._app = app
        self._most_values = most_values

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 413. The body comes in one piece: the SDK bounds its bytes right outside."""
        whole = await receive()
        body: bytes = whole.get("body", b"")
        if has_more_values(body, self._most_values + _AROUND):
            await self._refusal()(scope, receive, send)
            return

        unread = [whole]

        async def received() -> Message:
            return unread.pop() if unread else await receive()

        await self._app(scope, received, send)

    def _refusal(self) -> JSONResponse:
        most = self._most_values + _AROUND
        text = f"the body holds more than {most} JSON values (limits.max_json_values): send less, or a link to it"
        error = {"code": jsonrpc.INVALID_REQUEST, "message": text}
        return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, _TOO_LARGE)


@contextmanager
def limited_values(server: AnyServer, most: int | None) -> Generator[None]:
    """While in here, requests over HTTP hold at most that many JSON values; None: any number."""
    served = streamable_http_of(server)
    if served is None or most is None:
        yield
        return
    around = served.asgi_app
    app, around.app = around.app, BodyLimit(around.app, most)
    try:
        yield
    finally:
        around.app = app
