"""The default store: one SQLite file on a local disk, used directly on the event loop.

Reading a row by id takes some 20 us and writing it to a fast disk 0.2 ms; a thread would take 7 to 12 times that. So
there is one connection without a thread, and waiting for another process's lock uses `anyio.sleep`, never SQLite. Only
`sync` on a slow disk uses a thread.

Source: https://www.sqlite.org/wal.html, https://www.sqlite.org/rescode.html.
"""

from __future__ import annotations

import json
import logging
import random
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, TypeAlias, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread

from mcp_workflows.adapter import JSON
from mcp_workflows.errors import StoreError, StoreUnavailable, StoreUnusable
from mcp_workflows.store.encryption import Cipher
from mcp_workflows.store.flushes import Flushes
from mcp_workflows.store.protocol import (
    EVENTS_KEPT,
    NO_CAPS,
    Caps,
    Count,
    EventPage,
    Rekeyed,
    Store,
    StoredRows,
    TaskFilter,
)
from mcp_workflows.store.rows import AHEAD, LAST_CHARACTER, NoteTexts, Rows, counted, micros, place_of, utf8
from mcp_workflows.store.secrets import KEY_SECRET
from mcp_workflows.store.sqlite import copies, events, key_value, queries, rekey
from mcp_workflows.store.sqlite.copies import refuse_moved
from mcp_workflows.store.sqlite.file import (
    LogFile,
    OpenFiles,
    damage_in,
    migrate,
    overwrite,
    prepare,
    read_apart,
    read_url,
    rewrite_version,
    write_ahead,
)
from mcp_workflows.store.sqlite.queries import CountedRows
from mcp_workflows.store.sqlite.rows import BY_ID, TRY
from mcp_workflows.task import LoggedEvent, Task

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
"""SQLite's primary result codes: the error while the file is opened, and its text."""

_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_IS_DAMAGED: Final = "the store's file is damaged: stop the server, restore the file from a backup, and start it again"
INTEGRITY_EVERY: Final = 3600.0  # seconds between checks of the whole file; checked at once if it may be damaged
INTEGRITY_UP_TO: Final = 100 * 2**20  # bytes of the file: a thread reads them in about a second
_PAUSE: Final = 0.002  # maximum seconds between attempts to get the lock
_TURN: Final = 0.2  # seconds until other writers ignore a stopped process that had the next turn
_BATCH_SECONDS: Final = 0.01  # of one transaction in a bulk change
_FEWEST: Final = 20  # rows at once: fewer save little, and each batch costs a transaction
_TRY_EVERY: Final = 0.05  # seconds
_TRIES: Final = 100  # to empty the write-ahead log while others use it


def _now() -> datetime:
    return datetime.now(UTC)


