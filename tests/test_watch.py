"""The watch over many executions: sweeps, open waits, one cap for all that is asked in the background."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from mcp_workflows.access import ANONYMOUS
from mcp_workflows.adapter import JSON, Execution, Ref, Status
from mcp_workflows.bridge import Bridge
from mcp_workflows.engines import Engines
from mcp_workflows.errors import EngineUnavailable
from mcp_workflows.ledger import Ledger
from mcp_workflows.memory import MemoryAdapter, MemorySettings
from mcp_workflows.pacing import Pacing
from mcp_workflows.store import open_store
from mcp_workflows.task import Task
from mcp_workflows.wire.commands import Call, Created, Get, Listen, TaskView, Update
from tests.served import memory_tools

pytestmark = pytest.mark.anyio

RETENTION = timedelta(days=90)
MANY = 60


class Counting(MemoryAdapter):
    """Remembers when it was asked how executions are."""

    def __init__(self, settings: MemorySettings) -> None:
        super().__init__(settings)
        self.times: list[float] = []
        self.looked_at: Counter[str] = Counter()

    async def describe(self, ref: Ref) -> Execution:
        """One look, counted by execution."""
        self.times.append(time.monotonic())
        self.looked_at[ref.handle] += 1
        return await super().describe(ref)

    def busiest(self, seconds: float = 1.0) -> int:
        """The most calls in any such span."""
        return max(sum(1 for at in self.times if since <= at < since + seconds) for since in self.times)


class Swept(Counting):
    """Can be asked for many at once, but for those that are hidden."""

    def __init__(self, settings: MemorySettings) -> None:
        super().__init__(settings)
        self.batches: list[int] = []
        self.hidden: set[str] = set()
        self.failing: set[str] = set()  # once

    async def describe(self, ref: Ref) -> Execution:
        """One look."""
        if ref.handle in self.failing:
            self.failing.discard(ref.handle)
            raise EngineUnavailable("not now")
        return await super().describe(ref)

    async def describe_many(self, refs: Sequence[Ref]) -> Mapping[str, Execution]:
        """A sweep."""
        self.times.append(time.monotonic())
        await self._call("describe_many")
        self.batches.append(len(refs))
        return {ref.handle: self._look(ref) for ref in refs if ref.handle not in self.hidden}


class Slow(MemoryAdapter):
    """Looks, and tells only when it is told to."""

    def __init__(self, settings: MemorySettings) -> None:
        super().__init__(settings)
        self.looking = anyio.Event()
        self.go_on = anyio.Event()

    async def describe(self, ref: Ref) -> Execution:
        """One look."""
        seen = await super().describe(ref)
        self.looking.set()
        await self.go_on.wait()
        return seen


class Waited(Counting):
    """Can be waited for."""

    def __init__(self, settings: MemorySettings) -> None:
        super().__init__(settings)
        self.waiting: set[str] = set()
        self.most = 0
        self.broken = False

    async def wait(self, ref: Ref) -> None:
        """Until it has ended."""
        self.calls["wait"] += 1
        if self.broken:
            raise EngineUnavailable("too many open requests")
        self.waiting.add(ref.handle)
        self.most = max(self.most, len(self.waiting))
        try:
            while not self._look(ref).terminal:
                await anyio.sleep(0.01)
        finally:
            self.waiting.discard(ref.handle)


@dataclass(frozen=True, slots=True)
class Place:
    """A sidecar's inside, and what was told to those who listen."""

    bridge: Bridge
    ledger: Ledger
    told: dict[str, list[TaskView]]

    async def start(self, tool: str, count: int, **arguments: JSON) -> list[str]:
        """So many tasks."""

        async def quiet(_: Execution) -> None:
            """Nobody asked for progress."""

        async def one() -> None:
            command = Call(tool=tool, arguments=arguments, takes_tasks=True, takes_questions=True)
            outcome = await self.bridge.call(command, ANONYMOUS, quiet)
            assert isinstance(outcome, Created)
            ids.append(outcome.task.task_id)

        ids: list[str] = []
        for _ in range(count):
            await one()
        return ids

    async def get(self, task_id: str) -> TaskView:
        """`tasks/get`."""
        return (await self.bridge.get(Get(task_id=task_id), ANONYMOUS)).task

    async def tasks(self, ids: Sequence[str]) -> Sequence[Task]:
        """Their rows."""
        return await self.bridge.listen(Listen(task_ids=tuple(ids)), ANONYMOUS)

    @asynccontextmanager
    async def listening(self, ids: Sequence[str]) -> AsyncGenerator[None]:
        """Somebody listens to each of them."""

        async def listen(task: Task) -> None:
            async def on_change(seen: TaskView) -> None:
                self.told.setdefault(task.id, []).append(seen)

            await self.bridge.follow(task, on_change)

        async with anyio.create_task_group() as group:
            for task in await self.tasks(ids):
                group.start_soon(listen, task)
            yield
            group.cancel_scope.cancel()

    def ended(self, ids: Sequence[str]) -> int:
        """How many of them were told to have ended."""
        return sum(1 for name in ids if self.told.get(name) and self.told[name][-1].status is Status.SUCCEEDED)


