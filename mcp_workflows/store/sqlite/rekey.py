"""Re-encryption of an SQLite store with the first key, a batch at a time.

Others can read and write meanwhile; see `store/rekey.py`.
"""

from __future__ import annotations

import sqlite3
from functools import partial
from typing import Final

from mcp_workflows.store.encryption import Cipher
from mcp_workflows.store.rekey import (
    REKEY_BATCH,
    Reencrypt,
    RekeyedPart,
    note_columns,
    part_of,
    reencrypted,
    secret_columns,
    task_columns,
)
from mcp_workflows.store.rows import NoteTexts, Rows
from mcp_workflows.store.secrets import is_mark
from mcp_workflows.store.sqlite import key_value

_TASKS: Final = """
    SELECT rowid, id, owner, task, tool, idempotency_key FROM tasks
    WHERE rowid > ? AND substr(task, 1, ?) <> ? AND task <> '' ORDER BY rowid LIMIT ?
"""
_UPDATE_TASK: Final = "UPDATE tasks SET task = ?, idempotency_key = ? WHERE rowid = ?"
_NOTES: Final = """
    SELECT rowid, space, key, value FROM notes WHERE rowid > ? AND substr(value, 1, ?) <> ? ORDER BY rowid LIMIT ?
"""
_UPDATE_NOTE: Final = "UPDATE notes SET value = ? WHERE rowid = ?"
_NAMED: Final = "SELECT name, value FROM secrets"
_UPDATE_NAMED: Final = "UPDATE secrets SET value = ? WHERE name = ?"
_LEFT: Final = """
    SELECT (SELECT COUNT(*) FROM tasks WHERE substr(task, 1, :size) <> :prefix AND task <> '')
         + (SELECT COUNT(*) FROM notes WHERE substr(value, 1, :size) <> :prefix)
"""


def tasks(connection: sqlite3.Connection, rows: Rows, cipher: Cipher, after: int) -> RekeyedPart[int] | None:
    """Re-encrypt the next rows of tasks; None: there are none."""
    return _part(connection, (_TASKS, _UPDATE_TASK), cipher, after, partial(task_columns, rows))


def notes(connection: sqlite3.Connection, kept: NoteTexts, cipher: Cipher, after: int) -> RekeyedPart[int] | None:
    """Re-encrypt the next notes; None: there are none."""
    return _part(connection, (_NOTES, _UPDATE_NOTE), cipher, after, partial(note_columns, kept))


def _part(
    connection: sqlite3.Connection, queries: tuple[str, str], cipher: Cipher, after: int, reencrypt: Reencrypt
) -> RekeyedPart[int] | None:
    query, update = queries
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        found = connection.execute(query, (after, len(cipher.prefix), cipher.prefix, REKEY_BATCH)).fetchall()
        written = list(reencrypted(found, reencrypt))
        connection.executemany(update, written)
    return part_of(found, written)


def finish(connection: sqlite3.Connection, cipher: Cipher) -> int:
    """Re-encrypt the secrets; if nothing else is left, retire all keys but the first. Return the number left.

    Unreadable texts count as left, and so do texts that others have meanwhile written with another key.
    """
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        found = [row for row in connection.execute(_NAMED) if not is_mark(row[0])]
        written = list(reencrypted(found, partial(secret_columns, cipher)))
        connection.executemany(_UPDATE_NAMED, written)
        values = {"size": len(cipher.prefix), "prefix": cipher.prefix}
        left: int = connection.execute(_LEFT, values).fetchone()[0] + len(found) - len(written)
        if not left:
            key_value.retire(connection, cipher)
    return left


def rewrite(connection: sqlite3.Connection) -> None:
    """Rewrite the file without its old content."""
    connection.execute("VACUUM")


def empty_log(connection: sqlite3.Connection) -> bool:
    """Empty the write-ahead log; False: another process is using it."""
    busy: int = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    return not busy
