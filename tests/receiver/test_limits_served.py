"""Limits at work: caps in the store that replicas share, and what clients of each era see of every limit."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import anyio
import httpx2
import pytest

from mcp_workflows import Tool
from mcp_workflows.access import ANONYMOUS, Principal
from mcp_workflows.access.audit import Event, Record
from mcp_workflows.access.limit_settings import DEFAULTS, UNLIMITED, Limits, ToolLimits
from mcp_workflows.adapter.memory import MemorySettings
from mcp_workflows.engines.polling.policy import PollingPolicy
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import ConfigError, LimitReached, RequestError
from mcp_workflows.sidecar.app import build, http_app
from mcp_workflows.sidecar.config.load import load_config
from mcp_workflows.store.protocol import open_store
from mcp_workflows.tasks.executions import Executions
from mcp_workflows.tasks.service import TaskService
from mcp_workflows.tools.tool import AnyTool
from mcp_workflows.wire.commands import Call, CallOutcome, Created, Finished
from tests.support.here import elder
from tests.support.in_memory import entered, line
from tests.support.places import Counting, quiet
from tests.support.served import memory_tools, peer, serving, site

pytestmark = pytest.mark.anyio

ANNA, BEN = Principal(id="anna"), Principal(id="ben")
RETENTION = timedelta(days=90)


@dataclass(slots=True)
class Time:
    """What the clocks of all replicas say; it goes on when a test says so, beside a microsecond at each look."""

    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __call__(self) -> datetime:
        self.at += timedelta(microseconds=1)
        return self.at


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One sidecar's inside."""

    service: TaskService
    engine: Counting
    records: list[Record]

    async def call(self, tool: str, who: Principal = ANNA, *, key: str | None = None, **arguments: Any) -> CallOutcome:
        """`tools/call` of a client with tasks."""

        command = Call(tool=tool, arguments=arguments, takes_tasks=True, takes_questions=True, idempotency_key=key)
        return await self.service.call(command, who, quiet)

    async def create(self, tool: str, who: Principal = ANNA, **more: Any) -> str:
        """The id of its task."""
        outcome = await self.call(tool, who, **more)
        assert isinstance(outcome, Created), outcome
        return outcome.task.task_id

    async def refused(self, tool: str, who: Principal = ANNA, **more: Any) -> Mapping[str, Any]:
        """The result, which is an error."""
        outcome = await self.call(tool, who, **more)
        assert isinstance(outcome, Finished), outcome
        assert outcome.result["isError"]
        return {"text": outcome.result["content"][0]["text"], **outcome.result.get("_meta", {})}


@asynccontextmanager
async def replica(folder: Path, limits: Limits, *tools: AnyTool, clock: Time | None = None) -> AsyncGenerator[Replica]:
    """Replicas of one folder share the store and the engine."""
    engine, records = Counting(MemorySettings(name=str(folder))), list[Record]()
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(f"sqlite:///{folder}/tasks.db"))
        engines = await stack.enter_async_context(Engines({"memory": engine}))
        executions = await stack.enter_async_context(
            Executions(store=store, engines=engines, retention=RETENTION, limits=limits, clock=clock or Time())
        )
        named = {tool.name: tool for tool in (*memory_tools(), *tools)}
        service = TaskService(
            tools=named, executions=executions, retention=RETENTION, limits=limits, audit=records.append
        )
        yield Replica(service=service, engine=engine, records=records)


def only(**limits: Any) -> Limits:
    """These limits alone."""
    return UNLIMITED.model_copy(update=limits)


# --- how many at the same time


async def test_tasks_of_one_principal_are_bounded_over_all_replicas(tmp_path: Path) -> None:
    limits, clock = only(tasks_per_principal=2), Time()
    async with replica(tmp_path, limits, clock=clock) as one, replica(tmp_path, limits, clock=clock) as two:
        first = await one.create("forever")
        await two.create("forever")
        for at in (one, two):
            told = await at.refused("forever")
            assert "at most 2 tasks of one caller may run at the same time" in told["text"]
            assert "cancel one; nothing was started" in told["text"]
            assert first not in told["text"]
        await one.create("forever", BEN)
        await one.service.cancel(first, ANNA)
        await one.service.get(first, ANNA)
        await two.create("forever")
        assert len(one.engine.handles) == 4


