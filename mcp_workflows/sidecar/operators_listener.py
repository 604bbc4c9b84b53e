"""The listener for operators: `/metrics`, and the health endpoints, which the listener for clients has, too.

It does not authenticate callers, so only operators should reach its address. On loopback it accepts only loopback host
names, so that no web page can read it.
"""

from __future__ import annotations

import logging
import math
import socket
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final, TypeAlias

import anyio
import uvicorn
from anyio import to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from mcp_workflows.access import is_loopback
from mcp_workflows.adapter import Finding
from mcp_workflows.errors import EngineError, StoreError, WorkflowsError
from mcp_workflows.receiver.attach import Workflows
from mcp_workflows.sidecar.engine_checks import check_engines
from mcp_workflows.sidecar.request_headers import AllowedHosts, BoundedHeaders, hosts_of
from mcp_workflows.sidecar.shutdown import ShutdownState
from mcp_workflows.sidecar.telemetry.exporters import Scrape
from mcp_workflows.tasks.maintenance import RetentionRound
from mcp_workflows.tasks.pauses import Pause

ASK_EVERY: Final = 1.0  # seconds: anyone can call the endpoint, which must not cause load on engines
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


def healthz(workflows: Workflows) -> Endpoint:
    """Return the endpoint that reports whether the process works or must be restarted."""

    async def answer(_: Request) -> Response:
        return JSONResponse({"ok": workflows.alive}, status_code=200 if workflows.alive else 503)

    return answer


def readyz(workflows: Workflows, shutdown_state: ShutdownState) -> Endpoint:
    """Return the endpoint that reports whether tasks can be created: the store and workflows in this process work."""

    async def answer(_: Request) -> Response:
        if shutdown_state.stopping:
            return JSONResponse({"ok": False, "server": "stopping"}, status_code=503)
        try:
            await workflows.ready()
        except WorkflowsError as error:
            part = "engine" if isinstance(error, EngineError) else "store"
            return JSONResponse({"ok": False, part: str(error)}, status_code=503)
        return JSONResponse({"ok": True})

    return answer


def enginez(workflows: Workflows) -> Endpoint:
    """Return the endpoint for the state of each engine; a problem there affects neither other engines nor ended tasks.

    Concurrent callers share one check.
    """
    lock, known, asked = anyio.Lock(), dict[str, Finding](), -math.inf
    rounds: Mapping[str, RetentionRound] = {}
    paused: Sequence[Pause] = ()

    async def answer(_: Request) -> Response:
        nonlocal known, asked, rounds, paused
        async with lock:
            if (now := time.monotonic()) - asked >= ASK_EVERY:
                known, asked = dict(await check_engines(workflows.engines)), now
                with suppress(StoreError):  # /readyz reports that
                    rounds, paused = await workflows.retention_rounds(), await workflows.pauses()
            findings = known
        ok = all(finding.ok is not False for finding in findings.values())
        body: dict[str, Mapping[str, object]] = {}
        for name, found in findings.items():
            last = rounds.get(name)  # the last round over all tasks; None: no round yet
            ended = last.ended.isoformat() if last and last.ended else None
            shown = None if last is None else {"ended": ended, "skipped": last.skipped}
            body[name] = {"ok": found.ok, "text": found.text, "hint": found.hint, "round": shown}
        stopped = [each.text for each in paused]
        return JSONResponse({"ok": ok, "engines": body, "paused": stopped}, status_code=200 if ok else 503)

    return answer


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
            Route("/healthz", healthz(workflows)),
            Route("/readyz", readyz(workflows, shutdown_state)),
            Route("/enginez", enginez(workflows)),
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
    logger.info("operators' endpoints: http://%s:%d/metrics", f"[{host}]" if ":" in host else host, port)
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
