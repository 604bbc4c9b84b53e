"""Which calls are one call: keys of hosts and our own, digests of arguments within a window; for whom."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_workflows import Tool
from mcp_workflows.access import ANONYMOUS, LOCAL, Principal
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import INVALID_PARAMS, ConfigError, RequestError
from mcp_workflows.sidecar.config.load import load_config
from mcp_workflows.store.protocol import open_store
from mcp_workflows.tasks.executions import Executions
from mcp_workflows.tasks.service import TaskService
from mcp_workflows.tools.questions import Question
from mcp_workflows.tools.tool import AnyTool
from mcp_workflows.wire import v2025_11_25, v2026_07_28
from mcp_workflows.wire.commands import Call, CallOutcome, Created, Questions
from mcp_workflows.wire.params import KEY_PATHS, OWN_KEY, KeyPath
from tests.support.in_memory import MODERN, entered, line
from tests.support.places import quiet

pytestmark = pytest.mark.anyio

OWN = "mcp-workflows/idempotencyKey"
SEP = "modelcontextprotocol.io/task"
ADA, BEN = Principal(id="ada"), Principal(id="ben")
WINDOW = timedelta(minutes=10)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MODERN_CLIENT = v2026_07_28.Client(takes_tasks=True, takes_questions=True)
AMOUNT = Question.model_validate({"message": "How much?", "schema": {"type": "integer"}, "when_missing": True})
TOOLS = [
    Tool(name="forever", engine="memory", workflow="forever"),
    Tool(name="deduped", engine="memory", workflow="forever", dedupe=WINDOW),
    Tool(name="other", engine="memory", workflow="forever", dedupe=WINDOW),
    Tool(name="brief", engine="memory", workflow="forever", dedupe=WINDOW, ttl=timedelta(minutes=1)),
    Tool(name="asking", engine="memory", workflow="forever", dedupe=WINDOW, questions={"amount": AMOUNT}),
    Tool(name="broken", engine="memory", workflow="no such workflow", dedupe=WINDOW),
]


@dataclass(slots=True)
class Clock:
    now: datetime = NOON

    def __call__(self) -> datetime:
        return self.now


@dataclass(slots=True, kw_only=True)
class Here:
    """One replica and its engine."""

    service: TaskService
    engine: MemoryAdapter
    clock: Clock = field(default_factory=Clock)

    async def outcome(self, tool: str, who: Principal = ADA, **more: Any) -> CallOutcome:
        settings: dict[str, Any] = {"arguments": {"a": 1}, "takes_tasks": True, "takes_questions": True, **more}
        return await self.service.call(Call(tool=tool, **settings), who, quiet)

    async def task(self, tool: str, who: Principal = ADA, **more: Any) -> str:
        outcome = await self.outcome(tool, who, **more)
        assert isinstance(outcome, Created), outcome
        return outcome.task.task_id

    async def meant(self, meta: Mapping[str, Any], who: Principal = ADA, paths: Sequence[KeyPath] = KEY_PATHS) -> str:
        """The task of a call with this `_meta`."""
        params = {"name": "forever", "arguments": {"a": 1}, "_meta": meta}
        outcome = await self.service.call(v2026_07_28.parse_call(params, MODERN_CLIENT, paths), who, quiet)
        assert isinstance(outcome, Created), outcome
        return outcome.task.task_id


@asynccontextmanager
async def replica(folder: Path, clock: Clock | None = None, tools: Sequence[AnyTool] = TOOLS) -> AsyncGenerator[Here]:
    """One sidecar's inside; those of one folder share the store and the engine."""
    clock = clock or Clock()
    engine = MemoryAdapter(MemorySettings(name=str(folder)))
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(f"sqlite:///{folder}/tasks.db"))
        engines = await stack.enter_async_context(Engines({"memory": engine}))
        retention = timedelta(days=90)
        executions = await stack.enter_async_context(
            Executions(store=store, engines=engines, retention=retention, clock=clock)
        )
        service = TaskService(tools={tool.name: tool for tool in tools}, executions=executions, retention=retention)
        yield Here(service=service, engine=engine, clock=clock)


# --- keys of hosts

HOSTS: Sequence[Mapping[str, Any]] = [{"claudecode/toolUseId": "toolu_1"}, {SEP: {"taskId": "t-1"}}, {"taskId": "t-1"}]


@pytest.mark.parametrize("meta", HOSTS)
async def test_a_call_that_its_host_sends_again_is_the_same_task(tmp_path: Path, meta: Mapping[str, Any]) -> None:
    async with replica(tmp_path) as here:
        assert await here.meant(meta) == await here.meant(meta)
        assert len(here.engine.handles) == 1


