"""The sidecar: a server with nothing but the configured tools, on stdio or Streamable HTTP."""

from __future__ import annotations

import gc
import logging
import socket
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import anyio
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount, Route

from mcp_workflows.access import LOCAL, Principal
from mcp_workflows.access.authn.settings import Owner
from mcp_workflows.access.limits import Limits
from mcp_workflows.engines.polling.rate import Pacing
from mcp_workflows.errors import ConfigError
from mcp_workflows.receiver.attach import Attentive, Changes, Workflows, attach
from mcp_workflows.receiver.webhooks import MOUNTED_AT
from mcp_workflows.sidecar import health
from mcp_workflows.sidecar.admin import ops_app, serve_ops
from mcp_workflows.sidecar.auth import Admission, Admitting
from mcp_workflows.sidecar.config.load import Config
from mcp_workflows.sidecar.config.models import STDERR, STDOUT
from mcp_workflows.sidecar.discovery import Offering
from mcp_workflows.sidecar.request_headers import (
    USUAL_PORTS,
    AllowedHosts,
    BoundedHeaders,
    CleanHeaders,
    Cors,
    hosts_of,
)
from mcp_workflows.sidecar.shutdown import Beginning, DrainingServer, Ended, Ending, ending_on_signals
from mcp_workflows.sidecar.telemetry.setup import Exporting

logger = logging.getLogger(__name__)

PATH = "/mcp"
_WITHOUT_LIMIT = 4 * 1024 * 1024  # bytes allowed for arguments, or answers, that have no limit
_AROUND = 64 * 1024  # bytes of a request beside its arguments and answers
_STOP_WITHIN = 3  # seconds for requests under way when it is told to stop
_IDLE_CONNECTIONS = 75  # seconds; longer than load balancers keep theirs, who else send a request into one just closed


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar:
    """A server with the configured tools, and what goes with it."""

    server: Server[Workflows]
    workflows: Workflows  # its lifespan enters them
    listening: ListenHandler
    offering: Offering
    admission: Admission | None = None  # None: nobody is asked who they are
    ops: bool = False  # engines are asked how they are on another listener
    ending: Ending = field(default_factory=Ending)

    def stop_streams(self) -> None:
        """End what would keep a server from stopping: streams and waiting calls; the workflows go on."""
        self.listening.close()
        self.workflows.stop()


class _Uvicorn(DrainingServer):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say where."""
        await super().startup(sockets)
        gc.freeze()  # what is loaded stays: to look through it again while a large request is parsed takes 0.1 s
        for listening in sockets or ():
            host, port = listening.getsockname()[:2]
            logger.info("ready: http://%s:%d%s", f"[{host}]" if ":" in host else host, port, PATH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to listen."""

    host: str
    port: int


Beside = Callable[[Sidecar], Coroutine[Any, Any, None]]  # Any: what a coroutine is sent and sends


class Looking(StrEnum):
    """How often engines are looked at for workflows that are marked as tools."""

    NEVER = "never"
    ONCE = "once"  # before anything is served
    ON = "on"  # again and again, as their settings say


def build(
    config: Config,
    beside: Beside | None = None,
    *,
    local: Principal = LOCAL,
    looking: Looking = Looking.ON,
    exporting: Exporting | None = None,
    ops: Beside | None = None,
) -> Sidecar:
    """The sidecar of a configuration; nothing is opened yet. `beside` it something may go on that changes it.

    `local` is who asks where there is no network in between. `ops`: the listener for operators, if it has one.

    Raises:
        ConfigError: what the audit or the telemetry need is not installed.
    """
    exports = exporting or exporting_of(config)

    @asynccontextmanager
    async def lifespan(_: Server[Workflows]) -> AsyncGenerator[Workflows]:
        async with exports, workflows, _accompanied(beside, ops, sidecar, looking):
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
    workflows: Workflows = _attached(server, config, exports, local)
    offering = Offering(workflows, changes, config.tools, config.laying)
    if beside or offering.looks:
        server.middleware.append(changes.serve)
    sidecar: Sidecar = Sidecar(
        server=server,
        workflows=workflows,
        listening=listening,
        offering=offering,
        admission=None if config.server.auth is None else Admission(config.server.auth, audit=workflows.audit),
        ops=ops is not None,
    )
    return sidecar


def _attached(server: Server[Workflows], config: Config, exports: Exporting, local: Principal) -> Workflows:
    """All that the configuration says of workflows, beside a server that has nothing else."""
    return attach(
        server,
        tools=config.tools,
        engines={name: engine.kind(engine.settings) for name, engine in config.engines.items()},
        store=config.store.open(),
        retention=config.store.retention,
        strict_headers=config.server.strict_headers,
        my_tasks=config.server.my_tasks,
        single_user=config.server.single_user,
        idempotency_keys=config.server.key_paths,
        local=local,
        owner=Owner.CLIENT if config.server.auth is None else config.server.auth.owner,
        limits=config.limits,
        authorizer=config.authorizer,
        audit=exports.audit,
        telemetry=exports.telemetry,
        pacing=Pacing(looks_per_second=config.server.max_looks_per_second, open_waits=config.server.max_open_waits),
    )


@asynccontextmanager
async def _accompanied(
    beside: Beside | None, ops: Beside | None, sidecar: Sidecar, looking: Looking
) -> AsyncGenerator[None]:
    if looking is Looking.ONCE:
        await sidecar.offering.look()
    async with anyio.create_task_group() as group:
        if looking is Looking.ON:
            group.start_soon(sidecar.offering.run)
        for each in (beside, ops):
            if each:
                group.start_soon(each, sidecar)
        yield
        group.cancel_scope.cancel()


