"""The store, in SQLite: a file, or memory until the engine ends."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mcp_workflows_google_local.refusals import LocalEngineError

VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS revisions (
    workflow TEXT, number INTEGER, data BLOB NOT NULL, PRIMARY KEY (workflow, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS executions (
    workflow TEXT, execution TEXT, created REAL NOT NULL, data BLOB NOT NULL, PRIMARY KEY (workflow, execution)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS journal (
    execution TEXT, path TEXT, name TEXT NOT NULL, until REAL, raised INTEGER, answer TEXT,
    PRIMARY KEY (execution, path)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS callbacks (
    execution TEXT, callback TEXT, method TEXT NOT NULL, payloads TEXT NOT NULL, PRIMARY KEY (execution, callback)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One effect in the journal: its name, the end of its wait if it waits, and its result (None: no result yet)."""

    name: str
    until: float | None
    raised: bool
    answer: str | None


class Store:
    """The database of one engine; each completed write is durable, even after kill -9."""

    def __init__(self, file: Path | None) -> None:
        """Open or create the database.

        Raises:
            LocalEngineError: it cannot be opened, is in use by another engine, or is another kind of file.
        """
        try:
            self._db = sqlite3.connect(file or ":memory:")
            self._prepare()
        except sqlite3.Error as error:
            raise LocalEngineError(f"cannot use the database {file} ({error}): choose another with --db") from error

    def _prepare(self) -> None:
        for pragma in ("busy_timeout=0", "locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=OFF"):
            self._db.execute(f"PRAGMA {pragma}")  # OFF: safe except for a crash of the whole machine
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        empty = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        if version != VERSION and not (version == 0 and empty):
            raise sqlite3.DatabaseError("it was not made by this version of the engine")
        self._db.executescript(f"{_SCHEMA} PRAGMA user_version={VERSION};")

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def _write(self, statement: str, *values: str | float | bytes | None) -> None:
        with self._db:
            self._db.execute(statement, values)

    def setting(self, name: str) -> str | None:
        """Return the setting of this name."""
        row = self._db.execute("SELECT value FROM settings WHERE name=?", (name,)).fetchone()
        return row and str(row[0])

    def set_setting(self, name: str, value: str) -> None:
        """Store a setting by name."""
        self._write("INSERT OR REPLACE INTO settings VALUES (?, ?)", name, value)

    def revisions(self) -> Sequence[tuple[str, bytes]]:
        """Return all revisions of all workflows, in order per workflow."""
        return self._db.execute("SELECT workflow, data FROM revisions ORDER BY workflow, number").fetchall()

    def put_revision(self, workflow: str, number: int, data: bytes) -> None:
        """Store or replace a revision."""
        self._write("INSERT OR REPLACE INTO revisions VALUES (?, ?, ?)", workflow, number, data)

    def delete_workflow(self, workflow: str) -> None:
        """Delete a workflow and all its executions."""
        theirs = "(SELECT execution FROM executions WHERE workflow=?)"
        with self._db:
            for table in ("journal", "callbacks"):
                self._db.execute(f"DELETE FROM {table} WHERE execution IN {theirs}", (workflow,))  # noqa: S608  # ours
            for table in ("executions", "revisions"):
                self._db.execute(f"DELETE FROM {table} WHERE workflow=?", (workflow,))  # noqa: S608  # ours

    def executions(self) -> Sequence[tuple[str, str, float, bytes]]:
        """Return workflow, id, creation time and data of all executions, in creation order."""
        return self._db.execute("SELECT * FROM executions ORDER BY created").fetchall()

    def put_execution(self, workflow: str, execution: str, created: float, data: bytes) -> None:
        """Store or replace an execution."""
        self._write("INSERT OR REPLACE INTO executions VALUES (?, ?, ?, ?)", workflow, execution, created, data)

    def end_execution(self, workflow: str, execution: str, created: float, data: bytes) -> None:
        """Store the end of an execution, and delete its journal and callbacks."""
        with self._db:
            self._db.execute("DELETE FROM journal WHERE execution=?", (execution,))
            self._db.execute("DELETE FROM callbacks WHERE execution=?", (execution,))
            self._db.execute(
                "INSERT OR REPLACE INTO executions VALUES (?, ?, ?, ?)", (workflow, execution, created, data)
            )

    def journal(self, execution: str) -> Iterator[tuple[str, Entry]]:
        """Return the paths and entries of an execution."""
        rows = self._db.execute("SELECT path, name, until, raised, answer FROM journal WHERE execution=?", (execution,))
        for path, name, until, raised, answer in rows:
            yield path, Entry(name=name, until=until, raised=bool(raised), answer=answer)

    def note(self, execution: str, path: str, entry: Entry) -> None:
        """Store or replace an entry, together with earlier uncommitted changes."""
        self._write(
            "INSERT OR REPLACE INTO journal VALUES (?, ?, ?, ?, ?, ?)",
            *(execution, path, entry.name, entry.until, entry.raised, entry.answer),
        )

    def callbacks(self, execution: str) -> Sequence[tuple[str, str, str]]:
        """Return id, method and payloads of an execution's callbacks."""
        rows = self._db.execute("SELECT callback, method, payloads FROM callbacks WHERE execution=?", (execution,))
        return rows.fetchall()

    def put_callback(self, execution: str, callback: str, method: str, payloads: str, *, commit: bool = True) -> None:
        """Store or replace a callback; without `commit`, the next write makes it durable."""
        values = (execution, callback, method, payloads)
        self._db.execute("INSERT OR REPLACE INTO callbacks VALUES (?, ?, ?, ?)", values)
        if commit:
            self._db.commit()
