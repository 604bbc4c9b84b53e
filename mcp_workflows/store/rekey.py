"""Re-encryption of rows with the first key; each store reads and writes them in its own batches.

A text begins with the name of its key, so the work can be stopped and resumed at any time, while others read and write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, TypeVar

from mcp_workflows.store import secrets
from mcp_workflows.store.encryption import Cipher, CipherError, is_sealed
from mcp_workflows.store.protocol import Rekeyed
from mcp_workflows.store.rows import NoteTexts, Rows

logger = logging.getLogger(__name__)

P = TypeVar("P")
REKEY_BATCH: Final = 200  # rows

Row: TypeAlias = tuple[Any, ...]  # Any: text, numbers and bytes, as the database returns them
Reencrypt: TypeAlias = Callable[[Row], Row]  # returns the values for the update of this row


@dataclass(frozen=True, slots=True, kw_only=True)
class RekeyedPart(Generic[P]):
    """The result of one step, and the place of its last row."""

    last: P
    done: Rekeyed


def part_of(found: Sequence[Row], written: Sequence[Row]) -> RekeyedPart[Any] | None:  # Any: a place
    """Return the result of a step that found and wrote these rows, which begin with their place; None: found none."""
    done = Rekeyed(rewritten=len(written), unreadable=len(found) - len(written))
    return RekeyedPart(last=found[-1][0], done=done) if found else None


def task_columns(rows: Rows, row: Row) -> Row:
    """Return the task and the idempotency key of a row (place, id, owner, task, tool, key), and its place."""
    place, task_id, owner, text, tool, key = row
    plain = rows.opened(task_id, owner, text)
    kept = key if key is None or is_sealed(text) else rows.digest(owner, tool, key)
    return rows.sealed(task_id, owner, plain), kept, place


def note_columns(notes: NoteTexts, row: Row) -> Row:
    """Return the value of a note (place, space, key, value), and its place."""
    place, space, key, text = row
    return notes.sealed(space, key, notes.opened(space, key, text)), place


def secret_columns(cipher: Cipher, row: Row) -> Row:
    """Return the value of a secret (name, value), and its name."""
    name, value = row
    return secrets.sealed(cipher, name, secrets.opened(cipher, name, value)), name


def reencrypted(found: Iterable[Row], reencrypt: Reencrypt) -> Iterator[Row]:
    """Yield the new values of rows. Skip rows that cannot be decrypted, and log the reason."""
    for row in found:
        try:
            yield reencrypt(row)
        except CipherError as error:
            logger.error("a row was left as it is: %s", error)
