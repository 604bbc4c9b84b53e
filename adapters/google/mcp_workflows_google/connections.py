"""Connections to Google: the official gRPC clients of both APIs, and HTTP for callbacks, which those clients lack.

The first call opens each. A grpc.aio channel belongs to the event loop that created it, and is closed in it. With
grpcio 1.85, successive and concurrent loops work without messages; older versions may write errors to standard error
(grpc/grpc#25364). So the servers of the tests are `grpc.server`, in threads.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false
# Reason: grpc has no types.

from __future__ import annotations

import json
import logging
import re
import ssl
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from enum import StrEnum
from importlib.metadata import version
from typing import Any, Final

import anyio
import anyio.to_thread
import grpc
import httpx2
from google.cloud.workflows.executions_v1 import ExecutionsAsyncClient
from google.cloud.workflows.executions_v1.services.executions.transports import ExecutionsGrpcAsyncIOTransport
from google.cloud.workflows_v1.services.workflows import WorkflowsAsyncClient
from google.cloud.workflows_v1.services.workflows.transports import WorkflowsGrpcAsyncIOTransport

from mcp_workflows.adapter import JSON
from mcp_workflows.errors import EngineRefused
from mcp_workflows_google.errors import ErrorReply, ReplyError, read_http_error
from mcp_workflows_google.settings import GOOGLE, GoogleSettings

EXECUTIONS: Final = GOOGLE
WORKFLOWS: Final = "workflows.googleapis.com"
AGENT: Final = f"mcp-workflows/{version('mcp-workflows')}"
LARGEST: Final = 64 * 1024 * 1024  # bytes of a gRPC reply: a full page, see `client.FULL_PAGE`
MOST: Final = 8 * 1024 * 1024  # bytes of an HTTP reply: a page of callbacks with payloads that were not taken
CONNECTING: Final = 0.5  # share of a call's timeout, after which a call without a connection is known to be unsent
IN_OUR_CALL: ContextVar[bool] = ContextVar("mcp_workflows_google_call", default=False)

_OPTIONS: Final[Sequence[tuple[str, Any]]] = (  # Any: a number or a text
    ("grpc.primary_user_agent", AGENT),
    ("grpc.max_receive_message_length", LARGEST),
    ("grpc.enable_retries", 0),  # the retries of `client` are the only ones: a create is never repeated
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.use_local_subchannel_pool", 1),  # engines do not share connections, nor their failures
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5_000),  # gRPC's own is 2 minutes: too long after an outage
    # an idle connection that a firewall drops silently (Google's own: after 10 minutes) would cost the next start its
    # reply; servers take a ping every 5 minutes
    ("grpc.keepalive_time_ms", 300_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
_EXECUTIONS_HOST = re.compile(r"^workflowexecutions(?=[.-])")
_CLIENTS: Final[Mapping[str, tuple[Any, Any]]] = {  # the transport and the client of each API
    EXECUTIONS: (ExecutionsGrpcAsyncIOTransport, ExecutionsAsyncClient),
    WORKFLOWS: (WorkflowsGrpcAsyncIOTransport, WorkflowsAsyncClient),
}
_HOSTS = re.compile(r"workflowexecutions(?:\.[a-z0-9-]+\.rep)?\.googleapis\.com", re.ASCII)
_NOT_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
_OK: Final = 200
_REDIRECT: Final = 300
_SERVER_ERROR: Final = 500


def workflows_host(executions: str) -> str:
    """Return the address of the Workflows API for this address of the Executions API."""
    return _EXECUTIONS_HOST.sub("workflows", executions)


def rest_url(settings: GoogleSettings) -> str:
    """Return the base URL of the Executions API over HTTP."""
    return f"http://{settings.emulator}" if settings.emulator else f"https://{settings.endpoint or GOOGLE}"


class GrpcClients:
    """The gRPC clients of the Executions API and the Workflows API."""

    def __init__(self, settings: GoogleSettings) -> None:
        self._emulator = settings.emulator
        self._connecting = ("grpc.min_reconnect_backoff_ms", int(settings.timeout_seconds * CONNECTING * 1000))
        executions = settings.emulator or settings.endpoint or GOOGLE
        self.endpoints = {EXECUTIONS: executions, WORKFLOWS: settings.emulator or workflows_host(executions)}
        self._opening = anyio.Lock()
        self._open: dict[str, tuple[Any, Any]] = {}  # channel and client by API; Any: grpc has no types

    async def send(
        self, service: str, method: str, request: Any, headers: Mapping[str, str], seconds: float
    ) -> Any:  # Any: messages of the official clients
        """Call a method of an API once.

        Raises:
            GoogleAPICallError: it failed.
        """
        client = await self._client(service)
        return await getattr(client, method)(request, retry=None, timeout=seconds, metadata=tuple(headers.items()))

    async def _client(self, service: str) -> Any:  # Any: the clients are typed in part
        async with self._opening:
            if service not in self._open:
                for transport, _ in _CLIENTS.values():
                    logging.getLogger(transport.__module__).addFilter(_is_no_message_of_ours)
                target, options = self.endpoints[service], (*_OPTIONS, self._connecting)
                if self._emulator:
                    channel = grpc.aio.insecure_channel(target, options=(*options, ("grpc.enable_http_proxy", 0)))
                else:
                    roots = await anyio.to_thread.run_sync(grpc.ssl_channel_credentials)  # may read a file
                    channel = grpc.aio.secure_channel(target, roots, options=options)
                kinds: tuple[Any, Any] = _CLIENTS[service]  # Any: of services that differ
                transport, client = kinds
                self._open[service] = channel, client(transport=transport(channel=channel, host=target))
            return self._open[service][1]

    def is_connected(self, service: str) -> bool:
        """Return False if there is certainly no connection, so that a call that has just failed was never sent."""
        channel, _ = self._open.get(service, (None, None))
        return channel is None or channel.get_state() is not grpc.ChannelConnectivity.TRANSIENT_FAILURE

    async def close(self) -> None:
        """Close all connections; running calls are aborted."""
        for channel, _ in self._open.values():
            await channel.close()


def _is_no_message_of_ours(record: logging.LogRecord) -> bool:
    """Return whether Google's client may log this: its debug messages contain our tokens, inputs and results."""
    return record.levelno > logging.DEBUG or not IN_OUR_CALL.get()


