"""A FastMCP server with one trivial task on its backend in memory: `python fastmcp_bench.py PORT`, on core 0."""

import os
import sys

from fastmcp import FastMCP
from fastmcp_tasks import TasksExtension

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {0})

mcp = FastMCP("bench")
mcp.add_extension(TasksExtension(url="memory://"))


@mcp.tool(task=True)
async def echo(a: int) -> dict:
    """What it is given."""
    return {"a": a}


mcp.run(
    transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False, uvicorn_config={"access_log": False}
)
