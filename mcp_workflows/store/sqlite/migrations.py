"""The tables in an SQLite store's file, from one version to the next."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final

from mcp_workflows.store.sqlite.rows import backfill

MIGRATIONS: Final[Sequence[Sequence[str | Callable[[sqlite3.Connection], None]]]] = (
    (
        """
        CREATE TABLE tasks (
            id TEXT NOT NULL PRIMARY KEY, owner TEXT NOT NULL, tool TEXT NOT NULL, engine TEXT NOT NULL,
            idempotency_key TEXT, created INTEGER NOT NULL, expires INTEGER,
            attempts INTEGER NOT NULL, bound INTEGER NOT NULL, ended INTEGER NOT NULL, tombstone INTEGER NOT NULL,
            task TEXT NOT NULL
        )
        """,
        "CREATE UNIQUE INDEX tasks_key ON tasks (owner, tool, idempotency_key) WHERE idempotency_key IS NOT NULL",
        """
        CREATE INDEX tasks_unbound ON tasks (engine, attempts, created, id)
        WHERE bound = 0 AND ended = 0 AND tombstone = 0
        """,
        "CREATE INDEX tasks_expires ON tasks (tombstone, expires) WHERE expires IS NOT NULL",
        "CREATE TABLE secrets (name TEXT NOT NULL PRIMARY KEY, value BLOB NOT NULL)",
    ),
    ("CREATE INDEX tasks_created ON tasks (created, id, ended) WHERE tombstone = 0",),
    ("CREATE INDEX tasks_owner ON tasks (owner, created, id) WHERE tombstone = 0",),
    (
        """
        CREATE TABLE notes (
            space TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, until INTEGER NOT NULL,
            PRIMARY KEY (space, key)
        )
        """,
        "CREATE INDEX notes_until ON notes (until)",
    ),
    (
        "ALTER TABLE tasks ADD COLUMN status TEXT NOT NULL DEFAULT 'running'",
        "ALTER TABLE tasks ADD COLUMN updated INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE tasks ADD COLUMN due INTEGER",
        backfill,
        "DROP INDEX tasks_expires",
        "CREATE INDEX tasks_expires ON tasks (tombstone, expires, due) WHERE expires IS NOT NULL",
        """
        CREATE INDEX tasks_live ON tasks (owner, tool, expires, ended, tombstone) WHERE ended = 0 AND tombstone = 0
        """,
        """
        CREATE INDEX tasks_open ON tasks (tool, created, id, expires, ended, tombstone)
        WHERE ended = 0 AND tombstone = 0
        """,
        "CREATE INDEX tasks_made_by ON tasks (owner, created)",
        "CREATE INDEX tasks_made_with ON tasks (tool, created)",
        "CREATE INDEX tasks_due ON tasks (engine, due, id) WHERE due IS NOT NULL",
        """
        CREATE INDEX tasks_census ON tasks (tool, engine, status, created, updated, expires, tombstone)
        WHERE tombstone = 0
        """,
        "CREATE TABLE leases (name TEXT NOT NULL PRIMARY KEY, holder TEXT NOT NULL, until INTEGER NOT NULL)",
    ),
    (
        """
        CREATE INDEX tasks_working ON tasks (created DESC, id, tool, engine, expires, ended, tombstone)
        WHERE ended = 0 AND tombstone = 0
        """,
    ),
)
"""The statements from one version of the tables to the next; a file's `user_version` is the number it has had.

Times are whole microseconds since 1970, UTC. The columns beside `task` are for searches; the indexes that name a column
twice, in the row and in their condition, are for counting without a look at the row.
"""