async def test_keys_from_different_places_never_meet(tmp_path: Path) -> None:
    said = '["taskId","same","digest"]'
    metas: Sequence[Mapping[str, Any]] = [
        {OWN: "same"},
        *({"claudecode/toolUseId": "same"}, {SEP: {"taskId": "same"}}, {"taskId": "same"}),
        *({OWN: f"mcp-workflows:host:{said}"}, {OWN: "mcp-workflows:own:same"}, {OWN: "own:same"}),
    ]
    async with replica(tmp_path) as here:
        first = [await here.meant(meta) for meta in metas]
        assert len(set(first)) == len(metas)
        assert [await here.meant(meta) for meta in metas] == first


async def test_the_form_in_which_a_host_sends_the_arguments_makes_no_other_call(tmp_path: Path) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "array"}}}
    closed = {**schema, "additionalProperties": False}
    tools = [Tool(name="t", engine="memory", workflow="forever", dedupe=WINDOW, input=closed)]
    forms: Sequence[Mapping[str, Any]] = [
        {"a": 1, "b": [1, 2]},
        {"a": "1", "b": "[1, 2]"},
        {"a": 1, "b": [1, 2], "toolCallId": "call_2"},
    ]
    async with replica(tmp_path, tools=tools) as here:
        keys: Sequence[dict[str, Any]] = [{}, {"idempotency_key": "k"}, {"host_key": ("taskId", "t-1")}]
        for more in keys:
            assert len({await here.task("t", arguments=form, **more) for form in forms}) == 1
            nothing = [{}, {"a": None, "b": None}]
            other: dict[str, Any] = {**more, "idempotency_key": "k2"} if "idempotency_key" in more else more
            assert len({await here.task("t", arguments=form, **other) for form in nothing}) == 1
        found = await here.service.find("t", {"a": "1", "b": [1, 2], "toolCallId": "x"}, ADA)
        assert found.tool == "t"


async def test_the_first_key_of_the_list_counts_and_ours_always_does(tmp_path: Path) -> None:
    both = {OWN: "k", "claudecode/toolUseId": "toolu_1"}
    host_first = (("claudecode/toolUseId",), OWN_KEY)
    async with replica(tmp_path) as here:
        ours, theirs = await here.meant({OWN: "k"}), await here.meant({"claudecode/toolUseId": "toolu_1"})
        assert await here.meant(both) == ours
        assert await here.meant(both, paths=host_first) == theirs
        for paths in ((), (("claudecode/toolUseId",),)):
            assert await here.meant(both, paths=paths) == ours
        assert await here.meant({"taskId": "t"}, paths=()) != await here.meant({"taskId": "t"}, paths=())


BAD: Sequence[Any] = ["", "x" * 257, 7, True, ["toolu_1"], {"id": "toolu_1"}, "\ud800"]


@pytest.mark.parametrize("bad", BAD)
async def test_what_can_be_no_key_of_a_host_is_passed_over(tmp_path: Path, bad: Any) -> None:
    for meta in ({"claudecode/toolUseId": bad}, {SEP: {"taskId": bad}}, {SEP: bad}):
        params = {"name": "forever", "_meta": {**meta, "taskId": "t-1"}}
        for call in (
            v2026_07_28.parse_call(params, MODERN_CLIENT),
            v2025_11_25.parse_call(params, in_core=True, takes_questions=True),
        ):
            assert call.host_key == ("taskId", "t-1")


async def test_the_list_of_places_is_read_by_both_eras_through_a_server(tmp_path: Path) -> None:
    paths = (("acme", "call.id"),)
    meta = {"acme": {"call.id": "c-1"}}
    tasks: Mapping[str, Any] = {"io.modelcontextprotocol/tasks": {}}
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with entered(TOOLS[:1], store=store, idempotency_keys=paths) as (server, _):
        async with line(server, MODERN, {"extensions": tasks}) as client:
            modern = [await client.send("tools/call", {"name": "forever"}, meta=meta) for _ in range(2)]
        async with line(server, "2025-11-25") as client:
            asked: Mapping[str, Any] = {"name": "forever", "task": {}}
            old = [await client.send("tools/call", asked, meta=meta) for _ in range(2)]
    ids = [reply["result"]["taskId"] for reply in modern] + [reply["result"]["task"]["taskId"] for reply in old]
    assert len(set(ids)) == 1


# --- digests of arguments


async def test_the_same_arguments_within_the_window_are_the_same_task(tmp_path: Path) -> None:
    async with replica(tmp_path) as here:
        first = await here.task("deduped")
        here.clock.now += WINDOW - timedelta(seconds=1)
        assert await here.task("deduped") == first
        others = [
            await here.task("deduped", arguments={"a": 2}),
            await here.task("deduped", BEN),
            await here.task("other"),
            await here.task("deduped", idempotency_key="k"),
            await here.task("deduped", host_key=("taskId", "t")),
        ]
        assert len({first, *others}) == 6
        assert len(here.engine.handles) == 6


