"""How executions and tasks end when nobody asks: cancellations, the grace, expiry, and what the client is told."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_workflows import Kind
from mcp_workflows.access import Principal
from mcp_workflows.access.audit import Record
from mcp_workflows.adapter import Execution, InputRequest, Ref, Status
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import RequestError
from mcp_workflows.store.leases import LEASE, Leases
from mcp_workflows.store.protocol import Store
from mcp_workflows.store.sqlite.store import SQLiteStore
from mcp_workflows.task import (
    DELIVERING,
    LONGEST_PAUSE,
    SHORTEST_PAUSE,
    Task,
    Terms,
    Waiting,
    bind,
    deliver_cancel,
    events_between,
    expire,
    mark_cancelled,
    mark_terminated,
    observe,
    postpone,
    request_cancel,
    set_back,
)
from mcp_workflows.tasks.executions import Executions
from mcp_workflows.tasks.maintenance import EVERY, ClockCheck
from mcp_workflows.tasks.service import TaskService
from mcp_workflows.testing import make_task
from mcp_workflows.tools.tool import MODELS, AnyTool
from mcp_workflows.wire.commands import Call, Created, Part, TaskView
from tests.support.places import quiet

pytestmark = pytest.mark.anyio

DAY = timedelta(days=1)
NOON = datetime(2026, 7, 28, 12, tzinfo=UTC)
ANN = Principal(id="ann")
BEN = Principal(id="ben")
SOON = {"grace": "30s", "then": "terminate"}
BOUND_TO_GRACE = replace(bind(make_task(created=NOON, updated=NOON, expires=NOON + DAY), "h", NOON), grace=30.0)
OVER = "terminated: it did not end within 30 s of the request to cancel"


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


class Clock:
    """What time it is, how it passes (`now` grows), and how the clock is set."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)
        self.moved = timedelta()

    def __call__(self) -> datetime:
        return self.now + self.moved

    def uptime(self) -> float:
        """Seconds that pass, however it is set."""
        return self.now.timestamp()


class Noting(MemoryAdapter):
    """An engine that notes what it was told of which execution, and whose adapter breaks for some."""

    def __init__(self, settings: MemorySettings) -> None:
        super().__init__(settings)
        self.asked: list[str] = []
        self.ended: list[tuple[str, str]] = []
        self.poisoned: set[str] = set()

    async def cancel(self, ref: Ref) -> None:
        await super().cancel(ref)
        self.asked.append(ref.handle)

    async def terminate(self, ref: Ref, reason: str) -> None:
        if ref.handle in self.poisoned:
            raise RuntimeError("this one breaks the adapter")
        await super().terminate(ref, reason)
        self.ended.append((ref.handle, reason))


def tool(name: str, workflow: str = "stubborn", **more: Any) -> AnyTool:
    model = MODELS[Kind(more.get("kind", Kind.START))]
    return model.model_validate({"name": name, "engine": "memory", "workflow": workflow, **more})


