"""The statements of a PostgreSQL store; each function is one step on an open connection.

`@name` is a table of the store's schema. Text has the format of `utf8`, times that of `micros`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final

from mcp_workflows.errors import StoreUnavailable, StoreUnusable
from mcp_workflows.store.encryption import Cipher
from mcp_workflows.store.postgres.connections import PostgresConnection
from mcp_workflows.store.protocol import NO_CAPS, CapReached, Caps, EventPage, StoredRows, TaskFilter
from mcp_workflows.store.rows import (
    AHEAD,
    COLUMNS,
    EVENT_COLUMNS,
    FIXED,
    LEFT_FOR,
    KnownRow,
    NoteTexts,
    Rows,
    conditions,
    event_values,
    leaves_window,
    logged_event,
    micros,
    utf8,
)
from mcp_workflows.store.secrets import is_mark, mark_of, new_mark, new_secret, read_secret
from mcp_workflows.task import CLOCKS_DIFFER, LoggedEvent, Task, events_between, expire

BATCH: Final = 200  # maximum rows per transaction of a bulk change
_LOSSES: Final = 3  # lost races with other writers before a row is locked
_EVER: Final = -(2**63)

_ROW: Final = "SELECT id, owner, task FROM @tasks"
_LIVE: Final = "NOT ended AND NOT tombstone AND (expires IS NULL OR expires > {now})"
LAZILY: Final = "(SELECT set_config('synchronous_commit', 'off', true)) AS lazily"  # only for this statement's commit
_NOW_LAZILY: Final = "SET LOCAL synchronous_commit = off;"
_STAMP: Final = "version = version + 1, changed = clock_timestamp()"
FLUSH: Final = "SELECT pg_logical_emit_message(true, 'mcp-workflows', '')"  # flushes all earlier commits, too
CHECK: Final = f"DELETE FROM @tasks WHERE false; {FLUSH};"  # a standby or a read-only database refuses the first
TAKE_PAYLOAD: Final = """
    INSERT INTO @notes SELECT '', '', string_agg(md5(random()::text), ''), 0 FROM generate_series(1, 10000);
    DELETE FROM @notes WHERE space = '';
"""

GET: Final = f"{_ROW} WHERE id = $1 AND owner = $2"
_VERSION: Final = "SELECT id, owner, task, version FROM @tasks WHERE id = $1 AND owner = $2"
_GIVEN: Final = ", ".join(f"${at}" for at in range(1, len(COLUMNS) + 1))
_INSERT: Final = f"INSERT INTO @tasks ({', '.join(COLUMNS)}) SELECT {_GIVEN}"
_THERE: Final = f"{_ROW} WHERE id = $1 OR (owner = $2 AND tool = $3 AND idempotency_key = ANY($4::text[]))"
_DELETE: Final = "DELETE FROM @tasks WHERE id = $1 AND version = $2 RETURNING 1"
UNANSWERED: Final = f"""
    {_ROW} WHERE unanswered = $1 AND unanswered_until > $2 AND NOT tombstone ORDER BY created, id LIMIT 100
"""
UNBOUND: Final = f"""
    {_ROW} WHERE NOT bound AND NOT ended AND NOT tombstone AND engine = $1
    AND (created < $2 OR created > $3) ORDER BY attempts, created, id LIMIT $4
"""
OWNED_BY: Final = f"""
    {_ROW} WHERE NOT tombstone AND owner = $1 AND (created, id) < ($2, $3)
    AND (expires IS NULL OR expires > $4) ORDER BY created DESC, id DESC LIMIT $5
"""
OF_TOOLS: Final = f"""
    SELECT id, owner, task FROM unnest($1::text[]) AS wanted, LATERAL (
        SELECT * FROM @tasks WHERE tool = wanted COLLATE "C" AND (created, id) < ($2, $3)
        AND {_LIVE.format(now="$4")} ORDER BY created DESC, id DESC LIMIT $5
    ) AS found ORDER BY created DESC, id DESC LIMIT $5
"""
ASKING: Final = f"""
    {_ROW} WHERE (tool = ANY($1::text[]) OR owner = $2) AND status = 'input_required'
    AND {_LIVE.format(now="$3")} AND (created, id) > ($4, $5) ORDER BY created, id LIMIT $6
