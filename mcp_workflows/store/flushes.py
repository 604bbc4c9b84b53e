"""Flushes of a store to disk: one flush serves all callers whose rows were committed before it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from mcp_workflows.errors import StoreUnavailable

FAST: Final = 0.001  # seconds


class Flushes:
    """The rows of this process that may not be on disk yet, in the order in which `create` returned them."""

    def __init__(self) -> None:
        """Start without waiting rows."""
        self.unsynced = 0  # number of returned rows that may not be on disk; `create` counts them
        self._synced = 0  # how many of these are on disk
        self._failed = 0  # how many of these may never be on disk
        self._seconds = 1.0  # of a flush; even a slow disk is fast sometimes, when there is little to write
        self.is_slow = True  # a flush takes at least a millisecond
        self.is_doubtful = False  # a flush has failed, and nothing has written its data since
        self._flushing = anyio.Lock()

    def fail(self) -> None:
        """Record that all rows so far may be lost."""
        self._failed = self.unsynced
        self.is_doubtful = self._failed > self._synced

    def succeed(self) -> None:
        """Record that all rows so far are on disk."""
        self._synced = self.unsynced
        self.is_doubtful = False

    async def wait(self, flush: Callable[[], Awaitable[float]]) -> None:
        """Wait until all rows so far are on disk; `flush` returns the seconds that it took.

        Raises:
            StoreUnavailable: a flush failed. The disk reports an error once, and a second flush would succeed.
        """
        wanted = self.unsynced
        async with self._flushing:
            if self._synced >= wanted:
                return
            if self._failed >= wanted:
                raise StoreUnavailable("the store's disk reported an error, and a power failure may lose the task")
            covered = self.unsynced
            try:
                took = await flush()
            except StoreUnavailable:
                self._failed = covered
                self.is_doubtful = covered > self._synced
                raise
            self._seconds = max(took, self._seconds * 0.9)
            self.is_slow = self._seconds >= FAST
            self._synced = covered
            self.is_doubtful = self._failed > covered

    async def finish(self) -> None:
        """Wait for the running flush."""
        async with self._flushing:
            pass
