"""Health endpoints: is the process alive, is it ready for requests, do its engines answer."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final, TypeAlias

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mcp_workflows.adapter import Finding
from mcp_workflows.errors import EngineError, StoreError, WorkflowsError
from mcp_workflows.receiver.attach import Workflows
from mcp_workflows.sidecar.shutdown import ShutdownState
from mcp_workflows.sidecar.tooling import check_engines
from mcp_workflows.tasks.maintenance import RetentionRound

ASK_EVERY: Final = 1.0  # seconds: anybody may call the endpoint, and must not cause load on engines
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


def alive(workflows: Workflows) -> Endpoint:
    """Return the endpoint that says whether the process can serve, or should be restarted."""

    async def answer(_: Request) -> Response:
        return JSONResponse({"ok": workflows.alive}, status_code=200 if workflows.alive else 503)

    return answer


def ready(workflows: Workflows, shutdown_state: ShutdownState) -> Endpoint:
    """Return the endpoint that says whether tasks can be created: the store and workflows in this process work."""

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


def engines(workflows: Workflows) -> Endpoint:
    """Return the endpoint that shows the state of each engine, which does not concern the others or ended tasks.

    Concurrent callers share one check.
    """
    lock, known, asked = anyio.Lock(), dict[str, Finding](), -math.inf
    rounds: Mapping[str, RetentionRound] = {}

    async def answer(_: Request) -> Response:
        nonlocal known, asked, rounds
        async with lock:
            if (now := time.monotonic()) - asked >= ASK_EVERY:
                known, asked = dict(await check_engines(workflows.engines)), now
                with suppress(StoreError):  # /readyz tells that
                    rounds = await workflows.retention_rounds()
            findings = known
        ok = all(finding.ok is not False for finding in findings.values())
        body = {
            name: {"ok": found.ok, "text": found.text, "hint": found.hint, "round": _shown(rounds.get(name))}
            for name, found in findings.items()
        }
        return JSONResponse({"ok": ok, "engines": body}, status_code=200 if ok else 503)

    return answer


def _shown(known: RetentionRound | None) -> Mapping[str, str | int | None] | None:
    """Return when the last round over all tasks of an engine ended, and how many it skipped; None: no round yet."""
    if known is None:
        return None
    return {"ended": known.ended.isoformat() if known.ended else None, "skipped": known.skipped}
