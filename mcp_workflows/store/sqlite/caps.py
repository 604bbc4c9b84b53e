"""The checks of caps: rows are counted in indexes alone, up to the cap.

They run inside the transaction of the insert: replicas that share the file share the caps.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from mcp_workflows.store.protocol import NO_CAPS, CapReached, Caps
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
