"""The Executions API over HTTP, for callbacks, which the official client does not support.

Redirects are never followed: the access token goes only to Google, never to an address from a reply.
"""

from __future__ import annotations

import json
import logging
import re
import ssl
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import anyio
import anyio.to_thread
import httpx2

from mcp_workflows.adapter import JSON
from mcp_workflows.errors import EngineRefused
from mcp_workflows_google.channels import AGENT
from mcp_workflows_google.error_translation import ErrorReply, ReplyError, read_http_error
from mcp_workflows_google.settings import GOOGLE, GoogleSettings

MOST: Final = 8 * 1024 * 1024  # bytes of a reply: a page of callbacks with payloads that were not taken
_OK: Final = 200
_REDIRECT: Final = 300
_SERVER_ERROR: Final = 500
_HOSTS = re.compile(r"workflowexecutions(?:\.[a-z0-9-]+\.rep)?\.googleapis\.com", re.ASCII)
_NOT_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)


class DeliveryOutcome(StrEnum):
    """The outcome of sending an answer to a callback."""

    TAKEN = "taken"
    GONE = "gone"  # the callback does not exist any more
    BUSY = "busy"  # the previous payload is not processed yet
    UNKNOWN = "unknown"  # it may have arrived


_OUTCOMES: Final[Mapping[int, DeliveryOutcome]] = {
    404: DeliveryOutcome.GONE,
    408: DeliveryOutcome.UNKNOWN,
    410: DeliveryOutcome.GONE,
    429: DeliveryOutcome.BUSY,
}


def rest_url(settings: GoogleSettings) -> str:
    """Return the base URL of the Executions API."""
    return f"http://{settings.emulator}" if settings.emulator else f"https://{settings.endpoint or GOOGLE}"


class Rest:
    """HTTP client with one connection pool, opened at the first call."""

    def __init__(self, settings: GoogleSettings) -> None:
        self._settings = settings
        self._opening = anyio.Lock()
        self._client: httpx2.AsyncClient | None = None

    async def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.aclose()

    async def get(self, path: str, params: Mapping[str, str], headers: Mapping[str, str], seconds: float) -> Any:
        """Return the JSON object at a path.

        Raises:
            ReplyError: any other reply, or none.
        """
        client = await self._opened()
        request = client.build_request(
            "GET", rest_url(self._settings) + path, params=dict(params), headers=dict(headers), timeout=seconds
        )
        status, body = await _sent(client, request)
        if not _OK <= status < _REDIRECT or not isinstance(body, Mapping):
            raise ReplyError(read_http_error(status, body))
        return body  # pyright: ignore[reportUnknownVariableType]

    async def deliver(
        self, url: str, method: str, body: JSON, headers: Mapping[str, str], seconds: float
    ) -> DeliveryOutcome:
        """Send a request to a callback once.

        Raises:
            ReplyError: it was certainly not taken.
        """
        client = await self._opened()
        request = client.build_request(method, url, json=body, headers=dict(headers), timeout=seconds)
        self._only_google(request.url)
        try:
            status, told = await _sent(client, request)
        except ReplyError as error:
            if error.reply.local:
                raise
            return DeliveryOutcome.UNKNOWN
        if _OK <= status < _REDIRECT:
            return DeliveryOutcome.TAKEN
        if status >= _SERVER_ERROR:
            return DeliveryOutcome.UNKNOWN
        if status in _OUTCOMES:
            return _OUTCOMES[status]
        raise ReplyError(read_http_error(status, told))

    def _only_google(self, url: httpx2.URL) -> None:
        """Check once more, right before the access token is sent, that the URL is at Google."""
        ours = httpx2.URL(rest_url(self._settings))
        here = (url.scheme, url.host, url.port) == (ours.scheme, ours.host, ours.port)
        google = url.scheme == "https" and url.port is None and _HOSTS.fullmatch(url.host)
        if not here and (self._settings.emulator or not google):
            raise EngineRefused("this callback is not at Google: nothing is sent there")

    async def _opened(self) -> httpx2.AsyncClient:
        async with self._opening:
            if self._client is None:
                logging.getLogger("httpx2").addFilter(_names_no_callback)
                local = self._settings.emulator is not None
                verify: Any = (
                    True if local else await anyio.to_thread.run_sync(ssl.create_default_context)
                )  # reads files
                self._client = httpx2.AsyncClient(
                    verify=verify,
                    trust_env=not local,
                    follow_redirects=False,
                    headers={"user-agent": AGENT, "accept": "application/json", "accept-encoding": "identity"},
                    limits=httpx2.Limits(max_connections=self._settings.max_connections),
                )
            return self._client


def _names_no_callback(record: logging.LogRecord) -> bool:
    """Return whether a log record of the HTTP client is safe: URLs of callbacks are secrets.

    Lists of callbacks are left out too: each look at a gate makes one.
    """
    return "/callbacks" not in record.getMessage()


async def _sent(client: httpx2.AsyncClient, request: httpx2.Request) -> tuple[int, Any]:
    """Send a request; return the status and the JSON of the reply, or None if it is not JSON."""
    try:
        response = await client.send(request, stream=True)
        try:
            body = await _bounded(response)
        finally:
            await response.aclose()
    except httpx2.TransportError as error:
        raise ReplyError(_lost(error)) from None
    try:
        return response.status_code, json.loads(body)
    except (ValueError, RecursionError):
        return response.status_code, None


async def _bounded(response: httpx2.Response) -> bytes:
    """Return the body; empty if it is larger than `MOST`."""
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MOST:
            return b""
    return bytes(body)


def _lost(error: httpx2.TransportError) -> ErrorReply:
    if isinstance(error, _NOT_SENT):
        return ErrorReply(status="UNAVAILABLE", text=f"failed to connect: {error}", local=True)
    late = isinstance(error, httpx2.TimeoutException)
    return ErrorReply(status="DEADLINE_EXCEEDED" if late else "UNAVAILABLE")
