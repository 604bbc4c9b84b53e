"""What the clients in Python share: the plan they are given, the answer to any question, and how they report.

A client is run as `python CLIENT.py PLAN`, the plan being JSON: {target, era, situations}, where the target is {url} or
{command, args, cwd, env} and a situation {name, tool, arguments}. It prints one JSON line for each: {situation, saw,
text}. Nothing here but the standard library: each client lives in an environment of its own.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

PLAN: dict[str, Any] = json.loads(sys.argv[1])
ANSWERS = {"boolean": True, "string": "Ada"}
MODERN = PLAN["era"] == "2026-07-28"


def answer(schema: dict[str, Any]) -> dict[str, Any]:
    """Yes to everything, under the name of Ada."""
    return {name: ANSWERS[field["type"]] for name, field in schema["properties"].items()}


def told(result: Any) -> tuple[str, str]:
    """A result of a tool: what it is, and its text."""
    failed = getattr(result, "is_error", None) or getattr(result, "isError", None)
    return "isError" if failed else "result", " ".join(block.text for block in result.content)


async def finished(call_tool: Callable[..., Awaitable[Any]], situation: dict[str, Any]) -> tuple[str, str]:
    """For clients that know no tasks: whatever a call is answered with, gone on with by the task tools."""
    result = await call_tool(situation["tool"], situation["arguments"])
    if "taskId" not in (result.structuredContent or {}):
        return told(result)
    while True:
        task = result.structuredContent
        task_id, status = task["taskId"], task["status"]
        if situation["name"] == "cancel" and status == "working":
            await call_tool("task_cancel", {"taskId": task_id})
        if status == "input_required":
            key, question = next(iter(task["questions"].items()))
            given = {"taskId": task_id, "key": key, "content": answer(question["schema"])}
            result = await call_tool("task_answer", given)
        elif status == "working":
            result = await call_tool("task_wait", {"taskId": task_id})
        else:
            saw, text = told(result)
            return f"handle, {saw if status == 'completed' else status}", text


async def report(live: Callable[[dict[str, Any]], Awaitable[tuple[str, str]]], *errors: type[Exception]) -> None:
    """All situations at once, as hosts call tools; one of these errors is what the client saw, too."""

    async def one(situation: dict[str, Any]) -> None:
        try:
            saw, text = await live(situation)
        except errors as error:
            saw, text = "error", str(error)
        print(json.dumps({"situation": situation["name"], "saw": saw, "text": text}), flush=True)

    await asyncio.gather(*map(one, PLAN["situations"]))
