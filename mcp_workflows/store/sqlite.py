"""The default store: one SQLite file on a local disk, used inline on the event loop.

A row is read by id in some 20 us and written to disk in 0.2 ms; a thread would cost 7 to 12 times that. So there
is one connection and no thread, and the lock of another process is waited for with `anyio.sleep`, never in SQLite.
Source: https://www.sqlite.org/wal.html, https://www.sqlite.org/rescode.html.
"""

from __future__ import annotations

import json
import logging
import random
import secrets
import sqlite3
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeAlias, TypeVar

import anyio
import anyio.lowlevel
from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from mcp_workflows.adapter import JSON
from mcp_workflows.errors import StoreError, StoreUnavailable, StoreUnusable
from mcp_workflows.store import Store, sqlite_notes
from mcp_workflows.store.sqlite_file import inode_of, migrate, prepare, read_url, rewrite_version, write_ahead
from mcp_workflows.task import Task, bury

T = TypeVar("T")
Step: TypeAlias = Callable[[sqlite3.Connection], T]

logger = logging.getLogger(__name__)

BUSY_TIMEOUT_MS: Final = 5_000
_UNWRITABLE: Final = (StoreUnusable, "cannot be written: check the permissions of the file and its folder")
_TROUBLE: Final[Mapping[int, tuple[type[StoreError], str]]] = {
    sqlite3.SQLITE_BUSY: (StoreUnavailable, "is locked by another process"),
    sqlite3.SQLITE_LOCKED: (StoreUnavailable, "is locked by another process"),
    sqlite3.SQLITE_FULL: (StoreUnavailable, "has no room left on its disk"),
    sqlite3.SQLITE_IOERR: (StoreUnavailable, "got an error from its disk"),
    sqlite3.SQLITE_CANTOPEN: _UNWRITABLE,
    sqlite3.SQLITE_READONLY: _UNWRITABLE,
    sqlite3.SQLITE_PERM: _UNWRITABLE,
    sqlite3.SQLITE_NOTADB: (StoreUnusable, "is not an SQLite database"),
    sqlite3.SQLITE_CORRUPT: (StoreUnusable, "is damaged: restore it from a backup"),
}
"""SQLite's primary result codes: what they are while the file is being opened, and how it is said."""

_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_PAUSES: Final = (0.001, 0.05)  # seconds between two tries: from, to
_BATCH: Final = 200  # rows of one transaction when sweeping: others wait no longer than a few ms
_END_OF_TIME: Final = 2**63 - 1
_LAST_CHARACTER: Final = "\U0010ffff"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TASK: Final = TypeAdapter(Task)

_COLUMNS: Final = (
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
    "task",
)
_INSERT: Final = f"INSERT INTO tasks ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608  # names of ours
_UPDATE: Final = f"UPDATE tasks SET {', '.join(f'{name} = ?' for name in _COLUMNS)} WHERE id = ?"  # noqa: S608  # names of ours
_TRY: Final = f"SELECT {', '.join(_COLUMNS)} FROM tasks LIMIT 0"  # noqa: S608  # names of ours
_BY_ID: Final = "SELECT task FROM tasks WHERE id = ? AND owner = ?"
_BY_KEY: Final = "SELECT task FROM tasks WHERE owner = ? AND tool = ? AND idempotency_key = ?"
_UNBOUND: Final = """
    SELECT task FROM tasks WHERE bound = 0 AND ended = 0 AND tombstone = 0 AND engine = ? AND created < ?
    ORDER BY attempts, created, id LIMIT ?
"""
_EVERYONES: Final = """
    SELECT task FROM tasks WHERE tombstone = 0 AND created < :before AND (NOT :live_only OR ended = 0)
    AND (:tool IS NULL OR tool = :tool) AND (:engine IS NULL OR engine = :engine)
    ORDER BY created DESC, id LIMIT :limit
"""
_OWNED_BY: Final = """
    SELECT task FROM tasks WHERE tombstone = 0 AND owner = ? AND (created, id) < (?, ?)
    AND (expires IS NULL OR expires > ?) ORDER BY created DESC, id DESC LIMIT ?
"""
_FIND: Final = "SELECT task FROM tasks WHERE tombstone = 0 AND id >= ? AND id < ? ORDER BY id LIMIT ?"
_TALLY: Final = """
    SELECT tool, engine, COUNT(*) FROM tasks WHERE tombstone = 0 AND ended = 0 AND (expires IS NULL OR expires > ?)
    GROUP BY tool, engine ORDER BY tool, engine
"""
_EXPIRED: Final = "SELECT id, task FROM tasks WHERE tombstone = 0 AND expires <= ? ORDER BY expires LIMIT ?"
_FORGET: Final = """
    DELETE FROM tasks WHERE id IN (SELECT id FROM tasks WHERE tombstone = 1 AND expires < ? ORDER BY expires LIMIT ?)
"""


