"""Engines that tell which executions may have changed: one look at each, soon; and what happens when they do not."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import pytest

from mcp_workflows.adapter import Adapter, Allowance, Execution, Ref, Status
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.engines.polling.policy import PollingPolicy
from mcp_workflows.errors import EngineError, EngineUnavailable
from mcp_workflows.testing import Role, Subject
from mcp_workflows.testing.adapter_contract import (
    an_allowance_leaves_something,
    an_execution_that_ends_is_hinted_at_by_its_handle,
)
from tests.support.places import Counting, Place, Slow, place
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

MANY = 60
YES = {"question": {"action": "accept", "content": {"answer": "yes"}}}


class Telling(MemoryAdapter):
    """Tells what the test tells it to."""

    def __init__(self, settings: MemorySettings) -> None:
        super().__init__(settings)
        self.changed: Callable[[str], None] | None = None
        self.failures: deque[EngineError] = deque()
        self.configured = True
        self.asked: int = 0

    async def hints(self, changed: Callable[[str], None]) -> None:
        """What may have changed, for ever."""
        self.asked += 1
        if self.failures:
            raise self.failures.popleft()
        if not self.configured:
            return
        self.changed = changed
        try:
            await anyio.sleep_forever()
        finally:
            self.changed = None

    async def cancel(self, ref: Ref) -> None:
        """Asks, and tells."""
        await super().cancel(ref)
        if self.changed is not None:
            self.changed(ref.handle)

    def tell(self, handle: str) -> None:
        """One hint."""
        assert self.changed is not None
        self.changed(handle)

    async def listened_to(self) -> None:
        """Until somebody listens."""
        await until(lambda: self.changed is not None)


class Told(Telling, Counting):
    """Tells, and counts looks."""


class Held(Telling, Slow):
    """Tells, and holds looks back."""


class TellingWithin(Told):
    """Tells, has quotas, and knows the order of the looks."""

    def __init__(self, settings: MemorySettings) -> None:
        super().__init__(settings)
        self.allowance = Allowance(polls_per_second=20, batch_every=10, batch=1000)
        self.order: list[str] = []

    async def describe(self, ref: Ref) -> Execution:
        """One look."""
        self.order.append(ref.handle)
        return await super().describe(ref)


def settings(folder: Path) -> MemorySettings:
    return MemorySettings(name=str(folder))


async def known(here: Place, ids: list[str]) -> None:
    """Somebody has asked for each of them once, and asks no more."""
    async with anyio.create_task_group() as group:
        for task_id in ids:
            group.start_soon(here.get, task_id)


class TestTelling:
    """An adapter with hints and quotas against their laws."""

    async def test_hints(self, subject: Subject, adapter: Adapter) -> None:
        await an_execution_that_ends_is_hinted_at_by_its_handle(subject, adapter)

    async def test_limited(self, subject: Subject, adapter: Adapter) -> None:
        await an_allowance_leaves_something(subject, adapter)

    @pytest.fixture
    async def adapter(self, tmp_path: Path) -> AsyncIterator[Adapter]:
        async with TellingWithin(settings(tmp_path)) as adapter:
            yield adapter

    @pytest.fixture
    def subject(self, adapter: Adapter) -> Subject:
        echo = Role(workflow="echo", arguments=[1])
        return Subject(
            new_adapter=lambda: adapter,
            finishes=echo,
            output=1,
            other_arguments=[2],
            fails=Role(workflow="fail"),
            failure="declined",
            endless=Role(workflow="forever"),
            timeout=5,
        )


# --- looks


async def test_what_is_hinted_at_is_looked_at_before_its_turn_and_told(tmp_path: Path) -> None:
    engine = TellingWithin(settings(tmp_path))
    async with place(tmp_path, engine, PollingPolicy()) as here:
        asking = await here.start("ask", 1)
        (handle,) = engine.handles
        others = await here.start("forever", 200)  # 10 s of looks
        async with here.listening([*asking, *others]):
            await until(lambda: engine.looked_at[handle] >= 1 and len(engine.looked_at) > 20)
            await engine.answer(Ref(workflow="ask", handle=handle), YES)  # behind our back: nobody here knows
            engine.tell(handle)
            seen = len(engine.order)
            await until(lambda: here.ended(asking) == 1)
        assert handle in engine.order[seen : seen + 20]
        assert engine.busiest(0.99) <= 20


async def test_a_burst_of_hints_is_one_look_at_each_that_is_known_within_the_cap(tmp_path: Path) -> None:
    engine = Told(settings(tmp_path))
    async with place(tmp_path, engine, PollingPolicy(polls_per_second=100)) as here:
        ids = await here.start("forever", MANY)
        await known(here, ids)
        before = engine.looked_at.copy()
        for _ in range(50):
            for handle in (*engine.handles, *(f"of-others-{n}" for n in range(MANY))):
                engine.tell(handle)
        await until(lambda: all(engine.looked_at[name] == before[name] + 1 for name in engine.handles))
        await anyio.sleep(0.3)  # and no more
        assert all(engine.looked_at[name] == before[name] + 1 for name in engine.handles)
        assert set(engine.looked_at) == set(engine.handles)
        assert engine.busiest(0.99) <= 100


async def test_who_never_stops_hinting_at_some_keeps_no_others_from_being_looked_at(tmp_path: Path) -> None:
    engine = TellingWithin(settings(tmp_path))
    engine.allowance = Allowance(polls_per_second=20, batch_every=10, batch=1000, burst=20)
    async with place(tmp_path, engine, PollingPolicy()) as here, anyio.create_task_group() as group:
        ids = await here.start("forever", 8)
        await known(here, ids)
        *flooded, other = engine.handles

        async def flood() -> None:
            while True:
                for handle in flooded:
                    engine.tell(handle)
                await anyio.sleep(0.05)

        group.start_soon(flood)
        async with here.listening(ids):
            engine.order.clear()
            await until(lambda: len(engine.order) > 40)
        assert other in engine.order
        group.cancel_scope.cancel()


async def test_what_was_hinted_at_before_its_handle_was_known_is_looked_at_once_more(tmp_path: Path) -> None:
    engine = Held(settings(tmp_path))
    async with place(tmp_path, engine, PollingPolicy()) as here:
        engine.faults.lost_start_replies = 1
        (task_id,) = await here.start("ask", 1)
        async with anyio.create_task_group() as group:
            group.start_soon(here.get, task_id)  # which starts it again, and looks
            await engine.looking.wait()
            (handle,) = engine.handles
            await engine.answer(Ref(workflow="ask", handle=handle), YES)
            engine.tell(handle)  # of whom nobody knows yet
            engine.go_on.set()
        await until(lambda: engine.calls["describe"] == 2)
        assert (await here.get(task_id)).status is Status.SUCCEEDED


# --- listening


async def test_an_engine_that_cannot_tell_is_asked_again_and_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    engine = Told(settings(tmp_path))
    engine.failures.extend(EngineUnavailable("the queue does not answer") for _ in range(4))
    async with place(tmp_path, engine, PollingPolicy(watch_pauses=(0.01, 60.0))) as here:
        await engine.listened_to()
        assert engine.asked == 5
        (task_id,) = await here.start("echo", 1)
        assert (await here.get(task_id)).status is Status.SUCCEEDED
        said = [record.getMessage() for record in caplog.records if "cannot report changes" in record.getMessage()]
        assert len(said) == 1
        assert "the queue does not answer" in said[0]
        engine.tell("anything")
        assert "reports changes again" in caplog.text


async def test_the_hints_of_an_adapter_that_is_replaced_end_with_it(tmp_path: Path) -> None:
    first, second = Told(settings(tmp_path)), Told(settings(tmp_path))
    async with place(tmp_path, first, PollingPolicy()) as here:
        await first.listened_to()
        here.engines.use(await here.engines.opened({"memory": second, "other": Told(settings(tmp_path / "other"))}))
        await second.listened_to()
        assert first.changed is None
        here.engines.use(await here.engines.opened({"memory": second}))
        await anyio.sleep(0.05)
        assert (second.asked, first.asked) == (1, 1)
    assert second.changed is None