@asynccontextmanager
async def place(folder: Path, engine: MemoryAdapter, pacing: Pacing) -> AsyncGenerator[Place]:
    """A ledger with this engine."""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(f"sqlite:///{folder}/tasks.db"))
        engines = await stack.enter_async_context(Engines({"memory": engine}))
        ledger = await stack.enter_async_context(
            Ledger(store=store, engines=engines, retention=RETENTION, pacing=pacing)
        )
        tools = {tool.name: tool for tool in memory_tools()}
        yield Place(Bridge(tools=tools, ledger=ledger, retention=RETENTION), ledger, {})


async def until(condition: Callable[[], bool], within: float = 20) -> None:
    with anyio.fail_after(within):
        while not condition():
            await anyio.sleep(0.01)


# --- the cap


async def test_pollers_of_more_tasks_than_an_engine_may_be_asked_for_are_answered_from_what_is_known(
    tmp_path: Path,
) -> None:
    engine = Counting(MemorySettings(name=str(tmp_path)))
    async with place(tmp_path, engine, Pacing(looks_per_second=20)) as here:
        ids = await here.start("forever", MANY)
        polls = 0
        stop_at, too_late = time.monotonic() + 4, time.monotonic() + 30  # 3 s are enough for each on an idle machine

        async def poll(task_id: str) -> None:
            nonlocal polls
            while time.monotonic() < (stop_at if len(engine.looked_at) == MANY else too_late):
                await here.get(task_id)
                polls += 1
                await anyio.sleep(0.05)

        async with anyio.create_task_group() as group:
            for task_id in ids:
                group.start_soon(poll, task_id)
        assert engine.busiest(0.95) <= 20  # they take off within a second, and land with some jitter
        assert polls > 10 * len(engine.times)
        assert min(engine.looked_at.values()) >= 1  # each gets its turn
        assert len(engine.looked_at) == MANY


async def test_clients_are_told_to_poll_less_when_there_are_many(tmp_path: Path) -> None:
    engine = Counting(MemorySettings(name=str(tmp_path)))
    async with place(tmp_path, engine, Pacing(looks_per_second=20)) as here:
        first, *others = await here.start("forever", MANY)
        assert (await here.get(first)).poll_interval_ms == 250
        async with here.listening(others):
            await until(lambda: len(here.told) == MANY - 1)
            assert (await here.get(first)).poll_interval_ms == 1000 * MANY / 20


async def test_what_is_known_is_given_out_with_its_age_when_an_engine_does_not_keep_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_workflows.ledger.LATE", 0.05)
    engine = Counting(MemorySettings(name=str(tmp_path)))
    async with place(tmp_path, engine, Pacing(looks_per_second=0.5)) as here:
        (task_id,) = await here.start("forever", 1)
        await here.get(task_id)
        with anyio.fail_after(10):
            while "as of" not in ((await here.get(task_id)).message or ""):
                await anyio.sleep(0.02)


