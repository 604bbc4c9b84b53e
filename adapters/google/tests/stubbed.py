"""An adapter in front of the stub server, whose clock stands still."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

from mcp_workflows_google import GoogleAdapter, GoogleSettings

from adapters.google.tests.cloud import INBOUND
from adapters.google.tests.injecting import Injecting
from mcp_workflows.adapter import Start
from mcp_workflows.testing import MemoryNotes

BEGAN: Final = datetime.fromtimestamp(1_700_000_000, UTC)
PLACE: Final = {"project": "acme-shop", "location": "europe-west1", "workflow": "orders"}
ACCOUNT: Final = "somebody@acme-shop.iam.gserviceaccount.com"


def start(key: str = "one", **more: Any) -> Start:
    return Start(workflow="orders", arguments=[{"order": 1}], key=key, created=BEGAN, **more)


def settings(stub: Injecting, **more: Any) -> GoogleSettings:
    written = {"project": "acme-shop", "location": "europe-west1", "emulator": stub.address, "inbound": INBOUND}
    return GoogleSettings.model_validate({**written, "timeout_seconds": 8, **more})


@asynccontextmanager
async def opened(stub: Injecting, notes: MemoryNotes, **more: Any) -> AsyncGenerator[GoogleAdapter]:
    made = GoogleAdapter(settings(stub, **more))
    made.remember(notes)
    async with made:
        yield made


async def told(adapter: GoogleAdapter, path: str, posted: Any) -> Any:
    """What a workflow hears that posts this to one of the adapter's addresses."""
    [receive] = [route.receive for route in adapter.routes() if route.path == path]
    return await receive(posted, ACCOUNT)
