"""The sidecar: a server with nothing but the configured tools, on stdio or Streamable HTTP."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import anyio
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_workflows.access import LOCAL, Principal
from mcp_workflows.config import Config
from mcp_workflows.errors import ConfigError, WorkflowsError
from mcp_workflows.inbound import MOUNTED_AT
from mcp_workflows.offering import Offering
from mcp_workflows.pacing import Pacing
from mcp_workflows.receiver import Attentive, Changes, Workflows, attach
from mcp_workflows.stopping import Beginning, DrainingServer, Ended, Ending, ending_on_signals
from mcp_workflows.store import open_store

logger = logging.getLogger(__name__)

PATH = "/mcp"
MAX_BODY = 4 * 1024 * 1024  # bytes of one request
_STOP_WITHIN = 3  # seconds for requests under way when it is told to stop
_IDLE_CONNECTIONS = 75  # seconds; longer than load balancers keep theirs, who else send a request into one just closed
_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar:
    """A server with the configured tools, and what goes with it."""

    server: Server[Workflows]
    workflows: Workflows  # its lifespan enters them
    listening: ListenHandler
    offering: Offering
    ending: Ending = field(default_factory=Ending)

    def stop_streams(self) -> None:
        """End what would keep a server from stopping: streams and waiting calls; the workflows go on."""
        self.listening.close()
        self.workflows.stop()


class _Uvicorn(DrainingServer):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say where."""
        await super().startup(sockets)
        for listening in sockets or ():
            host, port = listening.getsockname()[:2]
            logger.info("ready: http://%s:%d%s", f"[{host}]" if ":" in host else host, port, PATH)


Beside = Callable[[Sidecar], Coroutine[Any, Any, None]]  # Any: what a coroutine is sent and sends


class Looking(StrEnum):
    """How often engines are looked at for workflows that are marked as tools."""

    NEVER = "never"
    ONCE = "once"  # before anything is served
    ON = "on"  # again and again, as their settings say


def build(
    config: Config, beside: Beside | None = None, *, local: Principal = LOCAL, looking: Looking = Looking.ON
) -> Sidecar:
    """The sidecar of a configuration; nothing is opened yet. `beside` it something may go on that changes it.

    `local` is who asks where there is no network in between.
    """

    @asynccontextmanager
    async def lifespan(_: Server[Workflows]) -> AsyncGenerator[Workflows]:
        async with workflows, _accompanied(beside, sidecar, looking):
            yield workflows

    bus = InMemorySubscriptionBus()
    listening, changes = ListenHandler(bus), Changes(bus)
    server: Server[Workflows] = Server(
        config.server.name,
        version=config.server.version,
        title=config.server.title,
        instructions=config.server.instructions,
        lifespan=lifespan,
        get_tool_input_schema=lambda name: tool.input if (tool := workflows.tools.get(name)) else None,
        on_subscriptions_listen=listening,
    )
    workflows: Workflows = attach(
        server,
        tools=config.tools,
        engines={name: engine.kind(engine.settings) for name, engine in config.engines.items()},
        store=config.store.url,
        retention=config.store.retention,
        strict_headers=config.server.strict_headers,
        my_tasks=config.server.my_tasks,
        single_user=config.server.single_user,
        local=local,
        pacing=Pacing(looks_per_second=config.server.max_looks_per_second, open_waits=config.server.max_open_waits),
    )
    offering = Offering(workflows, changes, config.tools)
    if beside or offering.looks:
        server.middleware.append(changes.serve)
    sidecar: Sidecar = Sidecar(server=server, workflows=workflows, listening=listening, offering=offering)
    return sidecar


@asynccontextmanager
async def _accompanied(beside: Beside | None, sidecar: Sidecar, looking: Looking) -> AsyncGenerator[None]:
    if looking is Looking.ONCE:
        await sidecar.offering.look()
    async with anyio.create_task_group() as group:
        if looking is Looking.ON:
            group.start_soon(sidecar.offering.run)
        if beside:
            group.start_soon(beside, sidecar)
        yield
        group.cancel_scope.cancel()


async def run_stdio(config: Config, beside: Beside | None = None) -> None:
    """Serve one client on standard input and output, until it leaves or we are told to stop."""
    await _check_store(config)
    sidecar = build(config, beside)
    _tell_who_cannot_call(sidecar.workflows)
    options = sidecar.server.create_initialization_options()
    async with ending_on_signals(sidecar.stop_streams), stdio_server() as (incoming, outgoing):
        await sidecar.server.run(incoming, outgoing, options)


