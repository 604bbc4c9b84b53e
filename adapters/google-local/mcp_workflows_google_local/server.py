"""The server: everything on one loop and one port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc.aio
import uvicorn
from google.cloud import workflows_v1
from starlette.applications import Starlette

from mcp_workflows_google_local.catalog import Catalog
from mcp_workflows_google_local.engine import Engine
from mcp_workflows_google_local.executions import ExecutionsService
from mcp_workflows_google_local.grpc_services import executions_handler, workflows_handler
from mcp_workflows_google_local.http_client import Requests
from mcp_workflows_google_local.http_endpoints import Rest
from mcp_workflows_google_local.identity_tokens import Signer
from mcp_workflows_google_local.language.errors import DeployError
from mcp_workflows_google_local.language.source import load
from mcp_workflows_google_local.port import LOOPBACK, Door, listen
from mcp_workflows_google_local.project import Home
from mcp_workflows_google_local.refusals import LocalEngineError, RefusedError
from mcp_workflows_google_local.store import Store
from mcp_workflows_google_local.workflows import WorkflowsService, check_id

_ANY: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104  # addresses for listening that cannot be called
_LARGEST_MESSAGE: Final = 32 * 1024 * 1024  # a page of 100 complete executions


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of the command line."""

    host: str
    port: int
    home: Home
    database: Path | None = None
    deploy: Sequence[Path] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])  # of deployed files; empty: unchanged
    labels: Mapping[str, str] = field(default_factory=dict[str, str])  # of deployed files; empty: unchanged
    most: int | None = None  # maximum of concurrent executions; None: no limit
    reached: str | None = None  # the public URL; None: the address of the port

    @property
    def address(self) -> str:
        """The address for clients."""
        host = LOOPBACK if self.host in _ANY or self.host == "localhost" else self.host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL at the start of callback URLs, also the issuer of its tokens."""
        return self.reached or f"http://{self.address}"


@asynccontextmanager
async def serving(settings: Settings) -> AsyncGenerator[None]:
    """Serve while entered; with a database file, running executions continue at the next start.

    Raises:
        LocalEngineError: the port, the database or a file to deploy cannot be used.
    """
    url = settings.url
    async with AsyncExitStack() as stack:
        where = listen(settings.host, settings.port)
        stack.callback(where.close)
        store = Store(settings.database)
        stack.callback(store.close)
        signer = Signer(store, url)
        requests = Requests(signer)
        stack.push_async_callback(requests.aclose)
        catalog = Catalog(store, settings.home)
        engine = Engine(store, settings.home, catalog, requests, url=url, most=settings.most)
        stack.push_async_callback(engine.stop)
        for file in settings.deploy:
            deploy(catalog, file, env=settings.env, labels=settings.labels)
        http2 = await stack.enter_async_context(_grpc(settings.home, catalog, engine))
        http1 = await stack.enter_async_context(_http(Rest(settings.home, engine, signer).app()))
        engine.resume()
        door = Door(http2=http2, http1=http1)
        stack.push_async_callback(door.close)
        await door.open(where)
        yield


def deploy(catalog: Catalog, file: Path, *, env: Mapping[str, str], labels: Mapping[str, str]) -> None:
    """Deploy a file as the workflow of its name; values that are not given stay unchanged.

    Raises:
        LocalEngineError: the file cannot be read or deployed; the message has file:line.
    """
    try:
        source = file.read_text(encoding="utf-8")
        load(source)
        check_id(file.name.partition(".")[0])
        _put(catalog, file.name.partition(".")[0], source_contents=source, user_env_vars=env, labels=labels)
    except OSError as error:
        raise LocalEngineError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise LocalEngineError(f"{file}: it is no text in UTF-8") from error
    except DeployError as error:
        raise LocalEngineError(f"{file}:{error.line}:{error.column}: {error.text}") from error
    except RefusedError as error:
        raise LocalEngineError(f"{file}: {error.text}") from error


def _put(catalog: Catalog, workflow: str, **fields: object) -> None:
    given = workflows_v1.Workflow(fields)
    if catalog.has(workflow):
        catalog.update(workflow, given, [name for name, value in fields.items() if value])
    else:
        catalog.create(workflow, given)


@asynccontextmanager
async def _grpc(home: Home, catalog: Catalog, engine: Engine) -> AsyncGenerator[int]:
    """Run the gRPC server; yield its port."""
    options = [("grpc.max_receive_message_length", _LARGEST_MESSAGE), ("grpc.so_reuseport", 0)]
    server = grpc.aio.server(options=options)
    services = (
        executions_handler(ExecutionsService(home, engine)),
        workflows_handler(WorkflowsService(home, catalog, engine)),
    )
    server.add_generic_rpc_handlers(services)
    port = server.add_insecure_port(f"{LOOPBACK}:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


@asynccontextmanager
async def _http(app: Starlette) -> AsyncGenerator[int]:
    """Run the HTTP server; yield its port."""
    with socket.create_server((LOOPBACK, 0)) as where:
        config = uvicorn.Config(
            app, lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=1, server_header=False
        )
        server = _Server(config)
        task = asyncio.create_task(server.serve(sockets=[where]))
        try:
            yield where.getsockname()[1]
        finally:
            server.should_exit = True
            server.force_exit = True
            await task


class _Server(uvicorn.Server):
    """A server that leaves signals to us."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Capture none."""
        yield
