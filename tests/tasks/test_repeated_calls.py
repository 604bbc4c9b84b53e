"""Calls without a key that their callers abandon and repeat: one execution, its result for the repeated call."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from mcp_workflows import TaskSupport, Tool
from mcp_workflows.access import ANONYMOUS, LOCAL, AccessRequest, Principal
from mcp_workflows.adapter import Execution, Ref, Start, StartGuarantee
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import EngineUnavailable
from mcp_workflows.store.protocol import Store, TaskFilter, open_store
from mcp_workflows.store.sqlite.store import SQLiteStore
from mcp_workflows.task import Task
from mcp_workflows.tasks.executions import Executions
from mcp_workflows.tasks.repeated_calls import KEPT, MARKED_AFTER
from mcp_workflows.tasks.service import Authorization, TaskService
from mcp_workflows.testing import FindableMemoryAdapter, FindableMemorySettings
from mcp_workflows.tools.questions import Question
from mcp_workflows.tools.tool import AnyTool
from mcp_workflows.wire.commands import Call, CallOutcome, Created, Finished, Questions, Unfinished
from tests.support.in_memory import MODERN, entered, line
from tests.support.places import quiet
from tests.support.waiting import TIMEOUT

pytestmark = pytest.mark.anyio

HOST = "claude-code"  # it waits a minute
ADA = Principal(id="ada", client="chat")
NOON = datetime(2026, 1, 1, 12, 3, 59, tzinfo=UTC)
SURE = Question.model_validate({"message": "Sure?"})
CLOSED = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
TOOLS: Sequence[AnyTool] = [
    Tool(name="forever", engine="memory", workflow="forever"),
    Tool(name="echo", engine="memory", workflow="echo"),
    Tool(name="closed", engine="memory", workflow="forever", input=CLOSED),
    Tool(name="each", engine="memory", workflow="forever", dedupe="off"),
    Tool(name="leaving", engine="memory", workflow="forever", cancel_on_disconnect=True),
    Tool(name="confirmed", engine="memory", workflow="forever", questions={"confirm": SURE}),
    Tool(name="of_team", engine="memory", workflow="forever", args=["{{principal.claims.team}}"]),
    Tool(name="waiting", engine="memory", workflow="forever", tasks=TaskSupport.WAIT),
    Tool(name="stuck", engine="memory", workflow="ask", tasks=TaskSupport.WAIT),
    Tool(name="asking", engine="memory", workflow="ask"),
    Tool(name="patient", engine="memory", workflow="forever", wait=timedelta(minutes=2)),
]


@dataclass(slots=True)
class Clock:
    now: datetime = NOON

    def __call__(self) -> datetime:
        return self.now


@dataclass(slots=True, kw_only=True)
class Replica:
    """One process of those that share the folder's store and engine."""

    service: TaskService
    store: Store
    engine: MemoryAdapter
    clock: Clock
    calls: anyio.abc.TaskGroup

    async def call(
        self, tool: str = "forever", *, late: bool = False, who: Principal = ADA, **more: Any
    ) -> CallOutcome:
        """One call; `late`: it came so long ago that its host has given up."""
        began = anyio.current_time() - (90 if late else 0)
        settings: dict[str, Any] = {
            "began": began,
            "host": HOST,
            "arguments": {"a": 1},
            "takes_tasks": True,
            "takes_questions": True,
            **more,
        }
        return await self.service.call(Call(tool=tool, **settings), who, quiet)

    async def task(self, tool: str = "forever", **more: Any) -> str:
        """The id of the call's task."""
        outcome = await self.call(tool, **more)
        assert isinstance(outcome, Created | Unfinished), outcome
        return outcome.task.task_id

    def open(self, tool: str = "forever", **more: Any) -> anyio.CancelScope:
        """Begin a call that waits; cancel it to let its caller leave."""
        scope = anyio.CancelScope()

        async def wait() -> None:
            with scope:
                await self.call(tool, takes_tasks=False, **more)

        self.calls.start_soon(wait)
        return scope

    async def rows(self, count: int, *, marked: int | None = None) -> Sequence[Task]:
        """All rows, once there are so many, and so many of them marked."""
        with anyio.fail_after(TIMEOUT):
            while True:
                rows = await self.store.list_all(TaskFilter(live_only=False))
                if len(rows) == count and (marked is None or sum(row.unanswered is not None for row in rows) == marked):
                    return rows
                await anyio.sleep(0.01)


