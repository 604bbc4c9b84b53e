"""The API over HTTP, for what the official client cannot do: callbacks.

No redirect is ever followed: our access token goes to Google, and to nobody that Google's answer names.
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
from mcp_workflows_google.errors import ErrorReply, ReplyError, read_http_error
from mcp_workflows_google.settings import GOOGLE, GoogleSettings

MOST: Final = 8 * 1024 * 1024  # bytes of an answer: a page of callbacks, with payloads that nobody has taken
_OK: Final = 200
_REDIRECT: Final = 300
_SERVER_ERROR: Final = 500
_HOSTS = re.compile(r"workflowexecutions(?:\.[a-z0-9-]+\.rep)?\.googleapis\.com", re.ASCII)
_NOT_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)


class DeliveryOutcome(StrEnum):
    """What became of an answer that was sent to a callback."""

    TAKEN = "taken"
    GONE = "gone"  # nothing waits there any more
    BUSY = "busy"  # the payload before is not processed yet
    UNKNOWN = "unknown"  # it may have arrived


_OUTCOMES: Final[Mapping[int, DeliveryOutcome]] = {
    404: DeliveryOutcome.GONE,
    408: DeliveryOutcome.UNKNOWN,
    410: DeliveryOutcome.GONE,
    429: DeliveryOutcome.BUSY,
}


def rest_url(settings: GoogleSettings) -> str:
    """What URLs of the Executions API begin with."""
    return f"http://{settings.emulator}" if settings.emulator else f"https://{settings.endpoint or GOOGLE}"


class Rest:
    """One connection pool; opened at the first call."""

    def __init__(self, settings: GoogleSettings) -> None:
        self._settings = settings
        self._opening = anyio.Lock()
        self._client: httpx2.AsyncClient | None = None

    async def close(self) -> None:
        """Every connection."""
        if self._client is not None:
            await self._client.aclose()

    async def get(self, path: str, params: Mapping[str, str], headers: Mapping[str, str], seconds: float) -> Any:
        """The JSON at a path. Any: as it is.

        Raises:
            AnsweredError: any other answer, or none.
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
        """Send this to a callback, once.

        Raises:
            AnsweredError: it was not taken, for sure.
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
        """The last look before our access token goes there, whoever has checked it before."""
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
    """Whether a line of the HTTP client may be logged: it logs each URL, and that of a callback is kept like a key.

    Lists of callbacks are left out too: there is one with each look at a gate.
    """
    return "/callbacks" not in record.getMessage()


async def _sent(client: httpx2.AsyncClient, request: httpx2.Request) -> tuple[int, Any]:
    """The status and the JSON of an answer (None: it is not JSON)."""
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
    """Its body; one that is too large is nobody's whom we know, or nothing that we could use."""
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