TOOLS = [
    tool("stubborn", cancel=SOON),
    tool("shorter", cancel={"grace": "20s", "then": "terminate"}),
    tool("patient"),
    tool("plain", "forever"),
    tool("sleep", "sleep"),
    tool("beside", "forever", engine="elsewhere"),
    tool("kept", "forever", ttl="1h"),
    tool("dropped", "forever", ttl="1h", on_expire="cancel"),
    tool("ended", ttl="1h", on_expire="cancel", cancel=SOON),
    tool("there", "forever", ttl="1h", engine="elsewhere", on_expire="cancel"),
    tool("watch", kind="watch", allow_cancel=True, cancel=SOON),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What a sidecar has inside, and the engines behind it."""

    service: TaskService
    executions: Executions
    engine: Noting
    elsewhere: Noting
    store: Store
    clock: Clock
    records: list[Record]

    async def call(self, name: str, **arguments: Any) -> Task:
        """A task of ann's, with its handle."""
        command = Call(tool=name, arguments=arguments, takes_tasks=True, takes_questions=True)
        outcome = await self.service.call(command, ANN, quiet)
        assert isinstance(outcome, Created), outcome
        return await self.row(outcome.task.task_id)

    async def cancelled(self, name: str, **arguments: Any) -> Task:
        """One that was asked to cancel."""
        task = await self.call(name, **{"seconds": 1e6, **arguments})
        await self.service.cancel(task.id, ANN)
        return await self.row(task.id)

    async def get(self, task: Task) -> TaskView:
        return await self.service.get(task.id, ANN)

    async def row(self, task_id: str) -> Task:
        found = await self.store.get(task_id, ANN.id)
        assert found is not None
        return found

    async def until(self, task: Task, holds: Callable[[Task], object]) -> Task:
        """Its row, once nobody but the housekeeping has made this so."""
        with anyio.fail_after(60):
            while not holds(row := await self.row(task.id)):
                await anyio.sleep(0.005)
        return row


@asynccontextmanager
async def house(folder: Path, clock: Clock | None = None) -> AsyncGenerator[House]:
    """One replica; those of one folder share the store and the engines."""
    engine, elsewhere = (Noting(MemorySettings(name=f"{folder}/{name}")) for name in ("memory", "elsewhere"))
    clock, records = clock or Clock(), list[Record]()
    async with AsyncExitStack() as stack:
        store: Store = await stack.enter_async_context(SQLiteStore(f"sqlite:///{folder}/tasks.db", clock=clock))
        adapters = {"memory": engine, "elsewhere": elsewhere}
        engines = await stack.enter_async_context(Engines(adapters, call_timeout=0.5))
        made = Executions(
            store=store, engines=engines, retention=DAY, clock=clock, steady=clock.uptime, audit=records.append
        )
        executions = await stack.enter_async_context(made)
        service = TaskService(tools={tool.name: tool for tool in TOOLS}, executions=executions, retention=DAY)
        yield House(
            service=service,
            executions=executions,
            engine=engine,
            elsewhere=elsewhere,
            store=store,
            clock=clock,
            records=records,
        )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The housekeeping goes round all the time."""
    for pace in ("STEPS_EVERY", "CLOCK_EVERY", "RECOVER_EVERY", "KEEP_EVERY", "DELETE_EVERY"):
        monkeypatch.setattr(f"mcp_workflows.tasks.maintenance.{pace}", 0.01)
    monkeypatch.setattr("mcp_workflows.tasks.maintenance.POLL_EVERY", 0.0)


@pytest.fixture
async def here(tmp_path: Path) -> AsyncGenerator[House]:
    async with house(tmp_path) as found:
        yield found


# --- cancel: {grace, then: terminate}


async def test_what_has_not_ended_in_its_grace_is_terminated_with_the_reason(here: House) -> None:
    task, shorter = await here.cancelled("stubborn"), await here.cancelled("shorter")
    here.clock.now += seconds(29)
    await here.until(shorter, lambda row: row.ended)
    assert (await here.row(task.id)).ended is None
    here.clock.now += seconds(1)
    row = await here.until(task, lambda row: row.ended)
    assert (row.execution.status, row.execution.message, row.terminated) == (Status.CANCELLED, OVER, here.clock.now)
    assert [handle for handle, _ in here.engine.ended] == [shorter.handle, task.handle]
    assert (await here.get(task)).message == OVER


async def test_the_client_is_told_the_time_at_which_it_will_be_terminated_until_then_it_works(here: House) -> None:
    task = await here.cancelled("stubborn")
    due = here.clock.now + seconds(30)
    told = f"asked to cancel; will be terminated at {due:%H:%M:%S} UTC unless it ends before; sleeping"
    first = await here.get(task)
    assert (first.status, first.message) == (Status.RUNNING, told)
    here.clock.now += seconds(15)
    assert (await here.get(task)).updated == first.updated  # a message that changed each second would be a change


async def test_the_grace_begins_when_the_engine_has_taken_the_cancellation(here: House) -> None:
    here.engine.faults.unavailable = frozenset({"cancel"})
    task = await here.cancelled("stubborn")
    here.clock.now += seconds(3600)
    assert "its engine has not accepted that yet" in str((await here.get(task)).message)
    here.engine.faults.unavailable = frozenset()
    here.clock.now += LONGEST_PAUSE
    row = await here.until(task, lambda row: row.cancel_delivered)
    assert row.due == here.clock.now + seconds(30)
    assert here.engine.ended == []


# --- what did not work


async def test_a_cancellation_the_engine_did_not_take_is_delivered_though_nobody_asks_any_more(here: House) -> None:
    here.engine.faults.unavailable = frozenset({"cancel"})
    task = await here.cancelled("plain")
    assert not task.cancel_delivered
    here.engine.faults.unavailable = frozenset()
    here.clock.now += DELIVERING
    row = await here.until(task, lambda row: row.ended)
    assert row.execution.status is Status.CANCELLED
    assert here.engine.asked == [task.handle]


async def test_what_cannot_be_terminated_is_tried_again_later_and_later_and_keeps_no_other_waiting(here: House) -> None:
    tasks = [await here.cancelled("stubborn") for _ in range(20)]
    *poisoned, fine = tasks
    here.engine.poisoned = {str(task.handle) for task in poisoned}
    here.clock.now += seconds(30)
    await here.until(fine, lambda row: row.ended)
    due = fine.due
    for task in poisoned:
        row = await here.until(task, lambda row: row.due != due)
        assert row.due == here.clock.now + SHORTEST_PAUSE
        assert (row.ended, row.terminated) == (None, None)
    here.engine.poisoned = set()
    here.clock.now += SHORTEST_PAUSE
    for task in poisoned:
        await here.until(task, lambda row: row.ended)


# --- two replicas


async def test_two_replicas_terminate_once(tmp_path: Path) -> None:
    clock = Clock()
    async with house(tmp_path, clock) as one, house(tmp_path, clock) as two:
        tasks = [await one.cancelled("stubborn") for _ in range(30)]
        clock.now += seconds(30)
        for task in tasks:
            await two.until(task, lambda row: row.ended)
        ended = [handle for handle, _ in one.engine.ended + two.engine.ended]
        assert sorted(ended) == sorted(str(task.handle) for task in tasks)


async def test_what_a_replica_was_killed_at_another_does_as_soon_as_its_lease_is_over(here: House) -> None:
    task = await here.cancelled("stubborn")
    here.elsewhere.faults.unavailable = frozenset({"cancel"})
    there = await here.cancelled("there")
    here.elsewhere.faults.unavailable = frozenset()
    now = here.clock.now + seconds(30)
    for key in {task.engine_key, "memory"}:
        assert await here.store.lease(f"attend {key}", "a dead one", lasting=seconds(30) + LEASE)
    here.clock.now = now
    await here.until(there, lambda row: row.ended)  # there the housekeeping has had its turn
    assert (await here.row(task.id)).ended is None
    here.clock.now += LEASE
    await here.until(task, lambda row: row.ended)


async def test_a_replica_that_lost_its_lease_breaks_off(here: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_workflows.store.leases._RENEW", 0.01)
    leases = Leases(here.store)
    broken_off = False

    async def work() -> None:
        nonlocal broken_off
        here.clock.now += LEASE
        assert await here.store.lease("it", "another", lasting=LEASE)
        try:
            await anyio.sleep_forever()
        finally:
            broken_off = True

    with anyio.fail_after(60):
        await leases.alone("it", work)
    assert broken_off
    assert await here.store.lease("it", "another", lasting=LEASE)


# --- on_expire


async def test_an_execution_outlives_its_task_unless_the_tool_says_cancel(here: House) -> None:
    kept, dropped = await here.call("kept"), await here.call("dropped")
    here.clock.now += seconds(3600)
    await here.until(dropped, lambda row: row.tombstone)
    await here.until(kept, lambda row: row.tombstone)
    assert here.engine.asked == [dropped.handle]


# --- an engine that forgets first


async def test_an_end_that_nobody_asks_about_is_seen_before_the_engine_forgets_it(
    here: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_workflows.tasks.maintenance.RETENTION_PAGE", 3)
    for number in (8, 1):
        tasks: list[Task] = []
        for _ in range(number):
            tasks.append(await here.call("sleep", seconds=0))
            here.clock.now += seconds(0.001)
        here.clock.now += EVERY
        for task in tasks:
            await here.until(task, lambda row: row.ended)
            here.engine.forget(str(task.handle))
        assert (await here.get(tasks[0])).status is Status.SUCCEEDED


# --- a clock that is set


async def gone_round(here: House, times: int = 3) -> None:
    """Until the housekeeping has had its turn so often since: what it does asks for a lease, which nobody else has."""
    for _ in range(times):
        task = await here.call("there")
        here.elsewhere.faults.unavailable = frozenset({"cancel"})
        await here.service.cancel(task.id, ANN)
        here.elsewhere.faults.unavailable = frozenset()
        here.clock.now += DELIVERING
        await here.until(task, lambda row: row.cancel_delivered)


async def test_a_clock_that_is_ahead_for_a_while_erases_cancels_and_terminates_nothing(
    here: House, caplog: pytest.LogCaptureFixture
) -> None:
    kept, dropped, stubborn = await here.call("kept"), await here.call("dropped"), await here.cancelled("stubborn")
    here.clock.moved = 91 * DAY
    await gone_round(here)
    here.clock.moved = timedelta()
    await gone_round(here)
    for task in (kept, dropped):
        assert await here.row(task.id) == task
        assert (await here.get(task)).status is Status.RUNNING
    assert here.engine.asked == [stubborn.handle]
    said = [record.message for record in caplog.records if "the clock was set" in record.message]
    assert len(said) == 1
    assert "forward by 91 days, 0:00:00: nothing expires" in said[0]


def test_a_clock_is_believed_as_long_as_it_passes_evenly() -> None:
    clock = Clock()
    check = ClockCheck(clock, clock.uptime)
    for _ in range(1000):  # it is slewed, ten minutes in all
        clock.now += seconds(5)
        clock.moved += seconds(0.6)
        assert check.is_steady()
    for moved in (seconds(20), seconds(-20), DAY, -DAY):
        before = clock.moved
        clock.moved += moved
        assert not check.is_steady()
        clock.moved = before
        assert check.is_steady()
        clock.moved += moved
        assert not check.is_steady()
        clock.now += min(abs(moved), timedelta(hours=1)) - seconds(1)
        assert not check.is_steady()
        clock.now += seconds(1)
        assert check.is_steady()


ASKED = request_cancel(replace(BOUND_TO_GRACE, grace=None), NOON + 91 * DAY)
ASKING = replace(
    BOUND_TO_GRACE,
    execution=Execution(
        status=Status.INPUT_REQUIRED, requests={"q": InputRequest(method="elicitation/create", params={}, gate="g")}
    ),
    terms={"g": Terms(approvers="ben", remind=60)},
)
SET_BACK: Mapping[str, tuple[Task, datetime | None]] = {
    "it was not delivered": (ASKED, NOON),
    "it was put off again": (postpone(ASKED, NOON + 92 * DAY), NOON),
    "it was put off only": (postpone(request_cancel(BOUND_TO_GRACE, NOON), NOON + 91 * DAY), NOON),
    "it was delivered": (deliver_cancel(request_cancel(BOUND_TO_GRACE, NOON), NOON + 91 * DAY), NOON + seconds(30)),
    "it is not started": (replace(ASKED, handle=None), None),
    "it waits for an approval": (replace(ASKING, waiting={"q": Waiting(since=NOON + 91 * DAY)}), NOON + seconds(60)),
    "its reminder was put off": (
        postpone(replace(ASKING, waiting={"q": Waiting(since=NOON)}), NOON + 91 * DAY),
        NOON + seconds(60),
    ),
    "it ends when it expires": (
        replace(BOUND_TO_GRACE, cancel_on_expiry=True, expires=NOON + 91 * DAY),
        NOON + 91 * DAY,
    ),
}


@pytest.mark.parametrize("case", SET_BACK)
def test_what_a_clock_that_was_ahead_has_put_off_is_due_once_it_is_right(case: str) -> None:
    task, due = SET_BACK[case]
    assert set_back(task, NOON).due == due
    assert set_back(set_back(task, NOON), NOON + seconds(1)) == set_back(task, NOON)


def test_a_corrected_time_of_a_reminder_is_no_reminder() -> None:
    ahead = NOON + 91 * DAY
    task = replace(ASKING, waiting={"q": Waiting(since=NOON, reminded=ahead, escalated=ahead)})
    corrected = set_back(task, NOON)
    assert corrected.waiting["q"].reminded == NOON
    assert events_between(task, corrected) == []


# --- expired, or never there

VERBS: Mapping[str, Callable[[TaskService, str, Principal], Any]] = {  # Any: what they return is not looked at
    "get": lambda service, task_id, who: service.get(task_id, who),
    "update": lambda service, task_id, who: service.update(task_id, {}, who),
    "cancel": lambda service, task_id, who: service.cancel(task_id, who),
    "withdraw": lambda service, task_id, who: service.withdraw(task_id, who),
    "read": lambda service, task_id, who: service.read(task_id, Part.RESULT, who),
    "read log": lambda service, task_id, who: service.read(task_id, Part.LOG, who),
    "owned": lambda service, task_id, who: service.owned(task_id, who),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_only_its_owner_hears_that_a_task_has_expired_and_only_while_that_is_kept(here: House, verb: str) -> None:
    task = await here.call("kept")

    async def said(task_id: str, who: Principal) -> str:
        with pytest.raises(RequestError) as caught:
            await VERBS[verb](here.service, task_id, who)
        assert caught.value.code == -32602
        return caught.value.message

    here.clock.now += seconds(3600)
    for _ in range(2):  # before and after it is swept
        assert await said(task.id, ANN) == "Task expired: its time to live is over"
        assert await said(task.id, BEN) == await said("0" * 40, ANN) == "Task not found"
        await here.until(task, lambda row: row.tombstone)
    here.clock.now += DAY + seconds(1)
    with anyio.fail_after(60):
        while await here.store.get(task.id, ANN.id) is not None:
            await anyio.sleep(0.005)
    assert await said(task.id, ANN) == "Task not found"


# --- the rules, as truth tables

BOUND = bind(make_task(created=NOON, updated=NOON, expires=NOON + DAY), "h", NOON)
GRACE = replace(BOUND, grace=30.0)
LATER = NOON + seconds(5)
DUE: Mapping[str, tuple[Task, datetime | None]] = {
    "nothing was asked": (BOUND, None),
    "it is to be cancelled when it expires": (replace(BOUND, cancel_on_expiry=True), NOON + DAY),
    "it never expires": (replace(BOUND, cancel_on_expiry=True, expires=None), None),
    "it was asked, and whoever asked delivers it": (request_cancel(BOUND, NOON), NOON + DELIVERING),
    "it was told to be cancelled": (mark_cancelled(BOUND, NOON), NOON + DELIVERING),
    "it is not bound": (request_cancel(make_task(), NOON), None),
    "it was delivered": (deliver_cancel(request_cancel(BOUND, NOON), LATER), None),
    "it was delivered, and has a grace": (deliver_cancel(request_cancel(GRACE, NOON), LATER), LATER + seconds(30)),
    "it was terminated": (mark_terminated(deliver_cancel(request_cancel(GRACE, NOON), LATER), LATER), None),
    "it has ended": (observe(request_cancel(GRACE, NOON), Execution(status=Status.SUCCEEDED), LATER), None),
    "it is a tombstone": (expire(request_cancel(GRACE, NOON)), None),
}


@pytest.mark.parametrize("case", DUE)
def test_when_the_housekeeping_has_something_to_do(case: str) -> None:
    task, due = DUE[case]
    assert task.due == due


@pytest.mark.parametrize("change", [request_cancel, mark_cancelled, mark_terminated, postpone])
@pytest.mark.parametrize("case", ["it has ended", "it is a tombstone"])
def test_what_is_over_is_not_cancelled_any_more(change: Callable[[Task, datetime], Task], case: str) -> None:
    task, _ = DUE[case]
    assert change(task, LATER).due is None
    assert change(task, LATER).terminated is None


def test_a_tombstone_holds_nothing_of_the_task_but_whose_it_was() -> None:
    task = expire(replace(GRACE, output_schema={"type": "object"}, answered=frozenset({"a"})))
    assert (task.output_schema, task.answered, task.arguments, task.input) == (None, frozenset(), None, None)
    assert (task.id, task.owner, task.tombstone) == (GRACE.id, GRACE.owner, True)
