"""Limits on log lines that a remote party can cause at will: a few lines, then the number of further ones."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

from mcp_workflows.adapter.redaction import mask

_LINES: Final = 5  # from one place in the code within a period
_PERIOD: Final = 10.0  # seconds
_LONGEST_EXAMPLE: Final = 300  # characters of the last line that was left out
_PASSED: Final = "mcp_workflows_passed"  # on a record that was counted, or is a summary

_Place: TypeAlias = tuple[str, int]  # file and line: a message template may hold remote text, a place never does


@dataclass(slots=True)
class _Count:
    """The lines of one place in the current period."""

    until: float
    logged: int = 0
    left_out: int = 0
    last: logging.LogRecord | None = None


class LineLimit(logging.Filter):
    """Passes a few lines of each place in a period, and logs the number of the others at its end.

    It filters loggers and handlers alike; a record that passes both counts once. Unprintable characters in a message,
    line breaks included, are escaped, so that no line can be forged; credentials are masked.
    """

    def __init__(
        self, *, lines: int = _LINES, period: float = _PERIOD, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`period` in seconds."""
        super().__init__()
        self._lines = lines
        self._period = period
        self._clock = clock
        self._counts: dict[_Place, _Count] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the record may be logged."""
        if hasattr(record, _PASSED) or record.levelno < logging.INFO:
            return True
        setattr(record, _PASSED, True)
        place = (record.pathname, record.lineno)
        with self._lock:
            now = self._clock()
            count = self._counts.get(place)
            if count is None or (now >= count.until and not count.left_out):
                count = self._counts[place] = _Count(until=now + self._period)
            if count.logged < self._lines:
                count.logged += 1
                with suppress(TypeError, ValueError, KeyError):  # the handler reports arguments that do not fit
                    message = record.getMessage()
                    if (shown := escaped(mask(message))) != message:
                        record.msg, record.args = shown, ()
                return True
            count.left_out += 1
            count.last = record
            if count.left_out == 1:
                self._summarize_at(place, count.until - now)
            return False

    def _summarize_at(self, place: _Place, seconds: float) -> None:
        timer = threading.Timer(max(0.0, seconds), self._summarize, [place])
        timer.daemon = True
        timer.start()

    def _summarize(self, place: _Place) -> None:
        with self._lock:
            count = self._counts.pop(place, None)
        if count is None or count.last is None:
            return
        last, text = count.last, escaped(mask(count.last.getMessage()))[:_LONGEST_EXAMPLE]
        logging.getLogger(last.name).log(
            last.levelno, "%d more lines like this were omitted: %s", count.left_out, text, extra={_PASSED: True}
        )

    def tell(self) -> None:
        """Log now how many lines were left out, and begin a new period."""
        for place in tuple(self._counts):
            self._summarize(place)


def escaped(text: str) -> str:
    """Return a text on one line, with escapes for what cannot be printed."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)


LINES: Final = LineLimit()
"""The limit of this process."""

LIMITED: Final = frozenset(
    f"mcp_workflows.{name}"
    for name in (
        "access.authn.issuers",
        "kit.error_table",
        "engines.polling.watch",
        "engines.polling.poller",
        "engines.registry",
        "events.delivery",
        "events.interests",
        "events.notifications",
        "receiver.attach",
        "receiver.middleware",
        "receiver.streams",
        "receiver.v2025_11_25.session",
        "receiver.webhooks",
        "receiver.workflows",
        "sidecar.auth",
        "sidecar.request_headers",
        "sidecar.shutdown",
        "sidecar.web.login",
        "sidecar.web.pages",
        "store.rows",
        "tasks.adopt",
        "tasks.executions",
        "tasks.maintenance",
        "tasks.repeated_calls",
        "tasks.service",
        "tasks.start",
    )
)
"""Our modules that log what clients, callers and workflows do."""


def limit_lines() -> None:
    """Limit our own loggers; the loggers of other libraries belong to the program."""
    for name in LIMITED:
        logging.getLogger(name).addFilter(LINES)