async def test_a_call_that_is_sent_again_under_its_key_is_never_limited(tmp_path: Path) -> None:
    async with replica(tmp_path, only(tasks_per_principal=1, creates_per_minute=1)) as here:
        task_id = await here.create("forever", key="k" * 32)
        assert await here.create("forever", key="k" * 32) == task_id
        await here.refused("forever", key="l" * 32)


async def test_tasks_of_a_tool_are_bounded_for_one_and_for_all(tmp_path: Path) -> None:
    few = Tool(name="few", engine="memory", workflow="forever", limits=ToolLimits(tasks=2, tasks_per_principal=1))
    async with replica(tmp_path, UNLIMITED, few) as here:
        await here.create("few")
        assert "at most 1 tasks of few of one caller" in (await here.refused("few"))["text"]
        await here.create("few", BEN)
        carl = Principal(id="carl")
        assert "at most 2 tasks of few of" in (await here.refused("few", carl))["text"]
        await here.create("forever", carl)


# --- how many in a minute


async def test_creations_are_bounded_by_the_minute_over_all_replicas(tmp_path: Path) -> None:
    limits, clock = only(creates_per_minute=2), Time()
    async with replica(tmp_path, limits, clock=clock) as one, replica(tmp_path, limits, clock=clock) as two:
        await one.create("echo")
        clock.at += timedelta(seconds=20)
        await two.create("echo")
        told = await two.refused("echo")
        assert "at most 2 tasks of one caller may be created in a minute: try again in 40 s" in told["text"]
        assert 39_900 < told["mcp-workflows/retryAfterMs"] <= 40_000
        await two.create("echo", BEN)
        clock.at += timedelta(seconds=40)
        await two.create("echo")
        assert [(record.event, record.tool) for record in two.records if record.event is Event.LIMIT] == [
            (Event.LIMIT, "echo")
        ]


@pytest.mark.parametrize("cap", ["creates_per_minute", "tasks_per_principal"])
@pytest.mark.parametrize("down", [True, False], ids=["unreachable", "refused"])
async def test_calls_that_start_nothing_leave_no_row_that_counts(tmp_path: Path, cap: str, down: bool) -> None:
    rare = Tool(name="rare", engine="memory", workflow="forever", limits=ToolLimits(creates_per_minute=3))
    async with replica(tmp_path, only(**{cap: 3}), rare) as here:
        if down:
            here.engine.faults.unavailable = frozenset({"start"})
        else:
            here.engine.faults.refused_starts = 2
        for _ in range(2):
            assert "tasks of" not in (await here.refused("rare", key="k" * 32))["text"]
        assert (await here.service.tasks(None, ANNA)).tasks == []
        here.engine.faults.unavailable = frozenset()
        for number in range(3):
            await here.create("rare", key=str(number) * 32)
        assert "at most 3 tasks of" in (await here.refused("rare"))["text"]


async def test_who_goes_on_calling_in_vain_is_held_back_before_the_engine_is_asked(tmp_path: Path) -> None:
    async with replica(tmp_path, only(creates_per_minute=3)) as here:
        task_id = await here.create("forever", key="k" * 32)
        here.engine.faults.unavailable = frozenset({"start"})
        for _ in range(3):
            assert "cannot be reached; nothing was started" in (await here.refused("forever"))["text"]
        asked = here.engine.calls["start"]
        told = await here.refused("forever")
        assert "at most 3 calls of one caller may fail to start anything in a minute: try again in" in told["text"]
        assert 0 < told["mcp-workflows/retryAfterMs"] <= 20_000
        assert here.engine.calls["start"] == asked
        assert [record.event for record in here.records if record.event is Event.LIMIT] == [Event.LIMIT]
        assert await here.create("forever", key="k" * 32) == task_id
        assert "cannot be reached" in (await here.refused("forever", BEN))["text"]


# --- sizes


async def test_arguments_and_answers_that_are_too_large_are_refused_before_anything_is_done(tmp_path: Path) -> None:
    async with replica(tmp_path, only(max_arguments=50, max_answer=60)) as here:
        told = await here.refused("echo", text="x" * 100)
        assert told["text"].startswith("Arguments of echo: 111 bytes of JSON, and at most 50 are accepted")
        assert not here.engine.handles
        task_id = await here.create("ask")
        responses = {"question": {"action": "accept", "content": {"text": "x" * 100}}}
        with pytest.raises(LimitReached, match="Answers: "):
            await here.service.update(task_id, responses, ANNA)


