"""A circuit breaker for polls of one engine: while the engine is silent, it gets one probe at a time.

Clients' starts, answers and cancellations are always sent.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from mcp_workflows.errors import AdapterBroke, EngineError, EngineUnavailable

_TIME_ALONE_FOR: Final = timedelta(hours=12)  # after this, a time without a date misleads


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitSettings:
    """The thresholds and pauses of the circuit; in seconds, except for `failures`."""

    failures: int = 3  # consecutive polls without an answer that open it
    longest: float = 3.0  # a single poll this slow opens it, too, unless another call was answered meanwhile
    waited: float = 2.0  # a poll cancelled by its caller after this time counts as unanswered
    first_pause: float = 0.5  # between a probe's end and the next probe
    longest_pause: float = 4.0  # the pause doubles up to this, so that recovery is noticed soon
    known_for: float = 10.0  # after the last failure; later, silence is no longer assumed


SETTINGS: Final = CircuitSettings()


class Circuit:
    """The state of one engine as this process's calls show it: whether it answers polls."""

    def __init__(
        self,
        settings: CircuitSettings = SETTINGS,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        on_change: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        """Close the circuit. `clock` counts seconds.

        `on_change` is called with the reason when the circuit opens, and with None when it closes.
        """
        self._settings = settings
        self.clock = clock
        self._now = now
        self._on_change = on_change
        self.failures = 0  # consecutive
        self._since: datetime | None = None  # beginning of the first of these
        self._reason = ""  # error of the last of these
        self._failed = self._answered = float("-inf")  # times of the last unanswered and answered polls
        self._open = self._probing = False
        self._pause = settings.first_pause
        self._next_probe = 0.0

    @property
    def silence(self) -> str | None:
        """The reason why waiting for a poll is not worthwhile now, or None.

        Silence is no longer assumed `known_for` seconds after the last failure, unless a probe is in progress.
        """
        known = self._probing or self.clock() - self._failed < self._settings.known_for
        return self._message if self._open and known else None

    @contextmanager
    def admitted(self) -> Generator[None]:
        """Count the body as a poll; see `admit`."""
        is_probe = self.admit()
        try:
            yield
        finally:
            self.release(is_probe=is_probe)

    def admit(self) -> bool:
        """Begin a poll, and return True if it is the probe of an open circuit; `release` ends it.

        Raises:
            EngineUnavailable: the circuit is open and no probe is due; nothing was sent.
        """
        if not self._open:
            return False
        if self._probing or self.clock() < self._next_probe:
            raise EngineUnavailable(self._message)
        self._probing = True
        return True

    def release(self, *, is_probe: bool) -> None:
        """End a poll."""
        self._probing &= not is_probe

    def record(self, began: float, error: BaseException | None, *, refusal_is_answer: bool = True) -> None:
        """Record the outcome of one call; `began` comes from `clock`.

        With `refusal_is_answer=False` a refusal proves nothing, because the adapter may refuse without calling the
        engine. An adapter's defect shows nothing about the engine, and neither does a call that its caller cancelled
        soon.
        """
        match error:
            case None:
                self._succeed()
            case AdapterBroke():
                pass
            case EngineUnavailable(silent=False):
                pass
            case EngineUnavailable(throttled=False):
                self._fail(began, str(error))
            case EngineUnavailable(sent=True):  # if our own quota throttled it before it was sent, it is no answer
                self._succeed()
            case BaseException() if not isinstance(error, Exception) and self.clock() - began >= self._settings.waited:
                self._fail(began, "no answer yet")
            case EngineError() if refusal_is_answer and not isinstance(error, EngineUnavailable):
                self._succeed()
            case _:
                pass

    @property
    def _message(self) -> str:
        since = self._since or self._now()
        form = "%H:%M:%S UTC" if self._now() - since < _TIME_ALONE_FOR else "%Y-%m-%d %H:%M:%S UTC"
        return f"no answer since {since.strftime(form)} ({self._reason})"

    def _succeed(self) -> None:
        self.failures, self._since, self._answered = 0, None, self.clock()
        if self._open:
            self._open, self._pause = False, self._settings.first_pause
            self._on_change(None)

    def _fail(self, began: float, reason: str) -> None:
        if began < self._answered:
            return  # the engine has answered since
        ended = self._failed = self.clock()
        self.failures += 1
        self._since = self._since or self._now() - timedelta(seconds=ended - began)
        self._reason = reason
        if self._probing:
            self._pause = min(2 * self._pause, self._settings.longest_pause)
            self._next_probe = ended + self._jittered()
        elif not self._open and self._is_enough(ended - began):
            self._open = True
            self._next_probe = ended + self._jittered()
            self._on_change(self._message)

    def _is_enough(self, waited: float) -> bool:
        return self.failures >= self._settings.failures or waited >= self._settings.longest

    def _jittered(self) -> float:
        return self._pause * random.uniform(0.5, 1.0)  # noqa: S311  # so that replicas do not probe simultaneously
