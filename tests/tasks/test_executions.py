"""The service and its executions with the engine in memory: never twice, never lost, one poll for all."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_workflows import TaskSupport, Tool
from mcp_workflows.access import ANONYMOUS, LOCAL, Principal
from mcp_workflows.adapter import Execution, Failure, InputRequest, Progress, Ref, Start, Status
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable, RequestError
from mcp_workflows.receiver.task_tools.calls import outcome_in_text
from mcp_workflows.store.protocol import open_store
from mcp_workflows.task import Task, observe
from mcp_workflows.tasks.executions import SETTLING, Executions, rendered_response
from mcp_workflows.tasks.service import TaskService
from mcp_workflows.testing import make_task
from mcp_workflows.units import utc_now
from mcp_workflows.wire.commands import Call, Created, Finished, TaskView
from tests.support.places import quiet
from tests.support.served import memory_tools

pytestmark = pytest.mark.anyio

RETENTION = timedelta(days=90)
ANNA = Principal(id="anna")


@asynccontextmanager
async def replica(
    folder: Path,
    *,
    call_timeout: float = 10,
    tools: list[Tool] | None = None,
    engine: MemoryAdapter | None = None,
    more: Mapping[str, MemoryAdapter] | None = None,
    options: str = "",
) -> AsyncGenerator[tuple[TaskService, MemoryAdapter]]:
    """One sidecar's inside; replicas of one folder share the store and the engine."""
    engine = engine or MemoryAdapter(MemorySettings(name=str(folder)))
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(f"sqlite:///{folder}/tasks.db{options}"))
        engines = await stack.enter_async_context(
            Engines({"memory": engine, **(more or {})}, call_timeout=call_timeout)
        )
        executions = await stack.enter_async_context(Executions(store=store, engines=engines, retention=RETENTION))
        named = {tool.name: tool for tool in tools or memory_tools()}
        yield TaskService(tools=named, executions=executions, retention=RETENTION), engine


async def call(
    service: TaskService, tool: str, *, key: str | None = None, owner: Principal = ANONYMOUS, **arguments: Any
) -> TaskView:
    command = Call(tool=tool, arguments=arguments, takes_tasks=True, takes_questions=True, idempotency_key=key)
    outcome = await service.call(command, owner, quiet)
    assert isinstance(outcome, Created), outcome
    return outcome.task


async def refused(service: TaskService, tool: str, **arguments: Any) -> str:
    command = Call(tool=tool, arguments=arguments, takes_tasks=True, takes_questions=True)
    outcome = await service.call(command, ANONYMOUS, quiet)
    assert isinstance(outcome, Finished), outcome
    assert outcome.result["isError"]
    return str(outcome.result["content"][0]["text"])


async def get(service: TaskService, task_id: str) -> TaskView:
    return await service.get(task_id, ANONYMOUS)


async def until(service: TaskService, task_id: str, *statuses: Status) -> TaskView:
    with anyio.fail_after(60):
        while (seen := await get(service, task_id)).status not in statuses:
            await anyio.sleep(0.02)
    return seen


# --- never twice


async def test_one_key_is_one_task_on_two_replicas_however_many_call_at_once(tmp_path: Path) -> None:
    async with replica(tmp_path) as (one, engine), replica(tmp_path) as (two, _):
        ids: list[str] = []

        async def ask(service: TaskService) -> None:
            ids.append((await call(service, "forever", key="k" * 32, a=1)).task_id)

        async with anyio.create_task_group() as group:
            for number in range(100):
                group.start_soon(ask, (one, two)[number % 2])
        assert len(ids) == 100
        assert len(set(ids)) == 1
        assert len(engine.handles) == 1


async def test_a_key_of_an_expired_task_starts_nothing_again(tmp_path: Path) -> None:
    tool = Tool.model_validate({"name": "brief", "engine": "memory", "workflow": "forever", "ttl": "100ms"})
    async with replica(tmp_path, tools=[tool]) as (service, engine):
        await call(service, "brief", key="k" * 32)
        with anyio.fail_after(60):
            while (await call_or_error(service, "brief", "k" * 32)) is None:
                await anyio.sleep(0.02)
        assert "expired" in str(await call_or_error(service, "brief", "k" * 32))
        assert len(engine.handles) == 1


async def call_or_error(service: TaskService, tool: str, key: str) -> RequestError | None:
    try:
        await call(service, tool, key=key)
    except RequestError as error:
        return error
    return None


# --- never lost