async def test_who_asks_does_not_wait_for_all_that_is_only_followed(tmp_path: Path) -> None:
    engine = Counting(MemorySettings(name=str(tmp_path)))
    async with (
        place(tmp_path, engine, Pacing(looks_per_second=20)) as here,
        here.listening(await here.start("forever", 200)),  # 10 s of looks
    ):
        await until(lambda: len(here.told) == 200 and len(engine.looked_at) >= 20)
        (task_id,) = await here.start("echo", 1)
        assert (await here.get(task_id)).status is Status.SUCCEEDED


async def test_an_answer_is_looked_for_at_once_whatever_else_is_asked(tmp_path: Path) -> None:
    engine = Counting(MemorySettings(name=str(tmp_path)))
    async with place(tmp_path, engine, Pacing(looks_per_second=1)) as here:
        (task_id,) = await here.start("ask", 1)
        others = await here.start("forever", 5)
        async with here.listening([task_id, *others]):
            with anyio.fail_after(20):
                while (await here.get(task_id)).status is not Status.INPUT_REQUIRED:
                    await anyio.sleep(0.02)
            response = {"question": {"action": "accept", "content": {"answer": "yes"}}}
            await here.bridge.update(Update(task_id=task_id, responses=response), ANONYMOUS)
            assert (await here.get(task_id)).status is Status.SUCCEEDED
            await until(lambda: here.ended([task_id]) == 1, within=1)


# --- sweeps


async def test_many_followed_executions_are_asked_for_in_batches(tmp_path: Path) -> None:
    engine = Swept(MemorySettings(name=str(tmp_path)))
    async with place(tmp_path, engine, Pacing()) as here:
        ids = await here.start("forever", 700)
        async with here.listening(ids):
            await until(lambda: sum(engine.batches) >= 3 * 700)
        assert max(engine.batches) == 500
        assert engine.busiest(0.95) <= 50
        assert max(engine.looked_at.values()) == 1  # once to confirm; nothing changed since


async def test_what_a_sweep_shows_as_ended_is_confirmed_by_one_look_and_told(tmp_path: Path) -> None:
    engine = Swept(MemorySettings(name=str(tmp_path)))
    async with place(tmp_path, engine, Pacing(looks_per_second=1000)) as here:
        resting = await here.start("forever", MANY)
        async with here.listening(resting):
            await until(lambda: len(engine.looked_at) == MANY)  # all are known
            brief = await here.start("ask", 3)
            async with here.listening(brief):
                await until(lambda: here.told.keys() >= set(brief))
                await until(lambda: all(here.told[name][-1].status is Status.INPUT_REQUIRED for name in brief))
                looks = engine.looked_at.copy()
                for task in await here.tasks(brief):  # behind our back: nobody here knows
                    answered = {"question": {"action": "accept", "content": {"answer": "yes"}}}
                    await engine.answer(Ref(workflow="ask", handle=task.handle or ""), answered)
                await until(lambda: here.ended(brief) == 3)
        again = {handle: count - looks[handle] for handle, count in engine.looked_at.items() if count > looks[handle]}
        assert len(again) == 3
        assert set(again.values()) == {1}


async def test_executions_that_a_sweep_leaves_out_are_looked_at(tmp_path: Path) -> None:
    engine = Swept(MemorySettings(name=str(tmp_path)))
    async with place(tmp_path, engine, Pacing(looks_per_second=1000)) as here:
        ids = await here.start("forever", MANY)
        engine.hidden = set(engine.handles[:2])
        async with here.listening(ids):
            await until(lambda: all(engine.looked_at[handle] >= 3 for handle in engine.hidden))
            seen = [count for handle, count in engine.looked_at.items() if handle not in engine.hidden]
            assert max(seen) == 1


async def test_what_sweeps_never_show_does_not_keep_the_others_waiting(tmp_path: Path) -> None:
    engine = Swept(MemorySettings(name=str(tmp_path)))
    async with place(tmp_path, engine, Pacing(looks_per_second=20)) as here:
        gated = await here.start("forever", 4 * MANY)
        engine.hidden = set(engine.handles)
        (brief,) = await here.start("sleep", 1, seconds=1)
        engine.failing = set(engine.handles) - engine.hidden
        async with here.listening([brief, *gated]):
            await until(lambda: not engine.failing)  # it was looked at, in vain: only another look can tell
            await until(lambda: here.ended([brief]) == 1)


