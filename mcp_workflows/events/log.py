"""The event log as this process reads it: one reader for everything that waits for events here."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from itertools import takewhile
from typing import Final

import anyio

from mcp_workflows.errors import StoreError
from mcp_workflows.store.protocol import EventPage, Store
from mcp_workflows.task import LoggedEvent

logger = logging.getLogger(__name__)

READ_EVERY: Final = 0.2  # seconds: one query each, and no message needed from the replica that wrote an event
END_OF_LOG: Final = 2**62  # a position after all events
PAGE: Final = 500  # events of one query
_REMEMBERED: Final = 2000  # events, for readers slightly behind


class EventLog:
    """Reads the log while there are readers; `run` it. A reader that is far behind reads from the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._recent: deque[LoggedEvent] = deque(maxlen=_REMEMBERED)
        self._from = self._last = -1  # `_recent` has all events after `_from`, up to `_last`; -1: nothing was read
        self._first = 0
        self._waiting: list[Callable[[], None]] = []
        self.changed = anyio.Event()  # set when there are new events, and replaced
        self._wanted = anyio.Event()

    async def run(self) -> None:
        """Read the log while there are readers, until cancelled."""
        was_readable = True
        while True:
            if not self._waiting:
                self._from = self._last = -1
                await self._wanted.wait()
            try:
                await self._read()
                was_readable = True
            except Exception as error:  # no error may end the server: docs/decisions/0002
                if was_readable:
                    logger.warning("events wait until the log can be read: %s", error, exc_info=_unexpected(error))
                was_readable = False
            await anyio.sleep(READ_EVERY)

    async def _read(self) -> None:
        if self._last < 0:
            self._recent.clear()
            self._from = self._last = (await self._store.events(0, 0)).last
        is_behind = True
        while is_behind:
            page = await self._store.events(self._last, PAGE)
            is_behind, self._first = len(page.events) == PAGE, page.first
            self._recent.extend(page.events)
            if page.events:
                self._last = page.events[-1].position
                changed, self.changed = self.changed, anyio.Event()
                changed.set()
                for notify in self._waiting:
                    notify()
            if len(self._recent) == _REMEMBERED:
                self._from = self._recent[0].position - 1

    @asynccontextmanager
    async def waiting(self, notify: Callable[[], None] = lambda: None) -> AsyncGenerator[None]:
        """Keep the log read inside the context, and call `notify` on new events."""
        self._waiting.append(notify)
        self._wanted.set()
        try:
            yield
        finally:
            self._waiting.remove(notify)
            if not self._waiting:
                self._wanted = anyio.Event()

    async def after(self, position: int) -> EventPage:
        """Return the first events after a position, from memory if possible.

        Raises:
            StoreError: the events cannot be read.
        """
        if not self._from <= position <= self._last or self._from < 0:
            return await self._store.events(position, PAGE)
        newer = list(takewhile(lambda event: event.position > position, reversed(self._recent)))
        return EventPage(events=newer[: -PAGE - 1 : -1], first=self._first, last=self._last)


def _unexpected(error: Exception) -> Exception | None:
    return None if isinstance(error, StoreError) else error
