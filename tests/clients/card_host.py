"""Serve a host for MCP Apps in a browser: the pages of `tests/clients/card`, and a proxy to an MCP server.

The origin of the host is `http://localhost:PORT`; the frames of its sandbox have the origin `http://127.0.0.1:PORT`.
Run `python -m tests.clients.card_host MCP_URL PORT`, after `make node_modules/.ready`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, cast

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.support.child_processes import Command, free_port, running_server
from tests.support.environments import ROOT

PAGES: Final = ROOT / "tests" / "clients" / "card"
_ESBUILD: Final = ROOT / "node_modules" / ".bin" / "esbuild"
_FORWARDED_HEADERS: Final = frozenset({"accept", "content-type", "authorization"})


@contextmanager
def card_host(
    target: str, log: Path, *, port: int | None = None, pause: Callable[[float], None] = time.sleep
) -> Generator[str]:
    """Run the host as a process for the MCP server at `target`; yield its origin. `pause` is how to wait (seconds).

    Raises:
        ChildDiedError: it ended by itself before it listened.
    """
    port = port or free_port()
    argv = (sys.executable, "-m", "tests.clients.card_host", target, str(port))
    with running_server(Command(name="card host", argv=argv, cwd=ROOT, env={}), log, port, pause=pause):
        yield f"http://localhost:{port}"


def bundle() -> bytes:
    """Return `host.ts` as JavaScript, bundled with its imports."""
    command = [str(_ESBUILD), "--bundle", "--format=esm", "--log-level=warning", "host.ts"]
    return subprocess.run(command, cwd=PAGES, check=True, stdout=subprocess.PIPE).stdout


def create_app(target: str, script: bytes) -> Starlette:
    """Return the application: the pages of the host with its script, and the proxy to the MCP server at `target`."""
    client = httpx2.AsyncClient(timeout=None)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with client:
            yield

    async def proxy(request: Request) -> Response:
        headers = _forwarded(request.headers)
        forwarded = client.build_request(request.method, target, headers=headers, content=await request.body())
        reply = await client.send(forwarded, stream=True)
        closing = BackgroundTask(reply.aclose)
        return StreamingResponse(reply.aiter_raw(), reply.status_code, _forwarded(reply.headers), background=closing)

    async def page(_: Request) -> Response:
        return FileResponse(PAGES / "host.html")

    async def javascript(_: Request) -> Response:
        return Response(script, media_type="text/javascript")

    return Starlette(
        routes=[
            Route("/", page),
            Route("/host.js", javascript),
            Route("/sandbox.html", _sandbox),
            Route("/mcp", proxy, methods=["GET", "POST", "DELETE"]),
        ],
        lifespan=lifespan,
    )


def _forwarded(headers: object) -> dict[str, str]:
    """Return those of the headers that the proxy passes on."""
    items = dict(cast("dict[str, str]", headers))
    return {name: value for name, value in items.items() if name in _FORWARDED_HEADERS or name.startswith("mcp-")}


async def _sandbox(request: Request) -> Response:
    """Return the outer frame, with the policy of MCP Apps (2026-01-26, sandbox proxy) as a header."""
    domains = json.loads(request.query_params.get("csp", "{}"))
    static, connect = (" ".join(domains.get(each, [])) for each in ("resourceDomains", "connectDomains"))
    connect = connect or "'none'"
    policy = (
        f"default-src 'none'; script-src 'self' 'unsafe-inline' {static}; style-src 'self' 'unsafe-inline' {static}; "
        f"img-src 'self' data: {static}; frame-src 'self'; object-src 'none'; base-uri 'self'; "
        f"connect-src {connect}"
    )
    return FileResponse(PAGES / "sandbox.html", headers={"Content-Security-Policy": policy})


def main() -> None:
    """Serve until stopped."""
    target, port = sys.argv[1], int(sys.argv[2])
    uvicorn.run(create_app(target, bundle()), host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
