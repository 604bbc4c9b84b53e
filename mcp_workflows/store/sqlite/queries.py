"""The queries and writes of an SQLite store: each is one transaction on an open connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import merge
from itertools import islice
from typing import Final

from mcp_workflows.store.protocol import NO_CAPS, CapReached, Caps, TaskFilter
from mcp_workflows.store.rows import (
    AHEAD,
    LEFT_FOR,
    Rows,
    conditions,
    leaves_window,
    micros,
    utf8,
)
from mcp_workflows.store.sqlite import events, key_value
from mcp_workflows.store.sqlite.rows import INSERT, get, one, replace_row, update
from mcp_workflows.task import Task, events_between, expire

_COUNT: Final = "SELECT count(*), NULL FROM (SELECT 1 FROM tasks INDEXED BY {} LIMIT :cap)"
_COUNT_CREATED: Final = "SELECT count(*), min(created) FROM (SELECT created FROM tasks INDEXED BY {} LIMIT :cap)"
_LIVE: Final = "ended = 0 AND tombstone = 0 AND (expires IS NULL OR expires > :now)"
_SINCE: Final = f"created > :since AND created <= :now + {AHEAD} ORDER BY created DESC"

LIVE: Final[Mapping[str, str]] = {
    "live_of_owner": _COUNT.format(f"tasks_live WHERE owner = :owner AND {_LIVE}"),
    "live_of_tool": _COUNT.format(f"tasks_open WHERE tool = :tool AND {_LIVE}"),
    "live_of_owner_and_tool": _COUNT.format(f"tasks_live WHERE owner = :owner AND tool = :tool AND {_LIVE}"),
}
CREATED: Final[Mapping[str, str]] = {
    "created_of_owner": _COUNT_CREATED.format(f"tasks_made_by WHERE owner = :owner AND {_SINCE}"),
    "created_of_tool": _COUNT_CREATED.format(f"tasks_made_with WHERE tool = :tool AND {_SINCE}"),
}
"""For each field of `Caps`, the query that counts its rows; for created rows also the first to leave the window."""

_QUERIES: Final[Mapping[str, str]] = {**LIVE, **CREATED}
_EVER: Final = -(2**63)
_COUNTED_FOR: Final = 10_000_000  # microseconds: by then the clock may have reached rows dated ahead
_MOST_COUNTS: Final = 1_000


@dataclass(slots=True, kw_only=True)
class _Bound:
    """An upper bound of the rows: those counted, plus one for each insert since."""

    rows: int
    version: int  # of the file; other connections change it
    at: int  # the time of the count
    since: int  # the beginning of its window

    def holds(self, version: int, now: int, since: int) -> bool:
        return self.version == version and 0 <= now - self.at < _COUNTED_FOR and self.since <= since


class CountedRows:
    """The check of caps before an insert, with an upper bound of the rows for each cap.

    Rows are counted again near the cap, after a write of another process, for an earlier window, and after ten seconds.
    Until then, the count grows only by this process's inserts, unless its clock was set back.
    """

    def __init__(self) -> None:
        """Start without counts."""
        self._bounds: dict[tuple[str, str, str], _Bound] = {}

    def check(self, connection: sqlite3.Connection, task: Task, caps: Caps) -> None:
        """Check that one more task is allowed.

        Raises:
            CapReached: a cap is reached.
        """
        owner, tool, now = utf8(task.owner), utf8(task.tool), micros(task.created)
        keys = {name: (name, owner if "owner" in name else "", tool if "tool" in name else "") for name in _QUERIES}
        for key in keys.values():
            if key in self._bounds:
                self._bounds[key].rows += 1
        if caps == NO_CAPS:
            return
        version: int = connection.execute("PRAGMA data_version").fetchone()[0]
        since = _EVER if caps.since is None else micros(caps.since)
        for name, query in _QUERIES.items():
            cap: int | None = getattr(caps, name)
            bound = self._bounds.get(keys[name])
            if cap is None or (bound is not None and bound.rows <= cap and bound.holds(version, now, since)):
                continue
            values = {"owner": owner, "tool": tool, "now": now, "since": since, "cap": max(cap, 0)}
            rows, oldest = connection.execute(query, values).fetchone()
            if rows >= cap:
                raise CapReached(
                    name, again=leaves_window(task.created, caps.since, oldest) if name in CREATED else None
                )
            self._keep(keys[name], _Bound(rows=rows + 1, version=version, at=now, since=since))

    def _keep(self, key: tuple[str, str, str], bound: _Bound) -> None:
        self._bounds.pop(key, None)
        self._bounds[key] = bound
        if len(self._bounds) > _MOST_COUNTS:
            del self._bounds[next(iter(self._bounds))]


COUNTS: Final = """
    SELECT tool, engine, status, COUNT(*), MIN(created), MIN(updated) FROM tasks INDEXED BY tasks_census
    WHERE tombstone = 0 AND (expires IS NULL OR expires > ?) GROUP BY tool, engine, status