"""
LONGEST_LIVE: Final = f"""
    {_ROW} WHERE ($1::text IS NULL OR owner = $1) AND ($2::text IS NULL OR tool = $2)
    AND {_LIVE.format(now="$3")} ORDER BY created, id LIMIT $4
"""
OF_OTHERS: Final = f"{_ROW} WHERE id = $1 AND NOT tombstone AND tool = ANY($2::text[])"
DUE: Final = f"{_ROW} WHERE engine = $1 AND due <= $2 ORDER BY due, id LIMIT $3"
FIND: Final = f"{_ROW} WHERE NOT tombstone AND id >= $1 AND id < $2 ORDER BY id LIMIT $3"
COUNTS: Final = """
    SELECT tool, engine, status, count(*), min(created), min(updated) FROM @tasks
    WHERE NOT tombstone AND (expires IS NULL OR expires > $1) GROUP BY tool, engine, status
"""
OWNER: Final = """
    SELECT 1 FROM @tasks WHERE NOT tombstone AND owner LIKE $1 ESCAPE '' AND owner NOT LIKE $2 ESCAPE '' LIMIT 1
"""
TRY: Final = f"SELECT {', '.join(COLUMNS)} FROM @tasks LIMIT 0"
LEASE: Final = f"""
    INSERT INTO @leases AS kept SELECT $1, $2, clock_timestamp() + $3::interval FROM {LAZILY}
    ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until
    WHERE kept.holder = excluded.holder OR kept.until <= clock_timestamp() OR ($3::interval > interval '0'
    AND kept.until > excluded.until + interval '{CLOCKS_DIFFER.total_seconds()} seconds') RETURNING 1
"""
_COPIED: Final[Mapping[str, str]] = {
    "tasks": "(id) DO NOTHING",
    "notes": "(space, key) DO NOTHING",
    "secrets": "(name) DO UPDATE SET value = excluded.value",
    "events": "(id) DO NOTHING",
}
_EVENT_NAMES: Final = ", ".join(EVENT_COLUMNS)
_EVENT_GIVEN: Final = ", ".join(f"${at}" for at in range(1, len(EVENT_COLUMNS) + 1))
_ADD_EVENT: Final = f"INSERT INTO @events ({_EVENT_NAMES})"
_LOG_EVENTS: Final = f"""
    logged AS (
        {_ADD_EVENT} SELECT {_EVENT_NAMES} FROM done, json_populate_recordset(NULL::@events, {{given}}::text::json)
        ON CONFLICT DO NOTHING
    )
"""
_GIVE_POSITIONS: Final = """
    SELECT pg_advisory_xact_lock(hashtext('@events'));
    UPDATE @events SET position = nextval('@event_positions') WHERE position IS NULL
"""
_EVENTS: Final = f"""
    SELECT is_behind, first, last, position, {_EVENT_NAMES} FROM (
        SELECT EXISTS (SELECT FROM @events WHERE position IS NULL) AS is_behind,
            (SELECT min(position) FROM @events) AS first, (SELECT max(position) FROM @events) AS last
    ) AS ends LEFT JOIN (
        SELECT * FROM @events WHERE position > $1 ORDER BY position LIMIT $2
    ) AS found ON true ORDER BY position
"""
_DROP_EVENTS: Final = """
    DELETE FROM @events WHERE id IN (
        SELECT id FROM @events WHERE at < $1 AND position < (SELECT max(position) FROM @events WHERE at < $1)
        ORDER BY at LIMIT $2 FOR UPDATE SKIP LOCKED
    ) RETURNING 1
"""
_IN_USE: Final = "SELECT EXISTS (SELECT FROM @tasks) OR EXISTS (SELECT FROM @notes)"
_FORGET: Final = """
    DELETE FROM @tasks WHERE id IN (
        SELECT id FROM @tasks WHERE tombstone AND expires < $1 ORDER BY expires LIMIT $2 FOR UPDATE SKIP LOCKED
    ) RETURNING 1
"""
_DROP: Final = """
    DELETE FROM @notes WHERE (space, key) IN (
        SELECT space, key FROM @notes WHERE until <= $1 ORDER BY until LIMIT $2 FOR UPDATE SKIP LOCKED
    ) RETURNING 1
