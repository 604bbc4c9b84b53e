"""An engine that dedupes nothing: what may have been started is looked for, and started again once it has settled."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_workflows.adapter import Failure, Ref, Start, StartGuarantee, Status
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable, StartConflict
from mcp_workflows.store.protocol import Store, open_store
from mcp_workflows.task import Task, attempt
from mcp_workflows.tasks.executions import Executions
from mcp_workflows.tasks.start import OUTCOME_UNKNOWN, TaskCreation, order_of
from mcp_workflows.testing import FindableMemoryAdapter, FindableMemorySettings, make_task

pytestmark = pytest.mark.anyio

SETTLING = timedelta(seconds=30)
ALMOST = SETTLING - timedelta(seconds=1)
NOT_KNOWN = "not known yet whether it was started"


class Clock:
    """A wall clock that a test moves; `step` is what it moves by itself each time it is read."""

    def __init__(self) -> None:
        self.time = datetime.now(UTC)
        self.step = timedelta()

    def __call__(self) -> datetime:
        """The time."""
        self.time += self.step
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def searched_at_each_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests look again at once."""
    monkeypatch.setattr("mcp_workflows.tasks.start.FIND_EVERY", 0.0)


def settings(folder: Path) -> FindableMemorySettings:
    return FindableMemorySettings(name=str(folder), settling_seconds=SETTLING.total_seconds())


class Replica:
    """What creates tasks in one sidecar."""

    def __init__(self, store: Store, creation: TaskCreation, engine: MemoryAdapter) -> None:
        self.store = store
        self.create = creation.create
        self.ensure_started = creation.ensure_started
        self.engine = engine

    async def row(self, task: Task) -> Task:
        """As the store has it."""
        row = await self.store.get(task.id, task.owner)
        assert row is not None
        return row

    async def handle(self, task: Task) -> str:
        """Of the task, which a look finds or starts."""
        seen = await self.ensure_started(task)
        assert seen.handle is not None
        return seen.handle

    async def unknown(self, task: Task) -> str:
        """What is said of a task that is neither known to be started nor not."""
        with pytest.raises(EngineUnavailable) as untold:
            await self.ensure_started(task)
        assert untold.value.sent
        row = await self.row(task)
        assert (row.handle, row.ended) == (None, None)
        return str(untold.value)

    async def status(self, task: Task, handle: str) -> Status:
        """What the engine says of that execution."""
        return (await self.engine.describe(Ref(workflow=task.workflow, handle=handle))).status


@asynccontextmanager
async def replica(folder: Path, clock: Clock, engine: MemoryAdapter | None = None) -> AsyncGenerator[Replica]:
    """Those of one folder share the store and the engine."""
    adapter = engine or FindableMemoryAdapter(settings(folder))
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(f"sqlite:///{folder}/tasks.db"))
        engines = await stack.enter_async_context(Engines({"memory": adapter}))
        yield Replica(store, TaskCreation(store, engines, clock), adapter)


def new_task(clock: Clock, **changes: Any) -> Task:  # Any: any field of Task
    fields = {"engine": "memory", "workflow": "forever", "created": clock.time, "updated": clock.time}
    return make_task(**{**fields, "expires": clock.time + timedelta(days=1), **changes})


async def died(here: Replica, clock: Clock, *, started: bool) -> Task:
    """What a replica leaves behind that dies after it has written the row, or after it has started the execution."""
    row = await here.store.create(attempt(new_task(clock), clock.time))
    if started:
        await here.engine.start(order_of(row))
    return row


# --- one execution


async def test_a_start_whose_reply_was_lost_is_found_and_not_started_again(tmp_path: Path, clock: Clock) -> None:
    async with replica(tmp_path, clock) as here:
        here.engine.faults.lost_start_replies = 1
        task = await here.create(new_task(clock))
        assert task.handle is None
        assert [await here.handle(task)] == here.engine.handles
        assert (here.engine.calls["start"], here.engine.calls["find"]) == (1, 1)


