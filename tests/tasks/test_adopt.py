"""`kind: watch`: a task of an execution that somebody else started, and nothing learned about any other."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest

from mcp_workflows import Tool, WatchTool
from mcp_workflows.access import ANONYMOUS, Principal
from mcp_workflows.adapter import Finding, Ref, Start, Status
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import EngineRefused, RequestError
from mcp_workflows.sidecar.checks import check
from mcp_workflows.sidecar.operator import Operator
from mcp_workflows.store.protocol import Store, open_store
from mcp_workflows.tasks.executions import Executions
from mcp_workflows.tasks.service import TaskService
from mcp_workflows.tools.compatibility import find_incompatibilities
from mcp_workflows.tools.questions import GateQuestion
from mcp_workflows.tools.tool import AnyTool
from mcp_workflows.wire.commands import (
    Call,
    CallOutcome,
    Created,
    Finished,
    TaskView,
)
from tests.support.config_files import ENGINES, load, problems
from tests.support.places import quiet

pytestmark = pytest.mark.anyio

ANN, BEN = Principal(id="ann"), Principal(id="ben")
DAY = timedelta(days=1)
YES: Mapping[str, Any] = {"action": "accept", "content": {"ok": True}}
OK: Mapping[str, Any] = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}


def watch(name: str, workflow: str, **settings: Any) -> WatchTool:
    return WatchTool.model_validate({"name": name, "engine": "memory", "workflow": workflow, **settings})


def gate() -> GateQuestion:
    sent = ["{{answer.ok}}", "{{args.execution_id}}"]
    return GateQuestion(when={"after_seconds": 0}, message="Close {{args.execution_id}}?", schema=dict(OK), send=sent)


TOOLS = (
    watch("billing", "forever"),
    watch("mine", "forever", allow_cancel=True, cancel_on_disconnect=True),
    watch("nap", "sleep"),
    watch("patient", "sleep", adaptive="5s"),
    watch("impatient", "forever", wait="50ms"),
    watch("only_tasks", "forever", tasks="required"),
    watch("no_tasks", "sleep", tasks="forbidden"),
    watch("asking", "ask"),
    watch("answering", "ask", allow_answer=True),
    watch("closing", "gated", questions={"close": gate()}, allow_answer=True),
    watch("seeing", "gated", questions={"close": gate()}),
    Tool(name="start", engine="memory", workflow="forever"),
)


class Clock:
    """A clock that is set forward."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What a sidecar has inside, and the engine behind it."""

    service: TaskService
    engine: MemoryAdapter
    store: Store
    operator: Operator
    clock: Clock

    async def running(self, workflow: str, argument: Any = None) -> str:
        """The id of an execution that was started elsewhere."""
        plan = Start(workflow=workflow, arguments=[argument], key=uuid.uuid4().hex, created=datetime.now(UTC))
        return await self.engine.start(plan)

    async def call(self, tool: str, execution_id: str, who: Principal = ANN, **more: Any) -> CallOutcome:
        settings: dict[str, Any] = {"takes_tasks": True, "takes_questions": True, **more}
        command = Call(tool=tool, arguments={"execution_id": execution_id}, **settings)
        return await self.service.call(command, who, quiet)

    async def watched(self, tool: str, execution_id: str, who: Principal = ANN, **more: Any) -> TaskView:
        outcome = await self.call(tool, execution_id, who, **more)
        assert isinstance(outcome, Created), outcome
        return outcome.task

    async def refused(self, tool: str, execution_id: str, who: Principal = ANN) -> str:
        outcome = await self.call(tool, execution_id, who)
        assert isinstance(outcome, Finished), outcome
        assert outcome.result["isError"]
        return outcome.result["content"][0]["text"]

    async def get(self, task: TaskView, who: Principal = ANN) -> TaskView:
        return await self.service.get(task.task_id, who)

    async def until(self, task: TaskView, *statuses: Status) -> TaskView:
        with anyio.fail_after(60):
            while (seen := await self.get(task)).status not in statuses:
                await anyio.sleep(0.01)
        return seen


@asynccontextmanager
async def house(folder: Path, kind: type[MemoryAdapter] = MemoryAdapter, *tools: AnyTool) -> AsyncGenerator[House]:
    engine, clock = kind(MemorySettings(name=str(folder))), Clock()
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(f"sqlite:///{folder}/tasks.db"))
        engines = await stack.enter_async_context(Engines({"memory": engine}, call_timeout=0.5))
        executions = Executions(store=store, engines=engines, retention=DAY, clock=clock)
        executions = await stack.enter_async_context(executions)
        service = TaskService(tools={tool.name: tool for tool in tools or TOOLS}, executions=executions, retention=DAY)
        operator = Operator(store=store, engines=engines, clock=clock)
        yield House(service=service, engine=engine, store=store, operator=operator, clock=clock)


