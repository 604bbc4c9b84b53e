"""Times, numbers and commands as texts of a report."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp

from mcp_workflows.adapter import rough_duration
from mcp_workflows_temporal.connection import Place

_CLI_DEFAULTS = frozenset({"127.0.0.1:7233", "localhost:7233"})  # the default of Temporal's command line


def ago(at: datetime | Timestamp) -> str:
    """Return `12 min ago`, or `in 12 min` for the future."""
    passed = datetime.now(UTC) - _datetime(at)
    return f"in {rough_duration(-passed)}" if passed < timedelta(0) else f"{rough_duration(passed)} ago"


def moment(at: datetime | Timestamp) -> str:
    """Return `2026-07-28 12:00:00 UTC, 12 min ago`."""
    return f"{_datetime(at):%Y-%m-%d %H:%M:%S} UTC, {ago(at)}"


def counted(number: int, thing: str) -> str:
    """Return `1 worker` or `2 workers`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def command(place: Place, *arguments: str) -> str:
    """Return a command of Temporal's CLI, quoted for a shell; without credentials."""
    address = [] if place.address in _CLI_DEFAULTS else ["--address", place.address]
    namespace = [] if place.namespace == "default" else ["--namespace", place.namespace]
    return shlex.join(["temporal", *arguments, *address, *namespace])


def _datetime(at: datetime | Timestamp) -> datetime:
    return at.ToDatetime(UTC) if isinstance(at, Timestamp) else at
