"""Counts of tasks, made in indexes alone: before an insert against the caps, and by tool and status for gauges.

Caps are checked inside the transaction of the insert, so replicas that share the file share the caps. The counts for
gauges come in parts of `PART` tasks, a few ms each, so that other calls never wait for long.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from mcp_workflows.adapter import Status
from mcp_workflows.store.protocol import NO_CAPS, CapReached, Caps, Count
from mcp_workflows.store.sqlite.rows import at_micros, micros, utf8
from mcp_workflows.task import CLOCKS_DIFFER, Task

AHEAD: Final = CLOCKS_DIFFER // timedelta(microseconds=1)  # rows of a clock that was ahead count for no window
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
"""By field of `Caps`: the rows counted, and of those created the one that leaves the window first."""

_QUERIES: Final[Mapping[str, str]] = {**LIVE, **CREATED}
_EVER: Final = -(2**63)
_COUNTED_FOR: Final = 10_000_000  # microseconds: by then a clock may have reached rows that were dated ahead of it
_MOST_COUNTS: Final = 1_000


@dataclass(slots=True, kw_only=True)
class _Bound:
    """The most rows there can be: those counted, and one for each insert since."""

    rows: int
    version: int  # of the file, as other connections change it
    at: int  # the time of the count
    since: int  # the beginning of its window

    def holds(self, version: int, now: int, since: int) -> bool:
        return self.version == version and 0 <= now - self.at < _COUNTED_FOR and self.since <= since


class CountedRows:
    """The check of caps before an insert, with an upper bound of the rows for each cap.

    Rows are counted anew near the cap, when another process has written, for an earlier window, and after ten seconds.
    Until then no more rows can be there than this process has inserted since, unless its clock was set back.
    """

    def __init__(self) -> None:
        """Nothing is counted yet."""
        self._bounds: dict[tuple[str, str, str], _Bound] = {}

    def check(self, connection: sqlite3.Connection, task: Task, caps: Caps) -> None:
        """Check that there may be one more task.

        Raises:
            CapReached: there are as many as there may be.
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
                raise CapReached(name, again=_again(task, caps, oldest) if name in CREATED else None)
            self._keep(keys[name], _Bound(rows=rows + 1, version=version, at=now, since=since))

    def _keep(self, key: tuple[str, str, str], bound: _Bound) -> None:
        self._bounds.pop(key, None)
        self._bounds[key] = bound
        if len(self._bounds) > _MOST_COUNTS:
            del self._bounds[next(iter(self._bounds))]


def _again(task: Task, caps: Caps, oldest: int | None) -> datetime | None:
    """Return the time at which the oldest row of the window, which moves with the clock, leaves it."""
    if oldest is None or caps.since is None:
        return None
    return at_micros(oldest) + (task.created - caps.since)


PART: Final = 20_000
NEXT: Final = """
    SELECT tool, engine, status FROM tasks INDEXED BY tasks_census
    WHERE tombstone = 0 AND (tool, engine, status) > (?, ?, ?) ORDER BY tool, engine, status LIMIT 1
"""
_OF: Final = "FROM tasks INDEXED BY tasks_census WHERE tombstone = 0 AND tool = ? AND engine = ? AND status = ?"
CUT: Final = f"SELECT created {_OF} AND created > ? ORDER BY created LIMIT 1 OFFSET ?"
COUNT: Final = f"""
    SELECT COUNT(*), MIN(created), MIN(updated) {_OF} AND created > ? AND created <= ?
    AND (expires IS NULL OR expires > ?)
"""
_BEGINNING: Final = -(2**63)
_END: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The position of the count: after this creation in these tasks."""

    tool: str = ""
    engine: str = ""
    status: str = ""
    created: int = _END


@dataclass(frozen=True, slots=True, kw_only=True)
class CountPart:
    """The result of one step: a count up to a position."""

    place: Place
    count: Count | None  # None: all of them have expired


def count(connection: sqlite3.Connection, after: Place, now: int) -> CountPart | None:
    """Count the next part; None: there is none."""
    if after.created == _END:
        group = connection.execute(NEXT, (after.tool, after.engine, after.status)).fetchone()
        if group is None:
            return None
        after = Place(tool=group[0], engine=group[1], status=group[2], created=_BEGINNING)
    of = (after.tool, after.engine, after.status, after.created)
    cut = connection.execute(CUT, (*of, PART)).fetchone()
    end = cut[0] if cut else _END
    tasks, created, updated = connection.execute(COUNT, (*of, end, now)).fetchone()
    place = replace(after, created=end)
    if not tasks:
        return CountPart(place=place, count=None)
    counted = Count(
        tool=after.tool,
        engine=after.engine,
        status=Status(after.status),
        tasks=tasks,
        oldest_created=at_micros(created),
        oldest_updated=at_micros(updated),
    )
    return CountPart(place=place, count=counted)


def added(one: Count, other: Count) -> Count:
    """Add up two parts of the same tasks."""
    return replace(
        one,
        tasks=one.tasks + other.tasks,
        oldest_created=min(one.oldest_created, other.oldest_created),
        oldest_updated=min(one.oldest_updated, other.oldest_updated),
    )
