"""The secrets and the marks of keys in an SQLite store; `store/secrets.py` has the rules."""

from __future__ import annotations

import sqlite3
from typing import Final

from mcp_workflows.store.encryption import Cipher
from mcp_workflows.store.secrets import check_marks, is_mark, mark_of, new_mark, new_secret, read_secret

_MADE: Final = "INSERT OR IGNORE INTO secrets VALUES (?, ?)"
_NAMED: Final = "SELECT value FROM secrets WHERE name = ?"
_ALL: Final = "SELECT name, value FROM secrets"


def secret(connection: sqlite3.Connection, cipher: Cipher | None, name: str) -> bytes:
    """Return 32 random bytes under this name, made once."""
    found = connection.execute(_NAMED, (name,)).fetchone()
    if found is None:
        mark(connection, cipher)
        connection.execute(_MADE, (name, new_secret(cipher, name)))
        found = connection.execute(_NAMED, (name,)).fetchone()
    return read_secret(cipher, name, found[0])


def check_keys(connection: sqlite3.Connection, cipher: Cipher | None) -> None:
    """Check that all encrypted data can be read, and mark our first key.

    Raises:
        StoreUnusable: something may be encrypted with a key that is not given, or a mark is wrong.
    """
    check_marks(dict(connection.execute(_ALL)), cipher)
    mark(connection, cipher)


def mark(connection: sqlite3.Connection, cipher: Cipher | None) -> None:
    """Mark our first key as one that encrypts from now on; in the transaction of each write.

    Another process may have retired that key since: then it is needed again, and nothing is lost.
    """
    if cipher is not None and connection.execute(_NAMED, (mark_of(cipher),)).fetchone() is None:
        connection.execute(_MADE, (mark_of(cipher), new_mark(cipher)))


def retire(connection: sqlite3.Connection, cipher: Cipher) -> None:
    """Forget the marks of all keys but the first: nothing is encrypted with them any more."""
    for name, _ in connection.execute(_ALL).fetchall():
        if is_mark(name) and name != mark_of(cipher):
            connection.execute("DELETE FROM secrets WHERE name = ?", (name,))