async def test_a_result_over_the_ceiling_is_not_kept(tmp_path: Path) -> None:
    async with replica(tmp_path, only(max_kept_result=500)) as here:
        task_id = await here.create("echo", text="secret" * 100)
        seen = await here.service.get(task_id, ANNA)
        assert seen.result is not None
        assert seen.result["isError"]
        assert "bytes, over the limit of 500" in seen.result["content"][0]["text"]
    assert b"secretsecret" not in (tmp_path / "tasks.db").read_bytes()


# --- polls


async def test_a_poll_that_is_too_fast_costs_the_engine_no_call_and_the_store_no_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        PollingPolicy, "interval", Mock(return_value=60.0)
    )  # on a slow machine too, 20 polls are too fast
    clock = Time()
    async with replica(tmp_path, DEFAULTS, clock=clock) as here:
        task_id = await here.create("forever")
        clock.at = datetime.now(UTC)
        first = await here.service.get(task_id, ANNA)
        looks = len(here.engine.times)
        with sqlite3.connect(tmp_path / "tasks.db") as beside:
            before = beside.execute("PRAGMA data_version").fetchone()
            polls = [(await here.service.get(task_id, ANNA)) for _ in range(20)]
            assert beside.execute("PRAGMA data_version").fetchone() == before
        beside.close()
        assert len(here.engine.times) == looks
        assert all(poll.status is first.status for poll in polls)


async def test_over_http_a_limit_is_an_error_with_the_time_to_come_back(tmp_path: Path) -> None:
    path = tmp_path / "workflows.yaml"
    path.write_text(
        "store: sqlite:///tasks.db\nengines: {here: {adapter: memory}}\n"
        "limits: {polls_per_minute: 3}\ntools: {forever: {engine: here, workflow: forever}}\n"
    )
    config = load_config(path, {})
    async with serving(http_app(build(config), config, "127.0.0.1", 0)) as url, peer(url) as client:
        task_id = (await client.call("forever")).result["taskId"]
        for _ in range(3):
            await client.get(task_id)
        async with client.response("tasks/get", {"taskId": task_id}) as response:
            error = (await _json(response))["error"]
            assert response.headers["retry-after"] == "20"
        assert error["code"] == -32050
        assert 19_000 < error["data"]["retryAfterMs"] <= 20_000
        assert "at most 3 requests about tasks" in error["message"]
        async with elder(url) as old:
            reply = await old.send("tasks/get", {"taskId": task_id})
            assert reply["error"]["code"] == -32050


async def _json(response: Any) -> Any:
    await response.aread()
    return response.json()


# --- look-ups that find nothing


async def test_above_the_limit_an_id_that_is_there_and_one_that_is_not_are_told_alike(tmp_path: Path) -> None:
    async with replica(tmp_path, only(failed_lookups_per_minute=3)) as here:
        theirs = await here.create("forever", Principal(id=ANONYMOUS.id, identified=False, peer="192.0.2.2"))
        eve = Principal(id=ANONYMOUS.id, identified=False, peer="192.0.2.1")
        own = await here.create("forever", eve)
        for number in range(3):
            with pytest.raises(RequestError, match="Task not found"):
                await here.service.get(str(number), eve)
        told = [await _error(here.service, task_id, eve) for task_id in (theirs, "nobodys")]
        assert told[0] == told[1]
        assert told[0][0] == -32050
        assert (await here.service.get(own, eve)).task_id == own


async def _error(service: TaskService, task_id: str, who: Principal) -> tuple[int, str]:
    with pytest.raises(RequestError) as caught:
        await service.get(task_id, who)
    return caught.value.code, caught.value.message


# --- what stays open


async def test_open_streams_are_bounded_and_end_with_their_client(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"store": f"sqlite:///{tmp_path}/tasks.db", "limits": only(open_listens_per_principal=1)}
    async with site(**settings) as served, peer(served.url) as client:
        task_id = (await client.call("forever")).result["taskId"]
        wanted = {"notifications": {"taskIds": [task_id]}}
        async with client.stream("subscriptions/listen", wanted) as (_, frames):
            assert (await anext(frames))["method"] == "notifications/subscriptions/acknowledged"
            refused = await client.send("subscriptions/listen", wanted)
            assert (refused.code, "of one caller may stay open" in refused.error["message"]) == (-32050, True)
        with anyio.fail_after(60):
            while True:
                async with client.stream("subscriptions/listen", wanted) as (_, frames):
                    if "error" not in await anext(frames):
                        break