async def test_a_list_that_lags_behind_starts_nothing_again(tmp_path: Path, clock: Clock) -> None:
    async with replica(tmp_path, clock) as here:
        here.engine.faults.lost_start_replies, here.engine.faults.lag = 1, 3600
        task = await here.create(new_task(clock))
        for later in (timedelta(), ALMOST):
            clock.time = task.created + later
            assert NOT_KNOWN in await here.unknown(task)
        here.engine.faults.lag = 0
        assert [await here.handle(task)] == here.engine.handles
        assert here.engine.calls["start"] == 1


async def test_what_nobody_asks_for_is_found_in_the_background(tmp_path: Path, clock: Clock) -> None:
    async with replica(tmp_path, clock) as here:
        task = await died(here, clock, started=True)
        clock.time += timedelta(minutes=1)
        engines = Engines({"memory": here.engine})
        async with (
            engines,
            Executions(store=here.store, engines=engines, retention=timedelta(days=90), clock=clock),
        ):
            with anyio.fail_after(60):
                while (await here.row(task)).handle is None:
                    await anyio.sleep(0.02)
        assert here.engine.calls["start"] == 1


# --- a clock that is set


async def test_a_clock_that_jumps_ahead_starts_nothing_again_that_cannot_be_seen_yet(
    tmp_path: Path, clock: Clock
) -> None:
    async with replica(tmp_path, clock) as here:
        here.engine.faults.lost_start_replies, here.engine.faults.lag = 1, 3600
        task = await here.create(new_task(clock, expires=None))
        engines, steady = Engines({"memory": here.engine}), clock.time.timestamp()
        made = Executions(
            store=here.store, engines=engines, retention=timedelta(days=90), clock=clock, steady=lambda: steady
        )
        async with engines, made as one:
            for ahead in (timedelta(days=91), timedelta()):
                clock.time = task.created + ahead
                assert await one.observe(task) == (task, f"engine memory: {NOT_KNOWN}")
            here.engine.faults.lag = 0
            with anyio.fail_after(60):
                while (found := (await one.observe(task))[0]).handle is None:
                    await anyio.sleep(0.02)
        assert [found.handle] == here.engine.handles
        assert here.engine.calls["start"] == 1


# --- replicas


class Held(FindableMemoryAdapter):
    """Its first start takes far longer than anything may; then it fails, if there is an error."""

    def __init__(self, given: FindableMemorySettings, error: EngineError | None = None) -> None:
        super().__init__(given)
        self.entered, self.go_on, self.error = anyio.Event(), anyio.Event(), error

    async def start(self, start: Start) -> str:
        """When the test says so."""
        self.entered.set()
        await self.go_on.wait()
        if self.error is not None:
            raise self.error
        return await super().start(start)


async def test_a_start_that_comes_after_another_replicas_is_cancelled(tmp_path: Path, clock: Clock) -> None:
    held = Held(settings(tmp_path))
    async with replica(tmp_path, clock, held) as late, replica(tmp_path, clock) as other:
        task = new_task(clock)
        async with anyio.create_task_group() as group:
            group.start_soon(late.create, task)
            await held.entered.wait()
            clock.time += SETTLING
            await other.ensure_started(task)
            held.go_on.set()
        first, second = other.engine.handles
        assert (await other.handle(await other.row(task)), await late.handle(await late.row(task))) == (first, first)
        assert (await late.status(task, first), await late.status(task, second)) == (Status.RUNNING, Status.CANCELLED)


async def met(folder: Path, clock: Clock, first: Held, other: MemoryAdapter) -> Sequence[Task | EngineError]:
    """What two calls of one key hear whose replicas meet: the first one's start ends when the other has its answer."""
    async with replica(folder, clock, first) as one, replica(folder, clock, other) as two:
        heard: list[Task | EngineError] = []

        async def call(here: Replica) -> None:
            try:
                heard.append(await here.create(new_task(clock, idempotency_key="k", key="k")))
            except EngineError as error:
                heard.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(call, one)
            await first.entered.wait()
            await call(two)
            first.go_on.set()
        return heard