"""
_EXPIRED: Final = f"""
    {_ROW} WHERE NOT tombstone AND expires <= $1 AND (due IS NULL OR expires <= $2)
    ORDER BY expires LIMIT $3 FOR UPDATE SKIP LOCKED
"""
_BURY: Final = (
    f"UPDATE @tasks SET {', '.join(f'{name} = ${n + 2}' for n, name in enumerate(COLUMNS[FIXED:]))}, "
    f"{_STAMP} WHERE id = $1"
)
_BURY_UNREAD: Final = """
    UPDATE @tasks SET tombstone = true, due = NULL, task = '', version = version + 1 WHERE id = ANY($1::text[])
"""
NOTE: Final = "SELECT value FROM @notes WHERE space = $1 AND key = $2"
NOTES_UNDER: Final = """
    SELECT key, value FROM @notes WHERE space = $1 AND key >= $2 AND starts_with(key, $2) ORDER BY key
"""
_SAVE_NOTE: Final = "INSERT INTO @notes (space, key, value, until) SELECT $1, $2, $3, $4"
_PUT: Final = "ON CONFLICT (space, key) DO UPDATE SET value = excluded.value, until = excluded.until"
_SECRET: Final = "SELECT value FROM @secrets WHERE name = $1"
SECRETS: Final = "SELECT name, value FROM @secrets"
_MAKE_SECRET: Final = "INSERT INTO @secrets (name, value) VALUES ($1, $2) ON CONFLICT DO NOTHING"

_CAPPED: Final[Mapping[str, str]] = {
    "live_of_owner": f"owner = $1 AND {_LIVE.format(now='$3')}",
    "live_of_tool": f"tool = $2 AND {_LIVE.format(now='$3')}",
    "live_of_owner_and_tool": f"owner = $1 AND tool = $2 AND {_LIVE.format(now='$3')}",
    "created_of_owner": f"owner = $1 AND created > $4 AND created <= $3 + {AHEAD}",
    "created_of_tool": f"tool = $2 AND created > $4 AND created <= $3 + {AHEAD}",
}
"""The condition of the rows counted for each field of `Caps`."""
_WINDOWS: Final = {"created_of_owner", "created_of_tool"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """The parts of a write that encrypts: it fails without the mark of its key, and locks the mark until its commit.

    So `rekey` cannot retire a key between a write and its commit: it deletes marks first, which waits for such writes.
    """

    cipher: Cipher | None

    def statement(self, write: str, *, durable: bool = True, where: str = "") -> str:
        """Return a write, `... SELECT ...` or `UPDATE ... SET ...`, with its sources and a condition appended."""
        sources = [] if durable else [LAZILY]
        if self.cipher is not None:
            write = f"WITH mark AS (SELECT FROM @secrets WHERE name = '{mark_of(self.cipher)}' FOR KEY SHARE) {write}"
            sources.append("mark")
        return f"{write} {'FROM ' if sources else ''}{', '.join(sources)} {where}"

    async def put(self, connection: PostgresConnection) -> None:
        """Add the mark if it is missing; in a transaction it is locked until the commit."""
        if self.cipher is None:
            return
        kept = f"SELECT 1 FROM @secrets WHERE name = '{mark_of(self.cipher)}' FOR KEY SHARE"
        if await connection.row(kept) is None:
            await connection.fetch(_MAKE_SECRET, mark_of(self.cipher), new_mark(self.cipher))


def list_all(where: TaskFilter, place: tuple[int, str], limit: int) -> tuple[str, Sequence[object]]:
    """Return the statement of a page of an operator's list, and its values."""
    query, values = _filtered(where, 3)
    page = "created <= $1 AND (created < $1 OR id > $2) ORDER BY created DESC, id LIMIT $3"
    return f"{_ROW} WHERE {query} AND {page}", [*place, limit, *values]


def count_all(where: TaskFilter) -> tuple[str, Sequence[object]]:
    """Return the statement that counts the rows of an operator's list, and its values."""
    query, values = _filtered(where, 0)
    return f"SELECT count(*) FROM @tasks WHERE {query}", values


