"""A connection over HTTP that survives a restart of the server: a lost request fails alone.

The SDK's own transport ends the whole client at the first request that cannot be delivered or whose answer breaks off
(modelcontextprotocol/python-sdk#3522), before any extension hears of it.
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
SILENCE_SECONDS: Final = 300.0  # of an open stream; servers send keep-alives more often
_EVENTS: Final = "text/event-stream"
_FIRST: Final = "server/discover"
_NOBODY: Final = "it wants a token"
_REFUSED: Final[Mapping[int, str]] = {
    401: "the token is not good there: expired, for another server, or of an issuer that it does not trust",
    403: "the token is good there, and lacks a scope",
}
_SCOPES: Final = re.compile(r'\bscope="([\x20-\x7e]*?)"')


def reconnecting_http(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    auth: httpx2.Auth | None = None,
    timeout: httpx2.Timeout | None = None,
) -> Transport:
    """Make the transport for `Client(reconnecting_http(url), ...)`, which survives a restart of its server.

    A request without an answer fails alone, with the SDK's `CONNECTION_CLOSED`, and the next one connects again. The
    server must be there at the beginning.
    """
    waits = timeout or httpx2.Timeout(CONNECT_SECONDS, read=SILENCE_SECONDS)

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Any]:  # Any: the SDK keeps that type for itself
        async with (
            _SurvivingClient(headers=headers, auth=auth, timeout=waits) as http,
            streamable_http_client(url, http_client=http) as streams,
        ):
            yield streams

    return opened()


@asynccontextmanager
async def known_http(url: str, token: str | None = None) -> AsyncGenerator[Any]:  # Any: the SDK keeps that type
    """Connect as the SDK would to `url`, with a bearer token; a refused token raises `NotLetIn`."""
    headers = {"Authorization": f"Bearer {token}"} if token else None
    waits = httpx2.Timeout(CONNECT_SECONDS, read=SILENCE_SECONDS)
    async with (
        _RefusingClient(headers=headers, timeout=waits) as http,
        streamable_http_client(url, http_client=http) as streams,
    ):
        yield streams


class _RefusingClient(httpx2.AsyncClient):
    """An HTTP client that raises `NotLetIn` for a refusal, which the SDK reports like any other error."""

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
    needs = f"; everybody needs: {wanted[1]}" if wanted else ""
    return _REFUSED[response.status_code] + needs


class _SurvivingClient(httpx2.AsyncClient):
    """An HTTP client that answers a request that fails, or breaks off, with a JSON-RPC error of its own."""

    async def send(self, request: httpx2.Request, **settings: Any) -> httpx2.Response:  # Any: as httpx2 takes them
        try:
            response = await super().send(request, **settings)
            if not response.headers.get("content-type", "").startswith(_EVENTS):
                await response.aread()  # a broken body fails here; of a broken event stream the SDK tells its readers
        except httpx2.TransportError as error:
            if request.headers.get("mcp-method") == _FIRST:
                raise  # the SDK would take an error here for a server of an older version
            return httpx2.Response(503, json=_error(error), request=request)
        if response.status_code not in _REFUSED:
            return response
        said = {"code": types.INTERNAL_ERROR, "message": f"not let in: {_refused(response)}"}  # the code is the SDK's
        return httpx2.Response(
            response.status_code, json={"jsonrpc": "2.0", "id": None, "error": said}, request=request
        )


def _error(error: httpx2.TransportError) -> Mapping[str, Any]:  # Any: JSON
    said = {"code": types.CONNECTION_CLOSED, "message": f"no answer ({error or type(error).__name__})"}
    return {"jsonrpc": "2.0", "id": None, "error": said}
