"""The official clients of both APIs, each on a gRPC channel that is opened at the first call.

A grpc.aio channel belongs to the event loop that made it, and is closed in it. With grpcio 1.85 one loop after the
other, and two at once, work without messages; older versions may write errors to standard error (grpc/grpc#25364). For
that reason the servers of the tests are `grpc.server`, in threads.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false
# Reason: grpc has no types.

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from contextvars import ContextVar
from importlib.metadata import version
from typing import Any, Final

import anyio.to_thread
import grpc
from google.cloud.workflows import executions_v1
from google.cloud.workflows.executions_v1.services.executions.transports import ExecutionsGrpcAsyncIOTransport
from google.cloud.workflows_v1.services.workflows import WorkflowsAsyncClient
from google.cloud.workflows_v1.services.workflows.transports import WorkflowsGrpcAsyncIOTransport

from mcp_workflows_google.settings import GOOGLE, GoogleSettings

EXECUTIONS: Final = GOOGLE
WORKFLOWS: Final = "workflows.googleapis.com"
AGENT: Final = f"mcp-workflows/{version('mcp-workflows')}"
LARGEST: Final = 64 * 1024 * 1024  # bytes of a reply: a full page, see `client.FULL_PAGE`
CONNECTING: Final = 0.5  # share of a call's timeout, after which a call without a connection is known to be unsent
IN_OUR_CALL: ContextVar[bool] = ContextVar("mcp_workflows_google_call", default=False)

_OPTIONS: Final[Sequence[tuple[str, Any]]] = (  # Any: a number or a text
    ("grpc.primary_user_agent", AGENT),
    ("grpc.max_receive_message_length", LARGEST),
    ("grpc.enable_retries", 0),  # the retries of `api_calls` are the only ones: a create is never repeated
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
_LOCAL: Final[Sequence[tuple[str, Any]]] = (("grpc.enable_http_proxy", 0),)
_EXECUTIONS_HOST = re.compile(r"^workflowexecutions(?=[.-])")
_LOGGERS: Final = (
    "google.cloud.workflows.executions_v1.services.executions.transports.grpc_asyncio",
    "google.cloud.workflows_v1.services.workflows.transports.grpc_asyncio",
)


def workflows_host(executions: str) -> str:
    """Return the address of the Workflows API that belongs to this address of the Executions API."""
    return _EXECUTIONS_HOST.sub("workflows", executions)


class GrpcClients:
    """The gRPC clients of the Executions API and the Workflows API."""

    def __init__(self, settings: GoogleSettings) -> None:
        self._emulator = settings.emulator
        self._connecting = ("grpc.min_reconnect_backoff_ms", int(settings.timeout_seconds * CONNECTING * 1000))
        self.executions_endpoint = settings.emulator or settings.endpoint or GOOGLE
        self.workflows_endpoint = settings.emulator or workflows_host(self.executions_endpoint)
        self._channels: dict[str, Any] = {}  # by service; Any: grpc.aio.Channel
        self._opening = anyio.Lock()
        self._executions: executions_v1.ExecutionsAsyncClient | None = None
        self._workflows: WorkflowsAsyncClient | None = None

    async def executions(self) -> executions_v1.ExecutionsAsyncClient:
        """Return the client of the Executions API."""
        async with self._opening:
            if self._executions is None:
                channel = await self._channel(EXECUTIONS, self.executions_endpoint)
                transport = ExecutionsGrpcAsyncIOTransport(channel=channel, host=self.executions_endpoint)
                self._executions = executions_v1.ExecutionsAsyncClient(transport=transport)
            return self._executions

    async def workflows(self) -> WorkflowsAsyncClient:
        """Return the client of the Workflows API."""
        async with self._opening:
            if self._workflows is None:
                channel = await self._channel(WORKFLOWS, self.workflows_endpoint)
                transport = WorkflowsGrpcAsyncIOTransport(channel=channel, host=self.workflows_endpoint)
                self._workflows = WorkflowsAsyncClient(transport=transport)
            return self._workflows

    def connected(self, service: str) -> bool:
        """Return False if there is certainly no connection, so that a call that has just failed was never sent."""
        channel = self._channels.get(service)
        return channel is None or channel.get_state() is not grpc.ChannelConnectivity.TRANSIENT_FAILURE

    async def close(self) -> None:
        """Close all connections; running calls are aborted."""
        for channel in self._channels.values():
            await channel.close()

    async def _channel(self, service: str, target: str) -> Any:  # Any: see above
        filter_client_logs()
        if self._emulator:
            channel = grpc.aio.insecure_channel(target, options=(*_OPTIONS, self._connecting, *_LOCAL))
        else:
            roots = await anyio.to_thread.run_sync(grpc.ssl_channel_credentials)  # may read a file
            channel = grpc.aio.secure_channel(target, roots, options=(*_OPTIONS, self._connecting))
        self._channels[service] = channel
        return channel


class _OwnChatterFilter(logging.Filter):
    """Drops debug messages that Google's clients write during calls of this package."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.DEBUG or not IN_OUR_CALL.get()


_OWN_CHATTER_FILTER: Final = _OwnChatterFilter()


def filter_client_logs() -> None:
    """Keep Google's clients from logging our requests and replies, which contain tokens and inputs."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_OWN_CHATTER_FILTER)
