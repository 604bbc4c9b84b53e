"""The checks of caps: rows are counted in indexes alone, up to the cap.

They run inside the transaction of the insert: replicas that share the file share the caps.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from mcp_workflows.store.protocol import NO_CAPS, CapReached, Caps
from mcp_workflows.store.sqlite.rows import at_micros, micros, utf8
from mcp_workflows.task import CLOCKS_DIFFER, Task

_LIVE: Final = "ended = 0 AND tombstone = 0 AND (expires IS NULL OR expires > :now)"
_ONE_MORE: Final = "LIMIT 1 OFFSET :cap - 1"  # a row comes out if there are as many as the cap allows

_LIVE_IN: Final = "SELECT 1 FROM tasks INDEXED BY"
_CREATED_IN: Final = "SELECT created FROM tasks INDEXED BY"
AHEAD: Final = CLOCKS_DIFFER // timedelta(microseconds=1)  # rows of a clock that was ahead count for no window
_SINCE: Final = f"created > :since AND created <= :now + {AHEAD} ORDER BY created DESC {_ONE_MORE}"

LIVE: Final[Mapping[str, str]] = {
    "live_of_owner": f"{_LIVE_IN} tasks_live WHERE owner = :owner AND {_LIVE} {_ONE_MORE}",
    "live_of_tool": f"{_LIVE_IN} tasks_open WHERE tool = :tool AND {_LIVE} {_ONE_MORE}",
    "live_of_owner_and_tool": f"{_LIVE_IN} tasks_live WHERE owner = :owner AND tool = :tool AND {_LIVE} {_ONE_MORE}",
}
CREATED: Final[Mapping[str, str]] = {
    "created_of_owner": f"{_CREATED_IN} tasks_made_by WHERE owner = :owner AND {_SINCE}",
    "created_of_tool": f"{_CREATED_IN} tasks_made_with WHERE tool = :tool AND {_SINCE}",
}
_EVER: Final = -(2**63)


def check_caps(connection: sqlite3.Connection, task: Task, caps: Caps) -> None:
    """Check that there may be one more task.

    Raises:
        CapReached: there are as many as there may be.
    """
    if caps == NO_CAPS:
        return
    since = _EVER if caps.since is None else micros(caps.since)
    values = {"owner": utf8(task.owner), "tool": utf8(task.tool), "now": micros(task.created), "since": since}
    for name, query in (*LIVE.items(), *CREATED.items()):
        cap: int | None = getattr(caps, name)
        if cap is None:
            continue
        found = connection.execute(query, {**values, "cap": cap}).fetchone() if cap > 0 else (None,)
        if found:
            raise CapReached(name, again=_again(task, caps, found[0]) if name in CREATED else None)


def _again(task: Task, caps: Caps, oldest: int | None) -> datetime | None:
    """Return the time at which the oldest row of the window, which moves with the clock, leaves it."""
    if oldest is None or caps.since is None:
        return None
    return at_micros(oldest) + (task.created - caps.since)
