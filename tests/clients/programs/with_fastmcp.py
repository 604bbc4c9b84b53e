"""FastMCP's client with its companion for tasks: calls it resolves itself, and the handle of one to cancel."""

import asyncio

from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from fastmcp.exceptions import ToolError
from fastmcp_tasks.client import call_tool_task
from mcp.shared.exceptions import MCPError
from situations import PLAN, answer, report, told


async def elicit(_message, _type, params, _context):
    """FastMCP's callback for a question."""
    return answer(params.requested_schema)


async def main() -> None:
    """One client for all."""
    target = PLAN["target"]
    async with Client(target.get("url") or StdioTransport(**target), elicitation_handler=elicit) as client:

        async def live(situation):
            tool, arguments = situation["tool"], situation["arguments"]
            if situation["name"] == "cancel":
                task = await call_tool_task(client, tool, arguments)
                await task.cancel()
                return (await task.wait(timeout=30)).status, ""
            if situation["name"] in {"question", "questions"}:  # with a handle; the others as a plain call
                task = await call_tool_task(client, tool, arguments)
                return told(await task.result())
            return told(await client.call_tool(tool, arguments, raise_on_error=False))

        await report(live, ToolError, MCPError)


asyncio.run(main())