async def test_a_stream_that_names_no_tasks_is_open_too(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"store": f"sqlite:///{tmp_path}/tasks.db", "limits": only(open_listens_per_principal=2)}
    wanted: dict[str, Any] = {"notifications": {"toolsListChanged": True}}
    async with (
        site(authenticated=True, **settings) as served,
        peer(served.url, token="anna") as anna,
        peer(served.url, token="ben") as ben,
        anna.stream("subscriptions/listen", wanted) as (_, first),
        anna.stream("subscriptions/listen", {"notifications": {}}) as (_, second),
    ):
        for frames in (first, second):
            acknowledged = await anext(frames)
            assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
            assert "taskIds" not in acknowledged["params"]["notifications"]
        refused = await anna.send("subscriptions/listen", wanted)
        assert (refused.code, "of one caller may stay open" in refused.error["message"]) == (-32050, True)
        task_id = (await anna.call("forever")).result["taskId"]
        assert (await anna.send("subscriptions/listen", {"notifications": {"taskIds": [task_id]}})).code == -32050
        async with ben.stream("subscriptions/listen", wanted) as (_, frames):
            assert "error" not in await anext(frames)


async def test_streams_that_a_server_without_sessions_opens_are_bounded(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"store": f"sqlite:///{tmp_path}/tasks.db", "limits": only(open_listens_per_principal=1)}
    accept = {"accept": "text/event-stream"}
    async with (
        site(transport={"stateless_http": True}, **settings) as served,
        httpx2.AsyncClient() as http,
        http.stream("GET", served.url, headers=accept) as standing,
    ):
        assert standing.status_code == 200
        refused = await http.get(served.url, headers=accept)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, -32050)


async def test_a_blocked_result_of_2025_11_25_is_open_too(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"store": f"sqlite:///{tmp_path}/tasks.db", "limits": only(open_listens=1)}
    async with (
        site(**settings, transport={}) as served,
        elder(served.url) as client,
        anyio.create_task_group() as group,
    ):
        made = await client.send("tools/call", {"name": "forever", "arguments": {}, "task": {}})
        task_id = made["result"]["task"]["taskId"]
        begun = anyio.Event()

        async def block() -> None:
            async with client.stream("tasks/result", {"taskId": task_id}):
                begun.set()
                await anyio.sleep_forever()

        group.start_soon(block)
        with anyio.fail_after(60):
            while (await client.send("tasks/result", {"taskId": "no-such-task"}))["error"]["code"] != -32050:
                await anyio.sleep(0.01)
        group.cancel_scope.cancel()


# --- configuration


def test_a_ttl_that_is_too_long_is_a_problem_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "workflows.yaml"
    path.write_text(
        "engines: {here: {adapter: memory}}\nlimits:\n  max_ttl: 7d\n  open_listens: many\ntools:\n"
        "  a: {engine: here, workflow: echo}\n"
    )
    with pytest.raises(ConfigError, match=r"workflows.yaml:4: limits.open_listens: "):
        load_config(path, {})
    path.write_text(path.read_text().replace("many", "null").replace("echo}", "echo, ttl: 8d}"))
    with pytest.raises(ConfigError, match=r"workflows.yaml:6: tools.a.ttl: 8d is longer than limits.max_ttl, 7d"):
        load_config(path, {})


async def test_a_task_tool_that_looked_in_vain_too_often_says_when_to_come_back(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/tasks.db"
    tools = [Tool(name="forever", engine="memory", workflow="forever", wait=timedelta(milliseconds=1))]
    settings = only(failed_lookups_per_minute=1)
    async with entered(tools, store=store, limits=settings) as (server, _), line(server) as client:
        missed = await client.tool("task_status", {"taskId": "0" * 40})
        assert "Task not found. Give the taskId exactly" in missed["content"][0]["text"]
        told = await client.tool("task_status", {"taskId": "0" * 40})
        assert told["content"][0]["text"] == "at most 1 requests in a minute for tasks that are not found"
        assert 50_000 < told["_meta"]["mcp-workflows/retryAfterMs"] <= 60_000
