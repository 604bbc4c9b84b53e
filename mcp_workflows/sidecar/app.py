"""The sidecar: a server with only the configured tools, on stdio or over Streamable HTTP."""

from __future__ import annotations

import gc
import logging
import os
import socket
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from typing import Any, TextIO
from urllib.parse import urlsplit

import anyio
import uvicorn
from anyio.streams.memory import MemoryObjectSendStream
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.message import SessionMessage
from mcp_types import ErrorData, jsonrpc
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount, Route

from mcp_workflows.access import LOCAL, Principal
from mcp_workflows.access.authn.settings import AuthSettings
from mcp_workflows.access.limit_settings import Limits
from mcp_workflows.engines.polling.policy import PollingPolicy
from mcp_workflows.errors import ConfigError
from mcp_workflows.receiver.attach import Changes, DisconnectMiddleware, Workflows, attach
from mcp_workflows.receiver.webhooks import MOUNTED_AT
from mcp_workflows.sidecar.address import USUAL_PORTS, Address, bind
from mcp_workflows.sidecar.auth import Authenticator, AuthMiddleware
from mcp_workflows.sidecar.config.models import STDOUT, Config, WebSettings
from mcp_workflows.sidecar.discovery import Discovery
from mcp_workflows.sidecar.operators_listener import enginez, healthz, ops_app, readyz, serve_ops
from mcp_workflows.sidecar.request_headers import (
    AllowedHosts,
    BoundedHeaders,
    CleanHeaders,
    Cors,
    ReadableRefusals,
    hosts_of,
)
from mcp_workflows.sidecar.shutdown import DrainingServer, OpenRequests, ShutdownState, StartupErrors, stop_on_signals
from mcp_workflows.sidecar.telemetry.exporters import Exporters, exporters_of

logger = logging.getLogger(__name__)

PATH = "/mcp"
_WITHOUT_LIMIT = 4 * 1024 * 1024  # bytes allowed for arguments, and for answers, without a configured limit
_AROUND = 64 * 1024  # bytes of a request besides its arguments and answers
_STOP_WITHIN = 3  # seconds for open requests to finish when the server stops
_SESSION_IDLE = 1800  # seconds that a session of 2025-11-25 stays open without a request
_IDLE_CONNECTIONS = 75  # seconds; longer than load balancers keep idle connections, so that they never use a closed one


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar:
    """A server with the configured tools, and the parts for its start and shutdown."""

    server: Server[Workflows]
    workflows: Workflows  # entered by the server's lifespan
    listening: ListenHandler
    discovery: Discovery
    authenticator: Authenticator | None = None  # None: callers are not identified
    ops: bool = False  # the listener for operators serves the state of engines
    shutdown_state: ShutdownState = field(default_factory=ShutdownState)

    def stop_streams(self) -> None:
        """Close streams and end waiting calls, which would delay the shutdown; workflows continue."""
        self.listening.close()
        self.workflows.stop()


