"""The queries and writes of an SQLite store: each is one transaction on an open connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from heapq import merge
from itertools import islice
from typing import Final

from mcp_workflows.store.protocol import Caps
from mcp_workflows.store.sqlite import secrets
from mcp_workflows.store.sqlite.counts import AHEAD, CountedRows
from mcp_workflows.store.sqlite.rows import INSERT, Rows, micros, utf8
from mcp_workflows.task import Task, expire

BATCH: Final = 200  # rows of one transaction at most, when many are changed
END_OF_TIME: Final = 2**63 - 1
LAST_CHARACTER: Final = "\U0010ffff"
LEFT_FOR: Final = timedelta(days=1)  # for maintenance to act on expired rows


_TASK: Final = "SELECT id, owner, task FROM tasks"
_LONGEST_LIVE: Final = """
    SELECT id, owner, task FROM tasks INDEXED BY {index} WHERE {which} ended = 0 AND tombstone = 0
    AND (expires IS NULL OR expires > :now) ORDER BY created, id LIMIT :limit
"""
_OF_OTHERS: Final = "SELECT tool, id, owner, task FROM tasks WHERE id = ? AND tombstone = 0"
_BY_KEY: Final = f"{_TASK} WHERE owner = ? AND tool = ? AND idempotency_key = ?"
UNBOUND: Final = f"""
    {_TASK} WHERE bound = 0 AND ended = 0 AND tombstone = 0 AND engine = ?
    AND (created < ? OR created > ?) ORDER BY attempts, created, id LIMIT ?
"""
EVERYONES: Final = f"""
    {_TASK} WHERE tombstone = 0 AND created < :before
    AND (:tool IS NULL OR tool = :tool) AND (:engine IS NULL OR engine = :engine)
    ORDER BY created DESC, id LIMIT :limit
"""
EVERYONES_LIVE: Final = EVERYONES.replace("WHERE", "INDEXED BY tasks_working WHERE ended = 0 AND")
OWNED_BY: Final = f"""
    {_TASK} WHERE tombstone = 0 AND owner = ? AND (created, id) < (?, ?)
    AND (expires IS NULL OR expires > ?) ORDER BY created DESC, id DESC LIMIT ?
"""
OF_TOOL: Final = """
    SELECT created, id, owner, task FROM tasks INDEXED BY tasks_open
    WHERE ended = 0 AND tombstone = 0 AND tool = ? AND (created, id) < (?, ?) AND (expires IS NULL OR expires > ?)
    ORDER BY created DESC, id DESC LIMIT ?
"""
DUE: Final = f"{_TASK} WHERE engine = ? AND due <= ? ORDER BY due, id LIMIT ?"
FIND: Final = f"{_TASK} WHERE tombstone = 0 AND id >= ? AND id < ? ORDER BY id LIMIT ?"
TALLY: Final = """
    SELECT tool, engine, COUNT(*) FROM tasks INDEXED BY tasks_working
    WHERE tombstone = 0 AND ended = 0 AND (expires IS NULL OR expires > :now)
    GROUP BY tool, engine ORDER BY tool, engine
"""
_LEASE: Final = """
    INSERT INTO leases (name, holder, until) VALUES (:name, :holder, :until) ON CONFLICT (name) DO UPDATE
    SET holder = excluded.holder, until = excluded.until WHERE holder = excluded.holder OR until <= :now
    OR (:until > :now AND until > :until + :ahead)
"""
EXPIRED: Final = f"""
    {_TASK} WHERE tombstone = 0 AND expires <= :now AND (due IS NULL OR expires <= :overdue)
    ORDER BY expires LIMIT :limit
"""
_DELETE: Final = "DELETE FROM tasks WHERE id = ?"
_BURY_UNREAD: Final = "UPDATE tasks SET tombstone = 1, due = NULL, task = '' WHERE id = ?"
_FORGET: Final = """
    DELETE FROM tasks WHERE id IN (SELECT id FROM tasks WHERE tombstone = 1 AND expires < ? ORDER BY expires LIMIT ?)
