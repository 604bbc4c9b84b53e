"""The listener for operators, beside the one that clients reach: `/metrics` and the health endpoints.

It authenticates nobody, so its address should be reachable by operators alone. On loopback it accepts only the host
names of loopback, so that no page on the web can read it.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import anyio
import uvicorn
from anyio import to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from mcp_workflows.access import is_loopback
from mcp_workflows.receiver.attach import Workflows
from mcp_workflows.sidecar import health
from mcp_workflows.sidecar.request_headers import AllowedHosts, BoundedHeaders, hosts_of
from mcp_workflows.sidecar.shutdown import ShutdownState
from mcp_workflows.sidecar.telemetry.setup import Scrape

logger = logging.getLogger(__name__)

_STOP_WITHIN: Final = 1  # seconds


def ops_app(workflows: Workflows, shutdown_state: ShutdownState, scrape: Scrape, host: str) -> Starlette:
    """Return the ASGI application of the listener on this host."""

    async def metrics(request: Request) -> Response:
        await workflows.count()
        body, media_type = await to_thread.run_sync(scrape, request.headers.get("accept", ""))
        return Response(body, media_type=media_type)

    return Starlette(
        routes=[
            Route("/metrics", metrics),
            Route("/healthz", health.alive(workflows)),
            Route("/readyz", health.ready(workflows, shutdown_state)),
            Route("/enginez", health.engines(workflows)),
        ],
        middleware=[Middleware(AllowedHosts, hosts=hosts_of(host))] if is_loopback(host) else [],
    )


async def serve_ops(app: ASGIApp, listening: socket.socket) -> None:
    """Serve the application until cancelled."""
    settings = uvicorn.Config(
        app,
        http=BoundedHeaders,
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=_STOP_WITHIN,
    )
    server = _SecondServer(settings)
    host, port = listening.getsockname()[:2]
    logger.info("for operators: http://%s:%d/metrics", f"[{host}]" if ":" in host else host, port)
    async with anyio.create_task_group() as group:
        group.start_soon(_serve_to_the_end, server, listening)
        try:
            await anyio.sleep_forever()
        finally:
            server.should_exit = True


async def _serve_to_the_end(server: uvicorn.Server, listening: socket.socket) -> None:
    with anyio.CancelScope(shield=True):
        await server.serve(sockets=[listening])


class _SecondServer(uvicorn.Server):
    """A second server in the process; the first one handles signals."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to the first server."""
        yield
