"""An HTTP connection that survives a restart of the server: a lost request fails alone.

The SDK's transport closes the whole client when one request cannot be delivered or its reply breaks off
(modelcontextprotocol/python-sdk#3522), before any extension can react.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
import mcp_types as types
from mcp.client import Transport
from mcp.client.streamable_http import streamable_http_client

from mcp_workflows.errors import NotLetIn

CONNECT_SECONDS: Final = 30.0
LARGEST_BODY: Final = 32 * 2**20  # bytes of one reply, and of one event of a stream
UNREACHED: Final = "cannot be reached"
"""The start of the error message of a request that certainly did not reach the server."""
SILENCE_SECONDS: Final = 300.0  # of an open stream; servers send keep-alives more often
_EVENTS: Final = "text/event-stream"
_FIRST: Final = "server/discover"
_OF_THE_BODY: Final = frozenset({"content-encoding", "content-length", "transfer-encoding"})
_NOT_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_NOBODY: Final = "it needs a token"
_REFUSED: Final[Mapping[int, str]] = {
    401: "the token is not valid there: expired, for another server, or of an issuer that it does not trust",
    403: "the token is valid there, but lacks a scope",
}
_SCOPES: Final = re.compile(r'\bscope="([\x20-\x7e]*?)"')


def reconnecting_http(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    auth: httpx2.Auth | None = None,
    timeout: httpx2.Timeout | None = None,
) -> Transport:
    """Create the transport for `Client(reconnecting_http(url), ...)`, which survives a restart of its server.

    A request without a reply fails alone, with the SDK's `CONNECTION_CLOSED`, and the next one connects again. The
    server must be reachable for the first connection.
    """
    waits = timeout or httpx2.Timeout(CONNECT_SECONDS, read=SILENCE_SECONDS)

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Any]:  # Any: the type is private to the SDK
        async with (
            _SurvivingClient(headers=headers, auth=auth, timeout=waits) as http,
            streamable_http_client(url, http_client=http, max_sse_event_size=LARGEST_BODY) as streams,
        ):
            yield streams

    return opened()


@asynccontextmanager
async def known_http(url: str, token: str | None = None) -> AsyncGenerator[Any]:  # Any: the type is private to the SDK
    """Connect to `url` with the SDK's transport and a bearer token; raise `NotLetIn` if the token is refused."""
    headers = {"Authorization": f"Bearer {token}"} if token else None
    waits = httpx2.Timeout(CONNECT_SECONDS, read=SILENCE_SECONDS)
    async with (
        _RefusingClient(headers=headers, timeout=waits) as http,
        streamable_http_client(url, http_client=http) as streams,
    ):
        yield streams


class _RefusingClient(httpx2.AsyncClient):
    """An HTTP client that raises `NotLetIn` for a refusal, which the SDK does not distinguish from other errors."""

    async def send(self, request: httpx2.Request, **settings: Any) -> httpx2.Response:  # Any: as httpx2 takes them
        response = await super().send(request, **settings)
        if response.status_code in _REFUSED:
            await response.aclose()
            raise NotLetIn(_refused(response))
        return response


def _refused(response: httpx2.Response) -> str:
    if "authorization" not in response.request.headers:
        return _NOBODY
    wanted = _SCOPES.search(response.headers.get("www-authenticate", ""))
    needs = f"; required: {wanted[1]}" if wanted else ""
    return _REFUSED[response.status_code] + needs


class _SurvivingClient(httpx2.AsyncClient):
    """An HTTP client that returns a JSON-RPC error as the response of a request that fails or breaks off."""

    async def send(self, request: httpx2.Request, **settings: Any) -> httpx2.Response:  # Any: as httpx2 takes them
        try:
            response = await super().send(request, **settings)
            if response.status_code in _REFUSED:
                await response.aclose()
                return _not_let_in(response.status_code, _refused(response), request)
            if response.headers.get("content-type", "").startswith(_EVENTS):
                return response  # if it breaks off, the SDK notifies its readers
            return await _read(response, request)
        except NotLetIn as error:  # from the authentication: no token
            return _not_let_in(401, str(error), request)
        except httpx2.TransportError as error:
            if request.headers.get("mcp-method") == _FIRST:
                raise  # the SDK would take an error here for an older server
            return httpx2.Response(503, json=_error(error), request=request)


async def _read(response: httpx2.Response, request: httpx2.Request) -> httpx2.Response:
    """Return the response with its body read, up to `LARGEST_BODY`; a broken response raises here."""
    read: list[bytes] = []
    size = 0
    async for part in response.aiter_bytes():
        read.append(part)
        size += len(part)
        if size > LARGEST_BODY:
            await response.aclose()
            raise httpx2.ReadError(f"more than {LARGEST_BODY} bytes")
    kept = [(name, value) for name, value in response.headers.multi_items() if name not in _OF_THE_BODY]
    found = httpx2.Response(response.status_code, headers=kept, content=b"".join(read), request=request)
    found.next_request = response.next_request  # of a redirect
    return found


def _not_let_in(status: int, reason: str, request: httpx2.Request) -> httpx2.Response:
    said = {"code": types.INTERNAL_ERROR, "message": f"not let in: {reason}"}  # the code is the SDK's
    return httpx2.Response(status, json={"jsonrpc": "2.0", "id": None, "error": said}, request=request)


def _error(error: httpx2.TransportError) -> Mapping[str, Any]:  # Any: JSON
    what = UNREACHED if isinstance(error, _NOT_SENT) else "no answer"
    said = {"code": types.CONNECTION_CLOSED, "message": f"{what} ({error or type(error).__name__})"}
    return {"jsonrpc": "2.0", "id": None, "error": said}
