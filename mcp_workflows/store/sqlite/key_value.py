"""The notes and the secrets in an SQLite store.

Notes are JSON values by space and key, each with its own expiry. `store/secrets.py` has the rules of secrets and of the
marks of encryption keys. The connection, locks and errors are those of `store.py`; times are microseconds, too.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Final

from mcp_workflows.adapter import JSON
from mcp_workflows.store.encryption import Cipher
from mcp_workflows.store.rows import NoteTexts
from mcp_workflows.store.secrets import check_marks, is_mark, mark_of, new_mark, new_secret, read_secret

_READ: Final = "SELECT value FROM notes WHERE space = ? AND key = ?"
_FROM: Final = "SELECT key, value FROM notes WHERE space = ? AND key >= ? ORDER BY key LIMIT ?"
_AFTER: Final = "SELECT key, value FROM notes WHERE space = ? AND key > ? ORDER BY key LIMIT ?"
_ADD: Final = "INSERT OR IGNORE INTO notes (space, key, value, until) VALUES (?, ?, ?, ?)"
_PUT: Final = "INSERT OR REPLACE INTO notes (space, key, value, until) VALUES (?, ?, ?, ?)"
PAGE: Final = 500  # notes per read: others wait at most a few ms
_DROP: Final = "DELETE FROM notes WHERE rowid IN (SELECT rowid FROM notes WHERE until <= ? ORDER BY until LIMIT ?)"

_MADE: Final = "INSERT OR IGNORE INTO secrets VALUES (?, ?)"
_NAMED: Final = "SELECT value FROM secrets WHERE name = ?"
_ALL: Final = "SELECT name, value FROM secrets"


def read(connection: sqlite3.Connection, notes: NoteTexts, space: str, key: str) -> JSON:
    """Return the value, or None."""
    row = connection.execute(_READ, (space, key)).fetchone()
    return None if row is None else notes.value(space, key, row[0])


def under(
    connection: sqlite3.Connection, notes: NoteTexts, space: str, beginning: str, after: str | None
) -> Mapping[str, JSON]:
    """Return the first values whose keys begin with this text, or the first after a key; fewer than `PAGE`: no more.

    Keys are compared in Python, because no SQL pattern takes every character literally.
    """
    query, first = (_FROM, beginning) if after is None else (_AFTER, after)
    found: dict[str, JSON] = {}
    for key, text in connection.execute(query, (space, first, PAGE)):
        if not key.startswith(beginning):
            break
        found[key] = notes.value(space, key, text)
    return found


def add(connection: sqlite3.Connection, notes: NoteTexts, space: str, key: str, value: JSON, until: int) -> JSON:
    """Return the value that the store now has: the first one added."""
    return _write(connection, notes, _ADD, (space, key, notes.text(space, key, value), until))


def put(connection: sqlite3.Connection, notes: NoteTexts, space: str, key: str, value: JSON, until: int) -> None:
    """Store this value, replacing any other."""
    _write(connection, notes, _PUT, (space, key, notes.text(space, key, value), until))


def _write(connection: sqlite3.Connection, notes: NoteTexts, query: str, note: tuple[str, str, str, int]) -> JSON:
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        mark(connection, notes.cipher)
        connection.execute(query, note)
        return read(connection, notes, *note[:2])


def drop(connection: sqlite3.Connection, now: int, limit: int) -> int:
    """Delete up to `limit` expired notes; return their number."""
    return connection.execute(_DROP, (now, limit)).rowcount


def secret(connection: sqlite3.Connection, cipher: Cipher | None, name: str) -> bytes:
    """Return 32 random bytes under this name, created once."""
    found = connection.execute(_NAMED, (name,)).fetchone()
    if found is None:
        mark(connection, cipher)
        connection.execute(_MADE, (name, new_secret(cipher, name)))
        found = connection.execute(_NAMED, (name,)).fetchone()
    return read_secret(cipher, name, found[0])


def check_keys(connection: sqlite3.Connection, cipher: Cipher | None) -> None:
    """Check that all encrypted data can be read, and add the mark of the first key.

    Raises:
        StoreUnusable: data may be encrypted with a missing key, or a mark is wrong.
    """
    check_marks(dict(connection.execute(_ALL)), cipher)
    mark(connection, cipher)


def mark(connection: sqlite3.Connection, cipher: Cipher | None) -> None:
    """Add the mark of the first key, which is needed from now on; called in the transaction of each write.

    Another process may have retired that key since: then it is needed again, and nothing is lost.
    """
    if cipher is not None and connection.execute(_NAMED, (mark_of(cipher),)).fetchone() is None:
        connection.execute(_MADE, (mark_of(cipher), new_mark(cipher)))


def retire(connection: sqlite3.Connection, cipher: Cipher) -> None:
    """Delete the marks of all keys but the first: nothing is encrypted with them any more."""
    for name, _ in connection.execute(_ALL).fetchall():
        if is_mark(name) and name != mark_of(cipher):
            connection.execute("DELETE FROM secrets WHERE name = ?", (name,))
