"""A client that leaves before it has said all."""

from __future__ import annotations

import pytest
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from mcp_workflows.receiver.attach import DisconnectMiddleware

pytestmark = pytest.mark.anyio


async def test_a_client_that_leaves_while_it_sends_is_no_error_of_the_server() -> None:
    async def app(scope: Scope, receive: Receive, _: Send) -> None:
        await Request(scope, receive).body()

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError(f"there is nobody to tell {message}")

    await DisconnectMiddleware(app)({"type": "http", "method": "POST", "path": "/mcp", "headers": []}, receive, send)
