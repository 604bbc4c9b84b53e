"""The event log in an SQLite store. Positions rise in the order of commits, as only one writer writes at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from mcp_workflows.store.protocol import EventPage
from mcp_workflows.store.rows import EVENT_COLUMNS, event_values, logged_event, micros
from mcp_workflows.task import LoggedEvent

_NAMES: Final = ", ".join(EVENT_COLUMNS)
_ADD: Final = f"INSERT OR IGNORE INTO events ({_NAMES}) VALUES ({', '.join('?' * len(EVENT_COLUMNS))})"  # noqa: S608  # our names
_READ: Final = f"SELECT position, {_NAMES} FROM events WHERE position > ? ORDER BY position LIMIT ?"  # noqa: S608
_ENDS: Final = "SELECT (SELECT min(position) FROM events), (SELECT max(position) FROM events)"
_DROP: Final = """
    DELETE FROM events WHERE position IN (
        SELECT position FROM events WHERE at < ?1 AND position < (SELECT max(position) FROM events WHERE at < ?1)
        ORDER BY at LIMIT ?2
    )
"""


def add(connection: sqlite3.Connection, events: Iterable[LoggedEvent]) -> None:
    """Add events that do not exist yet."""
    connection.executemany(_ADD, [event_values(event) for event in events])


def read(connection: sqlite3.Connection, after: int, limit: int) -> EventPage:
    """Return the first events after a position."""
    found = [logged_event(*row) for row in connection.execute(_READ, (after, limit))]
    first, last = connection.execute(_ENDS).fetchone()
    return EventPage(events=found, first=(first or 1) - 1, last=last or 0)


def drop(connection: sqlite3.Connection, before: datetime, limit: int) -> int:
    """Delete a batch of old events except the last one, whose position shows what was deleted."""
    return connection.execute(_DROP, (micros(before), limit)).rowcount
