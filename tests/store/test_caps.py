"""Caps hold exactly, though rows are seldom counted: random inserts, ends and clocks, by two connections."""

from __future__ import annotations

from contextlib import AsyncExitStack, nullcontext, suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_workflows.adapter import Execution, Status
from mcp_workflows.store.protocol import CapReached, Caps, open_store
from mcp_workflows.store.sqlite.store import SQLiteStore
from mcp_workflows.task import Task, observe
from mcp_workflows.testing import make_task
from tests.store.places import Place
from tests.support.postgres_server import Postgres, new_schema

NOON = datetime(2026, 7, 28, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Step:
    """One insert or one end, by one of two connections."""

    connection: int
    owner: str
    tool: str
    later: int  # seconds since the step before
    ends: bool


NAMES = [field.name for field in fields(Caps) if field.name != "since"]
CAPS = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 6), min_size=1, max_size=2)
STEPS = st.builds(
    Step,
    connection=st.sampled_from([0, 1]),
    owner=st.sampled_from("ab"),
    tool=st.sampled_from("xy"),
    later=st.sampled_from([0, 0, 0, 1, 20, 70, -5]),
    ends=st.sampled_from([False, False, False, True]),
)


def refused(rows: list[Task], new: Task, caps: Caps) -> set[str]:
    """The caps that there is no room below, by counting all rows."""
    assert caps.since is not None
    live = [row for row in rows if row.ended is None and (row.expires is None or row.expires > new.created)]
    recent = [row for row in rows if caps.since < row.created <= new.created + timedelta(minutes=5)]
    counts = {
        "live_of_owner": sum(row.owner == new.owner for row in live),
        "live_of_tool": sum(row.tool == new.tool for row in live),
        "live_of_owner_and_tool": sum((row.owner, row.tool) == (new.owner, new.tool) for row in live),
        "created_of_owner": sum(row.owner == new.owner for row in recent),
        "created_of_tool": sum(row.tool == new.tool for row in recent),
    }
    return {name for name, count in counts.items() if (cap := getattr(caps, name)) is not None and count >= cap}


async def insert_and_end(url: str, given_caps: dict[str, int], steps: list[Step]) -> None:
    rows: list[Task] = []
    now = NOON
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(open_store(url)) for _ in range(2)]
        for step in steps:
            now += timedelta(seconds=step.later)
            store = stores[step.connection]
            live = [row for row in rows if row.ended is None]
            if step.ends and live:
                end = partial(observe, execution=Execution(status=Status.SUCCEEDED), at=now)
                ended = await store.change(live[0].id, live[0].owner, end)
                assert ended is not None
                rows[rows.index(live[0])] = ended
                continue
            new = make_task(owner=step.owner, tool=step.tool, created=now, updated=now, expires=now + MINUTE * 2)
            caps = replace(Caps(since=now - MINUTE), **given_caps)
            full = refused(rows, new, caps)
            with pytest.raises(CapReached) if full else nullcontext() as reached:
                rows.append(await store.create(new, caps))
            assert reached is None or reached.value.cap in full


@settings(max_examples=30, deadline=None)
@given(CAPS, st.lists(STEPS, min_size=10, max_size=60))
def test_caps_hold_exactly(caps: dict[str, int], steps: list[Step]) -> None:
    with TemporaryDirectory() as folder:
        anyio.run(insert_and_end, f"sqlite:///{Path(folder)}/tasks.db", caps, steps)


@pytest.mark.process
@settings(max_examples=10, deadline=None)
@given(CAPS, st.lists(STEPS, min_size=10, max_size=60))
def test_caps_hold_exactly_in_a_database(postgres_server: Postgres, caps: dict[str, int], steps: list[Step]) -> None:
    anyio.run(insert_and_end, postgres_server.url(new_schema()), caps, steps)


async def test_many_creates_at_once_by_replicas_stay_below_a_cap(place: Place) -> None:
    made: list[Task] = []
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(open_store(place.url)) for _ in range(4)]

        async def create(number: int) -> None:
            with suppress(CapReached):
                caps = Caps(live_of_tool=7, live_of_owner=5)
                made.append(await stores[number % 4].create(make_task(owner=f"owner-{number % 3}"), caps))

        async with anyio.create_task_group() as group:
            for number in range(40):
                group.start_soon(create, number)
    assert len(made) == 7


async def test_rows_are_counted_once_while_there_is_room() -> None:
    store = SQLiteStore("sqlite:///:memory:")
    statements: list[str] = []
    async with store:
        connection = store._opened  # pyright: ignore[reportPrivateUsage]
        assert connection is not None
        connection.set_trace_callback(statements.append)
        for number in range(100):
            at = NOON + HOUR * (number // 99)
            await store.create(make_task(created=at, updated=at), Caps(live_of_owner=1000))
    assert sum("count(*)" in statement for statement in statements) == 2


async def test_a_file_that_is_opened_again_is_counted_again(tmp_path: Path) -> None:
    url, caps = f"sqlite:///{tmp_path}/tasks.db", Caps(live_of_owner=3)
    store = SQLiteStore(url)
    async with store:
        await store.create(make_task(), caps)
    async with SQLiteStore(url) as other:
        for _ in range(2):
            await other.create(make_task())
    async with store:
        with pytest.raises(CapReached):
            await store.create(make_task(), caps)
