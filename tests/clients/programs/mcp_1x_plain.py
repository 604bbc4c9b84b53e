"""The Python SDK of 2025-11-25, `mcp` 1.x, as nearly all hosts use it: without tasks."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from mcp import ClientSession, McpError
from situations import finished, report
from streams_1x import elicited, streams


@asynccontextmanager
async def connected(callback: Any = None) -> AsyncGenerator[ClientSession]:
    """A session that can be asked, if it has what answers."""
    async with streams() as (read, write), ClientSession(read, write, elicitation_callback=callback) as session:
        await session.initialize()
        await session.list_tools()
        yield session


async def main() -> None:
    """Two sessions for all."""
    async with connected(elicited) as asked, connected() as unasked:

        async def live(situation: dict[str, Any]) -> tuple[str, str]:
            session = unasked if situation["name"] == "unasked" else asked
            return await finished(session.call_tool, situation)

        await report(live, McpError)


asyncio.run(main())
