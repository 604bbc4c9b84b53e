"""A sidecar that kills itself (SIGKILL) at one step of the first creation or answer; its parts are the real ones.

`python -m tests.support.dying workflows.yaml PORT row|start|bind|reply|answer`
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from mcp_workflows import attach
from mcp_workflows.adapter import JSON, Adapter, Ref, Start
from mcp_workflows.sidecar.config.load import load_config
from mcp_workflows.store.protocol import NO_CAPS, Caps
from mcp_workflows.store.sqlite.store import SQLiteStore
from mcp_workflows.task import Task

STEP = sys.argv[3] if len(sys.argv) > 3 else ""


def die_at(step: str) -> None:
    """End this process here, if this is the step."""
    if step == STEP:
        os.kill(os.getpid(), signal.SIGKILL)


class DyingStore(SQLiteStore):
    """Dies once the row is there, or once the handle is bound."""

    async def create(self, task: Task, caps: Caps = NO_CAPS, *, durable: bool = True) -> Task:
        """The row."""
        row = await super().create(task, caps, durable=durable)
        die_at("row")
        return row

    async def change(
        self, task_id: str, owner: str, change: Callable[[Task], Task | None], *, durable: bool = True
    ) -> Task | None:
        """The first change of a new row binds its handle."""
        row = await super().change(task_id, owner, change, durable=durable)
        if row is not None and row.handle is not None:
            die_at("bind")
        return row


def dying(kind: type[Adapter]) -> type[Adapter]:
    """An adapter like this one, but that it dies once the engine has started an execution, or taken an answer."""

    async def start(self: Adapter, start: Start) -> str:
        handle = await kind.start(self, start)
        die_at("start")
        return handle

    async def answer(self: Adapter, ref: Ref, responses: Mapping[str, JSON]) -> None:
        await kind.answer(self, ref, responses)
        die_at("answer")

    return type(f"Dying{kind.__name__}", (kind,), {"start": start, "answer": answer})


async def die_before_the_reply(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """The reply of `tools/call` is made, and never sent."""
    result = await call_next(ctx)
    if ctx.method == "tools/call":
        die_at("reply")
    return result


def main() -> None:
    """Serve until the step."""
    config = load_config(Path(sys.argv[1]), os.environ)

    @asynccontextmanager
    async def lifespan(_: Server[Any]) -> AsyncGenerator[None]:
        async with workflows:
            yield

    server: Server[Any] = Server("dying", lifespan=lifespan)
    server.middleware.append(die_before_the_reply)
    engines = {name: dying(engine.kind)(engine.settings) for name, engine in config.engines.items()}
    workflows = attach(server, tools=config.tools, engines=engines, store=DyingStore(config.store.url))
    app = server.streamable_http_app(custom_starlette_routes=[Route("/readyz", ready)])
    app.mount("/engines", workflows.inbound)
    uvicorn.run(app, port=int(sys.argv[2]), log_level="warning")


async def ready(_: Request) -> JSONResponse:
    """It listens."""
    return JSONResponse({})


if __name__ == "__main__":
    main()