@pytest.fixture
async def here(tmp_path: Path) -> AsyncGenerator[House]:
    async with house(tmp_path) as found:
        yield found


# --- from an id to a task


async def test_a_running_execution_becomes_a_task_that_begins_working_and_ends_with_its_result(here: House) -> None:
    execution_id = await here.running("sleep", 0.2)
    task = await here.watched("nap", execution_id)
    assert (task.status, task.message) == (Status.RUNNING, None)
    done = await here.until(task, Status.SUCCEEDED)
    assert done.result is not None
    assert done.result["structuredContent"] == {"slept": 0.2}
    assert done.meta["mcp-workflows/executionId"] == execution_id
    assert here.engine.calls["start"] == 1  # our own


async def test_however_many_watch_at_once_on_two_replicas_it_is_one_task_also_a_new_one(tmp_path: Path) -> None:
    async with house(tmp_path) as one, house(tmp_path) as two:
        execution_id = await one.running("forever")

        async def crowd() -> set[str]:
            ids = list[str]()

            async def ask(place: House) -> None:
                ids.append((await place.watched("billing", execution_id)).task_id)

            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(ask, (one, two)[number % 2])
            return set(ids)

        [first] = await crowd()
        one.clock.ahead = two.clock.ahead = 2 * DAY
        [second] = await crowd()
        assert first != second


@pytest.mark.parametrize("swept", [True, False])
async def test_an_execution_whose_task_has_expired_is_watched_by_a_new_one(here: House, swept: bool) -> None:
    execution_id = await here.running("forever")
    first = await here.watched("billing", execution_id)
    adopted = await here.operator.adopt(TOOLS[-1], execution_id, ANN, {}, DAY)
    here.clock.ahead = 2 * DAY
    if swept:
        await here.store.delete_expired(here.clock(), here.clock() - 30 * DAY)
    second = await here.watched("billing", execution_id)
    assert second.task_id != first.task_id
    assert (await here.watched("billing", execution_id)).task_id == second.task_id
    again = await here.operator.adopt(TOOLS[-1], execution_id, ANN, {}, DAY)
    assert again.task.id != adopted.task.id
    assert here.engine.calls["start"] == 1


async def test_a_tool_whose_permissions_changed_makes_a_new_task(tmp_path: Path) -> None:
    async with house(tmp_path, MemoryAdapter, watch("it", "forever")) as before:
        execution_id = await before.running("forever")
        first = await before.watched("it", execution_id)
    async with house(tmp_path, MemoryAdapter, watch("it", "forever", allow_cancel=True)) as after:
        second = await after.watched("it", execution_id)
        assert second.task_id != first.task_id
        await after.service.cancel(second.task_id, ANN)
        with pytest.raises(RequestError, match="only watches"):
            await after.service.cancel(first.task_id, ANN)


# --- what is not shown


class Cron(MemoryAdapter):
    """Has one execution that can be no task, and says why."""

    async def adopt(self, execution_id: str) -> Ref:
        if execution_id == "cron":
            raise EngineRefused("it runs every night and costs a million")
        return await super().adopt(execution_id)


async def test_all_that_cannot_be_watched_is_refused_in_the_same_words(tmp_path: Path) -> None:
    async with house(tmp_path, Cron) as here:
        running, ended = await here.running("stubborn", 60), await here.running("echo", {"secret": 1})
        odd = ("nobody", "cron", "\ud800", "../x", "it's\n\x00", "x" * 2000)
        for execution_id in (running, ended, *odd):
            began = anyio.current_time()
            said = await here.refused("billing", execution_id)
            assert anyio.current_time() - began >= 0.25  # or how long it takes would tell what is there
            words = "Engine memory shows no execution {} of workflow forever that can be watched"
            assert said == words.format(repr(execution_id))
        assert (await here.service.tasks(None, ANN)).tasks == []


async def test_nobody_unknown_watches_anything(here: House) -> None:
    execution_id = await here.running("forever")
    before = here.engine.calls["adopt"]
    errors = set[tuple[int, str]]()
    for task_filter in (execution_id, "nobody"):
        with pytest.raises(RequestError) as caught:
            await here.call("billing", task_filter, ANONYMOUS)
        errors.add((caught.value.code, caught.value.message))
    text = "tool billing is for identified callers only, and you are anonymous"
    assert errors == {(-32602, text)}
    assert here.engine.calls["adopt"] == before


