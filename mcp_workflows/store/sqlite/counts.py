"""Counts of tasks by tool and status, made in an index alone, and a part at a time.

Very many tasks may have ended: others wait for no more than `PART` of them, a few ms.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace
from typing import Final

from mcp_workflows.adapter import Status
from mcp_workflows.store.protocol import Count
from mcp_workflows.store.sqlite.rows import at_micros

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
