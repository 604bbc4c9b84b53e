"""TasksClient: the SDK's client with the tasks extension, against our server and against others."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.client import Client, ClientRequestContext, Transport
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError

from mcp_workflows import Question, TasksClient, Tool, attach
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.client import TaskHandle, TaskState
from mcp_workflows.client.connection import ClientKind, connect
from mcp_workflows.client.requests import TaskNotFound
from mcp_workflows.errors import ServerUnreachable, TaskCancelled
from tests.support.child_processes import free_port
from tests.support.served import memory_tools, serving, site
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

ASKED_BEFORE = Tool(
    name="asked_before",
    engine="memory",
    workflow="echo",
    questions={
        "first": Question(message="First?", schema={"type": "string"}),
        "second": Question(message="Second?", schema={"type": "string"}),
    },
)


@dataclass(slots=True)
class Person:
    """Answers what it is asked, and remembers what it saw."""

    says: str = "yes"
    states: list[TaskState] = field(default_factory=list[TaskState])
    asked: list[str] = field(default_factory=list[str])
    refuses: bool = False

    async def see(self, state: TaskState) -> None:
        self.states.append(state)

    async def answer(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        self.asked.append(str(context.request_id))
        if self.refuses:
            return types.ErrorData(code=-1, message="nobody is there")
        assert isinstance(params, types.ElicitRequestFormParams)
        return types.ElicitResult(
            action="accept", content=dict.fromkeys(params.requested_schema["properties"], self.says)
        )

    @property
    def seen(self) -> list[str]:
        return [state.status for state in self.states]


@dataclass(frozen=True, slots=True)
class Scene:
    """A person's client of a server."""

    person: Person
    tasks: TasksClient
    client: Client

    async def start(self, tool: str, arguments: Mapping[str, Any] | None = None, **more: Any) -> TaskHandle:
        begun = await self.tasks.start(self.client, tool, arguments, **more)
        assert isinstance(begun, TaskHandle)
        return begun


@asynccontextmanager
async def scene(url: str | Transport, person: Person | None = None, **settings: Any) -> AsyncGenerator[Scene]:
    person = person or Person()
    tasks = TasksClient(on_status=person.see, **settings)
    async with Client(url, extensions=[tasks], elicitation_callback=person.answer) as client:
        yield Scene(person, tasks, client)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncGenerator[str]:
    """A server with a tool for each workflow in memory, over HTTP."""
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with site(store=store, tools=[*memory_tools(), ASKED_BEFORE]) as found:
        yield found.url


async def test_a_task_nobody_knows_is_an_error_at_once(served: str) -> None:
    async with scene(served) as found:
        handle = found.tasks.handle(found.client, "nonsense")
        accepted = types.ElicitResult(action="accept", content={})
        for asked in (handle.result, handle.status, handle.cancel, lambda: handle.answer({"a": accepted})):
            with pytest.raises(TaskNotFound, match="not found") as raised:
                await asked()
            assert (raised.value.task_id, raised.value.code) == ("nonsense", -32602)
            assert isinstance(raised.value, MCPError)


async def test_a_question_that_is_answered_elsewhere_goes_away(served: str) -> None:
    class Thinking(Person):
        async def answer(self, context: ClientRequestContext, params: types.ElicitRequestParams) -> Any:
            self.asked.append(str(context.request_id))
            await anyio.sleep_forever()

    thinking = Thinking()
    async with scene(served, thinking) as slow, scene(served) as quick, anyio.create_task_group() as group:
        begun = await slow.start("ask")
        results: list[types.CallToolResult] = []

        async def wait() -> None:
            results.append(await begun.result())

        group.start_soon(wait)
        await until(lambda: thinking.asked == ["question"])
        accepted = types.ElicitResult(action="accept", content={"answer": "from elsewhere"})
        await quick.tasks.handle(quick.client, begun.id).answer({"question": accepted})
        await until(lambda: bool(results))
        assert results[0].structured_content == {"answer": "from elsewhere"}


