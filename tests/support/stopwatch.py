"""How long something took, for bounds that hold on any machine: what a stall of the whole process adds is left out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

_TICK: Final = 0.02  # seconds
_USUAL: Final = 0.08  # seconds that a tick may be late with nothing amiss


class _Stalls(threading.Thread):
    """Ticks, and adds up how late the ticks were: nothing of this process ran meanwhile."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._over = threading.Event()
        self._seen = time.monotonic(), 0.0  # the last tick, and the seconds lost before it; one value: two threads read

    def run(self) -> None:
        while not self._over.wait(_TICK):
            self._seen = time.monotonic(), self.lost()

    def lost(self) -> float:
        """Seconds that stalls took, with the one that we have just woken from."""
        ticked, lost = self._seen
        passed = time.monotonic() - ticked
        return lost + (passed - _TICK if passed > _TICK + _USUAL else 0.0)

    def end(self) -> None:
        self._over.set()
        self.join()


@contextmanager
def stopwatch() -> Generator[Callable[[], float]]:
    """What it yields tells the seconds since, without stalls; whatever waits, or holds the event loop, does count.

    Only C code that keeps the GIL looks like a stall: for that there is `time.process_time`.
    """
    stalls, began = _Stalls(), time.monotonic()
    stalls.start()
    try:
        yield lambda: time.monotonic() - began - stalls.lost()
    finally:
        stalls.end()
