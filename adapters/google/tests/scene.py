"""An adapter in front of the local engine, how it is set up there, and what its workflows call."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from mcp_workflows_google import GoogleAdapter, GoogleSettings
from starlette.applications import Starlette
from starlette.routing import Mount

from mcp_workflows.adapter import Notes
from mcp_workflows.engines.registry import Engines
from mcp_workflows.receiver.webhooks import MOUNTED_AT, Webhooks
from tests.support.google_engine import ACCOUNT, LOCATION, PROJECT, GoogleEngine
from tests.support.served import serving

AUDIENCE: Final = "https://mcp.example.com"
INBOUND: Final = {"audience": AUDIENCE, "accounts": [ACCOUNT]}


def settings(engine: GoogleEngine, **more: Any) -> GoogleSettings:
    """Of an adapter in front of this engine; `more` is as in workflows.yaml."""
    here = {"project": PROJECT, "location": LOCATION, "emulator": engine.address, "inbound": INBOUND}
    return GoogleSettings.model_validate({**here, **more})


def adapter(engine: GoogleEngine, notes: Notes | None = None, **more: Any) -> GoogleAdapter:
    """Not entered."""
    made = GoogleAdapter(settings(engine, **more))
    if notes is not None:
        made.remember(notes)
    return made


def environment(port: int) -> Mapping[str, str]:
    """What a workflow is deployed with, so that it calls the engine `google` of a server at this port."""
    return {"MCP_WORKFLOWS_URL": f"http://127.0.0.1:{port}/engines/google", "MCP_WORKFLOWS_AUDIENCE": AUDIENCE}


@asynccontextmanager
async def called_at(port: int, receiving: GoogleAdapter) -> AsyncGenerator[None]:
    """What workflows tell the engine `google` at this port comes to this adapter, which is opened for that."""
    async with Engines({"google": receiving}) as engines:
        app = Starlette(routes=[Mount(MOUNTED_AT, Webhooks(lambda: engines))])
        async with serving(app, port=port):
            yield
