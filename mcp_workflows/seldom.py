"""Lines of the log that anybody could cause as many of as they like."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

_LOG_EVERY: Final = 10.0  # seconds between two lines of one kind


class Seldom:
    """A line in the log now and then, however many there would be: whoever likes can send what is refused."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._again = 0.0
        self._left_out = 0

    def warn(self, text: str) -> None:
        """Log it, or count it."""
        now = self._clock()
        if now < self._again:
            self._left_out += 1
            return
        more = f" (and {self._left_out} more since the last such line)" if self._left_out else ""
        self._again, self._left_out = now + _LOG_EVERY, 0
        self._logger.warning("%s%s", text, more)