async def test_an_engine_that_is_down_keeps_no_other_engines_rows_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_workflows.tasks.maintenance.RECOVER_AFTER", timedelta(0))
    monkeypatch.setattr("mcp_workflows.tasks.maintenance.RECOVER_BATCH", 2)
    tools = [*memory_tools(), Tool(name="elsewhere", engine="down", workflow="forever")]
    down = MemoryAdapter(MemorySettings(name=f"{tmp_path}-down"))
    async with replica(tmp_path, call_timeout=0.1, tools=tools, more={"down": down}) as (service, engine):
        down.faults.silent = engine.faults.silent = frozenset({"start"})
        for tool in ("elsewhere", "elsewhere", "elsewhere", "forever"):
            await call(service, tool)
    async with replica(tmp_path, call_timeout=0.1, tools=tools, more={"down": down}) as (_, engine):
        engine.faults.silent = frozenset()
        with anyio.fail_after(60):
            while not engine.handles:
                await anyio.sleep(0.02)


def _accept(answer: str) -> Mapping[str, Any]:
    return {"action": "accept", "content": {"answer": answer}}


class Flaky(MemoryAdapter):
    """Its starts end as the test says: each is an error to raise, before or after it took effect, or none."""

    def __init__(self, settings: MemorySettings, *script: tuple[str, EngineError | None]) -> None:
        super().__init__(settings)
        self.script = list(script)
        self.entered = anyio.Event()
        self.go_on = anyio.Event()

    async def start(self, start: Start) -> str:
        """As scripted; then as always."""
        when, error = self.script.pop(0) if self.script else ("never", None)
        self.entered.set()
        if when == "waiting":
            await self.go_on.wait()
        if when in {"before", "waiting"} and error:
            raise error
        handle = await super().start(start)
        if error and when != "never":
            raise error
        return handle


LOST = EngineUnavailable("the reply was lost")
UNSENT = EngineUnavailable("connection refused", sent=False)
EXPIRED = EngineRefused("it does not accept our credentials")
TOO_LARGE = EngineRefused("the input is too large", final=True)


async def test_an_input_that_no_attempt_can_have_sent_closes_the_task(tmp_path: Path) -> None:
    flaky = Flaky(MemorySettings(name=str(tmp_path)), ("before", LOST), ("before", TOO_LARGE))
    async with replica(tmp_path, engine=flaky) as (service, _):
        task = await call(service, "forever")
        failed = await until(service, task.task_id, Status.FAILED)
        assert failed.error is not None
        assert "too large" in failed.error.message


@pytest.mark.parametrize("error", [UNSENT, EXPIRED, LOST, None], ids=["unreachable", "refused", "lost", "started"])
async def test_no_list_has_a_task_that_may_turn_out_to_be_none(tmp_path: Path, error: EngineError | None) -> None:
    slow = Flaky(MemorySettings(name=str(tmp_path)), ("waiting", error))
    async with replica(tmp_path, engine=slow) as (one, _), replica(tmp_path) as (two, _):
        async with anyio.create_task_group() as group:
            command = Call(tool="forever", arguments={}, takes_tasks=True, takes_questions=True)
            group.start_soon(one.call, command, ANNA, quiet)
            await slow.entered.wait()
            for service in (one, two):
                assert (await service.tasks(None, ANNA)).tasks == []
            slow.script.append(("before", LOST))  # what looks for it afterwards is not told either
            slow.go_on.set()
        for service in (one, two):
            assert len((await service.tasks(None, ANNA)).tasks) == (0 if error in {UNSENT, EXPIRED} else 1)


async def test_of_an_answer_and_its_contrary_at_once_the_engine_gets_one(tmp_path: Path) -> None:
    async with replica(tmp_path) as (service, engine):
        task = await call(service, "ask")
        await until(service, task.task_id, Status.INPUT_REQUIRED)

        async def answer(response: Mapping[str, Any]) -> None:
            await service.update(task.task_id, {"question": response}, ANONYMOUS)

        async with anyio.create_task_group() as group:
            group.start_soon(answer, _accept("yes"))
            group.start_soon(answer, {"action": "decline"})
        assert engine.calls["answer"] == 1


@pytest.mark.parametrize("verb", ["start", "describe"])
@pytest.mark.parametrize(
    ("tasks", "told"),
    [(TaskSupport.WAIT, "continues by itself"), (TaskSupport.OPTIONAL, "It continues by itself")],
)
async def test_a_plain_call_gives_up_on_an_engine_that_gives_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: TaskSupport, told: str, verb: str
) -> None:
    monkeypatch.setattr("mcp_workflows.tasks.service.NO_ANSWER_LIMIT", 0.5)
    tools = [Tool(name="forever", engine="memory", workflow="forever", tasks=tasks)]
    async with replica(tmp_path, call_timeout=0.1, tools=tools) as (service, engine):
        engine.faults.silent = frozenset({verb})
        command = Call(tool="forever", arguments={}, takes_tasks=False, takes_questions=False)
        with anyio.fail_after(60):
            outcome = outcome_in_text(await service.call(command, ANONYMOUS, quiet))
        assert isinstance(outcome, Finished)
        said = outcome.result["content"][0]["text"]
        assert ("does not answer" in said, told in said) == (True, True)