async def test_a_call_that_had_to_wait_for_another_of_its_key_has_all_its_time_to_start(
    tmp_path: Path, clock: Clock
) -> None:
    given = FindableMemorySettings(name=str(tmp_path), settling_seconds=20)
    held = Held(given, EngineUnavailable("nothing listens there", sent=False))
    async with replica(tmp_path, clock, held) as here:

        async def refused() -> None:
            with pytest.raises(EngineUnavailable):
                await here.create(new_task(clock, idempotency_key="k", key="k"))
            held.error = None

        async def waits() -> None:
            task = await here.create(new_task(clock, idempotency_key="k", key="k"))
            assert [task.handle] == here.engine.handles

        async with anyio.create_task_group() as group:
            group.start_soon(refused)
            await held.entered.wait()
            group.start_soon(waits)
            await anyio.wait_all_tasks_blocked()
            clock.time += timedelta(seconds=12)
            held.go_on.set()


async def test_a_task_that_was_handed_out_fails_with_the_reason_for_which_its_engine_refused_it(
    tmp_path: Path, clock: Clock
) -> None:
    refused = EngineRefused("no such workflow")
    two, one = await met(tmp_path, clock, Held(settings(tmp_path), refused), FindableMemoryAdapter(settings(tmp_path)))
    assert one is refused
    assert isinstance(two, Task)
    async with replica(tmp_path, clock) as here:
        assert _failure(await here.row(two)).text == "no such workflow"
        again = await here.create(new_task(clock, idempotency_key="k", key="k"))
        assert (again.id != two.id, [again.handle]) == (True, here.engine.handles)


async def test_an_execution_that_shows_up_after_the_second_start_is_the_one_that_counts(
    tmp_path: Path, clock: Clock
) -> None:
    class Unseen(FindableMemoryAdapter):
        """Its list was wrong about what is settled, once."""

        async def find(self, start: Start) -> str | None:
            found = await super().find(start)
            return found if self.calls["find"] > 1 else None

    async with replica(tmp_path, clock, Unseen(settings(tmp_path))) as here:
        task = await died(here, clock, started=True)
        clock.time += SETTLING
        kept = await here.handle(task)
        first, second = here.engine.handles
        assert kept == first
        assert (await here.status(task, first), await here.status(task, second)) == (Status.RUNNING, Status.CANCELLED)


async def test_a_process_that_was_held_up_starts_nothing_until_it_has_looked(tmp_path: Path, clock: Clock) -> None:
    async with replica(tmp_path, clock) as here:
        clock.step = SETTLING  # asleep, between the row and the start
        task = await here.create(new_task(clock))
        clock.step = timedelta()
        assert (task.handle, here.engine.handles) == (None, [])
        assert task.attempted is not None
        clock.time = task.attempted + SETTLING
        assert [await here.handle(task)] == here.engine.handles


# --- refusals


@pytest.mark.parametrize("started", [False, True], ids=["not started", "started"])
async def test_an_engine_that_cannot_be_searched_starts_and_closes_nothing(
    tmp_path: Path, clock: Clock, started: bool
) -> None:
    async with replica(tmp_path, clock) as here:
        task = await died(here, clock, started=started)
        clock.time += SETTLING
        here.engine.faults.unavailable = frozenset({"find"})
        assert "does not answer" in await here.unknown(task)
        assert await here.row(task) == task
        here.engine.faults.unavailable = frozenset()
        assert [await here.handle(task)] == here.engine.handles


class Denied(FindableMemoryAdapter):
    """May not list executions."""

    async def find(self, start: Start) -> str | None:
        """Never."""
        raise EngineRefused("no permission to list executions", final=True)


