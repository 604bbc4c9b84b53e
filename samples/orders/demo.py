"""A client that shows what it sees: `python demo.py http://127.0.0.1:8931/mcp`.

It is written with the MCP Python SDK alone. The SDK knows no tasks yet, so the extension's messages are here:
a call that comes back as a task is polled, its questions are answered, its result is taken.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import mcp_types as types
from mcp.client import Client, ClientRequestContext
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.shared.exceptions import MCPError
from rich.console import Console
from rich.json import JSON

console = Console(soft_wrap=True, highlight=False)

ANSWERS: Mapping[str, Mapping[str, Any]] = {  # what the person says, by what the form asks for
    "reason": {"reason": "the customer waits in the shop"},
    "approve": {"approve": True, "note": "approved by the demo"},
}


_ENDED = frozenset({"completed", "failed", "cancelled"})


class TaskParams(types.RequestParams):
    """Which task."""

    task_id: str


class GetTask(types.Request[TaskParams, Literal["tasks/get"]]):
    """How is it?"""

    method: Literal["tasks/get"] = "tasks/get"
    params: TaskParams
    name_param = "taskId"  # becomes the Mcp-Name header


class AnswerParams(TaskParams):
    """Answers by the keys of the questions."""

    input_responses: dict[str, Any]


class UpdateTask(types.Request[AnswerParams, Literal["tasks/update"]]):
    """Here are answers."""

    method: Literal["tasks/update"] = "tasks/update"
    params: AnswerParams
    name_param = "taskId"


class CancelTask(types.Request[TaskParams, Literal["tasks/cancel"]]):
    """Stop it, please."""

    method: Literal["tasks/cancel"] = "tasks/cancel"
    params: TaskParams
    name_param = "taskId"


class Task(types.Result):
    """A task, as `tools/call` and `tasks/get` return it."""

    task_id: str
    status: str
    status_message: str | None = None
    poll_interval_ms: int | None = None
    input_requests: dict[str, dict[str, Any]] | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class CreatedTask(types.Result):
    """What a call returns instead of its result."""

    result_type: Literal["task"] = "task"
    task_id: str


class Tasks(ClientExtension):
    """Follows a task to its end and shows each change. `cancel_at`: the step at which it changes its mind."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self, cancel_at: str | None = None) -> None:
        self._cancel_at = cancel_at

    def claims(self) -> Sequence[ResultClaim[Any]]:
        """Calls may come back as tasks."""
        return [ResultClaim(result_type="task", model=CreatedTask, resolve=self.follow)]

    async def follow(self, created: CreatedTask, context: ClaimContext) -> types.CallToolResult:
        """Poll until it has ended."""
        console.print(f"  [bold]task[/] {created.task_id}")
        shown: tuple[str, str | None] | None = None
        which = TaskParams(task_id=created.task_id)
        while True:
            task = await context.session.send_request(GetTask(params=which), Task)
            if shown != (task.status, task.status_message):
                shown = (task.status, task.status_message)
                console.print(f"  {task.status:<15}{task.status_message or ''}", markup=False)
            if task.status == "input_required":
                await self._answer(task, context)
            elif task.status in _ENDED:
                return _result(task)
            elif self._cancel_at and self._cancel_at in (task.status_message or "").lower():
                console.print("  [yellow]> on second thought: cancel[/]")
                await context.session.send_request(CancelTask(params=which), types.EmptyResult)
                self._cancel_at = None
            await asyncio.sleep(min(task.poll_interval_ms or 1000, 500) / 1000)

    async def _answer(self, task: Task, context: ClaimContext) -> None:
        responses: dict[str, Any] = {}
        for key, question in (task.input_requests or {}).items():
            params = types.ElicitRequestFormParams.model_validate(question["params"])
            responses[key] = _reply(params).model_dump(by_alias=True, mode="json", exclude_none=True)
        answers = AnswerParams(task_id=task.task_id, input_responses=responses)
        await context.session.send_request(UpdateTask(params=answers), types.EmptyResult)


def _result(task: Task) -> types.CallToolResult:
    if page := (task.meta or {}).get("mcp-workflows/url"):
        console.print(f"  [bold]in the engine's own UI[/] {page}")
    if task.status == "completed":
        return types.CallToolResult.model_validate(task.result)
    error = task.error or {"code": -32603, "message": f"the task was {task.status}"}
    raise MCPError(code=error["code"], message=error["message"])


async def _elicit(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
    """A question before the start, by the call itself."""
    return _reply(params)


def _reply(params: types.ElicitRequestParams) -> types.ElicitResult:
    """What a person would type, from the script above."""
    console.print(f"  [cyan]? {params.message}[/]")
    form = params.requested_schema if isinstance(params, types.ElicitRequestFormParams) else {}
    said = next((answer for name, answer in ANSWERS.items() if name in form.get("properties", {})), None)
    if said is None:
        return types.ElicitResult(action="decline")
    console.print(f"  [green]> {', '.join(f'{name}: {value}' for name, value in said.items())}[/]")
    return types.ElicitResult(action="accept", content=dict(said))


async def _call(client: Client, name: str, **arguments: Any) -> None:
    """Call a tool and show what comes of it."""
    shown = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    console.print(f"[bold]{name}[/]({shown})")
    try:
        result = await client.call_tool(name, arguments)
    except MCPError as error:
        console.print(f"  [red]{error.error.message}[/]\n")
        return
    texts = [block.text for block in result.content if isinstance(block, types.TextContent)]
    console.print("  [bold]result[/]" + (" (an error)" if result.is_error else ""))
    console.print(JSON.from_data(result.structured_content) if result.structured_content else "  ".join(texts))
    console.print()


async def show(url: str) -> None:
    """The whole story."""
    async with Client(url, extensions=[Tasks()], elicitation_callback=_elicit) as client:
        console.rule("the tools: each is a workflow")
        for tool in (await client.list_tools()).tools:
            console.print(f"[bold]{tool.name:<14}[/] {tool.description}")
        console.rule("a quick one")
        await _call(client, "quote_order", order_id="A-1002")
        console.rule("a long one: progress, a question before and one midway")
        await _call(client, "fulfil_order", order_id="A-1002", express=True)
    async with Client(url, extensions=[Tasks(cancel_at="packing")], elicitation_callback=_elicit) as client:
        console.rule("a change of mind: what was done is undone")
        await _call(client, "fulfil_order", order_id="A-1001", reason="to show how cancelling works")


def main() -> None:
    """Show it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    asyncio.run(show(parser.parse_args().url))


if __name__ == "__main__":
    main()