def _filtered(where: TaskFilter, given: int) -> tuple[str, Sequence[object]]:
    found = conditions(where)
    parts = ["NOT tombstone", *(["NOT ended"] if where.live_only else [])]
    return " AND ".join([*parts, *(f"{each} ${n}" for n, each in enumerate(found, given + 1))]), [*found.values()]


async def create(connection: PostgresConnection, rows: Rows, task: Task, caps: Caps, *, durable: bool) -> Task:
    """Insert the row, or return the row of its idempotency key, or the one that a lost connection inserted.

    With caps, creates under the same caps wait for each other, but not for each other's flush to disk.

    Raises:
        CapReached: the insert would exceed a cap.
    """
    if caps == NO_CAPS:
        plain_key = rows.cipher is not None and task.idempotency_key is not None  # its row may predate the encryption
        found = await _there(connection, rows, task) if plain_key else None
        return found or await _insert(connection, rows, task, durable=durable)
    first = f"{_NOW_LAZILY} {_locks(connection, task, caps)}"
    async with connection.transaction(first, then=FLUSH if durable else ""):
        found = await _there(connection, rows, task)
        if found is None:
            await _check(connection, task, caps)
            found = await _insert(connection, rows, task, durable=True)
    return found


async def _insert(connection: PostgresConnection, rows: Rows, task: Task, *, durable: bool) -> Task:
    marked = Marked(cipher=rows.cipher)
    query = marked.statement(_INSERT, durable=durable, where="ON CONFLICT DO NOTHING RETURNING 1")
    query, more = _logging(query, events_between(None, task), len(COLUMNS))
    for _ in range(_LOSSES):
        if await connection.row(query, *rows.whole(task), *more) is not None:
            return task
        if (found := await _there(connection, rows, task)) is not None:
            return found
        await marked.put(connection)
    raise StoreUnavailable("the store cannot tell whether an idempotency key is free; try again")


def _logging(query: str, logged: Sequence[LoggedEvent], given: int) -> tuple[str, Sequence[str]]:
    """Return a write that also logs the row's events, and the value to add to the `given` ones."""
    if not logged:
        return query, ()
    values = [dict(zip(EVENT_COLUMNS, event_values(each), strict=True)) for each in logged]
    with_events = _LOG_EVENTS.format(given=f"${given + 1}")
    return f"WITH done AS ({query}), {with_events} SELECT 1 FROM done", (json.dumps(values),)


async def _there(connection: PostgresConnection, rows: Rows, task: Task) -> Task | None:
    """Return the row itself or that of its idempotency key; with a cipher, also one that predates the encryption."""
    kept = rows.kept_key(task)
    keys = [] if kept is None or task.idempotency_key is None else list({kept, utf8(task.idempotency_key)})
    for row in await connection.fetch(_THERE, utf8(task.id), utf8(task.owner), utf8(task.tool), keys):
        found = rows.readable(tuple(row))
        if found.id == task.id or utf8(found.idempotency_key or "") == utf8(task.idempotency_key or ""):
            return found  # otherwise a client has sent a text that looks like a digest
    return None


def _locks(connection: PostgresConnection, task: Task, caps: Caps) -> str:
    """Return statements that lock other creates under the same caps until the commit; sorted to avoid deadlocks."""
    capped = [name for name in _CAPPED if getattr(caps, name) is not None]
    names = {f"owner {utf8(task.owner)}" for name in capped if "owner" in name}
    names |= {f"tool {utf8(task.tool)}" for name in capped if name.endswith("of_tool")}
    digests = (blake2b(f"{connection.schema} {name}".encode(), digest_size=8).digest() for name in names)
    keys = sorted(int.from_bytes(digest, "big", signed=True) for digest in digests)
    return " ".join(f"SELECT pg_advisory_xact_lock({key});" for key in keys)


