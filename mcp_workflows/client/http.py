"""A connection over HTTP that outlives the server: what finds nobody is one failed request.

The SDK's own transport ends the whole client at the first request that cannot be delivered or whose answer breaks off
(modelcontextprotocol/python-sdk#3522), before any extension hears of it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
import mcp_types as types
from mcp.client import Transport
from mcp.client.streamable_http import streamable_http_client

CONNECT_SECONDS: Final = 30.0
SILENCE_SECONDS: Final = 300.0  # of an open stream; servers send a sign of life more often
_EVENTS: Final = "text/event-stream"
_FIRST: Final = "server/discover"


def reconnecting_http(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    auth: httpx2.Auth | None = None,
    timeout: httpx2.Timeout | None = None,
) -> Transport:
    """For `Client(reconnecting_http(url), ...)`, which survives that its server is started again; otherwise as `url`.

    A request that finds nobody fails alone, with the SDK's `CONNECTION_CLOSED`, and the next one connects again. To
    begin with, somebody must be there.
    """
    waits = timeout or httpx2.Timeout(CONNECT_SECONDS, read=SILENCE_SECONDS)

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Any]:  # Any: the SDK keeps that type for itself
        async with (
            _Enduring(headers=headers, auth=auth, timeout=waits) as http,
            streamable_http_client(url, http_client=http) as streams,
        ):
            yield streams

    return opened()


class _Enduring(httpx2.AsyncClient):
    """What cannot be delivered, or breaks off before it is whole, is answered with a JSON-RPC error of our own."""

    async def send(self, request: httpx2.Request, **settings: Any) -> httpx2.Response:  # Any: as httpx2 takes them
        try:
            response = await super().send(request, **settings)
            if not response.headers.get("content-type", "").startswith(_EVENTS):
                await response.aread()  # what breaks off shows here; an event stream may, the SDK tells who waits
        except httpx2.TransportError as error:
            if request.headers.get("mcp-method") == _FIRST:
                raise  # an error here would be taken for a server of the version before, which has other tasks
            return httpx2.Response(503, json=_error(error), request=request)
        return response


def _error(error: httpx2.TransportError) -> Mapping[str, Any]:  # Any: JSON
    said = {"code": types.CONNECTION_CLOSED, "message": f"no answer ({error or type(error).__name__})"}
    return {"jsonrpc": "2.0", "id": None, "error": said}
