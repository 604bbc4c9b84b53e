"""The rows of tasks in an SQLite store: the columns, and the JSON of a task, which may be encrypted."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from mcp_workflows.errors import StoreUnavailable
from mcp_workflows.store.encryption import Cipher, CipherError, is_sealed
from mcp_workflows.task import Task

logger = logging.getLogger(__name__)

SEARCHED: Final = (
    "id",
    "owner",
    "tool",
    "engine",
    "idempotency_key",
    "created",
    "expires",
    "attempts",
    "bound",
    "ended",
    "tombstone",
    "status",
    "updated",
    "due",
    "unanswered",
    "unanswered_until",
)
"""The columns beside `task`, in the order of `Rows.searched`; `engine` is `Task.engine_key`."""

_SHOWN: Final = slice(SEARCHED.index("status"), SEARCHED.index("due") + 1)
_FIXED: Final = 3  # of them, from the front, which no change may touch
_COLUMNS: Final = (*SEARCHED, "task")
INSERT: Final = f"INSERT INTO tasks ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608  # names of ours
TRY: Final = f"SELECT {', '.join(_COLUMNS)} FROM tasks LIMIT 0"  # noqa: S608  # names of ours
_BY_ID: Final = "SELECT task FROM tasks WHERE id = ? AND owner = ?"
_BACKFILL: Final = "UPDATE tasks SET status = ?, updated = ?, due = ? WHERE rowid = ?"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TASK: Final = TypeAdapter(Task)
_TABLE: Final = "tasks"
_MOST_KNOWN: Final = 2000  # rows, of about 2 kB each beside the task

Found = tuple[str, str, str]  # id, owner, task: the columns of every query for rows


class KnownRow(NamedTuple):
    """A row that was read or written lately."""

    owner: str
    text: str  # of its column `task`
    task: Task
    searched: tuple[Any, ...] | None = None  # None: not needed yet; Any: see `Rows.searched`


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The conversion of tasks into rows, and back.

    The task of a row is remembered with the row's text: while the text is the same, the row is not decoded again.
    """

    cipher: Cipher | None = None
    key_secret: bytes | None = None  # with a cipher: the secret for digests of idempotency keys
    _known: dict[str, KnownRow] = field(default_factory=dict[str, KnownRow], repr=False)  # by id

    def get(self, connection: sqlite3.Connection, task_id: str, owner: str) -> Task | None:
        """Return one owner's row.

        Raises:
            StoreUnavailable: it is there, and cannot be read.
        """
        names = utf8(task_id), utf8(owner)
        row: tuple[str] | None = connection.execute(_BY_ID, names).fetchone()
        return None if row is None else self.readable((*names, row[0]))

    def one(self, connection: sqlite3.Connection, query: str, *values: str) -> Task | None:
        """Return the row that a query finds.

        Raises:
            StoreUnavailable: it is there, and cannot be read.
        """
        row: Found | None = connection.execute(query, tuple(utf8(value) for value in values)).fetchone()
        return None if row is None else self.readable(row)

    def readable(self, row: Found) -> Task:
        """Return the task of a row.

        Raises:
            StoreUnavailable: it cannot be read.
        """
        task = self.read(row)
        if task is None:
            raise StoreUnavailable("the store has a row for this that cannot be read; see the log")
        return task

    def many(self, found: Iterable[Found]) -> Sequence[Task]:
        """Return the rows that can be read: an unreadable one does not block the others."""
        return [task for row in found if (task := self.read(row)) is not None]

    def read(self, row: Found) -> Task | None:
        """Return the task of a row; None: it cannot be read. The log has the reason, without the row's content."""
        task_id, owner, text = row
        known = self._known.get(task_id)
        if known is not None and known.text == text and known.owner == owner:
            return known.task
        try:
            task = _TASK.validate_json(self.opened(task_id, owner, text) if is_sealed(text) else text)
        except CipherError as error:
            logger.error("a row of the store cannot be read: %s", error)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False, include_context=False)[0]
            logger.error("a row of the store cannot be read: %s at %s", first["type"], first["loc"])
        else:
            if self.cipher is None or (utf8(task.id), utf8(task.owner)) == (task_id, owner):
                self._keep(task_id, KnownRow(owner, text, task))
                return task
            logger.error("a row of the store cannot be read: it is another's")
        return None

    def _keep(self, task_id: str, row: KnownRow) -> None:
        self._known.pop(task_id, None)
        self._known[task_id] = row
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def whole(self, task: Task) -> tuple[Any, ...]:  # Any: text and numbers, in the order of the columns
        """Return all columns of a task, as `INSERT` takes them."""
        searched, text = self.searched(task), self.text(task)
        self._keep(searched[0], KnownRow(searched[1], text, task, searched))
        return *searched, text

    def searched(self, task: Task) -> tuple[Any, ...]:  # Any: text and numbers, in the order of SEARCHED
        """Return the columns of a task beside its JSON."""
        expires = None if task.expires is None else micros(task.expires)
        due = None if (at := task.due) is None else micros(at)
        flags = (task.attempts, task.handle is not None, task.ended is not None, task.tombstone)
        names = (utf8(name) for name in (task.id, task.owner, task.tool, task.engine_key))
        shown = (task.execution.status.value, micros(task.updated), due)
        mark = (None, None) if (call := task.unanswered) is None else (call.match, micros(call.open_until))
        return *names, self.kept_key(task), micros(task.created), expires, *flags, *shown, *mark

    def kept_key(self, task: Task) -> str | None:
        """Return the idempotency key as the column has it: with a cipher a digest, the same for the same key."""
        if task.idempotency_key is None:
            return None
        return self.digest(utf8(task.owner), utf8(task.tool), utf8(task.idempotency_key))

    def digest(self, owner: str, tool: str, key: str) -> str:
        """Return the digest of a key by the values of columns."""
        if self.cipher is None or self.key_secret is None:
            return key
        return self.cipher.digest(self.key_secret, owner, tool, key)

    def text(self, task: Task) -> str:
        """Return the JSON of a task, encrypted if there is a cipher."""
        return self.sealed(utf8(task.id), utf8(task.owner), _dump(task))

    def sealed(self, task_id: str, owner: str, text: str) -> str:
        """Return the JSON, encrypted if there is a cipher."""
        return text if self.cipher is None else self.cipher.seal(text, _TABLE, task_id, owner)

    def opened(self, task_id: str, owner: str, text: str) -> str:
        """Return the JSON of a task, decrypted if it was encrypted.

        Raises:
            CipherError: it cannot be decrypted.
        """
        return opened(self.cipher, text, _TABLE, task_id, owner)

    def update(self, connection: sqlite3.Connection, before: Task, after: Task) -> None:
        """Write a changed row, of its columns only those that differ: so few indexes are touched."""
        self._write(connection, before, after)

    def replace(self, connection: sqlite3.Connection, before: Task, after: Task) -> bool:
        """Write a changed row, if it is still as it was read; return False if it may not be.

        It is one statement, and so a transaction of its own. Not with a cipher: each write then marks its key.
        """
        known = self._known.get(utf8(before.id))
        if known is None or known.task is not before or self.cipher is not None:
            return False
        return self._write(connection, before, after, known.text)

    def _write(self, connection: sqlite3.Connection, before: Task, after: Task, was: str | None = None) -> bool:
        """Write a changed row; with `was` only if that is its text now. Return True if it was written.

        With a cipher the idempotency key is always written: the old one may not be encrypted.
        """
        known = self._known.get(utf8(before.id))
        kept = known.searched if known is not None and known.task is before else None
        old = kept or self.searched(before)
        new, text = self.searched(after), self.text(after)
        changed = {name: new[at] for at, name in enumerate(SEARCHED) if at >= _FIXED and new[at] != old[at]}
        if self.cipher is not None:
            changed["idempotency_key"] = self.kept_key(after)
        names = "".join(f"{name} = ?, " for name in changed)
        query = f"UPDATE tasks SET {names}task = ? WHERE id = ?"  # noqa: S608  # names of ours
        values = (*changed.values(), text, new[0])
        if was is None:
            done = connection.execute(query, values)
        else:
            done = connection.execute(f"{query} AND task = ?", (*values, was))
        if done.rowcount == 1:
            self._keep(new[0], KnownRow(new[1], text, after, new))
        return done.rowcount == 1