class _Server(DrainingServer):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and log the addresses."""
        await super().startup(sockets)
        gc.freeze()  # otherwise a collection scans all loaded objects, 0.1 s within a large request
        for listening in sockets or ():
            host, port = listening.getsockname()[:2]
            logger.info("ready: http://%s%s", Address(host=host, port=port), PATH)


BackgroundTask = Callable[[Sidecar], Coroutine[Any, Any, None]]  # Any: the values sent to and from a coroutine


class DiscoveryMode(StrEnum):
    """When to ask engines for workflows that are marked as tools."""

    NEVER = "never"
    ONCE = "once"  # before the server starts
    ON = "on"  # repeatedly, at the interval in each engine's settings


def build(
    config: Config,
    background: BackgroundTask | None = None,
    *,
    local: Principal = LOCAL,
    discovery_mode: DiscoveryMode = DiscoveryMode.ON,
    exporters: Exporters | None = None,
    ops: BackgroundTask | None = None,
) -> Sidecar:
    """Build the sidecar of a configuration without opening anything.

    The task `background` runs alongside the server and may change the sidecar. `local` is the principal of callers on
    stdio. `ops` serves the listener for operators.

    Raises:
        ConfigError: a package for audit or telemetry is not installed.
    """
    exports = exporters or exporters_of(config)

    @asynccontextmanager
    async def lifespan(_: Server[Workflows]) -> AsyncGenerator[Workflows]:
        async with exports, workflows, _background_tasks(background, ops, sidecar, discovery_mode):
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
    workflows: Workflows = _attach_workflows(server, config, exports, local)
    discovery = Discovery(workflows, changes, config.tools, config.tool_defaults)
    if background or discovery.discovers:
        server.middleware.append(changes.serve)
    sidecar: Sidecar = Sidecar(
        server=server,
        workflows=workflows,
        listening=listening,
        discovery=discovery,
        authenticator=None if config.server.auth is None else Authenticator(config.server.auth, audit=workflows.audit),
        ops=ops is not None,
    )
    return sidecar


def _attach_workflows(server: Server[Workflows], config: Config, exports: Exporters, local: Principal) -> Workflows:
    """Attach the configured workflows to a server without other tools."""
    return attach(
        server,
        tools=config.tools,
        engines={name: engine.kind(engine.settings) for name, engine in config.engines.items()},
        store=config.store.open(),
        retention=config.store.retention,
        my_tasks=config.server.my_tasks,
        skills=config.server.skills,
        single_user=config.server.single_user,
        idempotency_keys=config.server.key_paths,
        local=local,
        owner=None if config.server.auth is None else config.server.auth.owner,
        limits=config.limits,
        authorizer=config.authorizer,
        audit=exports.audit,
        telemetry=exports.telemetry,
        polling=PollingPolicy(polls_per_second=config.server.max_polls_per_second),
        events=config.server.events,
        notify=config.notify,
    )


@asynccontextmanager
async def _background_tasks(
    background: BackgroundTask | None, ops: BackgroundTask | None, sidecar: Sidecar, discovery_mode: DiscoveryMode
) -> AsyncGenerator[None]:
    if discovery_mode is DiscoveryMode.ONCE:
        await sidecar.discovery.discover()
    async with anyio.create_task_group() as group:
        if discovery_mode is DiscoveryMode.ON:
            group.start_soon(sidecar.discovery.run)
        for each in (background, ops):
            if each:
                group.start_soon(each, sidecar)
        yield
        group.cancel_scope.cancel()


def private_stdout() -> TextIO:
    """Return standard output for MCP messages only: everything printed after this goes to standard error."""
    wire = os.dup(1)
    try:
        os.dup2(2, 1)
    except OSError:  # no standard error
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return os.fdopen(wire, "w", encoding="utf-8", newline="\n", closefd=False)  # a thread may still write to it


async def run_stdio(
    config: Config, background: BackgroundTask | None = None, ops: Address | None = None, out: TextIO | None = None
) -> None:
    """Serve one client on standard input and output, until it disconnects or a signal ends the process.

    `out`: see `private_stdout`; by default, standard output is taken when serving begins.

    Raises:
        ConfigError: the audit writes to standard output, which belongs to the client; or the address `ops` is not
            available.
    """
    if config.audit is not None and config.audit.to == STDOUT:
        raise ConfigError("audit.to: standard output is what the client reads; on stdio write stderr, a file or otlp")
    await _check_store(config)
    exporters = exporters_of(config, scraped=ops is not None)
    exporters.make_global()
    sidecar = build(config, background, exporters=exporters, ops=_operators_listener(ops, exporters))
    _warn_of_callbacks(sidecar.workflows)
    options = sidecar.server.create_initialization_options()
    wire = None if out is None else anyio.wrap_file(out)
    async with stop_on_signals(sidecar.stop_streams), stdio_server(stdout=wire) as (incoming, outgoing):
        into, understood = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        async with anyio.create_task_group() as group:
            group.start_soon(_refuse_malformed, incoming, into, outgoing)
            await sidecar.server.run(understood, outgoing, options)


async def _refuse_malformed(
    incoming: Any, into: MemoryObjectSendStream[SessionMessage | Exception], outgoing: Any
) -> None:
    """Pass messages on, but answer a request that is malformed, as over HTTP: the SDK would only log it.

    Any: streams whose types are private to the SDK.
    """
    async with into:
        async for each in incoming:
            if not isinstance(each, ValidationError):
                await into.send(each)
                continue
            problems = each.errors(include_url=False, include_context=False)
            message: Any = next((found["input"] for found in problems if found["type"] == "missing"), dict[str, Any]())
            given = message.get("id")
            if ("method" in message) != (given is not None):
                continue  # a notification or a response, which gets no reply
            code = jsonrpc.PARSE_ERROR if problems[0]["type"] == "json_invalid" else jsonrpc.INVALID_REQUEST
            error = ErrorData(code=code, message="a line must be one JSON-RPC message, and its params an object")
            request_id = given if type(given) in (str, int) else None  # no bool
            await outgoing.send(SessionMessage(jsonrpc.JSONRPCError(jsonrpc="2.0", id=request_id, error=error)))


def _operators_listener(address: Address | None, exporters: Exporters) -> BackgroundTask | None:
    """Listen on the address for operators and return the task that serves it; None without an address."""
    if address is None:
        return None
    assert exporters.scrape is not None, "metrics are collected where there is a listener for operators"
    scrape, listening = exporters.scrape, bind(address, "--ops")

    async def serve(sidecar: Sidecar) -> None:
        await serve_ops(ops_app(sidecar.workflows, sidecar.shutdown_state, scrape, address.host), listening)

    return serve


def run_http(
    config: Config, *, host: str, port: int, background: BackgroundTask | None = None, ops: Address | None = None
) -> None:
    """Serve Streamable HTTP at `/mcp`, until a signal ends the process.

    Raises:
        ConfigError: the address is not available, or an engine cannot be set up.
        StoreError: the store cannot be used.
    """
    anyio.run(_check_store, config)
    listening = bind(Address(host=host, port=port))
    exporters = exporters_of(config, scraped=ops is not None)
    exporters.make_global()
    sidecar = build(config, background, exporters=exporters, ops=_operators_listener(ops, exporters))
    app = StartupErrors(http_app(sidecar, config, host, listening.getsockname()[1]))
    settings = uvicorn.Config(
        app,
        loop="auto",  # uvloop, which Windows lacks
        http=BoundedHeaders,
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # the peer is the other end of the socket; see `server.auth.proxy`
        timeout_graceful_shutdown=_STOP_WITHIN,
        timeout_keep_alive=_IDLE_CONNECTIONS,
    )
    server = _Server(
        settings, shutdown_state=sidecar.shutdown_state, drain=config.server.drain, stop=sidecar.stop_streams
    )
    try:
        server.run(sockets=[listening])
    except SystemExit:
        if app.failure is None:
            raise
        raise app.failure from None
    if not server.started:
        raise ConfigError("the sidecar could not start; see the log above")


def http_app(sidecar: Sidecar, config: Config, host: str, port: int) -> Starlette:
    """Return the ASGI application: `/mcp`, `/healthz`, `/readyz`, `/enginez`, and `/engines` for workflows."""
    authenticator = sidecar.authenticator
    if authenticator is not None:
        authenticator.serve_at(resource_of(config, host, port))
    mcp = sidecar.server.streamable_http_app(
        streamable_http_path=PATH,
        auth=None if authenticator is None else authenticator.sdk_settings,
        token_verifier=authenticator,
        max_request_body_size=_max_body(config.limits),
        session_idle_timeout=_SESSION_IDLE,
        max_sessions=config.server.max_sessions,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # `AllowedHosts` does this
        host=host,
    )
    if authenticator is not None:
        mcp.add_middleware(AuthMiddleware, authenticator=authenticator)
    # the endpoint and middleware of the SDK's application, whose authentication would cover every path
    [endpoint] = [route.endpoint for route in mcp.routes if isinstance(route, Route) and route.path == PATH]
    guards = [Middleware(AllowedHosts, **_allowed(config, host))]
    engines = Route("/enginez", enginez(sidecar.workflows), middleware=guards)  # shows more than the others
    web: Sequence[Route] = ()
    if config.server.web is not None and config.server.auth is not None:
        sidecar.workflows.web_url = resource_of(config, host, port).removesuffix(PATH)
        web = _pages(sidecar.workflows, config.server.web, config.server.auth, guards)
    app = Starlette(
        routes=[
            Route(PATH, endpoint, middleware=[*guards, *mcp.user_middleware]),  # tokens are checked on this path only
            Route("/healthz", healthz(sidecar.workflows)),
            Route("/readyz", readyz(sidecar.workflows, sidecar.shutdown_state)),
            *([] if sidecar.ops or authenticator is not None else [engines]),
            *(() if authenticator is None else authenticator.routes),
            *web,
            Mount(MOUNTED_AT, sidecar.workflows.inbound),  # with any Host, as a token protects it
        ],
        lifespan=mcp.router.lifespan_context,
    )
    app.router.redirect_slashes = False  # the Location would be built from the Host header
    app.add_middleware(DisconnectMiddleware)
    app.add_middleware(OpenRequests, shutdown_state=sidecar.shutdown_state)
    app.add_middleware(CleanHeaders)
    app.add_middleware(ReadableRefusals)
    if config.server.cors:
        app.add_middleware(Cors, origins=config.server.cors, path=PATH)
    return app


def _pages(
    workflows: Workflows, settings: WebSettings, auth: AuthSettings, guards: Sequence[Middleware]
) -> Sequence[Route]:
    """Return the routes of the pages for people.

    Raises:
        ConfigError: a package is not installed, or the pages would be served without TLS.
    """
    assert workflows.web_url is not None, "it was set a moment ago"
    try:
        web = import_module("mcp_workflows.sidecar.web.pages")  # needs authlib and Jinja2, which are optional
    except ImportError as error:
        raise ConfigError(f"server.web needs more packages ({error.name}): pip install 'mcp-workflows[web]'") from None
    logger.info("approval pages: %s/approvals", workflows.web_url)
    pages: Sequence[Route] = web.Web(workflows, settings, auth, workflows.web_url).routes(guards)
    return pages


def _max_body(limits: Limits) -> int:
    """Return the maximum size of a request body in bytes."""
    return _AROUND + (limits.max_arguments or _WITHOUT_LIMIT) + (limits.max_answer or _WITHOUT_LIMIT)


def resource_of(config: Config, host: str, port: int) -> str:
    """Return the URL of the server for clients, which is the audience of their tokens."""
    address = config.server.public_url or f"http://{Address(host=host, port=port)}"
    return f"{address}{PATH}"


def _warn_of_callbacks(workflows: Workflows) -> None:
    for name, called_at in workflows.called_at.items():
        logger.warning(
            "workflows of engine %s cannot call this server over stdio, only over HTTP (--http HOST:PORT): %s",
            name,
            ", ".join(called_at),
        )


async def _check_store(config: Config) -> None:
    """Check the store before listening, so that an unusable one ends with a message instead of a stack trace."""
    async with config.store.open() as store:
        await store.check()


def _allowed(config: Config, host: str) -> Mapping[str, Collection[str]]:
    """Return the accepted `Host` and `Origin` headers."""
    settings = config.server
    names = hosts_of(host)
    hosts, origins = {*names, *settings.allowed_hosts}, {f"http://{name}" for name in names}
    if settings.public_url is not None:
        public = urlsplit(settings.public_url.lower())
        port = USUAL_PORTS[public.scheme]
        name = public.netloc.removesuffix(port)
        hosts |= {name, public.netloc if public.port else f"{name}{port}"}
        origins.add(f"{public.scheme}://{name}")
    return {"hosts": hosts, "origins": {*origins, *settings.allowed_origins, *settings.cors}}
