"""The store for several hosts: one schema of a PostgreSQL database.

A change reads the row and its version, applies the function, and writes the row if the version is unchanged. So no
transaction is open while Python runs, and PgBouncer may give each transaction another connection. Creates under a cap
wait for each other with an advisory lock, which is released before the flush to disk: see docs/decisions/0033.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType

import anyio

from mcp_workflows.adapter import JSON
from mcp_workflows.errors import StoreUnavailable, StoreUnusable
from mcp_workflows.store.encryption import Cipher
from mcp_workflows.store.flushes import Flushes
from mcp_workflows.store.postgres import queries, rekey
from mcp_workflows.store.postgres.connections import (
    COPYING,
    Connections,
    DatabaseUrl,
    Password,
    PostgresConnection,
    Row,
)
from mcp_workflows.store.postgres.migrations import migrate
from mcp_workflows.store.postgres.replicas import PostgresChannel
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
from mcp_workflows.store.rows import (
    AHEAD,
    LAST_CHARACTER,
    NoteTexts,
    Rows,
    counted,
    micros,
    place_of,
    utf8,
)
from mcp_workflows.store.secrets import KEY_SECRET, check_marks
from mcp_workflows.task import LoggedEvent, Task


class PostgresStore(Store):
    """Tasks in a PostgreSQL database: `postgresql://user:password@host:5432/database`, with the options of libpq.

    `?schema=` names the schema (default `mcp_workflows`), which is created if missing. `?statement_cache_size=0` is for
    PgBouncer in transaction mode. With a cipher the JSON of rows, the values of notes and the secrets are encrypted,
    and idempotency keys are digests.

    Raises:
        ConfigError: the URL has another format, or asyncpg is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        cipher: Cipher | None = None,
        migrate: bool = True,
        listen_url: str | None = None,
        password: Password | None = None,
    ) -> None:
        """Parse the URL without connecting.

        `migrate`: create and change tables when it is entered. `listen_url` leads to the server itself if `url` leads
        to PgBouncer in transaction mode. `password` is called for each connection, so it may return a short-lived
        token.
        """
        self._database = DatabaseUrl.of(url)
        self._may_migrate = migrate
        self._connections = Connections(self._database, DatabaseUrl.of(listen_url or url), password)
        self.channel = PostgresChannel(self._connections, self._database.schema, lambda: self._rows)
        self._cipher = cipher
        self._rows = Rows()
        self._notes = NoteTexts(cipher=cipher)
        self._flushes = Flushes()
        self._opening = anyio.Lock()
        self._flusher: PostgresConnection | None = None  # while it is open, the server has lost nothing

    async def __aenter__(self) -> PostgresStore:
        """Connect, and create or migrate the tables.

        Raises:
            StoreUnusable: the server refuses access, or the schema is another program's, from a newer version, or
                encrypted with a key that is not given.
            StoreUnavailable: the server cannot be reached.
        """
        self._flushes = Flushes()
        self._rows = await self._connections.open(self._unlock)
        return self

    @property
    def place(self) -> str:
        """Server, database and schema."""
        return f"postgresql://{self._database.shown}?schema={self._database.schema}"

    async def take_over(self, parts: Callable[[], Iterable[StoredRows]], *, resumed: bool) -> int:
        """Store all rows of another store in one transaction; see `CopyTarget`."""
        goes_on = resumed

        async def copy(connection: PostgresConnection) -> int:
            nonlocal goes_on
            await migrate(connection, self._database.schema, allowed=self._may_migrate)
            if not goes_on:
                await queries.refuse_used(connection)
            goes_on = True  # a lost connection may have committed the copy
            return await queries.take_over(connection, parts())

        try:
            return await self._connections.open(copy, within=COPYING)
        finally:
            await self._connections.close()

    async def _unlock(self, connection: PostgresConnection) -> Rows:
        await migrate(connection, self._database.schema, allowed=self._may_migrate)
        check_marks(dict(await connection.fetch(queries.SECRETS)), self._cipher)
        await connection.fetch(queries.TRY)
        if self._cipher is None:
            return Rows()
        await queries.Marked(cipher=self._cipher).put(connection)
        secret = await queries.secret(connection, self._cipher, KEY_SECRET)
        return Rows(cipher=self._cipher, key_secret=secret)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections; committed data is on the server."""
        with anyio.CancelScope(shield=True):
            await self._flushes.finish()
            await self._connections.close(self._flusher)
            self._flusher = None

    async def create(self, task: Task, caps: Caps = NO_CAPS, *, durable: bool = True) -> Task:
        """Insert the row, or return the existing row of its idempotency key."""
        flusher = await self._open_flusher()
        row = await self._connections.run(
            partial(queries.create, rows=self._rows, task=task, caps=caps, durable=durable)
        )
        if row.id != task.id or not durable:  # another process may have committed it, without a flush
            self._flushes.unsynced += 1
            if flusher is not self._flusher:
                self._flushes.fail()
        return row

    async def _open_flusher(self) -> PostgresConnection:
        """Return the connection for flushes; it must be open before a row is written that may need a flush."""
        if self._flusher is not None and not self._flusher.is_closed:
            return self._flusher
        async with self._opening:
            if self._flusher is None or self._flusher.is_closed:
                self._flushes.fail()
                self._flusher = await self._connections.connect()
            return self._flusher

    async def sync(self, *, briefly: bool = False) -> bool:
        """Wait for the server's disk; one flush serves all callers whose rows were committed before it."""
        if self._flusher is None:
            if self._connections.is_open:
                return True  # no row was written yet
            raise StoreUnavailable("the store is not open")
        if briefly and self._flushes.is_slow:
            return False
        await self._flushes.wait(self._flush)
        return True

    async def _flush(self) -> float:
        """Flush everything committed, on the connection opened before it, so that a server restart is noticed."""
        if self._flusher is None:
            raise StoreUnavailable("the store is not open")
        began = time.perf_counter()
        await self._connections.alone(self._flusher, lambda connection: connection.fetch(queries.FLUSH))
        return time.perf_counter() - began

    async def get(self, task_id: str, owner: str) -> Task | None:
        """Return the row if it belongs to this owner."""
        return await self._one(queries.GET, utf8(task_id), utf8(owner))

    async def change(
        self, task_id: str, owner: str, change: Callable[[Task], Task | None], *, durable: bool = True
    ) -> Task | None:
        """Apply a pure function to the row; nothing is written if it returns the same object."""
        one = queries.Change(self._rows, task_id, owner, change, durable=durable)
        return await self._connections.run(one.apply)

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
        count: int = (await self._fetch(query, *values))[0][0]
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
        names = sorted({utf8(tool) for tool in tools})
        return await self._many(queries.OF_TOOLS, names, *place_of(before), micros(now), limit)

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
        names = [utf8(tool) for tool in tools]
        begin = (-1, "") if after is None else (micros(after[0]), utf8(after[1]))
        return await self._many(queries.ASKING, names, utf8(owner), micros(now), *begin, limit)

    async def longest_live(self, *, owner: str | None, tool: str | None, now: datetime, limit: int) -> Sequence[Task]:
        """Return live rows of this owner and this tool, oldest first."""
        return await self._many(queries.LONGEST_LIVE, _given(owner), _given(tool), micros(now), limit)

    async def get_of_tools(self, task_id: str, tools: Sequence[str]) -> Task | None:
        """Return the row of any owner if it belongs to one of these tools and is no tombstone."""
        task = await self._one(queries.OF_OTHERS, utf8(task_id), [utf8(tool) for tool in tools])
        return task if task is not None and task.tool in tools else None

    async def due(self, engine: str, now: datetime, limit: int) -> Sequence[Task]:
        """Return an engine's rows whose maintenance is due by now, longest due first."""
        return await self._many(queries.DUE, utf8(engine), micros(now), limit)

    async def counts(self, now: datetime) -> Sequence[Count]:
        """Return the operator's counts of tasks by tool and status; reading blocks no writers."""
        return counted(await self._fetch(queries.COUNTS, micros(now)))

    async def lease(self, name: str, holder: str, *, lasting: timedelta) -> bool:
        """Take the lease of this name for `lasting`, by the server's clock; return True if taken."""
        return bool(await self._fetch(queries.LEASE, utf8(name), utf8(holder), lasting))

    async def find(self, beginning: str, limit: int = 10) -> Sequence[Task]:
        """Return rows of any owner for the operator whose id begins with this text; no tombstones, ordered by id."""
        first = utf8(beginning)
        return await self._many(queries.FIND, first, first + LAST_CHARACTER, limit)

    async def has_owner(self, like: str, unlike: str) -> bool:
        """Return True if a row's owner is LIKE one pattern and NOT LIKE the other."""
        return bool(await self._fetch(queries.OWNER, like, unlike))

    async def delete_expired(self, now: datetime, keep_tombstones_since: datetime) -> int:
        """Delete old tombstones, notes and events, and expire rows, in batches; replicas work on different batches."""
        steps: Sequence[Callable[[PostgresConnection], Awaitable[int]]] = (
            partial(queries.forget, before=keep_tombstones_since),
            partial(queries.expire_rows, rows=self._rows, now=now),
            partial(queries.drop_notes, now=now),
            partial(queries.drop_events, before=now - EVENTS_KEPT),
        )
        deleted = 0
        for step in steps:
            while done := await self._connections.run(step):
                deleted += done
        return deleted

    async def add_event(self, event: LoggedEvent) -> None:
        """Add an event to the log unless its id exists."""
        await self._connections.run(partial(queries.add_event, event=event))

    async def events(self, after: int, limit: int) -> EventPage:
        """Return the first events after a position."""
        return await self._connections.run(partial(queries.events, after=after, limit=limit))

    async def note(self, space: str, key: str) -> JSON:
        """Return the value of this key in a space, or None."""
        rows = await self._fetch(queries.NOTE, utf8(space), utf8(key))
        return self._notes.value(utf8(space), utf8(key), rows[0][0]) if rows else None

    async def notes_under(self, space: str, beginning: str) -> Mapping[str, JSON]:
        """Return the values of a space whose keys begin with this text."""
        rows = await self._fetch(queries.NOTES_UNDER, utf8(space), utf8(beginning))
        return {key: self._notes.value(utf8(space), key, text) for key, text in rows}

    async def add_note(self, space: str, key: str, value: JSON, *, until: datetime) -> JSON:
        """Return the value of this key: the existing one, or else this one, which is stored."""
        return await self._save_note(utf8(space), utf8(key), value, until, replace=False)

    async def put_note(self, space: str, key: str, value: JSON, *, until: datetime, durable: bool = True) -> None:
        """Store this value under this key, replacing any other."""
        await self._save_note(utf8(space), utf8(key), value, until, replace=True, durable=durable)

    async def _save_note(
        self, space: str, key: str, value: JSON, until: datetime, *, replace: bool, durable: bool = True
    ) -> JSON:
        note = (space, key, self._notes.text(space, key, value), micros(until))
        save = partial(queries.save_note, notes=self._notes, note=note, replace=replace, durable=durable)
        text = await self._connections.run(save)
        return self._notes.value(space, key, text)

    async def secret(self, name: str) -> bytes:
        """Return 32 random bytes under this name, created once and the same for all processes that share the schema."""
        return await self._connections.run(partial(queries.secret, cipher=self._cipher, name=name))

    async def check(self) -> None:
        """Check that the store can be written, with an empty write and a flush to the server's disk.

        On a full disk a row often still fits into an existing page. So after a disk-full error, this also writes some
        pages until that succeeds.
        """
        lacks_room = self._connections.lacks_room
        statements = queries.CHECK + (queries.TAKE_PAYLOAD if lacks_room else "")
        await self._connections.run(lambda connection: connection.script(statements))
        if lacks_room:
            self._connections.lacks_room = False

    async def rekey(self) -> AsyncGenerator[Rekeyed]:
        """Encrypt everything with the first key, a batch at a time; see `Seals`.

        Old versions of rows stay in the server's files until it vacuums them, and in its log and backups: `cleaned` is
        None at the end.
        """
        if self._cipher is None:
            raise StoreUnusable("the store is not encrypted: no keys are given")
        for table in (
            partial(rekey.tasks, rows=self._rows, cipher=self._cipher),
            partial(rekey.notes, kept=self._notes, cipher=self._cipher),
        ):
            last: rekey.Position = ()
            while part := await self._connections.run(partial(table, after=last)):
                last = part.last
                yield part.done
        left = await self._connections.run(partial(rekey.finish, cipher=self._cipher))
        yield Rekeyed(left=left, cleaned=None)

    async def _fetch(self, query: str, *values: object) -> Sequence[Row]:
        return await self._connections.run(lambda connection: connection.fetch(query, *values))

    async def _one(self, query: str, *values: object) -> Task | None:
        rows = await self._fetch(query, *values)
        return self._rows.readable(tuple(rows[0])) if rows else None

    async def _many(self, query: str, *values: object) -> Sequence[Task]:
        return self._rows.many(tuple(row) for row in await self._fetch(query, *values))


def _given(name: str | None) -> str | None:
    return None if name is None else utf8(name)