async def _check(connection: PostgresConnection, task: Task, caps: Caps) -> None:
    since = _EVER if caps.since is None else micros(caps.since)
    values = (utf8(task.owner), utf8(task.tool), micros(task.created), since)
    wanted: dict[str, int] = {name: cap for name in _CAPPED if (cap := getattr(caps, name)) is not None}
    last = (  # the row that reaches a cap
        f"(SELECT created FROM @tasks WHERE {_CAPPED[name]} {'ORDER BY created DESC' if name in _WINDOWS else ''} "
        f"LIMIT 1 OFFSET {max(cap - 1, 0)})"
        for name, cap in wanted.items()
    )
    given = "WITH given AS (SELECT $1::text, $2::text, $3::bigint, $4::bigint)"  # no condition uses all of them
    found = await connection.row(f"{given} SELECT {', '.join(last)}", *values) or ()
    for (name, cap), created in zip(wanted.items(), found, strict=True):
        if created is not None or cap < 1:
            raise CapReached(name, again=leaves_window(task.created, caps.since, created) if name in _WINDOWS else None)


async def add_event(connection: PostgresConnection, event: LoggedEvent) -> None:
    """Add an event unless it exists."""
    await connection.fetch(f"{_ADD_EVENT} VALUES ({_EVENT_GIVEN}) ON CONFLICT DO NOTHING", *event_values(event))


async def events(connection: PostgresConnection, after: int, limit: int) -> EventPage:
    """Return the first events after a position.

    Transactions commit in any order, so a position assigned inside one could appear after a later one. Positions are
    therefore assigned here, only to committed events; the lock lasts until the positions are committed.
    """
    rows = await connection.fetch(_EVENTS, after, limit)
    if rows[0][0]:
        await _give_positions(connection)
        rows = await connection.fetch(_EVENTS, after, limit)
    _, first, last, *_ = rows[0]
    found = [logged_event(*row[3:]) for row in rows if row[3] is not None]
    return EventPage(events=found, first=(first or 1) - 1, last=last or 0)


async def _give_positions(connection: PostgresConnection) -> None:
    await connection.script(f"BEGIN ISOLATION LEVEL READ COMMITTED; {_GIVE_POSITIONS}; COMMIT")


async def drop_events(connection: PostgresConnection, before: datetime) -> int:
    """Delete a batch of old events except the last one; return their number."""
    await _give_positions(connection)  # perhaps no reader has assigned them
    return len(await connection.fetch(_DROP_EVENTS, micros(before), BATCH))


class Change:
    """One optimistic change of a row, so that no transaction is open while Python runs.

    It may run again after a lost connection: a row that already has the text of the last attempt is its result.
    """

    def __init__(
        self, rows: Rows, task_id: str, owner: str, change: Callable[[Task], Task | None], *, durable: bool
    ) -> None:
        """Keep the pure function `change`."""
        self._rows = rows
        self._names = utf8(task_id), utf8(owner)
        self._change = change
        self._durable = durable
        self._marked = Marked(cipher=rows.cipher)
        self._attempt: KnownRow | None = None

    async def apply(self, connection: PostgresConnection) -> Task | None:
        """Apply the function until no other change intervenes; the last attempt locks the row."""
        for _ in range(_LOSSES):
            is_done, task = await self._apply(connection, "")
            if is_done:
                return task
            await self._marked.put(connection)
        async with connection.transaction("" if self._durable else _NOW_LAZILY):
            await self._marked.put(connection)
            is_done, task = await self._apply(connection, "FOR UPDATE")
        if not is_done:
            raise StoreUnavailable("the store cannot change a row that others change all the time; try again")
        return task

    async def _apply(self, connection: PostgresConnection, lock: str) -> tuple[bool, Task | None]:
        row = await connection.row(f"{_VERSION} {lock}", *self._names)
        if row is None:
            return True, None
        *found, version = row
        if self._attempt is not None and self._attempt.text == found[2]:
            return True, self._attempt.task
        before = self._rows.readable((found[0], found[1], found[2]))
        after = self._change(before)
        if after is before:
            return True, after
        if after is None:
            return await connection.row(_DELETE, self._names[0], version) is not None, None
        columns, self._attempt = self._rows.changed(before, after)
        names = "".join(f"{name} = ${at}, " for at, name in enumerate(columns, 3))
        query = self._marked.statement(
            f"UPDATE @tasks SET {names}{_STAMP}",
            durable=self._durable,
            where="WHERE id = $1 AND version = $2 RETURNING 1",
        )
        values = [self._names[0], version, *columns.values()]
        query, more = _logging(query, events_between(before, after), len(values))
        is_done = await connection.row(query, *values, *more) is not None
        if is_done:
            self._rows.keep(self._names[0], self._attempt)
        return is_done, after