def run_http(config: Config, *, host: str, port: int, beside: Beside | None = None) -> None:
    """Serve Streamable HTTP at `/mcp`, until told to stop.

    Raises:
        ConfigError: the address cannot be listened on, or an engine cannot be set up.
        StoreError: the store cannot be used.
    """
    anyio.run(_check_store, config)
    listening = _listen(host, port)
    sidecar = build(config, beside)
    app = Beginning(http_app(sidecar, config, host, listening.getsockname()[1]))
    settings = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        lifespan="on",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=_STOP_WITHIN,
        timeout_keep_alive=_IDLE_CONNECTIONS,
    )
    server = _Uvicorn(settings, ending=sidecar.ending, drain=config.server.drain, stop=sidecar.stop_streams)
    try:
        server.run(sockets=[listening])
    except SystemExit:
        if app.failure is None:
            raise
        raise app.failure from None
    if not server.started:
        raise ConfigError("the sidecar could not start; see the log above")


def http_app(sidecar: Sidecar, config: Config, host: str, port: int) -> Starlette:
    """The ASGI application: `/mcp`, how it is (`/healthz`, `/readyz`, `/enginez`), and `/engines` for workflows."""
    app = sidecar.server.streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=MAX_BODY,
        transport_security=_security(config, host, port),
        custom_starlette_routes=[
            Route("/healthz", _alive(sidecar.workflows)),
            Route("/readyz", _ready(sidecar)),
            Route("/enginez", _engines(sidecar.workflows)),
        ],
        host=host,
    )
    app.mount(MOUNTED_AT, sidecar.workflows.inbound)  # whatever the Host: a token protects it
    app.add_middleware(Attentive)
    app.add_middleware(Ended, ending=sidecar.ending)
    app.add_middleware(_Trimmed)
    return app


class _Trimmed:
    """Header values without the blanks around them, which are not part of them and which httptools leaves there.

    Source: RFC 9110, section 5.5.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, trimmed."""
        if scope["type"] == "http":
            scope = {**scope, "headers": [(name, value.strip(b" \t")) for name, value in scope["headers"]]}
        await self._app(scope, receive, send)


def _tell_who_cannot_call(workflows: Workflows) -> None:
    for name, called_at in workflows.called_at.items():
        logger.warning(
            "the workflows of engine %s cannot call it on stdio, only over HTTP (--http HOST:PORT): %s",
            name,
            ", ".join(called_at),
        )


async def _check_store(config: Config) -> None:
    """Before anything listens: a store that cannot be used is a message, not a trace out of the server."""
    async with open_store(config.store.url) as store:
        await store.check()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY by this
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}; choose another with --http HOST:PORT") from None
    return listening


def _security(config: Config, host: str, port: int) -> TransportSecuritySettings:
    """Which Host and Origin headers are let in: a page on the web must not reach a sidecar on this machine."""
    names = {*_LOOPBACK_NAMES, f"[{host}]" if ":" in host else host}
    hosts = sorted({f"{name}:*" for name in names} | names | {f"{name}:{port}" for name in names})
    return TransportSecuritySettings(
        allowed_hosts=[*hosts, *config.server.allowed_hosts],
        allowed_origins=[f"http://{name}:*" for name in sorted(names)] + list(config.server.allowed_origins),
    )


def _alive(workflows: Workflows) -> Callable[[Request], Awaitable[JSONResponse]]:
    async def alive(_: Request) -> JSONResponse:
        """The process lives; one that cannot serve any more should be started again."""
        return JSONResponse({"ok": workflows.alive}, status_code=200 if workflows.alive else 503)

    return alive


def _ready(sidecar: Sidecar) -> Callable[[Request], Awaitable[JSONResponse]]:
    async def ready(_: Request) -> JSONResponse:
        """Configuration and store are fine, and it goes on: tasks can be created and read."""
        if sidecar.ending.stopping:
            return JSONResponse({"ok": False, "server": "stopping"}, status_code=503)
        try:
            await sidecar.workflows.ready()
        except WorkflowsError as error:
            return JSONResponse({"ok": False, "store": str(error)}, status_code=503)
        return JSONResponse({"ok": True})

    return ready


def _engines(workflows: Workflows) -> Callable[[Request], Awaitable[JSONResponse]]:
    async def engines(_: Request) -> JSONResponse:
        """Each engine by itself: one that is down says nothing about the others or about ended tasks."""
        findings = await workflows.check_engines()
        ok = all(finding.ok for finding in findings.values())
        body = {name: {"ok": found.ok, "text": found.text, "hint": found.hint} for name, found in findings.items()}
        return JSONResponse({"ok": ok, "engines": body}, status_code=200 if ok else 503)

    return engines
