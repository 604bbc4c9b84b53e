"""The notes in an SQLite store: JSON values by space and key, each kept until a time of its own.

The connection, the locks and the errors are those of `sqlite.py`; times are microseconds, as there.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Final

from mcp_workflows.adapter import JSON

_READ: Final = "SELECT value FROM notes WHERE space = ? AND key = ?"
_FROM: Final = "SELECT key, value FROM notes WHERE space = ? AND key >= ? ORDER BY key LIMIT ?"
_AFTER: Final = "SELECT key, value FROM notes WHERE space = ? AND key > ? ORDER BY key LIMIT ?"
_ADD: Final = "INSERT OR IGNORE INTO notes (space, key, value, until) VALUES (?, ?, ?, ?)"
_PUT: Final = "INSERT OR REPLACE INTO notes (space, key, value, until) VALUES (?, ?, ?, ?)"
PAGE: Final = 500  # notes that are read at once: others wait no longer than a few ms
_DROP: Final = "DELETE FROM notes WHERE rowid IN (SELECT rowid FROM notes WHERE until <= ? ORDER BY until LIMIT ?)"


def read(connection: sqlite3.Connection, space: str, key: str) -> JSON:
    """The value; None: there is none."""
    row = connection.execute(_READ, (space, key)).fetchone()
    return None if row is None else json.loads(row[0])


def under(connection: sqlite3.Connection, space: str, beginning: str, after: str | None) -> Mapping[str, JSON]:
    """The first values whose key begins so, by key, or the first after a key; less than `PAGE`: there are no more.

    Keys are compared here, as no pattern of SQL takes every character literally.
    """
    query, first = (_FROM, beginning) if after is None else (_AFTER, after)
    found: dict[str, JSON] = {}
    for key, value in connection.execute(query, (space, first, PAGE)):
        if not key.startswith(beginning):
            break
        found[key] = json.loads(value)
    return found


def add(connection: sqlite3.Connection, space: str, key: str, value: JSON, until: int) -> JSON:
    """The value that is there from now on: the first that anybody added."""
    text = json.dumps(value)
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        connection.execute(_ADD, (space, key, text, until))
        return read(connection, space, key)


def put(connection: sqlite3.Connection, space: str, key: str, value: JSON, until: int) -> None:
    """Keep this value, whatever was there."""
    connection.execute(_PUT, (space, key, json.dumps(value), until))


def drop(connection: sqlite3.Connection, now: int, limit: int) -> int:
    """Forget those whose time is over, up to a limit; how many they were."""
    return connection.execute(_DROP, (now, limit)).rowcount
