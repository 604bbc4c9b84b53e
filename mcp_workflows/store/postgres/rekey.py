"""Re-encryption of a PostgreSQL store with the first key, a batch at a time; see `store/rekey.py`."""

from __future__ import annotations

from functools import partial
from typing import Final, TypeAlias

from mcp_workflows.store.encryption import Cipher
from mcp_workflows.store.postgres.connections import PostgresConnection, Row
from mcp_workflows.store.postgres.queries import SECRETS, Marked, retire
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

Position: TypeAlias = tuple[str, ...]  # the primary key of a row

_TASKS: Final = """
    SELECT id, id, owner, task, tool, idempotency_key FROM @tasks
    WHERE id > $1 AND NOT starts_with(task, $2) AND task <> '' ORDER BY id LIMIT $3 FOR UPDATE
"""
_UPDATE_TASK: Final = "UPDATE @tasks SET task = $1, idempotency_key = $2, version = version + 1 WHERE id = $3"
_NOTES: Final = """
    SELECT space, key, space, key, value FROM @notes
    WHERE (space, key) > ($1, $2) AND NOT starts_with(value, $3) ORDER BY space, key LIMIT $4 FOR UPDATE
"""
_UPDATE_NOTE: Final = "UPDATE @notes SET value = $1 WHERE space = $2 AND key = $3"
_UPDATE_SECRET: Final = "UPDATE @secrets SET value = $1 WHERE name = $2"
_LEFT: Final = """
    SELECT (SELECT count(*) FROM @tasks WHERE NOT starts_with(task, $1) AND task <> '')
         + (SELECT count(*) FROM @notes WHERE NOT starts_with(value, $1))
"""


async def tasks(
    connection: PostgresConnection, rows: Rows, cipher: Cipher, after: Position
) -> RekeyedPart[Position] | None:
    """Re-encrypt the next rows of tasks; None: there are none."""
    return await _part(connection, (_TASKS, _UPDATE_TASK), cipher, after or ("",), partial(task_columns, rows))


async def notes(
    connection: PostgresConnection, kept: NoteTexts, cipher: Cipher, after: Position
) -> RekeyedPart[Position] | None:
    """Re-encrypt the next notes; None: there are none."""
    return await _part(connection, (_NOTES, _UPDATE_NOTE), cipher, after or ("", ""), partial(note_columns, kept))


async def _part(
    connection: PostgresConnection, queries: tuple[str, str], cipher: Cipher, after: Position, reencrypt: Reencrypt
) -> RekeyedPart[Position] | None:
    query, update = queries
    size = len(after)
    async with connection.transaction():
        rows = await connection.fetch(query, *after, cipher.prefix, REKEY_BATCH)
        found: list[Row] = [(tuple(row[:size]), *row[size:]) for row in rows]
        written = [(*values, *place) for *values, place in reencrypted(found, reencrypt)]
        if written:
            await Marked(cipher=cipher).put(connection)
            await connection.many(update, written)
    return part_of(found, written)


async def finish(connection: PostgresConnection, cipher: Cipher) -> int:
    """Re-encrypt the secrets; if nothing else is left, retire all keys but the first. Return the number left.

    Unreadable texts count as left, and so do texts that others have meanwhile written with another key. The lock on the
    marks waits for running writes, and holds back new ones until the count is done.
    """
    async with connection.transaction():
        found = [tuple(row) for row in await connection.fetch(f"{SECRETS} FOR UPDATE") if not is_mark(row[0])]
        written = list(reencrypted(found, partial(secret_columns, cipher)))
        await connection.many(_UPDATE_SECRET, written)
        counted = await connection.row(_LEFT, cipher.prefix)
        left = int(counted[0] if counted else 1) + len(found) - len(written)
        if not left:
            await retire(connection, cipher)
    return left