def exporting_of(config: Config, *, scraped: bool = False, printing: bool = False) -> Exporting:
    """What it records and measures, and where that goes; with `printing` standard output is for something else.

    Raises:
        ConfigError: what that needs is not installed.
    """
    name, version, audit = config.server.name, config.server.version, config.audit
    if audit is not None and audit.to == STDOUT and printing:
        audit = audit.model_copy(update={"to": STDERR})
    return Exporting(audit, config.telemetry, name=name, version=version, scraped=scraped)


async def run_stdio(config: Config, beside: Beside | None = None, ops: Address | None = None) -> None:
    """Serve one client on standard input and output, until it leaves or we are told to stop.

    Raises:
        ConfigError: the audit is to go to standard output, which is the client's; or `ops` cannot be listened on.
    """
    if config.audit is not None and config.audit.to == STDOUT:
        raise ConfigError("audit.to: standard output is what the client reads; on stdio write stderr, a file or otlp")
    await _check_store(config)
    exporting = exporting_of(config, scraped=ops is not None)
    exporting.make_global()
    sidecar = build(config, beside, exporting=exporting, ops=_for_operators(ops, exporting))
    _tell_who_cannot_call(sidecar.workflows)
    options = sidecar.server.create_initialization_options()
    async with ending_on_signals(sidecar.stop_streams), stdio_server() as (incoming, outgoing):
        await sidecar.server.run(incoming, outgoing, options)


def _for_operators(address: Address | None, exporting: Exporting) -> Beside | None:
    """The listener for operators, at that address from now on, if there is to be one."""
    if address is None:
        return None
    assert exporting.scrape is not None, "metrics are collected where there is a listener for operators"
    scrape, listening = exporting.scrape, _listen(address.host, address.port, "--ops")

    async def serve(sidecar: Sidecar) -> None:
        await serve_ops(ops_app(sidecar.workflows, sidecar.ending, scrape, address.host), listening)

    return serve


def run_http(config: Config, *, host: str, port: int, beside: Beside | None = None, ops: Address | None = None) -> None:
    """Serve Streamable HTTP at `/mcp`, until told to stop.

    Raises:
        ConfigError: the address cannot be listened on, or an engine cannot be set up.
        StoreError: the store cannot be used.
    """
    anyio.run(_check_store, config)
    listening = _listen(host, port)
    exporting = exporting_of(config, scraped=ops is not None)
    exporting.make_global()
    sidecar = build(config, beside, exporting=exporting, ops=_for_operators(ops, exporting))
    app = Beginning(http_app(sidecar, config, host, listening.getsockname()[1]))
    settings = uvicorn.Config(
        app,
        loop="uvloop",
        http=BoundedHeaders,
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # the other end of the socket is who it is: a proxy is believed by that, and nobody else
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
    admission = sidecar.admission
    if admission is not None:
        admission.serve_at(resource_of(config, host, port))
    mcp = sidecar.server.streamable_http_app(
        streamable_http_path=PATH,
        auth=None if admission is None else admission.sdk_settings,
        token_verifier=admission,
        max_request_body_size=_max_body(config.limits),
        session_idle_timeout=config.server.session_idle.total_seconds(),
        max_sessions=config.server.max_sessions,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # it compares beginnings
        host=host,
    )
    if admission is not None:
        mcp.add_middleware(Admitting, admission=admission)
    # the SDK's endpoint and middleware without its application, whose authentication covers every path
    [endpoint] = [route.endpoint for route in mcp.routes if isinstance(route, Route) and route.path == PATH]
    guards = [Middleware(AllowedHosts, **_allowed(config, host))]
    enginez = Route("/enginez", health.engines(sidecar.workflows), middleware=guards)  # tells more than the others
    app = Starlette(
        routes=[
            Route(PATH, endpoint, middleware=[*guards, *mcp.user_middleware]),  # no other path looks at tokens
            Route("/healthz", health.alive(sidecar.workflows)),
            Route("/readyz", health.ready(sidecar.workflows, sidecar.ending)),
            *([] if sidecar.ops or admission is not None else [enginez]),
            *(() if admission is None else admission.routes),
            Mount(MOUNTED_AT, sidecar.workflows.inbound),  # whatever the Host: a token protects it
        ],
        lifespan=mcp.router.lifespan_context,
    )
    app.router.redirect_slashes = False  # the Location would be built from the Host header
    app.add_middleware(Attentive)
    app.add_middleware(Ended, ending=sidecar.ending)
    app.add_middleware(CleanHeaders)
    if config.server.cors:
        app.add_middleware(Cors, origins=config.server.cors, path=PATH)
    return app


def _max_body(limits: Limits) -> int:
    """Bytes of one request: its arguments and answers, and what is around them."""
    return _AROUND + (limits.max_arguments or _WITHOUT_LIMIT) + (limits.max_answer or _WITHOUT_LIMIT)


def resource_of(config: Config, host: str, port: int) -> str:
    """The URL by which clients know the server, and for which their tokens must be."""
    address = config.server.public_url or f"http://{f'[{host}]' if ':' in host else host}:{port}"
    return f"{address}{PATH}"


def _tell_who_cannot_call(workflows: Workflows) -> None:
    for name, called_at in workflows.called_at.items():
        logger.warning(
            "the workflows of engine %s cannot call it on stdio, only over HTTP (--http HOST:PORT): %s",
            name,
            ", ".join(called_at),
        )


async def _check_store(config: Config) -> None:
    """Before anything listens: a store that cannot be used is a message, not a trace out of the server."""
    async with config.store.open() as store:
        await store.check()


def _listen(host: str, port: int, option: str = "--http") -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY by this
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}; choose another with {option} HOST:PORT") from None
    return listening


def _allowed(config: Config, host: str) -> Mapping[str, Collection[str]]:
    """The `Host` and `Origin` headers that are let in."""
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
