"""Re-encryption of an SQLite store with the first key, a batch at a time.

The beginning of a text names its key, so that the work can be stopped and resumed at any time, and others read and
write in between.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from mcp_workflows.store.encryption import Cipher, CipherError, is_sealed
from mcp_workflows.store.protocol import Rekeyed
from mcp_workflows.store.sqlite import secrets
from mcp_workflows.store.sqlite.key_value import NoteRows
from mcp_workflows.store.sqlite.rows import Rows

logger = logging.getLogger(__name__)

_BATCH: Final = 200
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

Row: TypeAlias = tuple[Any, ...]  # Any: text and numbers
Reencrypt: TypeAlias = Callable[[Row], tuple[Any, ...]]  # likewise: the values for the update of this row


@dataclass(frozen=True, slots=True, kw_only=True)
class RekeyedPart:
    """The result of one step, up to a row."""

    last: int
    done: Rekeyed


def tasks(connection: sqlite3.Connection, rows: Rows, cipher: Cipher, after: int) -> RekeyedPart | None:
    """Re-encrypt the next rows of tasks; None: there are none."""

    def reencrypt(row: Row) -> tuple[Any, ...]:  # Any: text and numbers
        rowid, task_id, owner, text, tool, key = row
        plain = rows.opened(task_id, owner, text)
        kept = key if key is None or is_sealed(text) else rows.digest(owner, tool, key)
        return rows.sealed(task_id, owner, plain), kept, rowid

    return _part(connection, (_TASKS, _UPDATE_TASK), cipher, after, reencrypt)


def notes(connection: sqlite3.Connection, kept: NoteRows, cipher: Cipher, after: int) -> RekeyedPart | None:
    """Re-encrypt the next notes; None: there are none."""

    def reencrypt(row: Row) -> tuple[Any, ...]:  # Any: text and numbers
        rowid, space, key, text = row
        return kept.sealed(space, key, kept.opened(space, key, text)), rowid

    return _part(connection, (_NOTES, _UPDATE_NOTE), cipher, after, reencrypt)


def _part(
    connection: sqlite3.Connection, queries: tuple[str, str], cipher: Cipher, after: int, reencrypt: Reencrypt
) -> RekeyedPart | None:
    query, update = queries
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        found = connection.execute(query, (after, len(cipher.prefix), cipher.prefix, _BATCH)).fetchall()
        written = list(_written(found, reencrypt))
        connection.executemany(update, written)
    done = Rekeyed(rewritten=len(written), unreadable=len(found) - len(written))
    return RekeyedPart(last=found[-1][0], done=done) if found else None


def _written(found: Iterable[Row], reencrypt: Reencrypt) -> Iterable[tuple[Any, ...]]:  # Any: text and numbers
    for row in found:
        try:
            yield reencrypt(row)
        except CipherError as error:
            logger.error("left as it is: %s", error)


def finish(connection: sqlite3.Connection, cipher: Cipher) -> int:
    """Re-encrypt the secrets; if nothing else is left, retire all keys but the first. Return the number left.

    Unreadable texts are left, and those that others have written with another key meanwhile.
    """
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        found = [row for row in connection.execute(_NAMED) if not secrets.is_key(row[0])]
        written = list(_written(found, lambda row: _secret(cipher, *row)))
        connection.executemany(_UPDATE_NAMED, written)
        values = {"size": len(cipher.prefix), "prefix": cipher.prefix}
        left: int = connection.execute(_LEFT, values).fetchone()[0] + len(found) - len(written)
        if not left:
            secrets.retire(connection, cipher)
    return left


def _secret(cipher: Cipher, name: str, value: bytes) -> tuple[Any, ...]:  # Any: bytes and text
    return secrets.sealed(cipher, name, secrets.opened(cipher, name, value)), name


def rewrite(connection: sqlite3.Connection) -> None:
    """Write the file anew, without its old content."""
    connection.execute("VACUUM")


def empty_log(connection: sqlite3.Connection) -> bool:
    """Empty the write-ahead log; False: another process uses it just now."""
    busy: int = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    return not busy
