"""A FastMCP 3 server with in-core tasks, for `mcp-tasks-conformance`: `python fastmcp3_tasks_server.py PORT`."""

import asyncio
import sys

from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.tasks import TaskConfig
from mcp.shared.exceptions import McpError
from mcp.types import ErrorData

mcp = FastMCP("conformance")


@mcp.tool
async def greet(name: str) -> str:
    """Say hello."""
    return f"Hello, {name}!"


@mcp.tool(task=True)
async def slow_compute(seconds: float, label: str) -> str:
    """Sleep."""
    await asyncio.sleep(seconds)
    return f"{label} took {seconds} s"


@mcp.tool(task=TaskConfig(mode="required"))
async def failing_job() -> str:
    """Fail as a tool does."""
    raise ToolError("there is no such order")


@mcp.tool(task=True)
async def protocol_error_job() -> str:
    """Fail with a JSON-RPC error."""
    raise McpError(ErrorData(code=-32603, message="the store is away"))


@mcp.tool(task=True)
async def confirm_delete(filename: str, ctx: Context) -> str:
    """Ask before it deletes (nothing)."""
    answer = await ctx.elicit(f"Delete {filename}?", response_type=bool)
    return str(answer.action)


@mcp.tool(task=True)
async def multi_input(ctx: Context) -> str:
    """Ask two questions, one after the other."""
    answers = [await ctx.elicit(f"{word} name?", response_type=str) for word in ("First", "Last")]
    return " ".join(str(answer.action) for answer in answers)


@mcp.tool(task=True)
async def test_tool_with_progress(ctx: Context) -> str:
    """Report progress."""
    for step in range(1, 4):
        await ctx.report_progress(step, 3)
        await asyncio.sleep(0.2)
    return "done"


mcp.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)