"""
BATCH: Final = 200  # maximum rows per transaction of a bulk change


_TASK: Final = "SELECT id, owner, task FROM tasks"
_LONGEST_LIVE: Final = """
    SELECT id, owner, task FROM tasks INDEXED BY {index} WHERE {which} ended = 0 AND tombstone = 0
    AND (expires IS NULL OR expires > :now) ORDER BY created, id LIMIT :limit
"""
_OF_OTHERS: Final = "SELECT tool, id, owner, task FROM tasks WHERE id = ? AND tombstone = 0"
_BY_KEY: Final = f"{_TASK} WHERE owner = ? AND tool = ? AND idempotency_key = ?"
UNBOUND: Final = f"""
    {_TASK} WHERE bound = 0 AND ended = 0 AND tombstone = 0 AND engine = ?
    AND (created < ? OR created > ?) ORDER BY attempts, created, id LIMIT ?
"""
OWNER: Final = "SELECT 1 FROM tasks WHERE tombstone = 0 AND owner LIKE ? AND owner NOT LIKE ? LIMIT 1"
UNANSWERED: Final = f"""
    {_TASK} WHERE unanswered = ? AND unanswered_until > ? AND tombstone = 0 ORDER BY created, id LIMIT 100
"""
OWNED_BY: Final = f"""
    {_TASK} WHERE tombstone = 0 AND owner = ? AND (created, id) < (?, ?)
    AND (expires IS NULL OR expires > ?) ORDER BY created DESC, id DESC LIMIT ?
"""
OF_TOOL: Final = """
    SELECT created, id, owner, task FROM tasks INDEXED BY tasks_open
    WHERE ended = 0 AND tombstone = 0 AND tool = ? AND (created, id) < (?, ?) AND (expires IS NULL OR expires > ?)
    ORDER BY created DESC, id DESC LIMIT ?
"""
ASKING: Final = """
    SELECT id, owner, task FROM tasks WHERE tombstone = 0 AND ended = 0 AND status = 'input_required'
    AND (tool IN (SELECT value FROM json_each(?)) OR owner = ?) AND (expires IS NULL OR expires > ?)
    AND (created, id) > (?, ?) ORDER BY created, id LIMIT ?
"""
DUE: Final = f"{_TASK} WHERE engine = ? AND due <= ? ORDER BY due, id LIMIT ?"
FIND: Final = f"{_TASK} WHERE tombstone = 0 AND id >= ? AND id < ? ORDER BY id LIMIT ?"
_LEASE: Final = """
    INSERT INTO leases (name, holder, until) VALUES (:name, :holder, :until) ON CONFLICT (name) DO UPDATE
    SET holder = excluded.holder, until = excluded.until WHERE holder = excluded.holder OR until <= :now
    OR (:until > :now AND until > :until + :ahead)
"""
EXPIRED: Final = f"""
    {_TASK} WHERE tombstone = 0 AND expires <= :now AND (due IS NULL OR expires <= :overdue)
    ORDER BY expires LIMIT :limit
"""
_DELETE: Final = "DELETE FROM tasks WHERE id = ?"
_BURY_UNREAD: Final = "UPDATE tasks SET tombstone = 1, due = NULL, task = '' WHERE id = ?"
_FORGET: Final = """
    DELETE FROM tasks WHERE id IN (SELECT id FROM tasks WHERE tombstone = 1 AND expires < ? ORDER BY expires LIMIT ?)
"""


def create(connection: sqlite3.Connection, rows: Rows, counted: CountedRows, task: Task, caps: Caps) -> Task:
    """Insert the row, or return the existing row of its idempotency key, in one transaction.

    Raises:
        CapReached: the insert would exceed a cap.
    """
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        found = _by_key(connection, rows, task)
        if found is None:
            counted.check(connection, task, caps)
            _mark(connection, rows)
            connection.execute(INSERT, rows.whole(task))
            if task.held is not None:  # no other new row has events
                events.add(connection, events_between(None, task))
    return found or task


def _mark(connection: sqlite3.Connection, rows: Rows) -> None:
    """Add the mark of the key that encrypts the next write."""
    if rows.cipher is not None:
        key_value.mark(connection, rows.cipher)


def _by_key(connection: sqlite3.Connection, rows: Rows, task: Task) -> Task | None:
    """Return the row of this idempotency key; with a cipher, also one that predates the encryption."""
    kept = rows.kept_key(task)
    if kept is None or task.idempotency_key is None:
        return None
    found = one(connection, rows, _BY_KEY, task.owner, task.tool, kept)
    if found is None and rows.cipher is not None:
        found = one(connection, rows, _BY_KEY, task.owner, task.tool, task.idempotency_key)
        same = found is not None and utf8(found.idempotency_key or "") == utf8(task.idempotency_key)
        return found if same else None  # otherwise a client has sent a text that looks like a digest
    return found


def list_all(where: TaskFilter, place: tuple[int, str], limit: int) -> tuple[str, Sequence[str | int]]:
    """Return the statement of a page of an operator's list, and its values."""
    query, values = _filtered(where)
    page = f"{_TASK} {query} AND created <= ? AND (created < ? OR id > ?) ORDER BY created DESC, id LIMIT ?"
    return page, [*values, place[0], *place, limit]