async def test_who_may_not_search_starts_nothing_again(tmp_path: Path, clock: Clock) -> None:
    async with replica(tmp_path, clock, Denied(settings(tmp_path))) as here:
        task = await died(here, clock, started=False)
        clock.time += SETTLING
        assert "no permission to list executions" in await here.unknown(task)
        assert not here.engine.handles


async def test_a_key_with_another_input_is_told(tmp_path: Path, clock: Clock) -> None:
    async with replica(tmp_path, clock) as here:
        task = await died(here, clock, started=False)
        order = order_of(task)
        await here.engine.start(
            Start(workflow=order.workflow, arguments=["other"], key=order.key, created=order.created)
        )
        with pytest.raises(StartConflict, match="another workflow or input"):
            await here.ensure_started(task)
        assert "another workflow or input" in _failure(await here.row(task)).text
        assert len(here.engine.handles) == 1


def _failure(task: Task) -> Failure:
    assert task.execution.failure is not None
    return task.execution.failure


# --- pace, and what cannot be found


class HeldOnce(Held):
    """Never started twice, as nobody could know."""

    starts = StartGuarantee.ONCE


async def test_a_start_that_is_under_way_elsewhere_is_not_given_up_by_a_clock_that_jumps_ahead(
    tmp_path: Path, clock: Clock
) -> None:
    held = HeldOnce(settings(tmp_path))
    async with replica(tmp_path, clock, held) as there, replica(tmp_path, clock) as here:
        engines, steady = Engines({"memory": HeldOnce(settings(tmp_path))}), clock.time.timestamp()
        made = Executions(
            store=here.store, engines=engines, retention=timedelta(days=90), clock=clock, steady=lambda: steady
        )
        task = new_task(clock, expires=None)
        async with engines, made as one, anyio.create_task_group() as group:
            group.start_soon(there.create, task)
            await held.entered.wait()
            clock.time += timedelta(days=91)
            seen, trouble = await one.observe(await here.row(task))
            assert (seen.ended, trouble) == (None, f"engine memory: {NOT_KNOWN}")
            held.go_on.set()
        assert await here.handle(await here.row(task)) in here.engine.handles


@pytest.mark.parametrize("kind", [MemoryAdapter, FindableMemoryAdapter])
async def test_nothing_is_started_for_what_is_left_of_a_task_that_has_expired(
    tmp_path: Path, clock: Clock, kind: type[MemoryAdapter]
) -> None:
    async with replica(tmp_path, clock, kind(settings(tmp_path))) as here:
        row = attempt(new_task(clock, idempotency_key="k", expires=clock.time), clock.time)
        task = await here.store.create(row)
        await here.store.delete_expired(clock.time, clock.time - timedelta(days=1))
        clock.time += SETTLING
        with pytest.raises(EngineUnavailable, match="expired"):
            await here.ensure_started(task)
        assert not here.engine.handles


async def test_an_execution_is_not_searched_for_with_each_poll(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_workflows.tasks.start.FIND_EVERY", 3600)
    async with replica(tmp_path, clock) as here:
        task = await died(here, clock, started=False)
        assert NOT_KNOWN in await here.unknown(task)
        assert NOT_KNOWN in await here.unknown(task)
        assert here.engine.calls["find"] == 1


class Blind(MemoryAdapter):
    """Says that executions can be found, and cannot find them."""

    starts = StartGuarantee.FINDABLE


async def test_without_a_search_the_outcome_stays_unknown(tmp_path: Path, clock: Clock) -> None:
    async with replica(tmp_path, clock, Blind(MemorySettings(name=str(tmp_path)))) as here:
        here.engine.faults.lost_start_replies = 1
        task = await here.create(new_task(clock))
        clock.time += SETTLING
        failure = _failure(await here.ensure_started(task))
        assert failure is not None
        assert (failure.kind, failure.text) == (OUTCOME_UNKNOWN.kind, f"{OUTCOME_UNKNOWN.text} (the reply was lost)")
        assert here.engine.calls["start"] == 1