class SQLiteStore(Store):
    """Tasks in one SQLite file: `sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite:///:memory:`.

    `?busy_timeout_ms=` (or the argument) is how long another process's lock is waited for, in ms.

    Raises:
        ConfigError: the URL is not one of these.
    """

    def __init__(self, url: str, *, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> None:
        """Read the URL; nothing is opened yet."""
        self._file, self._busy_timeout_ms = read_url(url, busy_timeout_ms)
        self._path: Path | None = None
        self._opened: sqlite3.Connection | None = None
        self._inode: int | None = None

    async def __aenter__(self) -> SQLiteStore:
        """Open the file, creating it (readable by its user only) or migrating it.

        Raises:
            StoreUnusable: not ours, from a newer version, on a network file system, or not writable.
            StoreUnavailable: locked for longer than the busy timeout, or the disk is full.
        """
        self._path = prepare(self._file)
        with ExitStack() as closed_on_error:
            try:
                connection = sqlite3.connect(self._path or ":memory:", timeout=0, isolation_level=None)
                closed_on_error.enter_context(closing(connection))
                await self._patiently(connection, migrate)
                await self._patiently(connection, write_ahead)
            except sqlite3.Error as error:
                raise _translated(error, opening=self._file) from error
            closed_on_error.pop_all()
        self._opened, self._inode = connection, inode_of(self._path)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        if self._opened:
            self._opened.close()
        self._opened = None

    async def create(self, task: Task) -> Task:
        """Insert durably, or return the row its idempotency key already has."""
        return await self._do(lambda connection: _create(connection, task))

    async def get(self, task_id: str, owner: str) -> Task | None:
        """The row, if it is this owner's."""
        return await self._do(lambda connection: _one(connection, _BY_ID, task_id, owner))

    async def change(
        self, task_id: str, owner: str, change: Callable[[Task], Task], *, durable: bool = True
    ) -> Task | None:
        """Apply a pure function to the row in one transaction; nothing is written if it returns the same object."""
        committing = _waiting_for_no_disk if not durable else nullcontext

        def step(connection: sqlite3.Connection) -> Task | None:
            with committing(connection):
                return _change(connection, task_id, owner, change)

        return await self._do(step)

    async def unbound(self, engine: str, before: datetime, limit: int) -> Sequence[Task]:
        """An engine's rows created before that time, neither ended nor known to be started; oldest first."""
        return await self._do(lambda connection: _many(connection, _UNBOUND, engine, _micros(before), limit))

    async def everyones(
        self,
        *,
        tool: str | None = None,
        engine: str | None = None,
        live_only: bool = True,
        limit: int = 100,
        before: datetime | None = None,
    ) -> Sequence[Task]:
        """For the operator: rows of any owner, no tombstones, created before that time; the youngest first."""
        values = {
            "tool": tool,
            "engine": engine,
            "live_only": live_only,
            "limit": limit,
            "before": _END_OF_TIME if before is None else _micros(before),
        }
        return await self._do(lambda connection: _rows(connection.execute(_EVERYONES, values)))

    async def owned_by(
        self, owner: str, *, now: datetime, limit: int, before: tuple[datetime, str] | None = None
    ) -> Sequence[Task]:
        """One owner's rows that can be read at that time, after that one, the youngest first."""
        created, task_id = (_END_OF_TIME, "") if before is None else (_micros(before[0]), before[1])
        values = (_utf8(owner), created, _utf8(task_id), _micros(now), limit)
        return await self._do(lambda connection: _many(connection, _OWNED_BY, *values))

    async def find(self, beginning: str, limit: int = 10) -> Sequence[Task]:
        """For the operator: rows of any owner, no tombstones, whose id begins so; by id."""
        first = _utf8(beginning)
        return await self._do(lambda connection: _many(connection, _FIND, first, first + _LAST_CHARACTER, limit))

    async def tally(self, now: datetime) -> Mapping[tuple[str, str], int]:
        """For the operator: how many tasks of any owner have neither ended nor expired, by tool and engine."""
        rows = await self._do(lambda connection: connection.execute(_TALLY, (_micros(now),)).fetchall())
        return {(tool, engine): count for tool, engine, count in rows}

    async def sweep(self, now: datetime, keep_tombstones_since: datetime) -> int:
        """Forget old tombstones and notes, bury or delete expired rows; in batches, so that others get their turn."""
        steps: Sequence[Step[int]] = (
            lambda connection: _forget(connection, keep_tombstones_since),
            lambda connection: _expire(connection, now),
            lambda connection: sqlite_notes.drop(connection, _micros(now), _BATCH),
        )
        swept = 0
        for step in steps:
            while done := await self._do(step):
                swept += done
                await anyio.lowlevel.checkpoint()
        return swept

    async def note(self, space: str, key: str) -> JSON:
        """The value under this key of a space; None: there is none."""
        return await self._do(lambda connection: sqlite_notes.read(connection, _utf8(space), _utf8(key)))

    async def notes_under(self, space: str, beginning: str) -> Mapping[str, JSON]:
        """The values of a space whose key begins so, by key; of many, what is added meanwhile may be left out."""
        found: dict[str, JSON] = {}
        last: str | None = None
        while True:
            page = await self._do(
                partial(sqlite_notes.under, space=_utf8(space), beginning=_utf8(beginning), after=last)
            )
            found.update(page)
            if len(page) < sqlite_notes.PAGE:
                return found
            last = next(reversed(found))
            await anyio.lowlevel.checkpoint()

    async def add_note(self, space: str, key: str, value: JSON, *, until: datetime) -> JSON:
        """The value under this key from now on: what is there already, or else this."""
        note = (_utf8(space), _utf8(key), value, _micros(until))
        return await self._do(lambda connection: sqlite_notes.add(connection, *note))

    async def put_note(self, space: str, key: str, value: JSON, *, until: datetime) -> None:
        """Keep this value under this key, whatever was there."""
        note = (_utf8(space), _utf8(key), value, _micros(until))
        await self._do(lambda connection: sqlite_notes.put(connection, *note))

    async def secret(self, name: str) -> bytes:
        """32 random bytes under this name, made once and the same for all who share the file."""
        return await self._do(lambda connection: _secret(connection, name))

    async def check(self) -> None:
        """Make sure that the file still is where it was, and write one page of it."""
        if self._opened and inode_of(self._path) != self._inode:
            raise StoreUnavailable("the store's file was moved, replaced or deleted while it is open")
        await self._do(rewrite_version)
        await self._do(lambda connection: connection.execute(_TRY))

    async def _do(self, step: Step[T]) -> T:
        if self._opened is None:
            raise StoreUnavailable("the store is not open")
        try:
            return await self._patiently(self._opened, step)
        except sqlite3.Error as error:
            raise _translated(error) from error

    async def _patiently(self, connection: sqlite3.Connection, step: Step[T]) -> T:
        """Do one step; while another process has the lock, try again until the busy timeout has passed."""
        deadline: float | None = None
        pause, longest = _PAUSES
        while True:
            try:
                return step(connection)
            except sqlite3.OperationalError as error:
                now = anyio.current_time()
                deadline = now + self._busy_timeout_ms / 1000 if deadline is None else deadline
                if _code(error) not in _BUSY or now >= deadline:
                    raise
            await anyio.sleep(random.uniform(pause / 2, pause))  # noqa: S311  # jitter
            pause = min(pause * 2, longest)


def _create(connection: sqlite3.Connection, task: Task) -> Task:
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        key = task.idempotency_key
        found = None if key is None else _one(connection, _BY_KEY, task.owner, task.tool, key)
        if found is None:
            connection.execute(_INSERT, _row(task))
    return found or task


def _change(connection: sqlite3.Connection, task_id: str, owner: str, change: Callable[[Task], Task]) -> Task | None:
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        before = _one(connection, _BY_ID, task_id, owner)
        after = None if before is None else change(before)
        if after is not None and after is not before:
            connection.execute(_UPDATE, (*_row(after), task_id))
    return after


@contextmanager
def _waiting_for_no_disk(connection: sqlite3.Connection) -> Generator[None]:
    """Commits are in the write-ahead log, but it is not flushed to disk: the next durable commit takes them along.

    Source: https://www.sqlite.org/pragma.html#pragma_synchronous: in WAL mode the file stays consistent all the same.
    """
    connection.execute("PRAGMA synchronous = NORMAL")
    try:
        yield
    finally:
        connection.execute("PRAGMA synchronous = FULL")


def _forget(connection: sqlite3.Connection, before: datetime) -> int:
    return connection.execute(_FORGET, (_micros(before), _BATCH)).rowcount


def _expire(connection: sqlite3.Connection, now: datetime) -> int:
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        expired = connection.execute(_EXPIRED, (_micros(now), _BATCH)).fetchall()
        for task_id, text in expired:
            task = _read(text)
            if task is None or task.idempotency_key is None:
                connection.execute("DELETE FROM tasks WHERE id = ?", (task_id,))
            else:
                connection.execute(_UPDATE, (*_row(bury(task)), task.id))
    return len(expired)


def _secret(connection: sqlite3.Connection, name: str) -> bytes:
    query = "SELECT value FROM secrets WHERE name = ?"
    found = connection.execute(query, (name,)).fetchone()
    if found is None:
        connection.execute("INSERT OR IGNORE INTO secrets VALUES (?, ?)", (name, secrets.token_bytes(32)))
        found = connection.execute(query, (name,)).fetchone()
    value: bytes = found[0]
    return value


def _one(connection: sqlite3.Connection, query: str, *values: str) -> Task | None:
    row = connection.execute(query, tuple(_utf8(value) for value in values)).fetchone()
    if row is None:
        return None
    task = _read(row[0])
    if task is None:
        raise StoreUnavailable("the store has a row for this that cannot be read; see the log")
    return task


def _many(connection: sqlite3.Connection, query: str, *values: str | int) -> Sequence[Task]:
    return _rows(connection.execute(query, values))


def _rows(found: Iterable[tuple[str]]) -> Sequence[Task]:
    """The rows that can be read: one that cannot keeps no other waiting."""
    return [task for row in found if (task := _read(row[0])) is not None]


def _read(text: str) -> Task | None:
    try:
        return _TASK.validate_json(text)
    except ValidationError as error:
        logger.error(
            "a row of the store cannot be read: %s", error.errors(include_input=False, include_url=False)[0]
        )  # it names no row's content
        return None


def _row(task: Task) -> tuple[Any, ...]:  # Any: text and numbers, in the order of _COLUMNS
    key = None if task.idempotency_key is None else _utf8(task.idempotency_key)
    expires = None if task.expires is None else _micros(task.expires)
    flags = (task.attempts, task.handle is not None, task.ended is not None, task.tombstone)
    names = (_utf8(name) for name in (task.id, task.owner, task.tool, task.engine))
    return *names, key, _micros(task.created), expires, *flags, _dump(task)


def _dump(task: Task) -> str:
    try:
        return _TASK.dump_json(task).decode()
    except PydanticSerializationError:  # half a surrogate pair somewhere in it, which JSON allows and UTF-8 does not
        return _utf8(json.dumps(_TASK.dump_python(task, mode="json"), ensure_ascii=False))


def _utf8(text: str) -> str:
    """The text as it can be kept: half a surrogate pair becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def _micros(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; 0 for what Python's own module refused."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _translated(error: sqlite3.Error, *, opening: str | None = None) -> StoreError:
    kind, text = _TROUBLE.get(_code(error), (StoreUnavailable, f"failed: {error}"))
    return StoreUnavailable(f"the store {text}") if opening is None else kind(f"the store {opening} {text}")
