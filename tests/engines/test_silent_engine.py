"""An engine that gives no answer: reads are answered in time, at once when that is known; writes are still tried."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from mcp_workflows.access import ANONYMOUS
from mcp_workflows.adapter import Status
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.engines.polling.policy import DEFAULT_POLICY
from mcp_workflows.errors import StoreUnavailable
from mcp_workflows.sidecar.engine_checks import check_engines
from mcp_workflows.store.sqlite.store import SQLiteStore
from mcp_workflows.task import Task
from mcp_workflows.tasks.maintenance import RECOVER_AT_ONCE
from tests.support.places import Frozen, Place, place
from tests.support.served import told
from tests.support.stopwatch import stopwatch
from tests.tasks.test_authorization import ALICE, APPROVED, BOB, tool
from tests.tasks.test_authorization import place as ruled

pytestmark = pytest.mark.anyio

AT_ONCE = 0.3  # seconds
PATIENCE = 0.5  # seconds for a call to the engine


@pytest.fixture
def engine(tmp_path: Path) -> Frozen:
    return Frozen(MemorySettings(name=str(tmp_path)))


async def message(here: Place, task_id: str) -> str:
    return (await here.get(task_id)).message or ""


async def known_silent(here: Place, task_id: str) -> None:
    with anyio.fail_after(60):
        while "no answer since" not in await message(here, task_id):
            await anyio.sleep(0.05)


async def heard_again(here: Place, task_id: str) -> None:
    with anyio.fail_after(60):
        while "engine memory" in await message(here, task_id):
            await anyio.sleep(0.05)


async def test_polls_of_an_engine_known_to_be_silent_are_answered_at_once_and_recovery_is_seen_soon(
    tmp_path: Path, engine: Frozen
) -> None:
    async with place(tmp_path, engine, DEFAULT_POLICY, call_timeout=PATIENCE) as here:
        ids = await here.start("forever", 5)
        assert [(await here.get(task_id)).message for task_id in ids] == ["working"] * 5
        engine.freeze("describe")
        await known_silent(here, ids[0])
        engine.most.clear()
        for _ in range(10):
            for task_id in ids:
                with stopwatch() as seconds:
                    said = await message(here, task_id)
                    assert seconds() < AT_ONCE
                assert said.startswith("engine memory: no answer since ")
                assert said.endswith("; last known: working")
            await anyio.sleep(0.2)
        assert engine.most["describe"] == 1  # one probe at a time
        engine.thaw()
        with stopwatch() as seconds:
            for task_id in ids:
                await heard_again(here, task_id)
            assert seconds() < 6


async def test_what_somebody_wants_done_is_tried_at_an_engine_known_to_be_silent(
    tmp_path: Path, engine: Frozen
) -> None:
    async with place(tmp_path, engine, DEFAULT_POLICY, call_timeout=PATIENCE) as here:
        asks, goes_on = [*await here.start("ask", 1), *await here.start("forever", 1)]
        assert (await here.get(asks)).status is Status.INPUT_REQUIRED
        engine.freeze("describe")
        await known_silent(here, asks)
        (another,) = await here.start("forever", 1)
        answer = {"question": {"action": "accept", "content": {"answer": "yes"}}}
        await here.service.update(asks, answer, ANONYMOUS)
        await here.service.cancel(goes_on, ANONYMOUS)
        assert (engine.calls["start"], engine.calls["answer"], engine.calls["cancel"]) == (3, 1, 1)
        engine.thaw()
        await heard_again(here, another)
        await heard_again(here, asks)
        assert (await here.get(asks)).status is Status.SUCCEEDED


async def test_starts_are_made_good_a_few_at_a_time(
    tmp_path: Path, engine: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place(tmp_path, engine, DEFAULT_POLICY, call_timeout=PATIENCE) as here:
        engine.freeze("start")
        async with anyio.create_task_group() as group:
            for _ in range(30):
                group.start_soon(here.start, "forever", 1)
    engine.thaw()
    engine.freeze("start")
    engine.most.clear()
    monkeypatch.setattr("mcp_workflows.tasks.maintenance.RECOVER_AFTER", timedelta(0))
    async with place(tmp_path, engine, DEFAULT_POLICY):
        with anyio.fail_after(60):
            while engine.waiting["start"] < RECOVER_AT_ONCE:
                await anyio.sleep(0.01)
        engine.thaw()
        with anyio.fail_after(60):
            while len(engine.handles) < 30:
                await anyio.sleep(0.05)
    assert engine.most["start"] == RECOVER_AT_ONCE


async def test_a_read_is_answered_by_its_deadline_however_many_looks_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_workflows.tasks.executions.READ_TIMEOUT", 1.0)
    engine = MemoryAdapter(MemorySettings(name=str(tmp_path)))
    async with ruled(tmp_path, tool(allow=APPROVED)) as here:
        alice, bob = await here.peer(ALICE), await here.peer(BOB)
        ids = [(await alice.call("order")).result["taskId"] for _ in range(4)]
        for task_id in ids:
            assert (await bob.get(task_id))["status"] == "input_required"
        engine.faults.silent = frozenset({"describe"})
        await told(bob, ids[0], "no answer yet")  # what was seen before is not good enough any more
        with stopwatch() as seconds:
            assert "no answer yet" in (await bob.get(ids[0]))["statusMessage"]  # looks for their rights, and for more
            assert seconds() < 1.6
        with stopwatch() as seconds:
            async with bob.stream("subscriptions/listen", {"notifications": {"taskIds": ids}}) as (_, frames):
                await anext(aiter(frames))
            assert seconds() < 1.6


class Slow(SQLiteStore):
    """A store that gives no answer once it is told to."""

    slow = False

    async def get(self, task_id: str, owner: str) -> Task | None:
        """The row, or nothing for ever."""
        if self.slow:
            await anyio.sleep_forever()
        return await super().get(task_id, owner)


async def test_a_store_that_gives_no_answer_is_told_by_the_same_deadline(
    tmp_path: Path, engine: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_workflows.tasks.executions.READ_TIMEOUT", 0.5)
    store = Slow(f"sqlite:///{tmp_path}/tasks.db")
    async with place(tmp_path, engine, DEFAULT_POLICY, store=store) as here:
        (task_id,) = await here.start("forever", 1)
        store.slow = True
        with stopwatch() as seconds:
            with pytest.raises(StoreUnavailable, match="the store did not answer within"):
                await here.get(task_id)
            with pytest.raises(StoreUnavailable, match="the store did not answer within"):
                await here.service.listen((task_id,), ANONYMOUS)
            assert seconds() < 1.8


async def test_the_health_of_engines_says_since_when_looks_get_no_answer(tmp_path: Path, engine: Frozen) -> None:
    async with place(tmp_path, engine, DEFAULT_POLICY, call_timeout=PATIENCE) as here:
        (task_id,) = await here.start("forever", 1)
        engine.freeze("describe")
        await known_silent(here, task_id)
        engine.faults.unavailable = frozenset({"describe"})  # so that its check says no
        assert "does not answer; polls: no answer since" in (await check_engines(here.engines))["memory"].text
        engine.thaw()
