"""When to stop: on a signal, or when the `make` that started us is interrupted or gone."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import FrameType

from scripts.processes import die_with_parent

_SIGINT_BIT = 1 << (signal.SIGINT - 1)


class CutError(Exception):
    """We were asked to stop."""


class Lifeline:
    """Made in the main thread; from then on SIGINT, SIGTERM and SIGHUP only cut it.

    GNU make hands SIGTERM on to its recipes but not SIGINT: a terminal sends that one to everybody, `kill -INT`
    does not. Then make sits in its signal handler, with SIGINT blocked, waiting for us: which /proc shows.
    """

    def __init__(self) -> None:
        self._cut = threading.Event()
        self._parent = os.getppid()
        self._suspicions = 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        die_with_parent(signal.SIGTERM)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._cut.set()

    def wait(self, seconds: float) -> None:
        """Wait so long; raise `CutError` as soon as we are to stop."""
        self._cut.wait(seconds)
        if self._cut.is_set() or os.getppid() != self._parent or self._parent_is_interrupted():
            raise CutError

    def _parent_is_interrupted(self) -> bool:
        """Seen twice in a row: make also blocks signals for an instant when it starts a recipe."""
        self._suspicions = self._suspicions + 1 if _blocks_interrupts(self._parent) else 0
        return self._suspicions >= 2


def _blocks_interrupts(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    masks = [line.split()[1] for line in status.splitlines() if line.startswith("SigBlk:")]
    return any(int(mask, 16) & _SIGINT_BIT for mask in masks)
