"""Plain functions as an adapter: what they may return and raise, and the threads they run in."""

from __future__ import annotations

import sqlite3
import threading
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel

import mcp_workflows.functions
from mcp_workflows import Tool, attach, from_functions
from mcp_workflows.adapter import JSON, Adapter, Execution, InputRequest, Ref, Start, StartGuarantee, Status
from mcp_workflows.engines import Engines
from mcp_workflows.errors import (
    ConfigError,
    EngineError,
    EngineRefused,
    EngineUnavailable,
    ExecutionNotFound,
    StartConflict,
)
from mcp_workflows.functions import FunctionsAdapter
from mcp_workflows.testing import AdapterContract, MemoryAdapter, MemorySettings, Role, Subject
from tests.served import peer, serving

pytestmark = pytest.mark.anyio

PATIENCE = 60
REF = Ref(workflow="press", handle="h")
START = Start(workflow="press", arguments={}, key="k", created=datetime.now(UTC))


class TestAsyncFunctions(AdapterContract):
    """Async functions in front of a whole engine: all laws, no gaps."""

    @pytest.fixture
    def subject(self) -> Subject:
        settings = MemorySettings(name=uuid.uuid4().hex)

        def of(engine: MemoryAdapter) -> Adapter:
            return from_functions(
                start=engine.start,
                describe=engine.describe,
                cancel=engine.cancel,
                answer=engine.answer,
                starts=StartGuarantee.KEYED,
            )

        return Subject(
            new_adapter=lambda: of(MemoryAdapter(settings)),
            finishes=Role(workflow="echo", arguments=[{"text": "hi"}]),
            output={"text": "hi"},
            other_arguments=[{"text": "ho"}],
            fails=Role(workflow="fail"),
            failure="declined",
            endless=Role(workflow="forever"),
            asks=Role(workflow="ask"),
            asks_two=Role(workflow="ask_two"),
            content={"answer": "yes"},
            unreachable=lambda: of(MemoryAdapter(MemorySettings(name=uuid.uuid4().hex, unreachable=True))),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Press:
    """An engine with blocking calls: a table in a database. It asks nobody anything."""

    path: Path

    def start(self, start: Start) -> str:
        status = {"echo": Status.SUCCEEDED, "fail": Status.FAILED}.get(start.workflow, Status.RUNNING)
        order = (start.workflow, str(start.arguments))
        self._do("insert or ignore into runs values (?, ?, ?, ?)", start.key, *order, status)
        if self._do("select workflow, arguments from runs where key = ?", start.key) != [order]:
            raise FileExistsError(start.key)
        return start.key

    def describe(self, ref: Ref) -> Execution | Status:
        found = self._do("select status from runs where key = ?", ref.handle)
        status = Status(found[0][0])  # an IndexError if there is none
        return Execution(status=status, output="hi") if status is Status.SUCCEEDED else status

    def cancel(self, ref: Ref) -> None:
        self._do("update runs set status = 'cancelled' where key = ? and status = 'running'", ref.handle)

    def _do(self, sql: str, *given: str) -> Sequence[Any]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as database:
            database.execute("create table if not exists runs (key primary key, workflow, arguments, status)")
            return database.execute(sql, given).fetchall()

    def adapter(self) -> Adapter:
        return from_functions(
            start=self.start,
            describe=self.describe,
            cancel=self.cancel,
            starts=StartGuarantee.KEYED,
            errors={
                FileExistsError: StartConflict,
                IndexError: ExecutionNotFound,
                sqlite3.OperationalError: EngineUnavailable,
            },
        )


class TestSyncFunctions(AdapterContract):
    """Blocking functions, a table of errors, no questions: all laws but those of answering."""

    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        return Subject(
            new_adapter=Press(path=tmp_path / "press.db").adapter,
            finishes=Role(workflow="echo", arguments={"text": "hi"}),
            output="hi",
            other_arguments={"text": "ho"},
            fails=Role(workflow="fail"),
            failure="failed",
            endless=Role(workflow="press"),
            unreachable=Press(path=tmp_path / "nowhere" / "press.db").adapter,
        )


def nothing(ref: Ref) -> None:
    """A cancel that does nothing."""


def key(start: Start) -> str:
    return start.key


def running(ref: Ref) -> Status:
    return Status.RUNNING


def asking(ref: Ref) -> Execution:
    question = InputRequest(method="elicitation/create", params={"message": "?", "requestedSchema": {}})
    return Execution(status=Status.INPUT_REQUIRED, requests={"q": question})


def raising(error: Exception) -> Callable[[Ref], Status]:
    def describe(ref: Ref) -> Status:
        raise error

    return describe


async def described(describe: Callable[[Ref], Any], errors: Mapping[type[Exception], type[EngineError]]) -> Execution:
    async with from_functions(start=key, describe=describe, cancel=nothing, errors=errors) as adapter:
        return await adapter.describe(REF)


@pytest.mark.parametrize("status", [*Status, "running"])
async def test_a_status_is_enough_of_a_look(status: str) -> None:
    seen = await described(lambda ref: status, {})
    assert (seen.status, seen.execution_id, seen.failure is not None) == (status, "h", status == "failed")


async def test_an_execution_passes_as_it_is() -> None:
    whole = Execution(status=Status.RUNNING, message="step 2", execution_id="run-7")
    assert await described(lambda ref: whole, {}) == whole


@pytest.mark.parametrize(("wrong", "told"), [(None, "returned nothing"), (7, "returned a int"), ("done", "a str")])
async def test_what_is_no_look_ends_no_task_and_says_so(wrong: object, told: str) -> None:
    with pytest.raises(EngineUnavailable, match=f"{told}.*must return an Execution or a Status"):
        await described(lambda ref: wrong, {})


@pytest.mark.parametrize("wrong", [None, 7, ""])
async def test_a_start_without_a_handle_says_so(wrong: Any) -> None:
    async with from_functions(start=lambda start: wrong, describe=running, cancel=nothing) as adapter:
        with pytest.raises(EngineUnavailable, match="must return the handle") as error:
            await adapter.start(START)
    assert error.value.sent


@pytest.mark.parametrize(
    ("raised", "crosses"),
    [
        (EngineRefused("no"), EngineRefused),
        (ConnectionRefusedError("s3cret"), EngineUnavailable),
        (TimeoutError("s3cret"), EngineUnavailable),
        (KeyError("s3cret"), ExecutionNotFound),
        (FileNotFoundError("s3cret"), ExecutionNotFound),
    ],
    ids=repr,
)
async def test_a_foreign_error_is_translated_by_the_table(raised: Exception, crosses: type[EngineError]) -> None:
    with pytest.raises(crosses) as error:
        await described(raising(raised), {FileNotFoundError: ExecutionNotFound, LookupError: ExecutionNotFound})
    assert "s3cret" not in str(error.value)
    assert getattr(error.value, "sent", True)  # whether anything was sent, only the function can know


async def test_a_defect_is_logged_with_its_trace_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    adapter = from_functions(start=key, describe=raising(ZeroDivisionError("1/0")), cancel=nothing)
    async with Engines({"acme": adapter}) as engines:
        with pytest.raises(EngineUnavailable, match="ZeroDivisionError"):
            async with engines.calling("acme") as acme:
                await acme.describe(REF)
    assert "Traceback" in caplog.text


async def test_an_answer_without_a_function_is_refused_only_if_it_was_asked_for() -> None:
    async with from_functions(start=key, describe=asking, cancel=nothing) as adapter:
        await adapter.answer(REF, {"nobody-asked": {"action": "accept"}})
        with pytest.raises(EngineRefused, match="give `answer` to from_functions"):
            await adapter.answer(REF, {"q": {"action": "accept"}})


async def test_objects_and_methods_may_be_async_too() -> None:
    class Look:
        async def __call__(self, ref: Ref) -> Status:
            await anyio.lowlevel.checkpoint()
            return Status.RUNNING

    assert (await described(Look(), {})).status is Status.RUNNING
    assert (await described(lambda ref: Look()(ref), {})).status is Status.RUNNING


class Slow:
    """A function that blocks until it is let go, and counts how many are in it at once."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.let_go = threading.Event()
        self.inside = 0
        self.most = 0
        self._lock = threading.Lock()

    def __call__(self, start: Start) -> str:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        self.entered.release()
        assert self.let_go.wait(PATIENCE)
        with self._lock:
            self.inside -= 1
        return f"handle-of-{start.key}"

    async def until_entered(self, times: int = 1) -> None:
        for _ in range(times):
            assert await anyio.to_thread.run_sync(self.entered.acquire, True, PATIENCE)


@asynccontextmanager
async def slow_adapter(
    slow: Slow, starts: StartGuarantee, threads: int = 8, describe: Callable[[Ref], Status] = running
) -> AsyncGenerator[Adapter]:
    made = from_functions(start=slow, describe=describe, cancel=nothing, starts=starts, threads=threads)
    async with made as adapter:
        try:
            yield adapter
        finally:
            slow.let_go.set()


async def test_blocking_functions_hold_up_nothing_and_stay_within_their_threads() -> None:
    slow, handles = Slow(), list[str]()

    async def begin(adapter: Adapter) -> None:
        handles.append(await adapter.start(START))

    async with slow_adapter(slow, StartGuarantee.KEYED, threads=2) as adapter, anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(begin, adapter)
        await slow.until_entered(2)
        assert handles == []
        slow.let_go.set()
    assert (handles, slow.most) == (["handle-of-k"] * 5, 2)


async def test_a_start_that_must_not_be_repeated_is_not_lost_when_time_is_up() -> None:
    slow, handles = Slow(), list[str]()

    async def begin(adapter: Adapter) -> None:
        async with Engines({"acme": adapter}, patience=0.05) as engines, engines.calling("acme") as acme:
            with anyio.CancelScope() as scope:
                canceller.append(scope)
                handles.append(await acme.start(START))

    canceller: list[anyio.CancelScope] = []
    adapter = from_functions(start=slow, describe=running, cancel=nothing)
    async with anyio.create_task_group() as group:
        group.start_soon(begin, adapter)
        await slow.until_entered()
        canceller[0].cancel()
        await anyio.wait_all_tasks_blocked()
        slow.let_go.set()
    assert handles == ["handle-of-k"]


async def test_a_start_that_may_be_repeated_is_given_up_in_time_and_keeps_its_thread() -> None:
    slow = Slow()
    async with slow_adapter(slow, StartGuarantee.KEYED, threads=1) as adapter:
        with anyio.move_on_after(PATIENCE) as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(adapter.start, START)
                await slow.until_entered()
                group.cancel_scope.cancel()
        assert not scope.cancelled_caught
        with anyio.move_on_after(0.05) as waiting:  # the only thread is still in the start that nobody waits for
            await adapter.describe(REF)
        assert waiting.cancelled_caught
        slow.let_go.set()
        with anyio.fail_after(PATIENCE):
            assert (await adapter.describe(REF)).status is Status.RUNNING


async def test_a_start_that_found_no_free_thread_was_certainly_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_workflows.functions, "TURN", 0.05)
    slow = Slow()
    async with slow_adapter(slow, StartGuarantee.ONCE, threads=1) as adapter, anyio.create_task_group() as group:
        group.start_soon(adapter.start, START)
        await slow.until_entered()
        with pytest.raises(EngineUnavailable, match=r"all 1 threads .* are busy") as error:
            await adapter.start(START)
        assert not error.value.sent
        slow.let_go.set()


async def test_a_start_that_never_returns_is_given_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_workflows.functions, "KEPT", 0.05)
    async with slow_adapter(Slow(), StartGuarantee.ONCE) as adapter:
        with pytest.raises(EngineUnavailable, match="nobody knows") as error:
            await adapter.start(START)
    assert error.value.sent


class Bounds(BaseModel):
    """Settings and options of an adapter of functions."""

    copies: int = 1


class PressAdapter(FunctionsAdapter):
    """What an entry point would name."""

    Settings = Bounds
    Options = Bounds
    starts = StartGuarantee.KEYED

    def __init__(self, settings: Bounds) -> None:
        super().__init__(start=key, describe=lambda ref: str_of(settings, ref), cancel=nothing)


class WorkshopAdapter(FunctionsAdapter):
    """Its functions are methods, with the names that come to mind."""

    def __init__(self) -> None:
        super().__init__(start=self._start, describe=self._describe, cancel=self._cancel)
        self._threads = "of its own"

    def _start(self, start: Start) -> str:
        return self._call(f"/orders/{start.key}")

    def _describe(self, ref: Ref) -> Execution:
        return Execution(status=Status.RUNNING, message=self._call(ref.handle))

    def _cancel(self, ref: Ref) -> None:
        self._call(ref.handle)

    def _call(self, path: str) -> str:
        return path


async def test_a_subclass_may_name_its_own_methods_as_it_likes() -> None:
    async with WorkshopAdapter() as adapter:
        assert await adapter.start(START) == "/orders/k"
        assert (await adapter.describe(REF)).message == "h"
        await adapter.cancel(REF)


def str_of(settings: Bounds, ref: Ref) -> Execution:
    return Execution(status=Status.SUCCEEDED, output=f"{settings.copies} copies")


async def test_a_subclass_has_settings_and_can_be_an_entry_point() -> None:
    async with PressAdapter(Bounds(copies=3)) as adapter:
        assert (await adapter.describe(REF)).output == "3 copies"
    async with adapter:  # entered again, as a server may be
        assert (await adapter.describe(REF)).output == "3 copies"


async def test_they_serve_tools_of_an_ordinary_server(tmp_path: Path) -> None:
    press = Press(path=tmp_path / "press.db")

    @asynccontextmanager
    async def lifespan(_: MCPServer[Any]) -> AsyncGenerator[None]:
        async with workflows:
            yield

    server: MCPServer[Any] = MCPServer("own", lifespan=lifespan)
    workflows = attach(
        server,
        tools=[Tool(name="say", engine="press", workflow="echo"), Tool(name="print", engine="press", workflow="press")],
        engines={"press": press.adapter()},
        store=f"sqlite:///{tmp_path}/tasks.db",
    )
    async with serving(server.streamable_http_app()) as url, peer(url) as client:
        task: JSON = (await client.call("say", {})).result
        assert (await client.until(task["taskId"]))["result"]["content"][0]["text"] == "hi"
        endless: JSON = (await client.call("print", {})).result
        await client.send("tasks/cancel", {"taskId": endless["taskId"]})
        assert (await client.until(endless["taskId"], "cancelled"))["status"] == "cancelled"


def test_options_nobody_declared_are_refused() -> None:
    tool = Tool(name="say", engine="press", workflow="echo", options={"copies": 2})
    with pytest.raises(ConfigError, match="copies"):
        attach(
            MCPServer("own"),
            tools=[tool],
            engines={"press": from_functions(start=key, describe=running, cancel=nothing)},
        )
    known = from_functions(start=key, describe=running, cancel=nothing, options=Bounds)
    assert attach(MCPServer("own"), tools=[tool], engines={"press": known})
