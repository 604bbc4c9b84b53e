"""The log of a command, on standard error."""

from __future__ import annotations

import atexit
import logging
import sys
from enum import StrEnum

from mcp_workflows.receiver.log_limits import LINES, escaped


class LogLevel(StrEnum):
    """How much is said on standard error."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def log(level: LogLevel) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(_says_no_payload)
    handler.addFilter(_limits_others)
    logging.basicConfig(handlers=[handler], level=level.upper())
    atexit.register(LINES.tell)


class _Lines(logging.Formatter):
    """Further lines of a record (a trace) are indented, so that none looks like a record of its own."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n  ".join(escaped(line) for line in super().format(record).split("\n"))


def _limits_others(record: logging.LogRecord) -> bool:
    """Bound what other libraries log of remote parties; our own loggers bound what they must: see `log_limits`."""
    return record.name.startswith("mcp_workflows.") or LINES.filter(record)


def _says_no_payload(record: logging.LogRecord) -> bool:
    """At debug, libraries tell what they send and receive, whole: only we are heard there."""
    return record.levelno >= logging.INFO or record.name.startswith("mcp_workflows")
