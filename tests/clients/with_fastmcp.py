"""FastMCP's client with its tasks companion: one call to its end, questions answered; prints the outcome.

`python with_fastmcp.py URL TOOL ARGUMENTS ANSWER`, in an environment with fastmcp and fastmcp-tasks.
"""

import asyncio
import json
import sys

from fastmcp import Client
from fastmcp_tasks.client import call_tool_task


async def main(url: str, tool: str, arguments: str, answer: str) -> None:
    """Call it twice: with a handle, and as a plain call that the client resolves."""
    given = json.loads(answer)

    async def elicit(*_):
        return given["content"]

    async with Client(url, elicitation_handler=elicit) as client:
        plain = await client.call_tool(tool, json.loads(arguments), raise_on_error=False)
        task = await call_tool_task(client, tool, json.loads(arguments))
        result = await task.result()
        print(json.dumps([plain.content[0].text, result.content[0].text]))


asyncio.run(main(*sys.argv[1:]))