async def test_a_window_begins_with_its_first_call_and_no_clock_divides_it(tmp_path: Path) -> None:
    clock = Clock()
    async with replica(tmp_path, clock) as here:
        for second in (0, 59.5, 299.5, 599.5, 3599.5):  # before the edges that clocks have
            clock.now = NOON + timedelta(days=1, seconds=second)
            arguments = {"at": second}
            first = await here.task("deduped", arguments=arguments)
            clock.now += timedelta(seconds=1)
            assert await here.task("deduped", arguments=arguments) == first


async def test_two_replicas_that_open_a_window_at_once_open_one(tmp_path: Path) -> None:
    clock = Clock()
    async with replica(tmp_path, clock) as one, replica(tmp_path, clock) as two:
        for opened in range(1, 4):
            found: list[str] = []

            async def call(here: Here, found: list[str] = found) -> None:
                found.append(await here.task("deduped"))

            async with anyio.create_task_group() as group:
                for number in range(40):
                    group.start_soon(call, (one, two)[number % 2])
            assert (len(found), len(set(found))) == (40, 1)
            assert len(one.engine.handles) == opened
            clock.now += WINDOW


async def test_a_task_that_can_be_read_no_more_is_not_started_again_within_the_window(tmp_path: Path) -> None:
    async with replica(tmp_path) as here:
        await here.task("brief")
        here.clock.now += timedelta(minutes=2)
        with pytest.raises(RequestError, match="expired"):
            await here.task("brief")
        here.clock.now += WINDOW
        await here.task("brief")
        assert len(here.engine.handles) == 2


async def test_a_call_that_went_through_questions_starts_once_however_late_it_is_sent_again(tmp_path: Path) -> None:
    async with replica(tmp_path) as here:
        asked = await here.outcome("asking", arguments={})
        assert isinstance(asked, Questions)
        answers = {"amount": {"action": "accept", "content": {"amount": 5}}}
        again: Mapping[str, Any] = {"arguments": {}, "state": asked.state, "responses": answers}
        here.clock.now += timedelta(minutes=1)
        first = await here.task("asking", **again)
        assert await here.task("asking", arguments={"amount": 5}) == first
        here.clock.now += 2 * WINDOW
        assert await here.task("asking", **again, idempotency_key="another") == first
        fresh = await here.task("asking", arguments={"amount": 5})
        assert fresh != first
        assert await here.task("asking", **again) == fresh
        assert len(here.engine.handles) == 2


# --- anonymous callers


async def test_keys_of_hosts_and_digests_count_for_nobody_who_is_not_known(tmp_path: Path) -> None:
    async with replica(tmp_path) as here:
        tasks = [await here.meant(meta, ANONYMOUS) for meta in [*HOSTS, *HOSTS]]
        tasks += [await here.task("deduped", ANONYMOUS) for _ in range(2)]
        assert len(set(tasks)) == len(tasks)


async def test_an_anonymous_key_must_be_a_secret(tmp_path: Path) -> None:
    async with replica(tmp_path) as here:
        for who in (ADA, LOCAL):
            await here.task("forever", who, idempotency_key="k")
        with pytest.raises(RequestError, match=r"you are anonymous here.*at least 32 characters") as caught:
            await here.task("forever", ANONYMOUS, idempotency_key="k" * 31)
        assert caught.value.code == INVALID_PARAMS
        first = await here.task("forever", ANONYMOUS, idempotency_key="k" * 32)
        assert await here.task("forever", ANONYMOUS, idempotency_key="k" * 32) == first
        assert await here.meant({OWN: "k" * 32, "taskId": "t"}, ANONYMOUS, ((("taskId",)), OWN_KEY)) == first


# --- the page about them


BAD_PATHS: Sequence[Any] = ["taskId", [7], [[]], [""], [["a", 7]], [{"a": "b"}]]


@pytest.mark.parametrize("paths", BAD_PATHS)
def test_places_that_can_be_none_are_found_when_they_are_loaded(tmp_path: Path, paths: Any) -> None:
    written: Mapping[str, Any] = {
        "server": {"idempotency_keys": paths},
        "engines": {"payments": {"adapter": "temporal"}},
        "tools": {"t": {"engine": "payments", "workflow": "W", "task_queue": "q"}},
    }
    (tmp_path / "workflows.yaml").write_text(json.dumps(written))
    with pytest.raises(ConfigError, match="idempotency_keys"):
        load_config(tmp_path / "workflows.yaml", {})
