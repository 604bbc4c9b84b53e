"""A FastMCP server with the tasks of `make bench`: `python fastmcp_tasks_server.py PORT [BACKEND FOLDER]`, on core 0.

The backend is in memory by default. A task of a worker that is gone is given to another one after 10 s, in place of
the 300 s of FastMCP.
"""

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path

from fastmcp import FastMCP
from fastmcp_tasks import TasksExtension

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {0})

port, *given = sys.argv[1:]
backend, folder = given or ("memory://", ".")
mcp = FastMCP("bench")
mcp.add_extension(TasksExtension(url=backend, redelivery_timeout=timedelta(seconds=10)))


@mcp.tool(task=True)
async def echo(a: int) -> dict:
    """Return the argument."""
    return {"a": a}


@mcp.tool(task=True)
async def work(a: int) -> dict:
    """Write a line to the file `done`, and wait for the file `gate`."""
    with (Path(folder) / "done").open("a") as file:
        file.write(f"{a}\n")
    while not (Path(folder) / "gate").exists():
        await asyncio.sleep(0.02)
    return {"a": a}


mcp.run(transport="http", host="127.0.0.1", port=int(port), show_banner=False, uvicorn_config={"access_log": False})
