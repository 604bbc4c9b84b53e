"""The Python SDK of 2025-11-25, `mcp` 1.x, with the tasks it calls experimental."""

import asyncio
import warnings

from mcp import ClientSession, McpError, types
from situations import report, told
from streams_1x import elicited, streams

warnings.simplefilter("ignore", DeprecationWarning)  # it says so of all its tasks


async def main() -> None:
    """One session for all."""
    async with streams() as (read, write), ClientSession(read, write, elicitation_callback=elicited) as session:
        await session.initialize()
        tasks = session.experimental

        async def live(situation):
            created = await tasks.call_tool_as_task(situation["tool"], situation["arguments"], ttl=60_000)
            if situation["name"] == "cancel":
                return await cancelled(created.task.taskId)
            async for task in tasks.poll_task(created.task.taskId):
                if task.status == "input_required" and situation["name"] != "polls":
                    break  # the question comes with the result
            return await ended(task)

        async def ended(task):
            try:
                saw, text = told(await tasks.get_task_result(task.taskId, types.CallToolResult))
            except McpError as error:
                saw, text = "error", str(error)
            return (f"failed, {saw}", f"{task.statusMessage} / {text}") if task.status == "failed" else (saw, text)

        async def cancelled(task_id):
            reply = await tasks.cancel_task(task_id)
            try:
                await tasks.cancel_task(task_id)
                again = "accepted"
            except McpError as error:
                again = str(error.error.code)
            later = await tasks.get_task(task_id)
            return later.status, f"reply {reply.status}, again {again}"

        await report(live, McpError)


asyncio.run(main())
