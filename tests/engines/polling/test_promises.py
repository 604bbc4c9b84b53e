"""The promises of polling, as properties of random loads on a clock that jumps from event to event."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.lowlevel import current_clock
from trio.testing import MockClock

from mcp_workflows.adapter import Allowance, Execution, Ref, Status
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.engines.polling.policy import PollingPolicy
from mcp_workflows.engines.polling.poller import Poller
from mcp_workflows.engines.registry import Engines
from mcp_workflows.task import Task
from mcp_workflows.testing import make_task

BEGIN = datetime(2026, 7, 28, 12, tzinfo=UTC)
HORIZON = 40.0  # seconds
ENGINE = "engine"
SLOP = 1e-6  # seconds: sums of floats


def now() -> float:
    return current_clock().current_time()


class Clock(datetime):
    """The wall clock, which goes with the other one."""

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        """The time."""
        return BEGIN + timedelta(seconds=now())


@dataclass(frozen=True, kw_only=True)
class Load:
    """Executions that end at these times, and whoever is interested in them."""

    ends: Sequence[float]
    followed: int  # of them, from the first
    asked: int  # of them, from the last
    ask_every: float | None  # seconds; None: at the pace that clients are told
    latency: float  # seconds of each call
    polls_per_second: float
    allowance: Allowance | None = None

    @property
    def allowed(self) -> float:
        """Looks per second."""
        return min(self.polls_per_second, self.allowance.polls_per_second if self.allowance else math.inf)

    @property
    def late(self) -> float:
        """Seconds after which an end must have been seen: two rounds of looks at all, and a few calls."""
        trip = len(self.ends) / self.allowed
        rest = self.allowance.batch_every if self.allowance else 0.0
        return 2 * (max(DEFAULT.longest_interval, trip) + rest) + 4 * self.latency + 1


DEFAULT = PollingPolicy()


@dataclass(kw_only=True)
class World:
    """An engine of which each call is noted, and what clients and followers heard."""

    load: Load
    looks: list[float] = field(default_factory=list[float])
    sweeps: list[float] = field(default_factory=list[float])
    looked_at: list[str] = field(default_factory=list[str])
    in_progress: set[str] = field(default_factory=set[str])
    overlaps: int = 0
    late: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    told: dict[str, float] = field(default_factory=dict[str, float])

    def status(self, handle: str) -> Status:
        """The truth."""
        return Status.SUCCEEDED if now() >= self.load.ends[int(handle)] else Status.RUNNING

    async def look(self, task: Task, _: Task | None, asks: Any) -> tuple[Task, str | None]:
        """One look; whether it is the only one at this execution is noted."""
        assert task.handle is not None
        self.overlaps += task.id in self.in_progress
        self.in_progress.add(task.id)
        asks()
        self.looks.append(now())
        self.looked_at.append(task.handle)
        seen = Execution(status=self.status(task.handle))
        await anyio.sleep(self.load.latency)
        self.in_progress.discard(task.id)
        ended = BEGIN if seen.terminal else None
        return replace(task, execution=seen, ended=ended), None


class Listed(MemoryAdapter):
    """An engine with a list, and perhaps with quotas."""

    def __init__(self, world: World) -> None:
        super().__init__(MemorySettings())
        self._world = world
        self.allowance = world.load.allowance

    async def describe_many(self, refs: Sequence[Ref]) -> Mapping[str, Execution]:
        """A sweep."""
        self._world.sweeps.append(now())
        await anyio.sleep(self._world.load.latency)
        return {ref.handle: Execution(status=self._world.status(ref.handle)) for ref in refs}


def task_of(number: int) -> Task:
    started = Execution(status=Status.RUNNING)
    return make_task(
        id=f"t{number}", engine=ENGINE, handle=str(number), created=BEGIN, updated=BEGIN, execution=started
    )


@asynccontextmanager
async def polling(world: World, **settings: Any) -> AsyncGenerator[Poller]:
    policy = replace(DEFAULT, polls_per_second=world.load.polls_per_second, clock=Clock.now)
    async with Engines({ENGINE: Listed(world)}) as engines, Poller(world.look, engines, policy, **settings) as found:
        yield found


async def ask(world: World, asked: Poller, number: int) -> None:
    """A client that polls; what it hears later than promised is noted."""
    task = task_of(number)
    end = world.load.ends[number]
    while now() < HORIZON:
        seen = await asked.poll(task)
        if seen.ended:
            return
        if now() > end + world.load.late:
            world.late.append((task.id, now() - end))
        await anyio.sleep(world.load.ask_every or asked.interval(task))


async def follow(world: World, followed: Poller, number: int) -> None:
    """A follower; when it heard of the end is noted."""

    async def hear(task: Task) -> None:
        if task.ended:
            world.told[task.id] = now() - world.load.ends[number]

    await followed.follow(task_of(number), hear)


async def lived_through(load: Load) -> World:
    world = World(load=load)
    async with polling(world) as found:
        with anyio.move_on_after(HORIZON + 2 * load.late):
            async with anyio.create_task_group() as group:
                for number in range(load.followed):
                    group.start_soon(follow, world, found, number)
                for number in range(len(load.ends) - load.asked, len(load.ends)):
                    group.start_soon(ask, world, found, number)
    return world


def world_of(load: Load) -> World:
    clock = MockClock(autojump_threshold=0)
    return anyio.run(partial(lived_through, load), backend="trio", backend_options={"clock": clock})


def busiest(times: Sequence[float], window: float) -> int:
    """The most calls in any such window."""
    return max((sum(at <= other < at + window - SLOP for other in times) for at in times), default=0)


@st.composite
def loads(draw: st.DrawFn, *, quotas: bool = False) -> Load:
    """Up to 60 executions; from 20 on they are swept."""
    many = draw(st.integers(1, 60))
    latency = draw(st.sampled_from([0.0, 0.01, 0.3, 1.5]))
    allowance = None
    if quotas:
        looks = draw(st.sampled_from([1.0, 4.0, 7.5]))
        allowance = Allowance(polls_per_second=looks, batch_every=draw(st.sampled_from([0.5, 3.0])), batch=1000)
    return Load(
        ends=draw(st.lists(st.floats(0, HORIZON), min_size=many, max_size=many)),
        followed=draw(st.integers(0, many)),
        asked=draw(st.integers(0, many)),
        ask_every=draw(st.sampled_from([None, 0.2, 3.0])),
        latency=latency,
        polls_per_second=draw(st.sampled_from([5.0, 20.0, 50.0])),
        allowance=allowance,
    )


SETTINGS = settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@SETTINGS
@given(load=loads())
def test_an_engine_without_quotas(load: Load) -> None:
    world = world_of(load)
    assert not world.overlaps, "one look at a time for each execution"
    assert busiest(sorted([*world.looks, *world.sweeps]), 1) <= load.polls_per_second
    assert not world.late, "no client that polls hears of an end later than after two rounds"
    assert len(world.told) == load.followed, "every follower hears of the end"
    assert max(world.told.values(), default=0) <= load.late


@SETTINGS
@given(load=loads(quotas=True))
def test_an_engine_with_quotas(load: Load) -> None:
    world = world_of(load)
    assert load.allowance is not None
    assert not world.overlaps, "one look at a time for each execution"
    assert busiest(world.looks, 1) <= load.polls_per_second
    assert busiest(world.looks, 10) <= 10 * load.allowed + 1
    pauses = [later - earlier for earlier, later in pairwise(world.sweeps)]
    assert min(pauses, default=math.inf) >= load.allowance.batch_every - SLOP
    assert not world.late, "no client that polls hears of an end later than after two rounds"
    assert len(world.told) == load.followed, "every follower hears of the end"
    assert max(world.told.values(), default=0) <= load.late


@SETTINGS
@given(latency=st.sampled_from([0.0, 0.01, 0.3, 1.5]))
def test_a_client_that_polls_at_the_pace_it_was_told_gets_a_new_look_each_time(latency: float) -> None:
    load = Load(ends=[2 * HORIZON], followed=0, asked=1, ask_every=None, latency=latency, polls_per_second=50)
    asks = 0
    world = World(load=load)

    async def polled() -> None:
        nonlocal asks
        async with polling(world) as found:
            task = task_of(0)
            while now() < HORIZON:
                await found.poll(task)
                asks += 1
                await anyio.sleep(found.interval(task))

    anyio.run(polled, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})
    assert asks > HORIZON / DEFAULT.longest_interval
    assert len(world.looks) == asks
