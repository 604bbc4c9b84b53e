"""TasksClient where something goes wrong: answers lost on the way, servers away, and servers with ways of their own."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import anyio
import httpx2
import mcp_types as types
import pytest
from mcp.client import Client, ClientRequestContext
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from mcp_workflows import TasksClient
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.client import TaskHandle, TaskState, reconnecting_http
from mcp_workflows.client.connection import ClientKind, connect
from mcp_workflows.client.follower import LISTENING_SECONDS, LONGEST_POLL_SECONDS, TaskChanges
from mcp_workflows.client.http import known_http
from mcp_workflows.client.requests import SHORTEST_PAUSE_SECONDS, TaskExpired, TaskFailed, TaskNotFound
from mcp_workflows.client.v2025_11_25 import InCoreTaskRequests
from mcp_workflows.errors import ClientError, NotLetIn, ServerUnreachable, TaskCancelled
from mcp_workflows.testing import lossy_proxy
from tests.support.child_processes import free_port
from tests.support.served import site
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

LOST = MCPError(types.CONNECTION_CLOSED, "lost on the way")
YES = types.ElicitResult(action="accept", content={"answer": "yes"})
QUESTION = {
    "method": "elicitation/create",
    "params": {
        "message": "Well?",
        "requestedSchema": {"type": "object", "properties": {"answer": {"type": "string"}}},
    },
}


async def yes(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
    return YES


# --- a server we did not write


@dataclass(slots=True)
class Foreign:
    """A server whose every answer is written down: what it says to each request of a method, the last for ever."""

    looks: Sequence[Any]  # states without their id, or errors
    updates: Sequence[Any] = ({},)
    cancels: Sequence[Any] = ({},)
    listens: Sequence[Any] = (MCPError(types.METHOD_NOT_FOUND, "Method not found"),)
    heard: list[str] = field(default_factory=list[str])
    answers: list[Any] = field(default_factory=list[Any])

    async def tools(self, ctx: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name="x", input_schema={"type": "object"})])

    def next(self, method: str) -> Any:
        """What it says now; None is nothing, ever."""
        said: dict[str, Sequence[Any]] = {
            "tools/call": [{"resultType": "task", "status": "working"}],
            "tasks/get": self.looks,
            "tasks/update": self.updates,
            "tasks/cancel": self.cancels,
            "subscriptions/listen": self.listens,
        }
        script = said[method]
        return script[min(self.heard.count(method), len(script) - 1)]

    async def speak(self, ctx: ServerRequestContext[Any, Any], call_next: Callable[..., Awaitable[Any]]) -> Any:
        if not ctx.method.startswith("tasks/") and ctx.method not in ("tools/call", "subscriptions/listen"):
            return await call_next(ctx)
        if ctx.method == "tasks/update":
            self.answers.append((ctx.params or {})["inputResponses"])
        answer = self.next(ctx.method)
        self.heard.append(ctx.method)
        if isinstance(answer, Exception):
            raise answer
        if not isinstance(answer, Mapping):
            await anyio.sleep_forever()
        state = cast("Mapping[str, Any]", answer)
        return {"resultType": "complete", "taskId": "t-1", "pollIntervalMs": 1, **state}


@asynccontextmanager
async def foreign(server: Foreign, **settings: Any) -> AsyncGenerator[tuple[Client, TasksClient]]:
    lowlevel: Server[Any] = Server("foreign", version="1", on_list_tools=server.tools)
    lowlevel.middleware.append(server.speak)
    tasks = TasksClient(**settings)
    async with Client(lowlevel, extensions=[tasks]) as client:
        yield client, tasks


WORKING = {"status": "working"}
ASKING = {"status": "input_required", "inputRequests": {"question": QUESTION}}
DONE: Mapping[str, Any] = {"status": "completed", "result": {"content": [], "structuredContent": {"done": True}}}


async def test_a_server_that_stays_away_is_an_error_once_patience_is_over() -> None:
    async with foreign(Foreign([LOST]), timeout_seconds=0.4) as (client, tasks):
        with pytest.raises(ServerUnreachable, match=r"no answer to tasks/get \(lost on the way\)"):
            await client.call_tool("x")
        with pytest.raises(ServerUnreachable):
            await tasks.handle(client, "t-1").status()


async def test_an_answer_whose_reply_is_lost_is_sent_again_and_nobody_is_asked_twice() -> None:
    asked: list[str] = []

    async def ask(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(str(context.request_id))
        return YES

    server = Foreign([ASKING] * 8 + [DONE], updates=[LOST, LOST, {}])
    async with foreign(server, on_elicitation=ask) as (client, _):
        assert (await client.call_tool("x")).structured_content == {"done": True}
    assert asked == ["question"]
    assert server.answers == [{"question": {"action": "accept", "content": {"answer": "yes"}}}] * 3


async def test_a_server_that_goes_on_asking_what_was_answered_is_answered_once_and_polled_on() -> None:
    server = Foreign([ASKING] * 6 + [{"status": "input_required"}] * 2 + [DONE])
    async with foreign(server, on_elicitation=yes) as (client, _):
        assert (await client.call_tool("x")).structured_content == {"done": True}
    assert len(server.answers) == 1


async def test_a_question_that_comes_back_unanswered_is_asked_again() -> None:
    asked: list[str] = []

    async def ask(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(str(context.request_id))
        if len(asked) == 1:
            await anyio.sleep_forever()
        return YES

    server = Foreign([ASKING, ASKING, WORKING, ASKING, ASKING, ASKING, DONE])
    async with foreign(server, on_elicitation=ask) as (client, _):
        assert (await client.call_tool("x")).structured_content == {"done": True}
    assert (len(asked), len(server.answers)) == (2, 1)


async def test_what_can_become_of_a_task_has_an_error_each() -> None:
    error = {"code": -32000, "message": "broken", "data": {"order": 1}}
    expired = MCPError(types.INVALID_PARAMS, "Task expired: its time to live is over")
    server = Foreign([{"status": "failed", "error": error}, {"status": "cancelled"}, expired, {"status": "completed"}])
    async with foreign(server) as (client, _):
        with pytest.raises(TaskFailed, match="broken") as failed:
            await client.call_tool("x")
        assert (failed.value.task_id, failed.value.code, failed.value.data) == ("t-1", -32000, {"order": 1})
        with pytest.raises(TaskCancelled):
            await client.call_tool("x")
        with pytest.raises(TaskExpired):
            await client.call_tool("x")
        with pytest.raises(ClientError, match="violates the protocol"):
            await client.call_tool("x")
    async with foreign(Foreign([{"status": "lost"}])) as (client, tasks):
        with pytest.raises(ClientError, match="violates the protocol"):
            await tasks.handle(client, "t-1").status()


async def test_a_client_of_another_version_says_that_it_has_no_such_tasks(tmp_path: Path) -> None:
    async with site(store=f"sqlite:///{tmp_path}/tasks.db") as found:
        tasks = TasksClient()
        async with Client(found.url, mode="legacy", extensions=[tasks]) as client:
            with pytest.raises(ClientError, match="this one speaks 2025-11-25"):
                tasks.handle(client, "t-1")


@pytest.mark.parametrize(
    ("said", "seconds"),
    [(None, 1), (0, SHORTEST_PAUSE_SECONDS), (-5, SHORTEST_PAUSE_SECONDS), (1500.5, 1.5005), (1e12, 60), (2000, 2)],
)
def test_the_servers_interval_is_kept_within_reason(said: float | None, seconds: float) -> None:
    changes = TaskChanges("t-1")
    state = TaskState(task_id="t-1", status="working", poll_interval_ms=said)
    assert changes.pause(state) == seconds
    changes.report()
    assert changes.pause(state) == max(seconds, LISTENING_SECONDS) <= LONGEST_POLL_SECONDS
    changes.lose()
    assert changes.pause(state) == seconds


# --- who waits goes away


async def test_the_task_is_cancelled_with_what_waits_for_it_only_if_that_is_wanted() -> None:
    for wanted in (True, False):
        server = Foreign([WORKING], cancels=[LOST, {}])
        async with foreign(server, cancel_on_abandon=wanted) as (client, _):
            with anyio.move_on_after(0.2) as scope:
                await client.call_tool("x")
            assert scope.cancelled_caught
        assert server.heard.count("tasks/cancel") == (2 if wanted else 0)


# --- a handle


async def test_updates_come_once_each_up_to_the_end_and_may_be_left(tmp_path: Path) -> None:
    server = Foreign([WORKING, WORKING, ASKING, WORKING, WORKING, DONE])
    async with foreign(server) as (client, tasks):
        handle = tasks.handle(client, "t-1")
        assert [state.status async for state in handle.updates()] == [
            "working",
            "input_required",
            "working",
            "completed",
        ]
        assert server.answers == []
    async with site(store=f"sqlite:///{tmp_path}/tasks.db") as found:
        tasks = TasksClient()
        async with Client(found.url, extensions=[tasks]) as client:
            handle = await tasks.start(client, "ask_in_turn")
            assert isinstance(handle, TaskHandle)
            keys: list[str] = []
            async for state in handle.updates():
                for key in state.input_requests or {}:
                    keys.append(key)
                    await handle.answer({key: YES})
            assert keys == ["first", "second"]
            async for state in handle.updates():
                assert state.ended
                break
            assert (await handle.result()).structured_content == {"first": YES.content, "second": YES.content}


# --- a server that is started again, and replies lost on a real connection


async def test_a_call_outlives_a_server_that_is_started_again(tmp_path: Path) -> None:
    port = free_port()
    engine = {"memory": MemoryAdapter(MemorySettings(name=uuid.uuid4().hex))}
    store = f"sqlite:///{tmp_path}/tasks.db"
    asked, results = anyio.Event(), list[Any]()
    back = anyio.Event()

    async def ask(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.set()
        await back.wait()
        return YES

    transport = reconnecting_http(f"http://127.0.0.1:{port}/mcp")
    async with anyio.create_task_group() as group:

        async def call() -> None:
            async with Client(transport, extensions=[TasksClient(on_elicitation=ask)]) as client:
                results.append((await client.call_tool("ask")).structured_content)

        async with site(store=store, adapters=engine, port=port):
            group.start_soon(call)
            await asked.wait()
        back.set()  # now: the answer finds nobody
        async with site(store=store, adapters=engine, port=port):
            await until(lambda: results == [{"answer": "yes"}])


async def test_replies_lost_on_the_connection_are_asked_for_again(tmp_path: Path) -> None:
    losing, lost = anyio.Event(), anyio.Event()

    async def ask(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        losing.set()
        await lost.wait()
        return YES

    async with site(store=f"sqlite:///{tmp_path}/tasks.db") as found, anyio.create_task_group() as group:
        target = int(found.url.split(":")[2].partition("/")[0])
        async with lossy_proxy(target) as proxy:

            async def lose() -> None:
                await losing.wait()
                async with proxy.losing():
                    lost.set()
                    async with Client(found.url, extensions=[seeing]) as other:
                        handle = seeing.handle(other, task_id())
                        await handle.result()  # the answer has arrived, its reply has not

            states: list[TaskState] = []
            seeing = TasksClient()

            async def see(state: TaskState) -> None:
                states.append(state)

            def task_id() -> str:
                return states[0].task_id

            group.start_soon(lose)
            transport = reconnecting_http(f"http://127.0.0.1:{proxy.port}/mcp")
            async with Client(transport, extensions=[TasksClient(on_elicitation=ask, on_status=see)]) as client:
                assert (await client.call_tool("ask")).structured_content == {"answer": "yes"}


async def test_nobody_there_to_begin_with_is_no_server_of_another_version() -> None:
    with pytest.raises(BaseExceptionGroup) as raised:
        async with Client(reconnecting_http(f"http://127.0.0.1:{free_port()}/mcp")):
            raise AssertionError("nobody is there")
    assert raised.group_contains(httpx2.ConnectError)


# --- who is not let in


async def ignore(state: TaskState) -> None:
    """Nothing is shown."""


async def nobody(key: str | None, params: types.ElicitRequestParams) -> types.ElicitResult:
    raise AssertionError("nothing is asked")


@pytest.mark.parametrize(
    ("status", "token", "reason"),
    [
        (401, None, "it needs a token"),
        (401, "stranger", "the token is not valid there: expired"),
        (403, "narrow", "lacks a scope; required: jobs"),
    ],
)
async def test_who_is_not_let_in_hears_why(
    monkeypatch: pytest.MonkeyPatch, status: int, token: str | None, reason: str
) -> None:
    async def refuse(client: httpx2.AsyncClient, request: httpx2.Request, **settings: Any) -> httpx2.Response:
        return httpx2.Response(status, headers={"WWW-Authenticate": 'Bearer scope="jobs"'}, request=request)

    monkeypatch.setattr(httpx2.AsyncClient, "send", refuse)
    headers = {"Authorization": f"Bearer {token}"} if token else None
    with pytest.raises(ExceptionGroup) as refused:
        async with Client(reconnecting_http("http://there/mcp", headers=headers)):
            pass
    assert refused.group_contains(MCPError, match=f"not let in: .*{reason}")
    with pytest.raises(NotLetIn, match=reason):
        async with connect(
            known_http("http://there/mcp", token), kind=ClientKind.NONE, on_status=ignore, elicit=nobody
        ):
            pass


# --- the tasks in the core of 2025-11-25


@dataclass(slots=True)
class Scripted:
    """A session whose answers are written down: a status, a result or an error for each request of a method."""

    script: Mapping[str, Sequence[Any]]
    heard: list[str] = field(default_factory=list[str])

    async def send_request(self, request: Any, kind: Any) -> Any:
        said = self.script[request.method]
        answer = said[min(self.heard.count(request.method), len(said) - 1)]
        self.heard.append(request.method)
        if isinstance(answer, Exception):
            raise answer
        if not isinstance(answer, str):
            return answer
        at = "2026-01-01T00:00:00Z"
        return kind(task_id="t-1", status=answer, created_at=at, last_updated_at=at, ttl=None, poll_interval=1)


PAYLOAD = types.CallToolResult(content=[])
OVER = MCPError(types.INTERNAL_ERROR, "declined")
RESTARTED = MCPError(types.INVALID_REQUEST, "Session terminated")
NO_TASK = MCPError(types.INVALID_PARAMS, "no such task")


@pytest.mark.parametrize(
    ("states", "payloads", "error"),
    [
        (["working", "completed"], [PAYLOAD], None),
        (["cancelled"], [OVER], TaskCancelled),
        (["failed"], [OVER], MCPError),
        (["completed"], [RESTARTED], ServerUnreachable),
        (["working", RESTARTED], [OVER], ServerUnreachable),
        (["working", LOST], [OVER], ServerUnreachable),
        ([NO_TASK], [], TaskNotFound),
    ],
)
async def test_every_end_of_a_task_in_the_core_has_its_outcome(
    states: Sequence[Any], payloads: Sequence[Any], error: type[Exception] | None
) -> None:
    session = Scripted({"tasks/get": states, "tasks/result": payloads})
    requests = InCoreTaskRequests(cast("Any", session), ignore)
    if error is None:
        assert await requests.result("t-1") == PAYLOAD
    else:
        with pytest.raises(error):
            await requests.result("t-1")


async def test_a_task_in_the_core_is_cancelled_unless_the_server_refuses() -> None:
    requests = InCoreTaskRequests(cast("Any", Scripted({"tasks/cancel": ["cancelled", OVER]})), ignore)
    assert (await requests.cancel("t-1")).status == "cancelled"
    with pytest.raises(MCPError, match="declined"):
        await requests.cancel("t-1")