async def test_a_refused_question_is_the_callers_error_and_the_task_goes_on(served: str) -> None:
    async with scene(served, Person(refuses=True)) as found:
        with pytest.raises(MCPError, match="nobody is there"):
            await found.client.call_tool("ask")
        handle = found.tasks.handle(found.client, found.person.states[-1].task_id)
        assert (await handle.status()).status == "input_required"
        with pytest.raises(MCPError, match="nobody is there"):
            await found.tasks.start(found.client, "asked_before")


# --- listening and polling


@asynccontextmanager
async def counted(tmp_path: Path, *, listening: bool) -> AsyncGenerator[tuple[str, list[str]]]:
    """A server that writes down what it is asked; the one that does not listen refuses subscriptions."""
    methods: list[str] = []

    @asynccontextmanager
    async def lifespan(_: Server[Any]) -> AsyncGenerator[None]:
        async with workflows:
            yield

    async def count(ctx: ServerRequestContext[Any, Any], call_next: Callable[..., Awaitable[Any]]) -> Any:
        methods.append(ctx.method)
        if ctx.method == "subscriptions/listen" and not listening:
            raise MCPError(types.METHOD_NOT_FOUND, "Method not found")
        return await call_next(ctx)

    server: Server[Any] = Server(
        "counted", version="1", lifespan=lifespan, on_subscriptions_listen=ListenHandler(InMemorySubscriptionBus())
    )
    server.middleware.append(count)
    engines = {"memory": MemoryAdapter(MemorySettings())}
    workflows = attach(server, tools=memory_tools(), engines=engines, store=f"sqlite:///{tmp_path}/tasks.db")
    async with serving(server.streamable_http_app()) as url:
        yield url, methods


async def test_who_listens_hears_of_the_end_without_polling_for_it(tmp_path: Path) -> None:
    async with counted(tmp_path, listening=True) as (url, methods), scene(url) as found:
        begun = await found.start("forever")
        looks = 0
        async with anyio.create_task_group() as group:

            async def wait() -> None:
                with pytest.raises(TaskCancelled):
                    await begun.result()

            group.start_soon(wait)
            await until(lambda: "subscriptions/listen" in methods)
            await anyio.sleep(2.5)  # more than two polls; nothing may happen, so there is nothing to wait for
            looks = methods.count("tasks/get")
            await begun.cancel()
        assert looks <= 3
        assert methods.count("tasks/get") <= looks + 2


# --- the same as a host of another kind


@pytest.mark.parametrize("kind", list(ClientKind))
async def test_every_era_gets_the_result(served: str, kind: ClientKind) -> None:
    seen: list[TaskState] = []
    messages: list[str | None] = []

    async def see(state: TaskState) -> None:
        seen.append(state)

    async def step(progress: float, total: float | None, message: str | None) -> None:
        messages.append(message)

    async def elicit(key: str | None, params: types.ElicitRequestParams) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"answer": "yes"})

    async with connect(served, kind=kind, on_status=see, elicit=elicit) as found:
        tools = {tool.name: tool for tool in await found.tools()}

        async def call(tool: str, **arguments: Any) -> Any:
            begun = await found.start(tools[tool], arguments, progress=step)
            result = begun if isinstance(begun, types.CallToolResult) else await found.result(begun)
            return result.structured_content

        assert await call("sleep", seconds=0.4) == {"slept": 0.4}
        assert bool(seen) == (kind is not ClientKind.NONE)
        assert ("sleeping" in messages) == (kind is ClientKind.NONE)
        assert await call("ask") == {"answer": "yes"}


async def test_a_server_that_is_not_there_is_one_clear_error() -> None:
    async def see(state: TaskState) -> None: ...

    async def elicit(key: str | None, params: types.ElicitRequestParams) -> types.ElicitResult:
        raise AssertionError("nothing is asked")

    with pytest.raises(ServerUnreachable, match="no answer"):
        async with connect(f"http://127.0.0.1:{free_port()}/mcp", kind=ClientKind.TASKS, on_status=see, elicit=elicit):
            pass