@asynccontextmanager
async def replica(
    folder: Path, clock: Clock | None = None, engine: MemoryAdapter | None = None
) -> AsyncGenerator[Replica]:
    clock = clock or Clock()
    engine = engine or MemoryAdapter(MemorySettings(name=str(folder)))
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(f"sqlite:///{folder}/tasks.db"))
        engines = await stack.enter_async_context(Engines({"memory": engine}))
        executions = Executions(store=store, engines=engines, retention=timedelta(days=90), clock=clock)
        await stack.enter_async_context(executions)
        service = TaskService(
            tools={tool.name: tool for tool in TOOLS}, executions=executions, retention=timedelta(days=90)
        )
        calls = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(calls.cancel_scope.cancel)
        yield Replica(service=service, store=store, engine=engine, clock=clock, calls=calls)


# --- an abandoned call is continued, once


async def test_a_call_whose_caller_left_is_continued_by_the_same_call_and_then_no_more(tmp_path: Path) -> None:
    async with replica(tmp_path) as here:
        left = here.open()
        (row,) = await here.rows(1)
        left.cancel()
        await here.rows(1, marked=1)
        outcome = await here.call()
        assert isinstance(outcome, Created)
        assert outcome.task.task_id == row.id
        assert (outcome.task.message or "").startswith("this continues your call of 12:03 UTC; ")
        (row,) = await here.rows(1)
        assert row.unanswered is None
        assert await here.task() != row.id
        assert len(here.engine.handles) == 2


async def test_a_result_that_was_written_after_the_hosts_limit_is_given_again_and_says_so(tmp_path: Path) -> None:
    async with replica(tmp_path) as here:
        more: dict[str, Any] = {"tool": "echo", "takes_tasks": False}
        await here.call(late=True, **more)
        again, anew = await here.call(**more), await here.call(**more)
        assert isinstance(again, Finished)
        assert isinstance(anew, Finished)
        note = {"type": "text", "text": "Note: this continues your call of 12:02 UTC, and nothing was started again."}
        content = cast("list[Any]", anew.result["content"])
        assert again.result == {**anew.result, "content": [*content, note]}
        assert len(here.engine.handles) == 2


async def test_the_wait_of_a_tool_says_that_its_hosts_wait_longer(tmp_path: Path) -> None:
    async with replica(tmp_path) as here:
        assert await here.task("patient", late=True, host="mcp") != await here.task("patient", host="mcp")
        assert await here.task("patient", late=True) == await here.task("patient")  # of a host in the table
        assert len(here.engine.handles) == 3


async def test_a_repeated_call_that_is_abandoned_too_is_continued_in_turn(tmp_path: Path) -> None:
    async with replica(tmp_path) as here:
        first = await here.task(late=True)
        for _ in range(3):
            here.clock.now += MARKED_AFTER
            assert await here.task(late=True) == first
        assert len(here.engine.handles) == 1


async def test_another_process_continues_it_also_after_a_crash(tmp_path: Path) -> None:
    async with replica(tmp_path) as here, replica(tmp_path) as other:
        first = await here.task(late=True)
        assert await other.task() == first
    async with replica(tmp_path) as here:
        second = await here.task(late=True)
        assert second != first
    async with replica(tmp_path) as anew:
        assert await anew.task() == second


async def test_a_second_call_joins_one_that_is_open_and_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_workflows.tasks.repeated_calls.MARKED_AFTER", timedelta(milliseconds=100))
    async with replica(tmp_path) as here:
        first = here.open()
        (row,) = await here.rows(1, marked=1)
        assert await here.task() == row.id
        first.cancel()  # it has lost the task to the second call, which was answered
        assert await here.task() != row.id


async def test_parallel_calls_stay_two_and_so_do_their_repeats(tmp_path: Path) -> None:
    async with replica(tmp_path) as here, replica(tmp_path, here.clock) as other:
        calls = [here.open(), other.open()]
        rows = await here.rows(2)
        for call in calls:
            call.cancel()
        await here.rows(2, marked=2)
        repeated = [here.open(), other.open(), here.open()]
        await here.rows(3, marked=2)
        for call in repeated[:2]:
            call.cancel()
        here.clock.now += MARKED_AFTER
        assert {await here.task(), await other.task()} == {row.id for row in rows}


# --- what is never continued