def count_all(where: TaskFilter) -> tuple[str, Sequence[str | int]]:
    """Return the statement that counts the rows of an operator's list, and its values."""
    query, values = _filtered(where)
    return f"SELECT COUNT(*) FROM tasks {query}", values  # noqa: S608  # constants


def _filtered(where: TaskFilter) -> tuple[str, Sequence[str | int]]:
    found = conditions(where)
    live = "INDEXED BY tasks_working WHERE ended = 0 AND" if where.live_only else "WHERE"
    return " AND ".join([f"{live} tombstone = 0", *(f"{each} ?" for each in found)]), [*found.values()]


def change(
    connection: sqlite3.Connection, rows: Rows, task_id: str, owner: str, change: Callable[[Task], Task | None]
) -> Task | None:
    """Apply a pure function to a row, and delete the row for None; write nothing if it returns the same object.

    If the row is unchanged since it was read, one statement replaces it. Otherwise the function is applied again, in a
    transaction.
    """
    before = get(connection, rows, task_id, owner)
    after = None if before is None else change(before)
    if before is None or after is before:
        return after
    if after is not None and not events_between(before, after) and replace_row(connection, rows, before, after):
        return after
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        before = get(connection, rows, task_id, owner)
        after = None if before is None else change(before)
        if before is not None and after is None:
            connection.execute(_DELETE, (utf8(before.id),))
        elif before is not None and after is not None and after is not before:
            _mark(connection, rows)
            update(connection, rows, before, after)
            events.add(connection, events_between(before, after))
    return after


def list_of_tools(
    connection: sqlite3.Connection, rows: Rows, tools: Sequence[str], after: tuple[int, str], now: int, limit: int
) -> Sequence[Task]:
    """Return live rows of these tools after that place, newest first."""
    each = [connection.execute(OF_TOOL, (tool, *after, now, limit)) for tool in {utf8(tool) for tool in tools}]
    merged = merge(*each, key=lambda row: (row[0], row[1]), reverse=True)
    return rows.many(row[1:] for row in islice(merged, limit))


def longest_live(
    connection: sqlite3.Connection, rows: Rows, owner: str | None, tool: str | None, now: int, limit: int
) -> Sequence[Task]:
    """Return live rows of that owner and that tool, oldest first; the caps limit how many must be sorted."""
    wanted = {"owner": owner, "tool": tool}
    given = {name: utf8(value) for name, value in wanted.items() if value is not None}
    which = "".join(f"{name} = :{name} AND " for name in given)
    query = _LONGEST_LIVE.format(index="tasks_open" if owner is None else "tasks_live", which=which)
    return rows.many(connection.execute(query, {**given, "now": now, "limit": limit}))


def get_of_tools(connection: sqlite3.Connection, rows: Rows, task_id: str, tools: Sequence[str]) -> Task | None:
    """Return the row if it belongs to one of these tools and is no tombstone."""
    found = connection.execute(_OF_OTHERS, (utf8(task_id),)).fetchone()
    if found is None or found[0] not in {utf8(tool) for tool in tools}:
        return None
    task = rows.readable(found[1:])
    return task if task.tool in tools else None


def lease(connection: sqlite3.Connection, name: str, holder: str, lasting: timedelta, now: datetime) -> bool:
    """Take the lease if possible; return True if taken. A power failure that loses it also stops its holder.

    A lease that ends more than `CLOCKS_DIFFER` later than ours would is void, unless ours ends now. All holders of a
    name use the same duration, so the clock must have been set back.
    """
    times = {"now": micros(now), "until": micros(now + lasting), "ahead": AHEAD}
    values = {"name": utf8(name), "holder": utf8(holder), **times}
    return connection.execute(_LEASE, values).rowcount == 1


def forget(connection: sqlite3.Connection, before: datetime, limit: int) -> int:
    """Delete a batch of old tombstones; return their number."""
    return connection.execute(_FORGET, (micros(before), limit)).rowcount


def expire_rows(connection: sqlite3.Connection, rows: Rows, now: datetime, limit: int) -> int:
    """Turn a batch of expired rows into tombstones; return their number.

    An unreadable row loses its content, too; its idempotency key still prevents another start.
    """
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        values = {"now": micros(now), "overdue": micros(now - LEFT_FOR), "limit": limit}
        expired = connection.execute(EXPIRED, values).fetchall()
        if expired:
            _mark(connection, rows)
        for row in expired:
            task = rows.read(row)
            if task is None:
                connection.execute(_BURY_UNREAD, (row[0],))
            else:
                update(connection, rows, task, expire(task))
    return len(expired)