async def refuse_used(connection: PostgresConnection) -> None:
    """Check that no server has used the store.

    Raises:
        StoreUnusable: one has.
    """
    if (await connection.fetch(_IN_USE))[0][0]:
        raise StoreUnusable("the store to copy to has tasks or notes already: name another schema, ?schema=NAME")


async def take_over(connection: PostgresConnection, parts: Iterable[StoredRows]) -> int:
    """Store the rows of another store that are missing here, all or none; return the number of tasks."""
    tasks = 0
    async with connection.transaction():
        for part in parts:
            names, given = ", ".join(part.columns), ", ".join(f"${at}" for at, _ in enumerate(part.columns, 1))
            query = f"INSERT INTO @{part.table} ({names}) VALUES ({given}) ON CONFLICT {_COPIED[part.table]}"  # ours
            await connection.many(query, part.rows)
            tasks += len(part.rows) if part.table == "tasks" else 0
        await connection.fetch("SELECT setval('@event_positions', max(position)) FROM @events HAVING max(position) > 0")
    return tasks


async def forget(connection: PostgresConnection, before: datetime) -> int:
    """Delete a batch of old tombstones; return their number."""
    return len(await connection.fetch(_FORGET, micros(before), BATCH))


async def drop_notes(connection: PostgresConnection, now: datetime) -> int:
    """Delete a batch of expired notes; return their number."""
    return len(await connection.fetch(_DROP, micros(now), BATCH))


async def expire_rows(connection: PostgresConnection, rows: Rows, now: datetime) -> int:
    """Turn a batch of expired rows that are not locked into tombstones; return their number.

    An unreadable row loses its content, too; its idempotency key still prevents another start.
    """
    buried: list[Sequence[Any]] = []  # Any: text and numbers
    unread: list[str] = []
    async with connection.transaction(_NOW_LAZILY):
        expired = await connection.fetch(_EXPIRED, micros(now), micros(now - LEFT_FOR), BATCH)
        for row in expired:
            task = rows.read(tuple(row))
            if task is None:
                unread.append(row[0])
            else:
                gone = expire(task)
                buried.append((row[0], *rows.searched(gone)[FIXED:], rows.text(gone)))
        if buried:
            await Marked(cipher=rows.cipher).put(connection)
            await connection.many(_BURY, buried)
        if unread:
            await connection.fetch(_BURY_UNREAD, unread)
    return len(expired)


async def save_note(
    connection: PostgresConnection, notes: NoteTexts, note: tuple[str, str, str, int], *, replace: bool, durable: bool
) -> str:
    """Store the text of a note; return the text that the store now has."""
    marked = Marked(cipher=notes.cipher)
    conflict = _PUT if replace else "ON CONFLICT DO NOTHING"
    query = marked.statement(_SAVE_NOTE, durable=durable, where=f"{conflict} RETURNING value")
    for _ in range(_LOSSES):
        found = await connection.row(query, *note) or await connection.row(NOTE, *note[:2])
        if found is not None and not (replace and found[0] != note[2]):
            return str(found[0])
        await marked.put(connection)
    raise StoreUnavailable("the store has a note that comes and goes; try again")


async def secret(connection: PostgresConnection, cipher: Cipher | None, name: str) -> bytes:
    """Return 32 random bytes under this name, created once."""
    found = await connection.row(_SECRET, name)
    if found is None:
        async with connection.transaction():
            await Marked(cipher=cipher).put(connection)
            await connection.fetch(_MAKE_SECRET, name, new_secret(cipher, name))
        found = await connection.row(_SECRET, name)
    if found is None:
        raise StoreUnavailable("the store has lost a secret")
    return read_secret(cipher, name, found[0])


async def retire(connection: PostgresConnection, cipher: Cipher) -> None:
    """Delete the marks of all keys but the first: nothing is encrypted with them any more."""
    for name, _ in await connection.fetch(SECRETS):
        if is_mark(name) and name != mark_of(cipher):
            await connection.fetch("DELETE FROM @secrets WHERE name = $1", name)