# --- what may be done with it


async def test_without_allow_answer_the_question_is_somebody_elses(here: House) -> None:
    for tool, workflow, asked in (("asking", "ask", "question?"), ("seeing", "gated", "Close «{}»?")):
        execution_id = await here.running(workflow)
        task = await here.watched(tool, execution_id)
        seen = await here.get(task)
        assert (seen.status, seen.requests) == (Status.RUNNING, {})
        assert seen.message == f"waits for somebody else's answer: {asked.format(execution_id)}"
        answers = {"question": {"action": "accept", "content": {"answer": "x"}}, "close.1": YES}
        with pytest.raises(RequestError, match="only watches"):
            await here.service.update(task.task_id, answers, ANN)
    assert here.engine.calls["answer"] == 0


async def test_with_allow_answer_questions_and_gates_are_answered(here: House) -> None:
    asking = await here.watched("answering", await here.running("ask"))
    await here.until(asking, Status.INPUT_REQUIRED)
    answer = {"question": {"action": "accept", "content": {"answer": "blue"}}}
    await here.service.update(asking.task_id, answer, ANN)
    assert (await here.until(asking, Status.SUCCEEDED)).result

    execution_id = await here.running("gated")
    closing = await here.watched("closing", execution_id)
    seen = await here.until(closing, Status.INPUT_REQUIRED)
    assert seen.requests["close.1"].params["message"] == f"Close «{execution_id}»?"
    await here.service.update(closing.task_id, {"close.1": YES}, ANN)
    done = await here.until(closing, Status.SUCCEEDED)
    assert done.result is not None
    assert done.result["structuredContent"] == {"close": [True, execution_id]}


async def test_without_allow_cancel_no_era_cancels(here: House) -> None:
    execution_id = await here.running("forever")
    task = await here.watched("billing", execution_id)
    for cancel in (here.service.cancel, here.service.withdraw):
        with pytest.raises(RequestError, match="nothing to cancel") as caught:
            await cancel(task.task_id, ANN)
        assert caught.value.code == -32602
    assert (await here.get(task)).status is Status.RUNNING
    assert here.engine.calls["cancel"] == 0


@pytest.mark.parametrize(("tool", "cancelled"), [("billing", 0), ("mine", 1)])
async def test_a_waiting_client_that_leaves_cancels_only_what_says_so(here: House, tool: str, cancelled: int) -> None:
    execution_id = await here.running("forever")
    with anyio.move_on_after(0.1):
        await here.call(tool, execution_id, takes_tasks=False)
    assert here.engine.calls["cancel"] == cancelled


# --- configuration


WATCHING = ENGINES + "tools:\n  it:\n    engine: orders\n    workflow: sleep\n    kind: watch\n"  # lines 3 to 7


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("    input: {type: object}\n", "input: only with kind: start; remove it"),
        ("    cancel_on_disconnect: true\n", "cancel_on_disconnect: only with allow_cancel: true"),
        ("    description: x\n    title: '{{x}}'\n    allow_cancel: maybe\n", "allow_cancel"),
    ],
)
def test_what_cannot_be_said_of_it_is_refused_with_its_line(tmp_path: Path, more: str, said: str) -> None:
    assert said in " ".join(problems(tmp_path, WATCHING + more))


class Choosy(MemoryAdapter):
    """An engine that cannot adopt, with an option that matters for a start only."""

    adopt = None  # type: ignore[assignment]  # taken away
    start_options: ClassVar[frozenset[str]] = frozenset({"queue"})


def test_what_does_not_go_with_watching_is_told_by_its_setting() -> None:
    tool = watch("it", "sleep").model_copy(update={"options": {"queue": "q"}})
    assert [place for place, _ in find_incompatibilities(tool, Choosy)] == ["kind", "queue"]


async def test_check_needs_no_worker_for_what_is_only_watched(tmp_path: Path) -> None:
    config = load(tmp_path, WATCHING.replace("workflow: sleep", "workflow: none_that_could_run"))
    (row,) = [row for row in (await check(config)).rows if row.name == "it"]
    found = Finding(ok=True, text="watches executions of none_that_could_run")
    assert row.finding == replace(found, hint="seen on stdio only; over HTTP with server.auth or server.single_user")
    alone = load(tmp_path, "server: {single_user: true}\n" + WATCHING)
    assert [row.finding and row.finding.hint for row in (await check(alone)).rows if row.name == "it"] == [None]
