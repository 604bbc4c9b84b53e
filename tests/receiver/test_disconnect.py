"""Who leaves or cancels a call leaves the workflow alone, or cancels it if the tool says `cancel_on_disconnect`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest

from mcp_workflows.access import ANONYMOUS
from mcp_workflows.adapter import Execution, Start, Status
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.wire.commands import Call
from tests.support.here import MODERN, Elder, Pipe, Scene, elder, hello, over_http, over_stdio, scene
from tests.support.served import peer, site
from tests.support.waiting import TIMEOUT, until

pytestmark = pytest.mark.anyio

TOOLS = """
  steady: {engine: here, workflow: forever, tasks: wait}
  needy: {engine: here, workflow: forever, tasks: wait, cancel_on_disconnect: true}
  asking: {engine: here, workflow: ask, tasks: wait, cancel_on_disconnect: true}
"""

Leave: TypeAlias = Callable[[Scene, str], Awaitable[None]]
"""Call this tool and leave it in some way while it waits; returns when the server has noticed."""


def waits(found: Scene) -> bool:
    return found.engine.calls["describe"] > 0


async def noticed(found: Scene, tool: str) -> None:
    """The end of the server would look like leaving, as nobody told it that it stops: hence not later."""
    await until(lambda: found.sidecar.shutdown_state.answering == 0)
    if tool == "needy":
        await until(lambda: found.engine.calls["cancel"] == 1)


# --- the ways to leave


async def close_2026(found: Scene, tool: str) -> None:
    async with over_http(found) as url, peer(url) as client:
        await close_while_calling(found, tool, partial(client.call, tool, capabilities={}))
        (task,) = await found.tasks()
        assert await client.get(task.id)  # it is there for who knows its id


async def close_2025(found: Scene, tool: str) -> None:
    async with over_http(found) as url, elder(url) as client:
        await close_while_calling(found, tool, partial(client.call, tool))


async def close_while_calling(found: Scene, tool: str, call: Callable[[], Coroutine[Any, Any, object]]) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await until(lambda: waits(found))
        group.cancel_scope.cancel()
    await noticed(found, tool)


async def cancel_2025(found: Scene, tool: str) -> None:
    async def tell(client: Elder) -> None:
        await client.notify("notifications/cancelled", {"requestId": client.ids() - 1})

    await while_calling(found, tool, tell)


async def end_session_2025(found: Scene, tool: str) -> None:
    async def end(client: Elder) -> None:
        await client.http.delete(client.url, headers=client.headers)

    await while_calling(found, tool, end)


async def while_calling(found: Scene, tool: str, act: Callable[[Elder], Awaitable[None]]) -> None:
    async with over_http(found) as url, elder(url) as client, anyio.create_task_group() as group:
        group.start_soon(client.call, tool)
        await until(lambda: waits(found))
        await act(client)
        await noticed(found, tool)


async def calling_2026(pipe: Pipe, tool: str) -> None:
    await pipe.send("tools/call", {"name": tool, "arguments": {}, "_meta": MODERN}, 7)


async def calling_2025(pipe: Pipe, tool: str) -> None:
    await pipe.send("initialize", hello({}), 1)
    await pipe.incoming.receive()
    await pipe.send("notifications/initialized", {})
    await pipe.send("tools/call", {"name": tool, "arguments": {}}, 7)


CallOnStdio: TypeAlias = Callable[[Pipe, str], Awaitable[None]]


async def close_stdio(call: CallOnStdio, found: Scene, tool: str) -> None:
    async with over_stdio(found) as pipe:
        await call(pipe, tool)
        await until(lambda: waits(found))


async def cancel_stdio(call: CallOnStdio, found: Scene, tool: str) -> None:
    async with over_stdio(found) as pipe:
        await call(pipe, tool)
        await until(lambda: waits(found))
        await pipe.send("notifications/cancelled", {"requestId": 7})
        await noticed(found, tool)


WAYS: Mapping[str, Leave] = {
    "2026-07-28: the stream is closed": close_2026,
    "2025-11-25: the stream is closed": close_2025,
    "2025-11-25: notifications/cancelled": cancel_2025,
    "2025-11-25: the session is ended": end_session_2025,
    "stdio, 2026-07-28: it is closed": partial(close_stdio, calling_2026),
    "stdio, 2025-11-25: it is closed": partial(close_stdio, calling_2025),
    "stdio, 2026-07-28: notifications/cancelled": partial(cancel_stdio, calling_2026),
    "stdio, 2025-11-25: notifications/cancelled": partial(cancel_stdio, calling_2025),
}


@pytest.mark.parametrize("leave", WAYS.values(), ids=WAYS.keys())
async def test_the_workflow_goes_on_without_the_client(tmp_path: Path, leave: Leave) -> None:
    found = scene(tmp_path, TOOLS, server="single_user: true")
    await leave(found, "steady")
    (task,) = await found.tasks()
    assert (task.execution.status, task.cancel_requested) == (Status.RUNNING, None)
    assert found.engine.calls["cancel"] == 0
    assert task.unanswered is not None, "the same call again would start it again"


@pytest.mark.parametrize("leave", WAYS.values(), ids=WAYS.keys())
async def test_the_workflow_is_cancelled_if_the_tool_says_so(tmp_path: Path, leave: Leave) -> None:
    found = scene(tmp_path, TOOLS)
    await leave(found, "needy")
    (task,) = await found.tasks()
    assert task.cancel_requested
    assert found.engine.calls["cancel"] == 1


async def test_leaving_a_question_of_the_workflow_counts_as_well(tmp_path: Path) -> None:
    found = scene(tmp_path, TOOLS)
    async with over_http(found) as url, elder(url, {"elicitation": {}}) as client:
        async with client.stream("tools/call", {"name": "asking", "arguments": {}}) as response:
            await anext(aiter(response.aiter_lines()))  # the question
        await until(lambda: found.engine.calls["cancel"] == 1)


async def test_nobody_looks_for_a_client_that_has_dropped_its_tasks_result(tmp_path: Path) -> None:
    found = scene(tmp_path, TOOLS)
    async with over_http(found) as url:
        async with elder(url) as client:
            reply = await client.send("tools/call", {"name": "steady", "arguments": {}, "task": {}})
            await client.http.delete(client.url, headers=client.headers)  # or its changes are told
        async with elder(url) as client:
            async with client.stream("tasks/result", {"taskId": reply["result"]["task"]["taskId"]}):
                await until(lambda: waits(found))
            with anyio.fail_after(TIMEOUT):
                before = -1
                while before != found.engine.calls["describe"]:  # some three looks' time
                    before = found.engine.calls["describe"]
                    await anyio.sleep(0.8)


# --- what only the inside can tell apart


def call(tool: str, *, takes_tasks: bool) -> Call:
    return Call(tool=tool, arguments={}, takes_tasks=takes_tasks, takes_questions=False)


class SlowStart(MemoryAdapter):
    """An engine that takes its time to start."""

    def __init__(self, name: str) -> None:
        super().__init__(MemorySettings(name=name))
        self.asked, self.may = anyio.Event(), anyio.Event()

    async def start(self, start: Start) -> str:
        self.asked.set()
        await self.may.wait()
        return await super().start(start)


@pytest.mark.parametrize("takes_tasks", [True, False])
@pytest.mark.parametrize(("tool", "cancelled"), [("steady", 0), ("needy", 1)])
async def test_leaving_while_it_is_started_is_leaving(
    tmp_path: Path, takes_tasks: bool, tool: str, cancelled: int
) -> None:
    tools = scene(tmp_path, TOOLS).config.tools
    engine = SlowStart(f"{tmp_path.parent.name}-{tmp_path.name}")
    async with site(store=f"sqlite:///{tmp_path}/own.db", tools=tools, adapters={"here": engine}) as found:
        async with anyio.create_task_group() as group:
            group.start_soon(found.workflows.service.call, call(tool, takes_tasks=takes_tasks), ANONYMOUS, in_vain)
            await engine.asked.wait()
            group.cancel_scope.cancel()
            engine.may.set()
        assert (engine.calls["start"], engine.calls["cancel"]) == (1, cancelled)


async def in_vain(_: Execution) -> None:
    await anyio.sleep_forever()


async def test_a_server_that_stops_is_no_client_that_leaves(tmp_path: Path) -> None:
    tools = scene(tmp_path, TOOLS).config.tools
    engine = MemoryAdapter(MemorySettings(name=f"{tmp_path.parent.name}-{tmp_path.name}"))
    reached = anyio.Event()

    async def stuck(_: Execution) -> None:
        reached.set()
        await anyio.sleep_forever()

    async with (
        site(store=f"sqlite:///{tmp_path}/own.db", tools=tools, adapters={"here": engine}) as found,
        anyio.create_task_group() as group,
    ):
        group.start_soon(found.workflows.service.call, call("needy", takes_tasks=False), ANONYMOUS, stuck)
        await reached.wait()
        found.workflows.stop()
        group.cancel_scope.cancel()  # as uvicorn does with what has not ended by itself
    assert engine.calls["cancel"] == 0