class DeliveryOutcome(StrEnum):
    """The outcome of sending an answer to a callback."""

    TAKEN = "taken"
    GONE = "gone"  # the callback no longer exists
    BUSY = "busy"  # the previous payload is not processed yet
    UNKNOWN = "unknown"  # it may have arrived


_OUTCOMES: Final[Mapping[int, DeliveryOutcome]] = {
    404: DeliveryOutcome.GONE,
    408: DeliveryOutcome.UNKNOWN,
    410: DeliveryOutcome.GONE,
    429: DeliveryOutcome.BUSY,
}


class HttpClient:
    """The Executions API over HTTP, with one connection pool.

    Redirects are never followed: the access token goes only to Google, never to an address from a reply.
    """

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
        client, url = await self._opened(), rest_url(self._settings) + path
        request = client.build_request("GET", url, params=dict(params), headers=dict(headers), timeout=seconds)
        status, body = await _sent(client, request)
        if not _OK <= status < _REDIRECT or not isinstance(body, Mapping):
            raise ReplyError(read_http_error(status, body))
        return body  # pyright: ignore[reportUnknownVariableType]

    async def deliver(
        self, url: str, method: str, body: JSON, headers: Mapping[str, str], seconds: float
    ) -> DeliveryOutcome:
        """Send a request to a callback once.

        Raises:
            EngineRefused: the URL is not at Google; checked again right before the token is sent.
            ReplyError: it was certainly not accepted.
        """
        client = await self._opened()
        request = client.build_request(method, url, json=body, headers=dict(headers), timeout=seconds)
        target, ours = request.url, httpx2.URL(rest_url(self._settings))
        is_google = target.scheme == "https" and target.port is None and _HOSTS.fullmatch(target.host)
        if (target.scheme, target.host, target.port) != (ours.scheme, ours.host, ours.port) and (
            self._settings.emulator or not is_google
        ):
            raise EngineRefused("this callback is not at Google: nothing is sent there")
        try:
            status, reply = await _sent(client, request)
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
        raise ReplyError(read_http_error(status, reply))

    async def _opened(self) -> httpx2.AsyncClient:
        async with self._opening:
            if self._client is None:
                logging.getLogger("httpx2").addFilter(_names_no_callback)
                local = self._settings.emulator is not None
                verify: Any = True  # Any: or a context
                if not local:
                    verify = await anyio.to_thread.run_sync(ssl.create_default_context)  # reads files
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

    Lists of callbacks are also omitted, as each poll of a gate makes one.
    """
    return "/callbacks" not in record.getMessage()


async def _sent(client: httpx2.AsyncClient, request: httpx2.Request) -> tuple[int, Any]:
    """Send a request; return the status and the JSON of the reply, or None if it is too large or not JSON."""
    body = bytearray()
    try:
        response = await client.send(request, stream=True)
        try:
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > MOST:
                    return response.status_code, None
        finally:
            await response.aclose()
    except httpx2.TransportError as error:
        if isinstance(error, _NOT_SENT):
            text = f"failed to connect: {error}"
            raise ReplyError(ErrorReply(status="UNAVAILABLE", text=text, local=True)) from None
        late = isinstance(error, httpx2.TimeoutException)
        raise ReplyError(ErrorReply(status="DEADLINE_EXCEEDED" if late else "UNAVAILABLE")) from None
    try:
        return response.status_code, json.loads(body)
    except (ValueError, RecursionError):
        return response.status_code, None