"""


def create(connection: sqlite3.Connection, rows: Rows, counted: CountedRows, task: Task, caps: Caps) -> Task:
    """Insert the row, or return the one that its idempotency key has; in between nobody else inserts one.

    Raises:
        CapReached: there are as many as there may be.
    """
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        found = _by_key(connection, rows, task)
        if found is None:
            counted.check(connection, task, caps)
            _mark(connection, rows)
            connection.execute(INSERT, rows.whole(task))
    return found or task


def _mark(connection: sqlite3.Connection, rows: Rows) -> None:
    """Mark the key that encrypts what is about to be written."""
    if rows.cipher is not None:
        secrets.mark(connection, rows.cipher)


def _by_key(connection: sqlite3.Connection, rows: Rows, task: Task) -> Task | None:
    """Return the row of this idempotency key; with a cipher also one from before the encryption."""
    kept = rows.kept_key(task)
    if kept is None or task.idempotency_key is None:
        return None
    found = rows.one(connection, _BY_KEY, task.owner, task.tool, kept)
    if found is None and rows.cipher is not None:
        found = rows.one(connection, _BY_KEY, task.owner, task.tool, task.idempotency_key)
        same = found is not None and utf8(found.idempotency_key or "") == utf8(task.idempotency_key)
        return found if same else None  # else a client has sent a text like a digest
    return found


def change(
    connection: sqlite3.Connection, rows: Rows, task_id: str, owner: str, change: Callable[[Task], Task | None]
) -> Task | None:
    """Apply a pure function to a row, delete it for None; nothing is written if it returns the same object.

    A row that is as it was read is replaced in one statement. Otherwise somebody else changed it: the function is
    applied again, in a transaction.
    """
    before = rows.get(connection, task_id, owner)
    after = None if before is None else change(before)
    if before is None or after is before or (after is not None and rows.replace(connection, before, after)):
        return after
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        before = rows.get(connection, task_id, owner)
        after = None if before is None else change(before)
        if before is not None and after is None:
            connection.execute(_DELETE, (utf8(before.id),))
        elif before is not None and after is not None and after is not before:
            _mark(connection, rows)
            rows.update(connection, before, after)
    return after


@contextmanager
def waiting_for_no_disk(connection: sqlite3.Connection) -> Generator[None]:
    """Commit to the write-ahead log without a flush to disk: the next durable commit takes the changes along.

    Source: https://www.sqlite.org/pragma.html#pragma_synchronous: in WAL mode the file stays consistent all the same.
    """
    connection.execute("PRAGMA synchronous = NORMAL")
    try:
        yield
    finally:
        connection.execute("PRAGMA synchronous = FULL")


def list_of_tools(
    connection: sqlite3.Connection, rows: Rows, tools: Sequence[str], after: tuple[int, str], now: int, limit: int
) -> Sequence[Task]:
    """Return live rows of these tools after that one, the youngest first."""
    each = [connection.execute(OF_TOOL, (tool, *after, now, limit)) for tool in {utf8(tool) for tool in tools}]
    merged = merge(*each, key=lambda row: (row[0], row[1]), reverse=True)
    return rows.many(row[1:] for row in islice(merged, limit))


def longest_live(
    connection: sqlite3.Connection, rows: Rows, owner: str | None, tool: str | None, now: int, limit: int
) -> Sequence[Task]:
    """Return live rows of that owner, of that tool, the oldest first; the caps bound how many there are to sort."""
    wanted = {"owner": owner, "tool": tool}
    given = {name: utf8(value) for name, value in wanted.items() if value is not None}
    which = "".join(f"{name} = :{name} AND " for name in given)
    query = _LONGEST_LIVE.format(index="tasks_open" if owner is None else "tasks_live", which=which)
    return rows.many(connection.execute(query, {**given, "now": now, "limit": limit}))


def get_of_tools(connection: sqlite3.Connection, rows: Rows, task_id: str, tools: Sequence[str]) -> Task | None:
    """Return the row, if it is of one of these tools and no tombstone."""
    found = connection.execute(_OF_OTHERS, (utf8(task_id),)).fetchone()
    if found is None or found[0] not in {utf8(tool) for tool in tools}:
        return None
    task = rows.readable(found[1:])
    return task if task.tool in tools else None


def lease(connection: sqlite3.Connection, name: str, holder: str, now: datetime, until: datetime) -> bool:
    """Take the lease, if it is to be had; True if taken. If it is lost with the machine's power, so is its holder."""
    times = {"now": micros(now), "until": micros(until), "ahead": AHEAD}
    values = {"name": utf8(name), "holder": utf8(holder), **times}
    with waiting_for_no_disk(connection):
        return connection.execute(_LEASE, values).rowcount == 1


def forget(connection: sqlite3.Connection, before: datetime, limit: int) -> int:
    """Drop a batch of old tombstones; return their number."""
    return connection.execute(_FORGET, (micros(before), limit)).rowcount


def expire_rows(connection: sqlite3.Connection, rows: Rows, now: datetime, limit: int) -> int:
    """Make tombstones of a batch of expired rows; return their number.

    An unreadable row loses its content, too: its idempotency key starts nothing again either.
    """
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        values = {"now": micros(now), "overdue": micros(now - LEFT_FOR), "limit": limit}
        expired = connection.execute(EXPIRED, values).fetchall()
        if expired:
            _mark(connection, rows)
        for row in expired:
            task = rows.read(row)
            if task is None:
                connection.execute(_BURY_UNREAD, (row[0],))
            else:
                rows.update(connection, task, expire(task))
    return len(expired)