async def test_a_sweep_that_fails_fails_nothing(tmp_path: Path) -> None:
    engine = Swept(MemorySettings(name=str(tmp_path)))
    engine.faults.unavailable = frozenset({"describe_many"})
    async with place(tmp_path, engine, Pacing(looks_per_second=1000)) as here:
        ids = await here.start("sleep", MANY, seconds=2)
        async with here.listening(ids):
            await until(lambda: here.ended(ids) == MANY)
        assert 1 <= engine.calls["describe_many"] <= 3  # it backs off
        assert not engine.batches


async def test_few_executions_are_not_swept(tmp_path: Path) -> None:
    engine = Swept(MemorySettings(name=str(tmp_path)))
    async with place(tmp_path, engine, Pacing()) as here:
        ids = await here.start("sleep", 20, seconds=1)
        async with here.listening(ids):
            await until(lambda: here.ended(ids) == 20)
        assert not engine.calls["describe_many"]


async def test_an_end_that_was_seen_while_something_was_done_to_the_task_is_told(tmp_path: Path) -> None:
    engine = Slow(MemorySettings(name=str(tmp_path)))
    async with place(tmp_path, engine, Pacing()) as here:
        (task_id,) = await here.start("sleep", 1, seconds=0)
        async with here.listening([task_id]):
            await engine.looking.wait()
            (row,) = await here.tasks([task_id])
            await here.ledger.cancel(row)  # it nudges, while the look that will see the end is under way
            engine.go_on.set()
            await until(lambda: here.ended([task_id]) == 1, within=5)


# --- waits


async def test_an_execution_that_is_waited_for_is_told_to_have_ended_at_once(tmp_path: Path) -> None:
    engine = Waited(MemorySettings(name=str(tmp_path)))
    async with place(tmp_path, engine, Pacing(looks_per_second=0.2)) as here:  # looks alone would take 5 s
        (task_id,) = await here.start("sleep", 1, seconds=0.5)
        async with here.listening([task_id]):
            await until(lambda: here.ended([task_id]) == 1, within=3)


async def test_slots_are_bounded_and_go_to_others_when_they_are_free(tmp_path: Path) -> None:
    engine = Waited(MemorySettings(name=str(tmp_path)))
    async with place(tmp_path, engine, Pacing(open_waits=3)) as here:
        brief = await here.start("sleep", 3, seconds=1)
        longer = await here.start("forever", 4)
        async with here.listening(longer):
            await until(lambda: len(engine.waiting) == 3)
            async with here.listening(brief):
                await until(lambda: here.ended(brief) == 3)  # without a slot
        await until(lambda: not engine.waiting)  # nobody listens any more
        async with here.listening(longer[:2]):
            await until(lambda: len(engine.waiting) == 2)
            async with here.listening(longer[2:]):
                await until(lambda: len(engine.waiting) == 3)
        assert engine.most == 3


async def test_an_engine_that_cannot_be_waited_for_fails_nothing(tmp_path: Path) -> None:
    engine = Waited(MemorySettings(name=str(tmp_path)))
    engine.broken = True
    async with place(tmp_path, engine, Pacing()) as here:
        ids = await here.start("sleep", 5, seconds=1.5)
        async with here.listening(ids):
            await until(lambda: here.ended(ids) == 5)
        assert 5 <= engine.calls["wait"] <= 15  # it backs off


async def test_what_can_be_waited_for_is_waited_for_once_however_many_listen(tmp_path: Path) -> None:
    engine = Waited(MemorySettings(name=str(tmp_path)))
    async with place(tmp_path, engine, Pacing()) as here:
        (task_id,) = await here.start("sleep", 1, seconds=1)
        async with here.listening([task_id]), here.listening([task_id]), here.listening([task_id]):
            await until(lambda: here.ended([task_id]) == 1)
        assert engine.calls["wait"] == 1