@pytest.mark.parametrize(
    "more",
    [
        {"who": ANONYMOUS},
        {"idempotency_key": "k"},
        {"host_key": ("taskId", "t-1")},
        {"tool": "each"},
        {"tool": "leaving"},
    ],
)
async def test_calls_that_take_no_part_are_never_marked(tmp_path: Path, more: dict[str, Any]) -> None:
    async with replica(tmp_path) as here:
        await here.call(late=True, **more)
        (row,) = await here.rows(1)
        assert row.unanswered is None


@pytest.mark.parametrize(
    "other",
    [
        {"arguments": {"a": 2}},
        {"who": Principal(id="ben", client="chat")},
        {"who": Principal(id="ada", client="code")},
        {"host": "zed"},
        {"idempotency_key": "k"},
        {"tool": "echo"},
        {"who": ANONYMOUS},
    ],
)
async def test_a_call_that_differs_is_another_one(tmp_path: Path, other: dict[str, Any]) -> None:
    async with replica(tmp_path) as here:
        first = await here.task(late=True)
        assert await here.task(**other) != first
        assert await here.task() == first


async def test_the_form_in_which_a_host_sends_the_arguments_makes_no_other_call(tmp_path: Path) -> None:
    async with replica(tmp_path) as here:
        first = await here.task("closed", late=True, arguments={"a": "1", "toolCallId": "call_1"})
        assert await here.task("closed", arguments={"toolCallId": "call_2", "a": 1}) == first


async def test_the_callers_of_stdio_are_identified(tmp_path: Path) -> None:
    async with replica(tmp_path) as here:
        assert await here.task(late=True, who=LOCAL) == await here.task(who=LOCAL)


async def test_a_cancelled_task_an_old_one_and_one_of_a_fast_clock_are_not_continued(tmp_path: Path) -> None:
    async with replica(tmp_path) as here:
        cancelled = await here.task(late=True)
        await here.service.cancel(cancelled, ADA)
        old = await here.task(late=True)
        assert old != cancelled
        here.clock.now += KEPT
        third = await here.task(late=True)
        assert third not in {cancelled, old}
        here.clock.now -= timedelta(minutes=30)
        assert await here.task() not in {cancelled, old, third}


# --- questions, guarantees


async def test_a_person_who_said_yes_is_not_asked_again(tmp_path: Path) -> None:
    async with replica(tmp_path) as here:
        asked = await here.call("confirmed")
        assert isinstance(asked, Questions)
        yes = {"confirm": {"action": "accept", "content": {"confirm": True}}}
        started = await here.task("confirmed", late=True, state=asked.state, responses=yes)
        assert await here.task("confirmed") == started
        assert isinstance(await here.call("confirmed"), Questions)


async def test_an_answer_of_an_abandoned_round_leaves_the_task_to_the_next_call(tmp_path: Path) -> None:
    async with replica(tmp_path) as here:
        asked = await here.call("asking", takes_tasks=False)
        assert isinstance(asked, Questions)
        (row,) = await here.rows(1, marked=0)
        await here.call("asking", late=True, takes_tasks=False, state=asked.state, responses={})
        await here.rows(1, marked=1)
        assert await here.task("asking") == row.id


class Unsure(FindableMemoryAdapter):
    """An engine that loses its first reply, takes no key and cannot be searched."""

    starts = StartGuarantee.ONCE
    is_sure = False

    async def start(self, start: Start) -> str:
        handle = await super().start(start)
        if self.is_sure:
            return handle
        self.is_sure = True
        raise EngineUnavailable("the connection broke")


async def test_an_unknown_outcome_is_told_to_the_repeated_call(tmp_path: Path) -> None:
    engine = Unsure(FindableMemorySettings(name=str(tmp_path)))
    async with replica(tmp_path, engine=engine) as here:
        more: dict[str, Any] = {"takes_tasks": False}
        await here.call(late=True, **more)
        again = await here.call(**more)
        assert isinstance(again, Finished)
        assert "outcome unknown" in str(again.result)
        assert "this continues your call" in str(again.result)
        assert len(engine.handles) == 1


# --- what may go wrong


class Silent(MemoryAdapter):
    """An engine that starts, and then says nothing."""

    async def describe(self, ref: Ref) -> Execution:
        raise EngineUnavailable("nobody there")


