"""The SQL of single rows in an SQLite store; `store/rows.py` converts them."""

from __future__ import annotations

import sqlite3
from typing import Final

from mcp_workflows.store.rows import COLUMNS, SEARCHED, Found, Rows, utf8
from mcp_workflows.task import Task

_SHOWN: Final = slice(SEARCHED.index("status"), SEARCHED.index("due") + 1)
INSERT: Final = f"INSERT INTO tasks ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"  # noqa: S608  # our names
TRY: Final = f"SELECT {', '.join(COLUMNS)} FROM tasks LIMIT 0"  # noqa: S608  # our names
BY_ID: Final = "SELECT id, owner, task FROM tasks WHERE id = ? AND owner = ?"
_BACKFILL: Final = "UPDATE tasks SET status = ?, updated = ?, due = ? WHERE rowid = ?"


def get(connection: sqlite3.Connection, rows: Rows, task_id: str, owner: str) -> Task | None:
    """Return one owner's row.

    Raises:
        StoreUnavailable: the row exists, but cannot be read.
    """
    return one(connection, rows, BY_ID, task_id, owner)


def one(connection: sqlite3.Connection, rows: Rows, query: str, *values: str) -> Task | None:
    """Return the row that a query finds.

    Raises:
        StoreUnavailable: the row exists, but cannot be read.
    """
    row: Found | None = connection.execute(query, tuple(utf8(value) for value in values)).fetchone()
    return None if row is None else rows.readable(row)


def update(connection: sqlite3.Connection, rows: Rows, before: Task, after: Task, was: str | None = None) -> bool:
    """Write a changed row; with `was` only if that is its text now. Return True if it was written."""
    columns, row = rows.changed(before, after)
    names = ", ".join(f"{name} = ?" for name in columns)
    query = f"UPDATE tasks SET {names} WHERE id = ?"  # noqa: S608  # names of ours
    values = (*columns.values(), utf8(after.id))
    if was is None:
        done = connection.execute(query, values)
    else:
        done = connection.execute(f"{query} AND task = ?", (*values, was))
    if done.rowcount == 1:
        rows.keep(utf8(after.id), row)
    return done.rowcount == 1


def replace_row(connection: sqlite3.Connection, rows: Rows, before: Task, after: Task) -> bool:
    """Write a changed row, if it is still as it was read; return False if it may not be.

    One statement needs no explicit transaction. With a cipher it returns False, because each write then marks its key.
    """
    text = rows.known_text(before)
    return text is not None and rows.cipher is None and update(connection, rows, before, after, text)


def backfill(connection: sqlite3.Connection) -> None:
    """Fill in the columns of version 5 from the rows; an unreadable row gets the known values."""
    connection.execute("UPDATE tasks SET updated = created, status = CASE WHEN ended THEN 'failed' ELSE 'running' END")
    rows, last = Rows(), -1
    query = "SELECT id, owner, task, rowid FROM tasks WHERE rowid > ? ORDER BY rowid LIMIT 500"
    while found := connection.execute(query, (last,)).fetchall():
        last = found[-1][3]
        read = [(task, rowid) for *row, rowid in found if (task := rows.read(tuple(row))) is not None]
        connection.executemany(_BACKFILL, [(*rows.searched(task)[_SHOWN], rowid) for task, rowid in read])
