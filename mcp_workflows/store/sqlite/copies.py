"""Copies of an SQLite store: a backup while servers use it, and all its rows for a store that replaces it.

Text, times and encrypted values have the same format in every store (see `store.rows`), so rows are copied unchanged.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from mcp_workflows.errors import StoreUnusable
from mcp_workflows.store.protocol import StoredRows
from mcp_workflows.store.rows import COLUMNS, EVENT_COLUMNS, utf8
from mcp_workflows.store.sqlite.file import migrate

TABLES: Final = {
    "tasks": COLUMNS,
    "notes": ("space", "key", "value", "until"),
    "secrets": ("name", "value"),
    "events": ("position", *EVENT_COLUMNS),
}
_FLAGS: Final = {"bound", "ended", "tombstone"}
_PAGE: Final = 500  # rows
_FENCED: Final = (*TABLES, "leases")
_WRITES: Final = ("INSERT", "UPDATE", "DELETE")
_IS_MOVED: Final = "SELECT count(*) FROM sqlite_master WHERE name = 'moved'"


def refuse_moved(connection: sqlite3.Connection) -> None:
    """Check that no other store has replaced this one.

    Raises:
        StoreUnusable: one has, or will when the copy is finished.
    """
    if (moved := _moved(connection)) is None:
        return
    place, is_over = moved
    if is_over:
        raise StoreUnusable(f"the store was moved to {place}: use that one, or name another file")
    raise StoreUnusable(
        f"the store is being moved to {place}: finish it with the same `mcp-workflows store copy` again"
    )


def _moved(connection: sqlite3.Connection) -> tuple[str, int] | None:
    """Return the place of the store that replaces this one, and 1 if the copy is complete; None: not moved."""
    is_there: int = connection.execute(_IS_MOVED).fetchone()[0]
    found: tuple[str, int] | None = (
        connection.execute("SELECT place, is_over FROM moved").fetchone() if is_there else None
    )
    return found


@contextmanager
def moving(path: Path, place: str) -> Generator[tuple[Callable[[], Iterator[StoredRows]], bool]]:
    """Yield a function that returns all rows, and True if this resumes a killed copy.

    `place` is the new store. From now on no process can write to this one; a body that fails undoes that.

    Raises:
        StoreUnusable: it was moved already, or is not ours.
        sqlite3.Error: the file cannot be read or written.
    """
    with closing(sqlite3.connect(path.as_uri() + "?mode=rw", uri=True, isolation_level=None)) as connection:
        migrate(connection)
        resumed = (moved := _moved(connection)) is not None
        if not resumed:
            _fence(connection, place)
        elif moved != (place, 0):
            refuse_moved(connection)
        try:
            yield partial(_rows, connection), resumed
        except BaseException:
            if not resumed:
                _lift(connection)
            raise
        connection.execute("UPDATE moved SET is_over = 1")


def _fence(connection: sqlite3.Connection, place: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        connection.execute("CREATE TABLE moved (place TEXT NOT NULL, is_over INTEGER NOT NULL)")
        connection.execute("INSERT INTO moved VALUES (?, 0)", (place,))
        for name, table, write in _triggers():
            refusal = "BEGIN SELECT RAISE(FAIL, 'moved'); END"
            connection.execute(f"CREATE TRIGGER {name} BEFORE {write} ON {table} {refusal}")


def _lift(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        for name, _, _ in _triggers():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("DROP TABLE moved")


def _triggers() -> Iterator[tuple[str, str, str]]:
    return ((f"moved_{table}_{write}", table, write) for table in _FENCED for write in _WRITES)


def _rows(connection: sqlite3.Connection) -> Iterator[StoredRows]:
    for table, columns in TABLES.items():
        cursor = connection.execute(f"SELECT {', '.join(columns)} FROM {table}")  # noqa: S608  # constants
        while page := cursor.fetchmany(_PAGE):
            rows = [tuple(map(_portable, columns, row)) for row in page]
            yield StoredRows(table=table, columns=columns, rows=rows)


def _portable(column: str, value: Any) -> Any:  # Any: text, a number or bytes
    if column in _FLAGS:
        return bool(value)
    return utf8(value) if isinstance(value, str) else value  # rows of older versions may contain NUL


def backup(path: Path, target: Path) -> None:
    """Write a copy as of one moment, readable only by its user, while servers use the store.

    Raises:
        StoreUnusable: the target exists or cannot be created.
        sqlite3.Error: the file cannot be read or the copy cannot be written; the copy is then deleted.
    """
    try:
        descriptor = os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except OSError as error:
        raise StoreUnusable(f"the backup {target} cannot be made: {error.strerror}") from None
    try:
        with closing(sqlite3.connect(path.as_uri() + "?mode=rw", uri=True)) as connection:
            connection.execute("VACUUM INTO ?", (str(target),))
        os.fsync(descriptor)
    except BaseException:
        target.unlink()
        raise
    finally:
        os.close(descriptor)