def opened(cipher: Cipher | None, text: str, *names: str) -> str:
    """Return a text of the store, decrypted if it was encrypted.

    Raises:
        CipherError: it cannot be decrypted.
    """
    if not is_sealed(text):
        return text
    if cipher is None:
        raise CipherError("it is encrypted, and no keys are given")
    return cipher.open(text, *names)


def backfill(connection: sqlite3.Connection) -> None:
    """Fill in the columns of version 5 from the rows; an unreadable row gets the known values."""
    connection.execute("UPDATE tasks SET updated = created, status = CASE WHEN ended THEN 'failed' ELSE 'running' END")
    rows, last = Rows(), -1
    query = "SELECT id, owner, task, rowid FROM tasks WHERE rowid > ? ORDER BY rowid LIMIT 500"
    while found := connection.execute(query, (last,)).fetchall():
        last = found[-1][3]
        read = [(task, rowid) for *row, rowid in found if (task := rows.read(tuple(row))) is not None]
        connection.executemany(_BACKFILL, [(*rows.searched(task)[_SHOWN], rowid) for task, rowid in read])


def _dump(task: Task) -> str:
    try:
        return _TASK.dump_json(
            task, exclude_defaults=task.tombstone, by_alias=True
        ).decode()  # tombstones stay long, and are many
    except PydanticSerializationError:  # half a surrogate pair somewhere in it, which JSON allows and UTF-8 does not
        return utf8(json.dumps(_TASK.dump_python(task, mode="json", by_alias=True), ensure_ascii=False))


def utf8(text: str) -> str:
    """Return the text as it can be kept: half a surrogate pair becomes a question mark."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def micros(at: datetime) -> int:
    """Return the time as columns have it."""
    since = at - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def at_micros(number: int) -> datetime:
    """Return the time of a column."""
    return _EPOCH + timedelta(microseconds=number)
