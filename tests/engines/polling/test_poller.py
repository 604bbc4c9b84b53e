"""The watch over many executions: sweeps, open waits, one cap for all that is asked in the background."""

from __future__ import annotations

import asyncio
from pathlib import Path

import anyio
import pytest

from mcp_workflows.access import ANONYMOUS
from mcp_workflows.adapter import Ref, Status
from mcp_workflows.adapter.memory import MemorySettings
from mcp_workflows.engines.polling.policy import PollingPolicy
from mcp_workflows.errors import EngineUnavailable
from tests.support.places import Counting, Frozen, Place, Slow, Swept, place
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

MANY = 60


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
            while not self._describe(ref).terminal:
                await anyio.sleep(0.01)
        finally:
            self.waiting.discard(ref.handle)


# --- the cap


async def test_what_is_known_is_given_out_with_its_age_when_an_engine_does_not_keep_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_workflows.tasks.executions.LATE", 0.05)
    engine = Counting(MemorySettings(name=str(tmp_path)))
    async with place(tmp_path, engine, PollingPolicy(polls_per_second=0.5)) as here:
        (task_id,) = await here.start("forever", 1)
        await here.get(task_id)
        with anyio.fail_after(60):
            while "as of" not in ((await here.get(task_id)).message or ""):
                await anyio.sleep(0.02)


# --- who asks makes the poll


async def test_who_joined_a_poll_whose_caller_left_gets_another_one(tmp_path: Path) -> None:
    engine = Slow(MemorySettings(name=str(tmp_path)))
    async with place(tmp_path, engine, PollingPolicy()) as here, anyio.create_task_group() as group:
        (task_id,) = await here.start("echo", 1, a=1)
        (row,) = await here.tasks([task_id])
        seen: list[Status] = []

        async def ask() -> None:
            seen.append((await here.executions.observe_afresh(row)).execution.status)

        with anyio.CancelScope() as leaving:
            async with anyio.create_task_group() as callers:
                callers.start_soon(ask)
                await engine.looking.wait()
                group.start_soon(ask)
                await anyio.wait_all_tasks_blocked()
                leaving.cancel()
        assert not seen
        engine.go_on.set()
        await until(lambda: seen == [Status.SUCCEEDED])
        assert engine.calls["describe"] == 2


async def test_an_engine_that_is_slower_than_its_readers_wait_is_read_all_the_same(tmp_path: Path) -> None:
    engine = Slow(MemorySettings(name=str(tmp_path)))
    async with place(tmp_path, engine, PollingPolicy()) as here:
        here.executions.read_timeout = 0.4
        (task_id,) = await here.start("echo", 1, a=1)
        for count in (1, 2, 2):  # the first poll ends with its caller, the second goes on
            assert (await here.get(task_id)).status is Status.RUNNING
            assert engine.calls["describe"] == count
        engine.go_on.set()
        with anyio.fail_after(60):
            while (await here.get(task_id)).status is not Status.SUCCEEDED:
                await anyio.sleep(0.01)
        assert engine.calls["describe"] == 2


async def test_a_slow_execution_is_read_though_quick_ones_are_read_meanwhile(tmp_path: Path) -> None:
    engine = Slow(MemorySettings(name=str(tmp_path)))
    async with place(tmp_path, engine, PollingPolicy(fresh_for=0)) as here:
        here.executions.read_timeout = 0.4
        (quick,), (slow,) = await here.start("forever", 1), await here.start("echo", 1, a=1)
        engine.slow = {(await here.tasks([slow]))[0].handle or ""}
        for _ in range(2):
            assert (await here.get(slow)).status is Status.RUNNING
            await here.get(quick)
        assert engine.calls["describe"] == 4
        engine.go_on.set()
        with anyio.fail_after(60):  # the second poll has gone on
            while (await here.get(slow)).status is not Status.SUCCEEDED:
                await anyio.sleep(0.01)
        assert engine.calls["describe"] == 4


async def test_a_read_does_not_wait_for_a_start_that_hangs(tmp_path: Path) -> None:
    engine = Frozen(MemorySettings(name=str(tmp_path)))
    engine.freeze("start")
    async with place(tmp_path, engine, PollingPolicy(), call_timeout=0.1) as here:
        (task_id,) = await here.start("forever", 1)
    async with place(tmp_path, engine, PollingPolicy(), call_timeout=600) as here:
        here.executions.read_timeout = 0.4
        with anyio.fail_after(60):
            assert "no answer yet" in ((await here.get(task_id)).message or "")
        engine.thaw()


