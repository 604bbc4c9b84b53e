"""The tables of the SQLite store: files of older versions go on, and every search has its index."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from mcp_workflows.adapter import Execution, Status
from mcp_workflows.errors import StoreUnavailable
from mcp_workflows.store.protocol import Caps, Count
from mcp_workflows.store.rows import Rows
from mcp_workflows.store.sqlite import queries
from mcp_workflows.store.sqlite.file import APPLICATION_ID, MIGRATIONS
from mcp_workflows.store.sqlite.store import SQLiteStore
from mcp_workflows.task import Task, observe
from mcp_workflows.testing import make_task
from mcp_workflows.testing.tasks import NOON

DAY = timedelta(days=1)
OLD_COLUMNS = 11  # of version 4, in the order of today's, before `task`
YOUNGER_FIELDS = ("guarded", "grace", "terminated", "cancel_on_expiry", "not_before")  # than version 4


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/tasks.db"


def old_file(path: Path, version: int, *tasks: Task) -> None:
    """A file as that version made it, with these rows."""
    stored = TypeAdapter(Task)
    with closing(sqlite3.connect(path)) as connection, connection:
        for statements in MIGRATIONS[:version]:
            for statement in statements:
                connection.execute(statement) if isinstance(statement, str) else statement(connection)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {version}")
        for task in tasks:
            known = stored.dump_json(task, exclude=set(YOUNGER_FIELDS), by_alias=True).decode()
            values = (*Rows().searched(task)[:OLD_COLUMNS], known)
            columns = [column[1] for column in connection.execute("PRAGMA table_info(tasks)")][: len(values)]
            marks = ", ".join("?" * len(values))
            connection.execute(f"INSERT INTO tasks ({', '.join(columns)}) VALUES ({marks})", values)


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS)))
async def test_a_file_of_an_older_version_goes_on_with_its_rows(tmp_path: Path, url: str, version: int) -> None:
    task = make_task(idempotency_key="once")
    old_file(tmp_path / "tasks.db", version, task)
    async with SQLiteStore(url) as store:
        assert await store.get(task.id, task.owner) == task
        assert (await store.create(make_task(idempotency_key="once"))).id == task.id
        assert await store.add_note("orders", "a", 1, until=NOON) == 1


async def test_what_older_rows_lack_is_filled_in(tmp_path: Path, url: str) -> None:
    later = NOON + timedelta(hours=1)
    asked = make_task(tool="asked", handle="h", cancel_requested=NOON)
    failed = observe(make_task(tool="failed"), Execution(status=Status.FAILED), later)
    waiting = observe(make_task(tool="waiting"), Execution(status=Status.INPUT_REQUIRED), later)
    many = [make_task(tool="many") for _ in range(1100)]  # more than are filled in at once
    old_file(tmp_path / "tasks.db", 4, asked, failed, waiting, *many)
    async with SQLiteStore(url) as store:
        assert await store.due("orders", NOON, 10) == [asked]
        found = {count.tool: (count.status, count.tasks, count.oldest_updated) for count in await store.counts(NOON)}
        live = Caps(live_of_tool=1100)
        assert await store.create(make_task(tool="failed"), live)
        with pytest.raises(Exception, match="live_of_tool"):
            await store.create(make_task(tool="many"), live)
    assert found == {
        "asked": (Status.RUNNING, 1, NOON),
        "failed": (Status.FAILED, 1, later),
        "waiting": (Status.INPUT_REQUIRED, 1, later),
        "many": (Status.RUNNING, 1100, NOON),
    }


async def test_an_older_row_that_cannot_be_read_stops_nothing(tmp_path: Path, url: str) -> None:
    broken, fine = make_task(idempotency_key="once"), make_task(owner="ben")
    old_file(tmp_path / "tasks.db", 4, broken, fine)
    with closing(sqlite3.connect(tmp_path / "tasks.db")) as connection, connection:
        connection.execute("UPDATE tasks SET task = '{nothing' WHERE id = ?", (broken.id,))
    async with SQLiteStore(url) as store:
        assert await store.get(fine.id, fine.owner) == fine
        expected = Count(
            tool=fine.tool, engine=fine.engine, status=Status.RUNNING, tasks=2, oldest_created=NOON, oldest_updated=NOON
        )
        at = fine.created
        assert await store.counts(at) == [replace(expected, oldest_created=at, oldest_updated=at)]
        with pytest.raises(StoreUnavailable, match="cannot be read"):
            await store.get(broken.id, broken.owner)


async def test_the_key_of_a_row_that_cannot_be_read_starts_nothing_again(tmp_path: Path, url: str) -> None:
    async with SQLiteStore(url) as store:
        broken = await store.create(make_task(idempotency_key="once", input=["private"]))
        with closing(sqlite3.connect(tmp_path / "tasks.db")) as connection, connection:
            connection.execute("UPDATE tasks SET task = replace(task, '{', '[') WHERE id = ?", (broken.id,))
        assert await store.delete_expired(NOON + 2 * DAY, NOON - DAY) == 1
        with pytest.raises(StoreUnavailable, match="cannot be read"):
            await store.create(make_task(idempotency_key="once"))
        with closing(sqlite3.connect(tmp_path / "tasks.db")) as connection:
            assert connection.execute("SELECT task FROM tasks").fetchall() == [("",)]
        assert await store.delete_expired(NOON + 9 * DAY, NOON + 8 * DAY) == 1
        again = make_task(idempotency_key="once")
        assert await store.create(again) == again


SEARCHES = {
    "tasks_key": "SELECT task FROM tasks WHERE owner = 'a' AND tool = 't' AND idempotency_key = 'k'",
    "tasks_unbound": queries.UNBOUND,
    "tasks_owner": queries.OWNED_BY,
    "tasks_open": queries.OF_TOOL,
    "tasks_expires": queries.EXPIRED,
    "tasks_due": queries.DUE,
    "tasks_unanswered": queries.UNANSWERED,
    "sqlite_autoindex_notes_1": "SELECT key, value FROM notes WHERE space = 's' AND key >= 'k' ORDER BY key",
    "notes_until": "SELECT value FROM notes WHERE until <= 1 ORDER BY until LIMIT 1",
}


def plan_of(path: Path, query: str) -> str:
    """What SQLite means to do."""
    names: Mapping[str, int] = dict.fromkeys(("owner", "tool", "now", "since", "cap", "overdue", "limit"), 1)
    values = names if ":" in query else (1,) * query.count("?")
    with closing(sqlite3.connect(path)) as connection:
        return " ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", values))


@pytest.mark.parametrize(("index", "query"), SEARCHES.items())
async def test_every_search_has_its_index_and_sorts_nothing(tmp_path: Path, url: str, index: str, query: str) -> None:
    async with SQLiteStore(url):
        pass
    plan = plan_of(tmp_path / "tasks.db", query)
    assert f"USING INDEX {index}" in plan
    assert "B-TREE" not in plan
