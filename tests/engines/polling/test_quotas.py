"""Engines with quotas: how often they are looked at and swept, what clients are told, what throttling never does."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
import pytest

from mcp_workflows.access import ANONYMOUS
from mcp_workflows.adapter import Allowance, Execution, Ref, Status
from mcp_workflows.adapter.memory import MemorySettings
from mcp_workflows.engines.polling.policy import PollingPolicy
from mcp_workflows.errors import EngineUnavailable
from mcp_workflows.task import Task
from mcp_workflows.tools.tool import TaskSupport, Tool
from mcp_workflows.wire.commands import Call, Finished
from tests.support.places import Counting, Place, place, quiet
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

MANY = 60


class Limited(Counting):
    """Has quotas, and may throttle."""

    def __init__(self, settings: MemorySettings, looks: float = 7.5) -> None:
        super().__init__(settings)
        self.allowance = Allowance(polls_per_second=looks, batch_every=0.5, batch=1000)
        self.throttling = False

    async def describe(self, ref: Ref) -> Execution:
        """One look."""
        seen = await super().describe(ref)
        if self.throttling:
            raise EngineUnavailable("throttled", throttled=True)
        return seen


class Listed(Limited):
    """Has a list of those that run, which says nothing else about them."""

    def __init__(self, settings: MemorySettings, looks: float = 7.5) -> None:
        super().__init__(settings, looks)
        self.swept_at: list[float] = []
        self.batches: list[int] = []

    async def describe_many(self, refs: Sequence[Ref]) -> Mapping[str, Execution]:
        """A sweep."""
        self.swept_at.append(time.monotonic())
        self.batches.append(len(refs))
        running = [ref.handle for ref in refs if not self._describe(ref).terminal]
        return {handle: Execution(status=Status.RUNNING, execution_id=handle) for handle in running}


class Asked(Listed):
    """Its list also says who asks."""

    async def describe_many(self, refs: Sequence[Ref]) -> Mapping[str, Execution]:
        """A sweep."""
        asking = {ref.handle: seen for ref in refs if (seen := self._describe(ref)).status is Status.INPUT_REQUIRED}
        return {**await super().describe_many(refs), **asking}


def engine_of(kind: type[Limited], folder: Path, looks: float = 7.5) -> Limited:
    return kind(MemorySettings(name=str(folder)), looks)


async def told_to_ask_every(here: Place, task: Task, seconds: float) -> None:
    """What clients are told changes when the quotas have been read again."""
    await until(lambda: here.executions.poll_interval(task).total_seconds() == seconds)


# --- looks


async def test_the_configured_cap_counts_if_it_is_lower_and_nothing_stops_all_looks() -> None:
    generous = Allowance(polls_per_second=100, batch_every=10, batch=1000)
    assert PollingPolicy(polls_per_second=5).limits(generous).polls_per_second == 5
    for nothing in (0.0, -1.0, float("nan")):
        none = Allowance(polls_per_second=nothing, batch_every=0, batch=0)
        found = PollingPolicy().limits(none)
        assert (found.polls_per_second, found.batch) == (PollingPolicy().fewest_polls, 1)


async def test_quotas_are_read_again_they_shrink_and_grow_back(tmp_path: Path) -> None:
    engine = engine_of(Limited, tmp_path)
    async with place(tmp_path, engine, PollingPolicy(allowance_every=0.05)) as here:
        ids = await here.start("forever", MANY)
        async with here.listening(ids):
            await until(lambda: len(here.told) == MANY)
            (task, *_) = await here.tasks(ids[:1])
            for looks, seconds in ((0.01, 300), (2.0, 30), (100.0, MANY / 50)):
                engine.allowance = Allowance(polls_per_second=looks, batch_every=0.5, batch=1000)
                await told_to_ask_every(here, task, seconds)


async def test_an_adapter_that_breaks_telling_its_quotas_is_asked_as_one_without(tmp_path: Path) -> None:
    class Broken(Counting):
        @property
        def allowance(self) -> Allowance:
            raise ValueError("no")

    async with place(tmp_path, Broken(MemorySettings(name=str(tmp_path))), PollingPolicy()) as here:
        (task_id,) = await here.start("echo", 1)
        assert (await here.get(task_id)).status is Status.SUCCEEDED


# --- sweeps


async def test_what_the_very_first_sweep_shows_to_ask_is_looked_at_before_its_turn(tmp_path: Path) -> None:
    async with place(tmp_path, engine_of(Asked, tmp_path, looks=4), PollingPolicy()) as here:
        ids = await here.start("forever", MANY)
        asking = await here.start("ask", 2)
        async with here.listening([*ids, *asking]):  # 15 s of looks
            await until(lambda: all(here.asks(name) for name in asking), within=8)


async def test_a_sweep_that_tells_only_who_runs_makes_no_look_younger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_workflows.tasks.executions.LATE", 1.0)
    engine = engine_of(Listed, tmp_path, looks=2)
    assert isinstance(engine, Listed)
    async with place(tmp_path, engine, PollingPolicy()) as here:
        ids = await here.start("forever", MANY)
        async with here.listening(ids):
            await until(lambda: bool(engine.looked_at))
            first = ids[engine.handles.index(next(iter(engine.looked_at)))]
            await until(lambda: len(engine.swept_at) >= 4)
            with anyio.fail_after(60):
                while "as of" not in ((await here.get(first)).message or ""):
                    await anyio.sleep(0.02)


# --- throttled


async def test_throttling_fails_nothing_that_is_read_listened_to_or_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_workflows.tasks.service.NO_ANSWER_LIMIT", 0.2)
    patient = Tool(name="patient", engine="memory", workflow="sleep", tasks=TaskSupport.WAIT)
    engine = engine_of(Limited, tmp_path, looks=50)
    results: list[Finished] = []

    async def call() -> None:
        command = Call(tool="patient", arguments={"seconds": 0}, takes_tasks=False, takes_questions=False)

        outcome = await here.service.call(command, ANONYMOUS, quiet)
        assert isinstance(outcome, Finished)
        results.append(outcome)

    async with place(tmp_path, engine, PollingPolicy(), patient) as here:
        (task_id,) = await here.start("ask", 1)
        asked = await here.get(task_id)
        assert asked.status is Status.INPUT_REQUIRED
        engine.throttling = True
        async with here.listening([task_id]), anyio.create_task_group() as group:
            group.start_soon(call)  # which has nothing to wait for but an answer
            failed = engine.calls["describe"] + 10
            await until(lambda: engine.calls["describe"] >= failed)
            seen = await here.get(task_id)
            assert (seen.status, seen.requests) == (Status.INPUT_REQUIRED, asked.requests)
            assert "throttled" in str(seen.message)
            await anyio.sleep(0.5)  # more than a plain call is patient
            assert results == []
            assert [told.status for told in here.told[task_id]] == [Status.INPUT_REQUIRED]  # nothing failed, either
            withdrawn = await here.service.withdraw(task_id, ANONYMOUS)  # of 2025-11-25
            assert withdrawn.cancelled
            engine.throttling = False
        assert results[0].result["structuredContent"] == {"slept": 0.0}


# --- bursts


async def test_what_a_sweep_finds_ended_is_looked_at_in_a_burst_if_the_engine_takes_one(tmp_path: Path) -> None:
    engine = engine_of(Listed, tmp_path, looks=1)
    engine.allowance = Allowance(polls_per_second=1, batch_every=0.5, batch=1000, burst=40)
    async with place(tmp_path, engine, PollingPolicy()) as here:
        brief = await here.start("sleep", 30, seconds=1)
        async with here.listening(brief):  # 30 s of looks in turn
            await until(lambda: here.ended(brief) == 30, within=8)