class SQLiteStore(Store):
    """Tasks in one SQLite file: `sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite:///:memory:`.

    `?busy_timeout_ms=` (or the argument) is the longest wait for another process's lock, in ms. With a cipher the JSON
    of rows, the values of notes and the secrets are encrypted, and idempotency keys are digests.

    Raises:
        ConfigError: the URL has another format.
    """

    def __init__(
        self,
        url: str,
        *,
        cipher: Cipher | None = None,
        busy_timeout_ms: int = BUSY_TIMEOUT_MS,
        clock: Callable[[], datetime] = _now,
    ) -> None:
        """Parse the URL without opening the file. `clock` is for leases."""
        self._clock = clock
        self._file, self._busy_timeout_ms = read_url(url, busy_timeout_ms)
        self._cipher = cipher
        self._rows = Rows()
        self._sync_thread = anyio.CapacityLimiter(1)  # separate: tools may occupy all other threads of the server
        self._notes = NoteTexts(cipher=cipher)
        self._path: Path | None = None
        self._opened: sqlite3.Connection | None = None
        self._files: OpenFiles | None = None
        self._log: LogFile | None = None
        self._in_line = 0  # waiting writes of this process
        self._flushes = Flushes()
        self._is_durable = True  # current setting of the connection: each commit waits for the disk
        self._damaged = False  # True if damage was noticed since the file was opened
        self._checked: float | None = None  # last check of the whole file, on the event loop's clock

    async def __aenter__(self) -> SQLiteStore:
        """Open the file; create it (readable only by its user) or migrate it if necessary.

        Raises:
            StoreUnusable: not ours, from a newer version, on a network file system, not writable, or encrypted with
                a key that is not given.
            StoreUnavailable: locked for longer than the busy timeout, or the disk is full.
        """
        self._path = prepare(self._file)
        with ExitStack() as closed_on_error:
            try:
                connection = sqlite3.connect(self._path or ":memory:", timeout=0, isolation_level=None)
                closed_on_error.enter_context(closing(connection))
                await self._while_locked(connection, migrate)
                refuse_moved(connection)
                await self._while_locked(connection, write_ahead)
                await self._while_locked(connection, self._unlock)
            except sqlite3.Error as error:
                raise _translated(error, opening=self._file) from error
            closed_on_error.pop_all()
        self._opened, self._files = connection, OpenFiles(self._file, self._path)
        self._log = LogFile(self._path) if self._path else None
        self._counted = CountedRows()
        self._flushes = Flushes()
        self._damaged, self._checked, self._is_durable = False, None, True
        return self

    @contextmanager
    def moving(self, place: str) -> Generator[tuple[Callable[[], Iterator[StoredRows]], bool]]:
        """Yield a function that returns all rows; see `CopySource`."""
        with self._on_disk() as path, copies.moving(path, place) as found:
            yield found

    def backup(self, target: Path) -> None:
        """Write a copy into a new file; see `CopySource`."""
        with self._on_disk() as path:
            copies.backup(path, target)

    @contextmanager
    def _on_disk(self) -> Generator[Path]:
        path = Path(self._file).resolve()
        if not path.is_file():
            raise StoreUnusable(f"there is no store {path}")
        try:
            yield path
        except sqlite3.Error as error:
            raise _translated(error, opening=self._file) from error

    def _unlock(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE" if self._cipher else "BEGIN")
        with connection:
            key_value.check_keys(connection, self._cipher)
            if self._cipher:
                secret = key_value.secret(connection, self._cipher, KEY_SECRET)
                self._rows = Rows(cipher=self._cipher, key_secret=secret)
        if self._cipher:
            overwrite(connection)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush everything to disk and close the file."""
        with anyio.CancelScope(shield=True):
            with suppress(StoreUnavailable):
                await self.sync()  # other processes may keep the file open
            await self._flushes.finish()
            if self._log:
                self._log.close()
            if self._opened:
                self._opened.close()
            self._opened = self._log = None

    async def create(self, task: Task, caps: Caps = NO_CAPS, *, durable: bool = True) -> Task:
        """Insert the row, or return the existing row of its idempotency key."""

        is_doubtful = self._flushes.is_doubtful

        def step(connection: sqlite3.Connection) -> Task:
            if is_doubtful and not rekey.empty_log(connection):  # what follows a part missing on disk is lost with it
                raise StoreUnavailable("the store got an error from its disk, and other processes are using its log")
            return queries.create(connection, self._rows, self._counted, task, caps)

        row = await self._write(step, durable=durable or is_doubtful)
        is_found = row.id != task.id  # another process may have committed it, without a sync
        self._flushes.unsynced += is_found or not durable
        if is_doubtful:
            self._flushes.succeed()
        return row

    async def sync(self, *, briefly: bool = False) -> bool:
        """Wait for the disk, in a thread if it is slow; one sync serves all whose rows were committed before it."""
        if self._opened is None:
            raise StoreUnavailable("the store is not open")
        if self._log is None:
            return True
        if briefly and self._flushes.is_slow:
            return False
        await self._flushes.wait(self._flush)
        return True

    async def _flush(self) -> float:
        if self._log is None:
            raise StoreUnavailable("the store is not open")
        try:
            if self._flushes.is_slow:
                return await anyio.to_thread.run_sync(self._log.sync, limiter=self._sync_thread)
            return self._log.sync()
        except OSError as error:
            raise StoreUnavailable(f"the store got an error from its disk: {error.strerror}") from error

    async def get(self, task_id: str, owner: str) -> Task | None:
        """Return the row if it belongs to this owner."""
        row = await self._do(lambda connection: connection.execute(BY_ID, (utf8(task_id), utf8(owner))).fetchone())
        return None if row is None else self._rows.readable(row)

    async def change(
        self, task_id: str, owner: str, change: Callable[[Task], Task | None], *, durable: bool = True
    ) -> Task | None:
        """Apply a pure function to the row in one transaction; nothing is written if it returns the same object."""

        def step(connection: sqlite3.Connection) -> Task | None:
            return queries.change(connection, self._rows, task_id, owner, change)

        return await self._write(step, durable=durable)

    async def unanswered(self, match: str, now: datetime) -> Sequence[Task]:
        """Return rows with this match whose mark is still open, oldest first."""
        return await self._many(queries.UNANSWERED, match, micros(now))

    async def unbound(self, engine: str, before: datetime, limit: int) -> Sequence[Task]:
        """Return an engine's unbound rows, created before that time or by a clock ahead; fewest attempts first."""
        ahead = micros(before) + AHEAD
        return await self._many(queries.UNBOUND, utf8(engine), micros(before), ahead, limit)

    async def list_all(
        self,
        where: TaskFilter = TaskFilter(),  # noqa: B008  # immutable
        *,
        limit: int = 100,
        before: tuple[datetime, str] | None = None,
    ) -> Sequence[Task]:
        """Return rows of any owner for the operator; no tombstones, newest first."""
        query, values = queries.list_all(where, place_of(before), limit)
        return await self._many(query, *values)

    async def count_all(self, where: TaskFilter) -> int:
        """Return the number of rows of any owner for the operator, without tombstones."""
        query, values = queries.count_all(where)
        count: int = await self._do(lambda connection: connection.execute(query, values).fetchone()[0])
        return count

    async def list_of_owner(
        self, owner: str, *, now: datetime, limit: int, before: tuple[datetime, str] | None = None
    ) -> Sequence[Task]:
        """Return one owner's rows that are readable at `now`, after that place, newest first."""
        return await self._many(queries.OWNED_BY, utf8(owner), *place_of(before), micros(now), limit)

    async def list_of_tools(
        self, tools: Sequence[str], *, now: datetime, limit: int, before: tuple[datetime, str] | None = None
    ) -> Sequence[Task]:
        """Return live rows of any owner of these tools, after that place, newest first."""
        return await self._do(
            lambda connection: queries.list_of_tools(
                connection, self._rows, tools, place_of(before), micros(now), limit
            )
        )

    async def list_asking(
        self,
        owner: str,
        tools: Sequence[str],
        *,
        now: datetime,
        limit: int,
        after: tuple[datetime, str] | None = None,
    ) -> Sequence[Task]:
        """Return live rows that wait for input, of this owner or of any owner of these tools, oldest first."""
        names = json.dumps([utf8(tool) for tool in tools])
        begin = (-1, "") if after is None else (micros(after[0]), utf8(after[1]))
        return await self._many(queries.ASKING, names, utf8(owner), micros(now), *begin, limit)

    async def longest_live(self, *, owner: str | None, tool: str | None, now: datetime, limit: int) -> Sequence[Task]:
        """Return live rows of this owner and this tool, oldest first."""
        return await self._do(
            lambda connection: queries.longest_live(connection, self._rows, owner, tool, micros(now), limit)
        )

    async def get_of_tools(self, task_id: str, tools: Sequence[str]) -> Task | None:
        """Return the row of any owner if it belongs to one of these tools and is no tombstone."""
        return await self._do(lambda connection: queries.get_of_tools(connection, self._rows, task_id, tools))

    async def due(self, engine: str, now: datetime, limit: int) -> Sequence[Task]:
        """Return an engine's rows whose maintenance is due by now, longest due first."""
        return await self._many(queries.DUE, utf8(engine), micros(now), limit)

    async def counts(self, now: datetime) -> Sequence[Count]:
        """Return the operator's counts of tasks by tool and status; in a thread, as it reads an index of all rows."""

        def read(connection: sqlite3.Connection) -> Sequence[Count]:
            return counted(connection.execute(queries.COUNTS, (micros(now),)))

        return await self._do(read) if self._path is None else await self._apart(read)

    async def _apart(self, read: Step[T]) -> T:
        if self._opened is None or self._path is None or self._files is None:
            raise StoreUnavailable("the store is not open")
        self._files.check()
        try:
            return await read_apart(self._path, read)
        except sqlite3.Error as error:
            raise _translated(error) from error

    async def lease(self, name: str, holder: str, *, lasting: timedelta) -> bool:
        """Take the lease of this name for `lasting`, by this machine's clock; return True if taken."""
        now = self._clock()
        return await self._write(
            lambda connection: queries.lease(connection, name, holder, lasting, now), durable=False
        )

    async def find(self, beginning: str, limit: int = 10) -> Sequence[Task]:
        """Return rows of any owner for the operator whose id begins with this text; no tombstones, ordered by id."""
        first = utf8(beginning)
        return await self._many(queries.FIND, first, first + LAST_CHARACTER, limit)

    async def has_owner(self, like: str, unlike: str) -> bool:
        """Return True if a row's owner is LIKE one pattern and NOT LIKE the other."""
        return await self._do(
            lambda connection: connection.execute(queries.OWNER, (like, unlike)).fetchone() is not None
        )

    async def delete_expired(self, now: datetime, keep_tombstones_since: datetime) -> int:
        """Delete old tombstones, notes and events, and expire rows, in short batches with equally long pauses."""
        steps: Sequence[Callable[[int, sqlite3.Connection], int]] = (
            lambda limit, connection: queries.forget(connection, keep_tombstones_since, limit),
            lambda limit, connection: queries.expire_rows(connection, self._rows, now, limit),
            lambda limit, connection: key_value.drop(connection, micros(now), limit),
            lambda limit, connection: events.drop(connection, now - EVENTS_KEPT, limit),
        )
        deleted = 0
        for step in steps:
            limit, done = _FEWEST, 1
            while done:
                began = time.perf_counter()
                done = await self._write(partial(step, limit), durable=False)  # a lost batch is deleted again
                took = time.perf_counter() - began
                limit = max(_FEWEST, min(queries.BATCH, int(limit * _BATCH_SECONDS / max(took, 1e-6))))
                deleted += done
                await anyio.sleep(took)
        return deleted

    async def add_event(self, event: LoggedEvent) -> None:
        """Add an event to the log unless its id exists."""
        await self._write(lambda connection: events.add(connection, [event]))

    async def events(self, after: int, limit: int) -> EventPage:
        """Return the first events after a position."""
        return await self._do(lambda connection: events.read(connection, after, limit))

    async def note(self, space: str, key: str) -> JSON:
        """Return the value of this key in a space, or None."""
        return await self._do(lambda connection: key_value.read(connection, self._notes, utf8(space), utf8(key)))

    async def notes_under(self, space: str, beginning: str) -> Mapping[str, JSON]:
        """Return the values of a space whose keys begin with this text; values added meanwhile may be missing."""
        found: dict[str, JSON] = {}
        last: str | None = None
        while True:
            page = await self._do(
                partial(key_value.under, notes=self._notes, space=utf8(space), beginning=utf8(beginning), after=last)
            )
            found.update(page)
            if len(page) < key_value.PAGE:
                return found
            last = next(reversed(found))
            await anyio.lowlevel.checkpoint()

    async def add_note(self, space: str, key: str, value: JSON, *, until: datetime) -> JSON:
        """Return the value of this key: the existing one, or else this one, which is stored."""
        note = (utf8(space), utf8(key), value, micros(until))
        return await self._write(lambda connection: key_value.add(connection, self._notes, *note))

    async def put_note(self, space: str, key: str, value: JSON, *, until: datetime, durable: bool = True) -> None:
        """Store this value under this key, replacing any other."""
        note = (utf8(space), utf8(key), value, micros(until))
        await self._write(lambda connection: key_value.put(connection, self._notes, *note), durable=durable)

    async def secret(self, name: str) -> bytes:
        """Return 32 random bytes under this name, created once and the same for all processes that share the file."""
        return await self._write(lambda connection: key_value.secret(connection, self._cipher, name))

    async def check(self) -> None:
        """Check that the file is in place, not moved and not known to be damaged, and write one page of it."""
        await self._write(rewrite_version)
        try:
            await self._do(refuse_moved)
        except StoreUnusable as error:
            raise StoreUnavailable(str(error)) from None
        await self._do(lambda connection: connection.execute(TRY))

    async def check_integrity(self) -> None:
        """Check the whole file from time to time; see `ChecksIntegrity`."""
        if self._opened is None or self._path is None or self._files is None:
            return
        now = anyio.current_time()
        if not self._damaged and self._checked is not None and now - self._checked < INTEGRITY_EVERY:
            return
        self._files.check()
        if self._path.stat().st_size > INTEGRITY_UP_TO:
            return
        try:
            damage = await read_apart(self._path, damage_in)
        except sqlite3.Error as error:
            if _code(error) not in _DAMAGED:
                raise _translated(error) from error
            damage = str(error)
        self._checked = now
        if damage is not None:
            self._note_damage(damage)
        elif self._damaged:
            logger.info("the store's file is intact: SQLite's quick check finds no damage")
            self._damaged = False

    async def rekey(self) -> AsyncGenerator[Rekeyed]:
        """Encrypt everything with the first key, a batch at a time; see `Seals`."""
        if self._cipher is None:
            raise StoreUnusable("the store is not encrypted: no keys are given")
        for table in (
            partial(rekey.tasks, rows=self._rows, cipher=self._cipher),
            partial(rekey.notes, kept=self._notes, cipher=self._cipher),
        ):
            last = -1
            while part := await self._write(partial(table, after=last)):
                last = part.last
                yield part.done
                await anyio.lowlevel.checkpoint()
        left = await self._write(partial(rekey.finish, cipher=self._cipher))
        yield Rekeyed(left=left, cleaned=await self._cleaned())

    async def _cleaned(self) -> bool:
        """Rewrite the file; return True if it holds none of its old content."""
        try:
            await self._write(rekey.rewrite)
        except StoreUnavailable as error:
            logger.error("the file was not rewritten: %s", error)
            return False
        for _ in range(_TRIES):
            if await self._write(rekey.empty_log):
                return True
            await anyio.sleep(_TRY_EVERY)
        return False

    async def _many(self, query: str, *values: str | int) -> Sequence[Task]:
        return await self._do(lambda connection: self._rows.many(connection.execute(query, values)))

    async def _write(self, step: Step[T], *, durable: bool = True) -> T:
        """Run one step that writes. A damaged file is not written to; its readable rows can still be read.

        `durable=False`: commit to the write-ahead log without a flush to disk; the next durable commit includes the
        changes. In WAL mode the file stays consistent anyway.

        Source: https://www.sqlite.org/pragma.html#pragma_synchronous.
        """

        def guarded(connection: sqlite3.Connection) -> T:
            if self._damaged:
                raise StoreUnavailable(_IS_DAMAGED)
            if durable is not self._is_durable:
                connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._is_durable = durable
            return step(connection)

        return await self._do(guarded, turns=self._log)

    async def _do(self, step: Step[T], turns: LogFile | None = None) -> T:
        """Run one step, after a check that the open file is still the one under its name: see `OpenFiles`."""
        if self._opened is None or self._files is None:
            raise StoreUnavailable("the store is not open")
        files = self._files

        def guarded(connection: sqlite3.Connection) -> T:
            files.check()
            return step(connection)

        try:
            return await self._while_locked(self._opened, guarded, turns)
        except sqlite3.Error as error:
            if _code(error) in _DAMAGED:
                self._note_damage(str(error))
            raise _translated(error) from error

    def _note_damage(self, damage: str) -> None:
        """Stop all writes until the file is reopened or a check finds no damage."""
        if not self._damaged:
            logger.error("%s; writes have stopped: %s", _IS_DAMAGED, damage)
        self._damaged = True

    async def _while_locked(self, connection: sqlite3.Connection, step: Step[T], turns: LogFile | None = None) -> T:
        """Run one step; while another process holds the lock, retry until the busy timeout has passed.

        With `turns`, a waiting process reserves the next write, and no other process starts a write before it.
        """
        began: float | None = None
        try:
            while True:
                waited = 0.0 if began is None else anyio.current_time() - began
                try:
                    if turns is None or turns.take_turn() or waited > _TURN:
                        if turns and not self._in_line:
                            turns.leave_turn()
                        return step(connection)
                except sqlite3.OperationalError as error:
                    if _code(error) not in _BUSY or waited >= self._busy_timeout_ms / 1000:
                        raise
                if began is None:
                    began = anyio.current_time()
                    self._in_line += turns is not None
                await anyio.sleep(random.uniform(_PAUSE / 4, _PAUSE))  # noqa: S311  # jitter
        finally:
            self._in_line -= began is not None and turns is not None
            if turns and began is not None and not self._in_line:
                turns.leave_turn()


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code; 0 for errors of Python's module."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _translated(error: sqlite3.Error, *, opening: str | None = None) -> StoreError:
    kind, text = _TROUBLE.get(_code(error), (StoreUnavailable, f"failed: {error}"))
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_CONSTRAINT_TRIGGER:
        text = "was moved to another store: restart the server with that one"
    return StoreUnavailable(f"the store {text}") if opening is None else kind(f"the store {opening} {text}")