async def test_a_read_that_the_application_cancels_ends_and_says_nothing_of_the_engine(tmp_path: Path) -> None:
    engine = Frozen(MemorySettings(name=str(tmp_path)))
    async with place(tmp_path, engine, PollingPolicy()) as here:
        (task_id,) = await here.start("forever", 1)
        engine.freeze("describe")
        reading = asyncio.create_task(here.get(task_id))
        await until(lambda: engine.waiting["describe"] == 1)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert here.engines.is_prompt("memory")
        engine.thaw()


# --- sweeps


async def test_what_a_sweep_shows_as_ended_is_confirmed_by_one_look_and_told(tmp_path: Path) -> None:
    engine = Swept(MemorySettings(name=str(tmp_path)))
    async with place(tmp_path, engine, PollingPolicy(polls_per_second=1000)) as here:
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
    async with place(tmp_path, engine, PollingPolicy(polls_per_second=1000)) as here:
        ids = await here.start("forever", MANY)
        engine.hidden = set(engine.handles[:2])
        async with here.listening(ids):
            await until(lambda: all(engine.looked_at[handle] >= 3 for handle in engine.hidden))
            seen = [count for handle, count in engine.looked_at.items() if handle not in engine.hidden]
            assert max(seen) == 1


async def test_an_end_that_was_seen_while_something_was_done_to_the_task_is_told(tmp_path: Path) -> None:
    engine = Slow(MemorySettings(name=str(tmp_path)))
    async with place(tmp_path, engine, PollingPolicy()) as here:
        (task_id,) = await here.start("sleep", 1, seconds=0)
        async with here.listening([task_id]):
            await engine.looking.wait()
            (row,) = await here.tasks([task_id])
            await here.executions.cancel(row)  # it nudges, while the look that will see the end is under way
            engine.go_on.set()
            await until(lambda: here.ended([task_id]) == 1, within=5)


async def test_who_follows_is_never_told_again_what_was_before(tmp_path: Path) -> None:
    engine = Slow(MemorySettings(name=str(tmp_path)))
    engine.go_on.set()
    async with place(tmp_path, engine, PollingPolicy()) as here:
        (task_id,) = await here.start("ask_two", 1)
        async with here.listening([task_id]):
            await until(lambda: asked(here, task_id) == {"first", "second"})
            engine.looking, engine.go_on = anyio.Event(), anyio.Event()
            await engine.looking.wait()
            response = {"first": {"action": "accept", "content": {"answer": "yes"}}}
            await here.service.update(task_id, response, ANONYMOUS)
            engine.go_on.set()  # the look that took off before the answer lands after it
            await until(lambda: asked(here, task_id) == {"second"})
        statuses = [view.status for view in here.told[task_id]]
        assert Status.RUNNING not in statuses[statuses.index(Status.INPUT_REQUIRED) :]


def asked(here: Place, task_id: str) -> set[str]:
    """What those who listen were told last that it asks."""
    return {*here.told[task_id][-1].requests} if here.told.get(task_id) else set()


# --- waits


async def test_slots_are_bounded_and_go_to_others_when_they_are_free(tmp_path: Path) -> None:
    engine = Waited(MemorySettings(name=str(tmp_path)))
    async with place(tmp_path, engine, PollingPolicy(open_waits=3)) as here:
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


async def test_an_execution_that_is_waited_for_is_told_to_have_ended_at_once(tmp_path: Path) -> None:
    engine = Waited(MemorySettings(name=str(tmp_path)))
    async with place(tmp_path, engine, PollingPolicy(polls_per_second=0.05)) as here:  # looks alone would take 20 s
        (task_id,) = await here.start("sleep", 1, seconds=0.5)
        async with here.listening([task_id]):
            await until(lambda: here.ended([task_id]) == 1, within=10)


async def test_an_engine_that_cannot_be_waited_for_fails_nothing(tmp_path: Path) -> None:
    engine = Waited(MemorySettings(name=str(tmp_path)))
    engine.broken = True
    async with place(tmp_path, engine, PollingPolicy()) as here:
        ids = await here.start("sleep", 5, seconds=1.5)
        async with here.listening(ids):
            await until(lambda: here.ended(ids) == 5)
        assert 5 <= engine.calls["wait"] <= 15  # it backs off
