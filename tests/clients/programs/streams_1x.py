"""What both clients on `mcp` 1.x need: the way to the server, and an answer to its questions."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from mcp import StdioServerParameters, stdio_client, types
from mcp.client.streamable_http import streamable_http_client
from situations import PLAN, answer


@asynccontextmanager
async def streams() -> AsyncGenerator[tuple[Any, Any]]:
    """To read from and to write to."""
    target = PLAN["target"]
    if "url" in target:
        async with streamable_http_client(target["url"]) as (read, write, _):
            yield read, write
    else:
        async with stdio_client(StdioServerParameters(**target)) as both:
            yield both


async def elicited(_context: Any, params: Any) -> types.ElicitResult:
    """The SDK's callback for a question."""
    return types.ElicitResult(action="accept", content=answer(params.requestedSchema))