async def test_calls_to_an_engine_that_gives_no_answer_are_one_execution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_workflows.tasks.service.NO_ANSWER_LIMIT", 0.1)
    engine = Silent(MemorySettings(name=str(tmp_path)))
    async with replica(tmp_path, engine=engine) as here:
        for _ in range(3):
            outcome = await here.call("waiting", takes_tasks=False)
            assert isinstance(outcome, Finished)
            assert "again with the same arguments" in str(outcome.result)
            here.clock.now += MARKED_AFTER
        assert len(engine.handles) == 1


async def test_a_question_that_the_client_cannot_answer_starts_nothing_twice(tmp_path: Path) -> None:
    async with replica(tmp_path) as here:
        for _ in range(2):
            await here.call("stuck", takes_tasks=False, takes_questions=False)
            here.clock.now += MARKED_AFTER
        assert len(here.engine.handles) == 1


async def test_a_caller_that_leaves_after_the_store_was_locked_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_workflows.tasks.repeated_calls.MARKED_AFTER", timedelta(milliseconds=50))
    async with replica(tmp_path) as here:
        with closing(sqlite3.connect(tmp_path / "tasks.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            call = here.open()
            await anyio.sleep(1)  # its mark is due while there is no row yet
            other.execute("ROLLBACK")
        (row,) = await here.rows(1, marked=1)
        call.cancel()
        assert await here.task() == row.id


async def test_a_clock_that_is_behind_continues_what_another_replica_has_marked(tmp_path: Path) -> None:
    async with replica(tmp_path) as here, replica(tmp_path, Clock(NOON - timedelta(seconds=20))) as behind:
        first = await here.task(late=True)
        assert await behind.task() == first


async def test_calls_that_arrived_together_stay_two_though_their_starts_are_slow(tmp_path: Path) -> None:
    async with replica(tmp_path) as here:
        arrived = anyio.current_time() - 3
        calls = [here.open(began=arrived)]
        await here.rows(1, marked=1)
        calls.append(here.open(began=arrived))
        await here.rows(2, marked=2)
        for call in calls:
            call.cancel()


async def test_rights_are_checked_again_before_a_call_is_continued(tmp_path: Path) -> None:
    async with replica(tmp_path) as here:
        await here.task(late=True)

        async def authorize(wish: AccessRequest) -> bool:
            return wish.arguments is None

        here.service.authorization = Authorization({tool.name: tool for tool in TOOLS}, authorizer=authorize)
        outcome = await here.call()
        assert isinstance(outcome, Finished)
        assert "Not allowed" in str(outcome.result)


async def test_a_claim_that_leads_to_another_execution_makes_another_call(tmp_path: Path) -> None:
    async with replica(tmp_path) as here:
        calls = [("a", True), ("b", True), ("a", False), ("b", False)]
        ids = [
            await here.task("of_team", late=late, who=Principal(id="ada", claims={"team": team, "exp": number}))
            for number, (team, late) in enumerate(calls)
        ]
        assert ids[:2] == ids[2:]
        assert ids[0] != ids[1]


# --- on the wire


@pytest.mark.parametrize("version", [MODERN, "2025-11-25"])
async def test_a_client_that_gives_up_three_times_gets_the_result_of_one_execution(
    tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_workflows.tasks.repeated_calls.MARKED_AFTER", timedelta(milliseconds=50))
    tool = Tool(name="nap", engine="memory", workflow="sleep", args=["{{seconds}}"], wait=timedelta(seconds=30))
    engine = MemoryAdapter(MemorySettings(name=str(tmp_path)))
    async with (
        SQLiteStore(f"sqlite:///{tmp_path}/tasks.db") as rows,
        entered([tool], store=f"sqlite:///{tmp_path}/tasks.db", engine=str(tmp_path)) as (server, _),
        line(server, version) as client,
        anyio.create_task_group() as group,
    ):
        holders: set[str] = set()
        for _ in range(3):
            group.start_soon(client.call, "nap", {"seconds": 3})
            with anyio.fail_after(TIMEOUT):
                while not (new := {row.unanswered.holder for row in await rows.list_all() if row.unanswered} - holders):
                    await anyio.sleep(0.01)
            holders |= new
            await anyio.sleep(0.1)  # young no more
        texts = [block["text"] for block in (await client.tool("nap", {"seconds": 3}))["content"]]
        assert texts[0] == '{"slept":3}'
        assert "this continues your call of " in texts[-1]
        group.cancel_scope.cancel()
        assert len(engine.handles) == 1
