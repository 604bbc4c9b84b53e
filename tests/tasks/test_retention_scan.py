"""The slow round over all tasks: what it looks at, skips, and comes back to, whatever fails and whoever restarts."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import anyio
import pytest

from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import AdapterBroke, EngineRefused, EngineUnavailable, ExecutionNotFound, StoreUnavailable
from mcp_workflows.store.leases import LEASE, Leases
from mcp_workflows.store.protocol import Store
from mcp_workflows.store.sqlite.store import SQLiteStore
from mcp_workflows.task import Task, bind
from mcp_workflows.tasks.maintenance import EVERY, RETENTION_PAGE, RETRY_AFTER, YOUNG, RetentionScan, retention_rounds
from mcp_workflows.testing import make_task

pytestmark = pytest.mark.anyio

NOON: Final = datetime(2026, 7, 28, 12, tzinfo=UTC)
OLD: Final = NOON - YOUNG
MANY: Final = 50
DAY: Final = timedelta(days=1)


@dataclass
class Place:
    """A store with tasks, and looks at them that fail as a test says."""

    store: Store
    now: datetime = NOON
    looks: list[str] = field(default_factory=list[str])
    errors: dict[str, Exception] = field(default_factory=dict[str, Exception])

    def scan(self, engines: Engines | None = None) -> RetentionScan:
        """Return the scan of one process: each has leases of its own."""
        return RetentionScan(self.store, Leases(self.store), self.look, lambda: self.now, engines)

    async def look(self, task: Task) -> Task:
        self.looks.append(str(task.handle))
        if error := self.errors.get(str(task.handle)):
            raise error
        return task

    async def seen(self) -> list[str]:
        """Return the handles that one round looks at."""
        self.looks.clear()
        await self.scan().round()
        return list(self.looks)

    async def add(self, handle: str, created: datetime, engine: str = "api") -> None:
        made = make_task(engine=engine, created=created, updated=created, expires=NOON + 80 * DAY)
        await self.store.create(bind(made, handle, created))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_workflows.tasks.maintenance.POLL_EVERY", 0.0)


@pytest.fixture
async def here() -> AsyncGenerator[Place]:
    async with SQLiteStore("sqlite:///:memory:", clock=lambda: place.now) as store:
        place = Place(store)
        for number in range(MANY):
            await place.add(f"h{number}", OLD - timedelta(seconds=number))
        yield place


ALL: Final = [f"h{number}" for number in range(MANY)]


@pytest.mark.parametrize(
    "error",
    [
        EngineRefused("HTTP 403 for this one"),
        EngineUnavailable("HTTP 500 for this one"),
        EngineUnavailable("too many requests", throttled=True),
        ExecutionNotFound("unknown"),
        AdapterBroke("its adapter failed"),
        StoreUnavailable("the row cannot be read"),
        RuntimeError("a defect"),
    ],
    ids=lambda error: f"{type(error).__name__}",
)
async def test_a_look_that_fails_skips_one_task_which_is_tried_again_in_minutes(here: Place, error: Exception) -> None:
    here.errors = {"h3": error, "h31": error}
    assert await here.seen() == ALL
    rounds = await retention_rounds(here.store)
    assert (rounds["api"].ended, rounds["api"].skipped) == (NOON, 2)
    assert await here.seen() == []
    here.now += RETRY_AFTER
    assert await here.seen() == ["h3", "h31"]
    del here.errors["h3"]
    here.now += RETRY_AFTER
    assert await here.seen() == ["h3", "h31"]
    here.now += RETRY_AFTER
    assert await here.seen() == ["h31"]
    assert (await retention_rounds(here.store))["api"].skipped == 1
    here.now = NOON + EVERY
    assert await here.seen() == ALL


async def test_the_tasks_beyond_those_that_are_remembered_are_counted_and_wait_for_the_next_round(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_workflows.tasks.maintenance._MOST_FAILED", 3)
    here.errors = dict.fromkeys(ALL, EngineRefused("no"))
    assert await here.seen() == ALL
    assert (await retention_rounds(here.store))["api"].skipped == MANY
    here.now += RETRY_AFTER
    assert await here.seen() == ["h0", "h1", "h2"]


async def test_a_round_that_was_killed_goes_on_at_its_place_in_another_process_as_soon_as_the_lease_is_over(
    here: Place,
) -> None:
    reached = anyio.Event()

    async def stuck(task: Task) -> Task:
        if task.handle == "h45":
            reached.set()
            await anyio.sleep_forever()
        return await here.look(task)

    killed = RetentionScan(here.store, _Unreleased(here.store), stuck, lambda: here.now)
    async with anyio.create_task_group() as group:
        group.start_soon(killed.round)
        with anyio.fail_after(60):
            await reached.wait()
        group.cancel_scope.cancel()
    assert here.looks == ALL[:45]
    assert await here.seen() == [], "the lease of the dead one"
    here.now += LEASE
    _no_more_than_a_page_is_repeated(await here.seen())


def _no_more_than_a_page_is_repeated(seen: list[str]) -> None:
    assert seen == ALL[-len(seen) :]
    assert 5 <= len(seen) <= 5 + RETENTION_PAGE


class _Unreleased(Leases):
    """The leases of a process that is killed: it gives none back."""

    async def holds(self, name: str, lease: timedelta = LEASE) -> bool:
        """Take it, and keep it until it is over."""
        return bool(lease) and await super().holds(name, lease)


async def test_replicas_share_one_round(here: Place) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(here.scan().round)
    assert sorted(here.looks) == sorted(ALL)


@pytest.mark.parametrize("back", [timedelta(minutes=5), EVERY, 91 * DAY], ids=str)
async def test_a_clock_that_is_set_back_delays_no_round_and_hides_no_task(here: Place, back: timedelta) -> None:
    here.errors = {"h3": EngineRefused("no")}
    assert await here.seen() == ALL
    here.now -= back
    again = await here.seen()
    here.now += RETRY_AFTER
    again += await here.seen()
    assert {*again} >= ({*ALL} if back > YOUNG else {"h3"})
    here.now += EVERY
    assert await here.seen() == ALL


async def test_a_silent_engine_is_left_alone_and_its_round_goes_on_once_it_answers(here: Place) -> None:
    await here.add("there", OLD, engine="other")
    adapters = {name: MemoryAdapter(MemorySettings()) for name in ("api", "other")}
    async with Engines(adapters) as engines:
        is_down = True

        async def look(task: Task) -> Task:
            async with engines.calling(task, api="describe"):
                here.looks.append(str(task.handle))
                if is_down and task.engine == "api":
                    raise EngineUnavailable("no answer")
            return task

        leases = Leases(here.store)
        scan = RetentionScan(here.store, leases, look, lambda: here.now, engines)
        await scan.round()
        assert sorted(here.looks) == ["h0", "h1", "h2", "there"], "the circuit is open"
        rounds = await retention_rounds(here.store)
        assert (rounds["api"].ended, rounds["api"].skipped) == (None, 3)
        assert (rounds["other"].ended, rounds["other"].skipped) == (NOON, 0)
        is_down = False
        with anyio.fail_after(60):
            while engines.silence("api"):
                await anyio.sleep(0.05)
                with suppress(EngineUnavailable):
                    async with engines.calling("api", api="describe"):
                        pass
        here.looks.clear()
        await scan.round()
        assert here.looks == ALL[3:]
        here.now += RETRY_AFTER
        here.looks.clear()
        await scan.round()
        assert here.looks == ALL[:3]


async def test_a_note_of_another_version_begins_a_new_round(here: Place) -> None:
    assert await here.seen() == ALL
    await here.store.put_note("(retention)", "api", {"page": 7}, until=NOON + DAY)
    assert await here.seen() == ALL


async def test_tasks_of_one_moment_are_all_looked_at_and_young_ones_later(here: Place) -> None:
    for number in range(MANY):
        await here.add(f"same{number}", OLD - DAY)
        await here.add(f"young{number}", NOON - timedelta(minutes=number))
    seen = await here.seen()
    assert len(seen) == 2 * MANY
    assert {*seen} == {*ALL, *(f"same{number}" for number in range(MANY))}
