"""Several processes on one file: they write in turn, open it while others write, and a sweep leaves room for them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from mcp_workflows.store.protocol import TaskFilter
from mcp_workflows.store.rows import Rows
from mcp_workflows.store.sqlite import queries
from mcp_workflows.store.sqlite.file import LogFile
from mcp_workflows.store.sqlite.store import SQLiteStore
from mcp_workflows.testing import make_task

NOON: Final = datetime(2026, 7, 28, 12, tzinfo=UTC)

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


async def test_a_store_is_opened_while_another_process_writes(path: Path) -> None:
    url = f"sqlite:///{path}"
    async with SQLiteStore(url) as store:
        task = await store.create(make_task())
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        async with SQLiteStore(url, busy_timeout_ms=0) as store:
            assert await store.get(task.id, task.owner) == task


async def test_a_process_that_waits_for_the_lock_writes_before_others_begin_another_write(path: Path) -> None:
    done: list[str] = []
    async with SQLiteStore(f"sqlite:///{path}") as one, SQLiteStore(f"sqlite:///{path}") as two:
        other = LogFile(path)
        with closing(sqlite3.connect(path, isolation_level=None)) as writer:

            async def write(store: SQLiteStore, name: str) -> None:
                await store.create(make_task())
                done.append(name)

            writer.execute("BEGIN IMMEDIATE")
            with anyio.fail_after(60):
                async with anyio.create_task_group() as group:
                    group.start_soon(write, one, "one")
                    while other.take_turn():
                        other.leave_turn()
                        await anyio.sleep(0.001)
                    writer.execute("ROLLBACK")
                    group.start_soon(write, two, "two")
            assert sorted(done) == ["one", "two"]
            assert other.take_turn(), "it is nobody's turn when nobody waits"
            other.close()


async def test_a_process_that_was_stopped_while_it_was_next_keeps_nobody_from_writing(path: Path) -> None:
    async with SQLiteStore(f"sqlite:///{path}") as store:
        stopped = LogFile(path)
        assert stopped.take_turn()
        with anyio.fail_after(60):
            await store.create(make_task())
        stopped.close()


async def test_a_write_that_is_cancelled_while_it_waits_gives_its_turn_back(path: Path) -> None:
    async with SQLiteStore(f"sqlite:///{path}") as store:
        other = LogFile(path)
        with closing(sqlite3.connect(path, isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            async with anyio.create_task_group() as group:
                group.start_soon(store.create, make_task())
                with anyio.fail_after(60):
                    while other.take_turn():
                        other.leave_turn()
                        await anyio.sleep(0.001)
                group.cancel_scope.cancel()
        assert other.take_turn()
        other.close()


@pytest.mark.parametrize(("seconds", "most"), [(0.0, 20), (1e9, queries.BATCH)])
async def test_a_sweep_changes_as_many_rows_at_once_as_fit_its_time(
    path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, most: int
) -> None:
    limits: list[int] = []
    forget = queries.expire_rows

    def noted(connection: sqlite3.Connection, rows: Rows, now: datetime, limit: int) -> int:
        limits.append(limit)
        return forget(connection, rows, now, limit)

    monkeypatch.setattr("mcp_workflows.store.sqlite.store._BATCH_SECONDS", seconds)
    monkeypatch.setattr(queries, "expire_rows", noted)
    async with SQLiteStore(f"sqlite:///{path}") as store:
        for _ in range(60):
            await store.create(make_task(expires=NOON))
        assert await store.delete_expired(NOON, NOON - timedelta(days=1)) == 60
    assert {*limits[1:]} == {most}


@pytest.mark.parametrize(
    ("query", "values"),
    [queries.list_all(TaskFilter(), (1, ""), 1), queries.count_all(TaskFilter())],
    ids=["list", "count"],
)
async def test_ended_rows_are_not_walked_to_list_or_count_live_ones(path: Path, query: str, values: Any) -> None:
    async with SQLiteStore(f"sqlite:///{path}"):
        pass
    with closing(sqlite3.connect(path)) as connection:
        plan = " ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", values))
    assert "INDEX tasks_working" in plan
    assert "ORDER BY" not in plan
