"""What others do at the engine behind our back: they answer callbacks, and cancel."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio
import httpx2
from google.api_core.exceptions import FailedPrecondition

from tests.support.google_engine import GoogleEngine


async def callbacks(engine: GoogleEngine, execution: str) -> dict[str, str]:
    """The URLs of the callbacks that an execution waits for, by their methods."""
    async with httpx2.AsyncClient(headers={"Authorization": "Bearer somebody"}) as client:
        found = (await client.get(f"{engine.url}/v1/{execution}/callbacks")).json().get("callbacks", [])
    waiting = [each for each in found if each["waiters"] != "0"]
    return {each["method"]: f"{engine.url}/v1/{each['name'].replace('/callback/', '/callbacks/')}" for each in waiting}


async def deliver(engine: GoogleEngine, execution: str, body: Any, *, method: str = "POST") -> None:
    """Send this to the callback of that method, once the execution waits for it, as who has the mail with the URL."""
    with anyio.fail_after(15):
        while method not in (found := await callbacks(engine, execution)):
            await anyio.sleep(0.01)
    async with httpx2.AsyncClient(headers={"Authorization": "Bearer somebody"}) as client:
        assert (await client.request(method, found[method], json=body)).is_success


def cancel(engine: GoogleEngine, execution: str) -> None:
    """CancelExecution, if it still runs."""
    client: Any = engine.executions()  # Any: its methods are typed in part only
    with suppress(FailedPrecondition):
        client.cancel_execution(name=execution, timeout=60)