class Odd(MemoryAdapter):
    """Says what nobody can keep."""

    said: Any = None  # whatever the test wants it to say

    async def describe(self, ref: Ref) -> Execution:
        """As told; an exception is raised."""
        if isinstance(self.said, BaseException):
            raise self.said
        return self.said


def _deep(levels: int) -> Any:
    return [_deep(levels - 1)] if levels else 1


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (None, Status.RUNNING),
        (Execution(status=Status.RUNNING, message=5), Status.RUNNING),  # pyright: ignore[reportArgumentType]  # that is the defect
        (Execution(status=Status.RUNNING, progress=Progress(value=float("nan"))), Status.RUNNING),
        (Execution(status=Status.RUNNING, progress=Progress(value=10**400)), Status.RUNNING),
        (Execution(status=Status.FAILED, failure=Failure(text="no", code=10**5000)), Status.FAILED),
        (Execution(status=Status.SUCCEEDED, output=object()), Status.FAILED),
        (Execution(status=Status.SUCCEEDED, output=_deep(300)), Status.FAILED),
        (Execution(status=Status.FAILED, failure=Failure(text="no", data=_deep(300))), Status.FAILED),
        (Execution(status=Status.SUCCEEDED, output={"\ud800": "\udfff"}), Status.SUCCEEDED),
        (asyncio.CancelledError(), Status.RUNNING),
        (ExceptionGroup("several", [KeyError("x")]), Status.RUNNING),
        (RecursionError(), Status.RUNNING),
    ],
    ids=[
        "nothing",
        "a wrong message",
        "no number",
        "too large a number",
        "too large a code",
        "no JSON",
        "too deep",
        "too deep beside a failure",
        "half characters",
        "cancelled",
        "group",
        "loop",
    ],
)
async def test_an_adapter_that_says_what_cannot_be_kept_hurts_only_its_own_task(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, said: Any, status: Status
) -> None:
    odd = Odd(MemorySettings(name=f"{tmp_path}-odd"))
    tools = [*memory_tools(), Tool(name="odd", engine="odd", workflow="forever")]
    async with replica(tmp_path, tools=tools, more={"odd": odd}) as (service, _):
        with caplog.at_level(logging.CRITICAL):
            odd.said = said
            task = await call(service, "odd")
            for _ in range(2):
                assert (await until(service, task.task_id, status)).status is status
            other = await call(service, "echo", a=1)
            assert (await until(service, other.task_id, Status.SUCCEEDED)).result


async def test_a_store_that_is_locked_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_workflows.tasks.maintenance.RECOVER_AFTER", timedelta(0))
    monkeypatch.setattr("mcp_workflows.tasks.maintenance.RECOVER_EVERY", 0.05)
    async with replica(tmp_path, call_timeout=0.1, options="?busy_timeout_ms=50") as (service, engine):
        engine.faults.silent = frozenset({"start"})
        await call(service, "forever")
        engine.faults.silent = frozenset()
        lock = sqlite3.connect(tmp_path / "tasks.db", isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        await anyio.sleep(0.5)  # time for housekeeping to run into it, more than once
        lock.execute("ROLLBACK")
        lock.close()
        with anyio.fail_after(60):
            while not engine.handles:
                await anyio.sleep(0.02)
        task = await call(service, "echo", a=1)
        assert (await until(service, task.task_id, Status.SUCCEEDED)).result


# --- an engine that is down or slow


@pytest.mark.parametrize("fault", ["unavailable", "silent"])
async def test_an_engine_that_is_down_or_slow_never_ends_a_task(tmp_path: Path, fault: str) -> None:
    async with replica(tmp_path, call_timeout=0.2) as (service, engine):
        task = await call(service, "ask")
        asked = await until(service, task.task_id, Status.INPUT_REQUIRED)
        setattr(engine.faults, fault, frozenset({"start", "describe", "answer", "cancel"}))
        with anyio.fail_after(60):
            while "engine memory" not in str((seen := await get(service, task.task_id)).message):
                await anyio.sleep(0.02)
        assert seen.status is Status.INPUT_REQUIRED
        assert seen.requests == asked.requests
        with pytest.raises(RequestError, match="did not accept the answer"):
            await service.update(task.task_id, {"question": _accept("a")}, ANONYMOUS)
        setattr(engine.faults, fault, frozenset())
        await service.update(task.task_id, {"question": _accept("a")}, ANONYMOUS)
        assert (await until(service, task.task_id, Status.SUCCEEDED)).result


@pytest.mark.parametrize("late", [Execution(status=Status.RUNNING, message="old"), Execution(status=Status.FAILED)])
async def test_what_was_observed_before_another_replicas_news_changes_nothing_but_an_end_counts(
    tmp_path: Path, late: Execution
) -> None:
    answered, go_on, news = anyio.Event(), anyio.Event(), Execution(status=Status.RUNNING, message="new")

    async def describe(_: Ref) -> Execution:
        if answered.is_set():
            raise EngineUnavailable("it is asked once more")
        answered.set()
        await go_on.wait()  # the process stands still
        return late

    async with replica(tmp_path) as (service, engine), open_store(f"sqlite:///{tmp_path}/tasks.db") as others:
        task_id = (await call(service, "forever")).task_id
        await get(service, task_id)
        await anyio.sleep(0.3)  # the next poll is not answered from this one
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine, "describe", describe)
            async with anyio.create_task_group() as group:
                group.start_soon(get, service, task_id)
                await answered.wait()
                await others.change(task_id, ANONYMOUS.id, lambda row: observe(row, news, utc_now()))
                go_on.set()
        row = await others.get(task_id, ANONYMOUS.id)
    assert row is not None
    assert row.execution == (late if late.status is Status.FAILED else news)


