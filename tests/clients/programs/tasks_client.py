"""Our own client, on the SDK's: calls it resolves by itself, and the handle of one to cancel."""

import asyncio

import mcp_types as types
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPError
from situations import PLAN, answer, report, told

from mcp_workflows.client import TasksClient
from mcp_workflows.errors import ClientError, TaskCancelled


async def elicited(_context, params):
    """The SDK's callback for a question."""
    return types.ElicitResult(action="accept", content=answer(params.requested_schema))


async def main() -> None:
    """One client for all."""
    target = PLAN["target"]
    tasks = TasksClient()
    where = target.get("url") or stdio_client(StdioServerParameters(**target))
    async with Client(where, extensions=[tasks], elicitation_callback=elicited) as client:

        async def live(situation):
            tool, arguments = situation["tool"], situation["arguments"]
            if situation["name"] != "cancel":
                return told(await client.call_tool(tool, arguments))
            handle = await tasks.start(client, tool, arguments)
            await handle.cancel()
            try:
                return told(await handle.result())
            except TaskCancelled as cancelled:
                return (await handle.status()).status, str(cancelled)

        await report(live, ClientError, MCPError)


asyncio.run(main())
