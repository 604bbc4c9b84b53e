"""A server of the tasks extension that we did not write: `python fastmcp_server.py PORT`, with fastmcp-tasks."""

import asyncio
import sys

from fastmcp import FastMCP
from fastmcp_tasks import TasksExtension

server = FastMCP("foreign")
server.add_extension(TasksExtension())


@server.tool(task=True)
async def slow(seconds: float) -> str:
    """Takes its time."""
    await asyncio.sleep(seconds)
    return f"slept {seconds}"


@server.tool(task=True)
async def fail() -> str:
    """Does not work."""
    raise ValueError("no luck")


server.run("http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)