async def test_a_terminal_outcome_never_changes_and_is_never_asked_for_again(tmp_path: Path) -> None:
    async with replica(tmp_path) as (service, engine):
        task = await call(service, "echo", a=1)
        done = await until(service, task.task_id, Status.SUCCEEDED)
        looks = engine.calls["describe"]
        engine.forget(engine.handles[0])
        assert await get(service, task.task_id) == done
        assert engine.calls["describe"] == looks


async def test_an_execution_its_engine_has_forgotten_is_an_error_not_a_mystery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replica(tmp_path) as (service, engine):
        task = await call(service, "forever")
        engine.forget(engine.handles[0])
        seen = await get(service, task.task_id)
        assert (seen.status, seen.error) == (Status.RUNNING, None)  # it may not show it yet
        monkeypatch.setattr("mcp_workflows.tasks.executions.SETTLING", timedelta(0))
        gone = await until(service, task.task_id, Status.FAILED)
        assert gone.error is not None
        assert "no longer has this execution" in gone.error.message


async def test_an_execution_that_was_started_late_may_not_show_yet(tmp_path: Path) -> None:
    async with replica(tmp_path) as (service, engine):
        task = await call(service, "forever")
        engine.forget(engine.handles[0])
        async with open_store(f"sqlite:///{tmp_path}/tasks.db") as store:  # the engine was down when it was called
            await store.change(task.task_id, ANONYMOUS.id, lambda row: replace(row, created=row.created - 5 * SETTLING))
        seen = await get(service, task.task_id)
        assert (seen.status, seen.error) == (Status.RUNNING, None)


# --- one look for all


async def test_pollers_waiters_and_listeners_of_one_task_share_their_looks(tmp_path: Path) -> None:
    async with replica(tmp_path) as (service, engine):
        task = await call(service, "sleep", seconds=1)
        rows = [row for _ in range(50) for row in await _listen(service, task.task_id)]
        ended: list[TaskView] = []

        async def hear(seen: TaskView) -> None:
            if seen.status is Status.SUCCEEDED:
                ended.append(seen)

        async with anyio.create_task_group() as group:
            for row in rows:
                group.start_soon(service.follow, row, hear, ANONYMOUS)
        assert len(ended) == 50
        assert engine.calls["describe"] <= 12  # a second at one look each 250 ms, and a little


async def _listen(service: TaskService, task_id: str) -> list[Task]:
    return list(await service.listen([task_id], ANONYMOUS))


# --- responses of people, as adapters get them


@pytest.mark.parametrize("action", ["accept", "decline", "cancel"])
@pytest.mark.parametrize("declinable", [None, True, False])
async def test_a_question_that_is_put_aside_stays_open_unless_the_workflow_asks_by_itself(
    action: str, declinable: bool | None
) -> None:
    params: dict[str, Any] = {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}}
    request = InputRequest(method="elicitation/create", params=params, declinable=declinable)
    task = make_task(execution=Execution(status=Status.INPUT_REQUIRED, requests={"q": request}))
    stays_open = action == "cancel" and declinable is not None
    sent = rendered_response(task, "q", {"action": action}, LOCAL)
    assert sent == (None if stays_open else {"action": action})
