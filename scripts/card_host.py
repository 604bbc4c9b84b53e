"""Serve a host for MCP Apps in a browser: `tests/clients/card`, and a proxy to an MCP server.

The host has the origin `http://localhost:PORT`, the frames of its sandbox `http://127.0.0.1:PORT`. Run:
`python -m scripts.card_host MCP_URL PORT`. It needs what `make node_modules/.ready` installs.
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

from scripts.processes import Child, Command, free_port, is_taken, stop_all

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "tests" / "clients" / "card"
_ESBUILD = ROOT / "node_modules" / ".bin" / "esbuild"
_HEADERS: Final = frozenset({"accept", "content-type", "authorization"})


@contextmanager
def card_host(
    target: str, log: Path, *, port: int | None = None, pause: Callable[[float], None] = time.sleep
) -> Generator[str]:
    """Run the host as a process; yield its origin once it serves. `pause` is how to wait, in seconds.

    Raises:
        ChildDiedError: it ended by itself.
    """
    at = str(port or free_port())
    argv = (sys.executable, "-m", "scripts.card_host", target, at)
    child = Child(Command(name="card host", argv=argv, cwd=ROOT, env={}), log)
    try:
        while not is_taken(int(at)):
            child.check()
            pause(0.05)
        yield f"http://localhost:{at}"
    finally:
        stop_all([child])


def bundle() -> bytes:
    """Return the script of the host with all that it imports."""
    command = [str(_ESBUILD), "--bundle", "--format=esm", "--log-level=warning", "host.ts"]
    return subprocess.run(command, cwd=PAGES, check=True, stdout=subprocess.PIPE).stdout


def host(target: str, script: bytes) -> Starlette:
    """Return the pages, and the way to the MCP server at `target`."""
    client = httpx2.AsyncClient(timeout=None)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with client:
            yield

    async def mcp(request: Request) -> Response:
        sent = client.build_request(
            request.method, target, headers=_kept(request.headers), content=await request.body()
        )
        reply = await client.send(sent, stream=True)
        back = BackgroundTask(reply.aclose)
        return StreamingResponse(reply.aiter_raw(), reply.status_code, _kept(reply.headers), background=back)

    async def page(_: Request) -> Response:
        return FileResponse(PAGES / "host.html")

    async def code(_: Request) -> Response:
        return Response(script, media_type="text/javascript")

    return Starlette(
        routes=[
            Route("/", page),
            Route("/host.js", code),
            Route("/sandbox.html", _sandbox),
            Route("/mcp", mcp, methods=["GET", "POST", "DELETE"]),
        ],
        lifespan=lifespan,
    )


def _kept(headers: object) -> dict[str, str]:
    items = dict(cast("dict[str, str]", headers))
    return {name: value for name, value in items.items() if name in _HEADERS or name.startswith("mcp-")}


async def _sandbox(request: Request) -> Response:
    """Return the outer frame, with the policy of the specification (2026-01-26, sandbox proxy) as a header."""
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
    uvicorn.run(host(target, bundle()), host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
