"""How a sidecar is, for who starts it again, sends it requests or watches over it."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mcp_workflows.adapter import Finding
from mcp_workflows.errors import WorkflowsError
from mcp_workflows.receiver.attach import Workflows
from mcp_workflows.sidecar.shutdown import Ending

ASK_EVERY: Final = 1.0  # seconds: who asks how the engines are may be anybody, and must not make work for engines
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


def alive(workflows: Workflows) -> Endpoint:
    """The process lives; one that cannot serve any more should be started again."""

    async def answer(_: Request) -> Response:
        return JSONResponse({"ok": workflows.alive}, status_code=200 if workflows.alive else 503)

    return answer


def ready(workflows: Workflows, ending: Ending) -> Endpoint:
    """Configuration and store are fine, and it goes on: tasks can be created and read."""

    async def answer(_: Request) -> Response:
        if ending.stopping:
            return JSONResponse({"ok": False, "server": "stopping"}, status_code=503)
        try:
            await workflows.ready()
        except WorkflowsError as error:
            return JSONResponse({"ok": False, "store": str(error)}, status_code=503)
        return JSONResponse({"ok": True})

    return answer


def engines(workflows: Workflows) -> Endpoint:
    """Each engine by itself: one that is down says nothing about the others or about ended tasks.

    They are asked once for all who want to know at the same time.
    """
    lock, known, asked = anyio.Lock(), dict[str, Finding](), -math.inf

    async def answer(_: Request) -> Response:
        nonlocal known, asked
        async with lock:
            if (now := time.monotonic()) - asked >= ASK_EVERY:
                known, asked = dict(await workflows.check_engines()), now
            findings = known
        ok = all(finding.ok is not False for finding in findings.values())
        body = {name: {"ok": found.ok, "text": found.text, "hint": found.hint} for name, found in findings.items()}
        return JSONResponse({"ok": ok, "engines": body}, status_code=200 if ok else 503)

    return answer
