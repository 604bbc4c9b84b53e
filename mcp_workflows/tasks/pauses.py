"""Pauses: all replicas refuse new starts for the operator; reads, answers and cancellations still work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import anyio
from pydantic import TypeAdapter, ValidationError

from mcp_workflows.access import person_of
from mcp_workflows.errors import LimitReached
from mcp_workflows.store.protocol import Store

EVERYTHING: Final = "everything"
READ_EVERY: Final = 0.5  # seconds until every replica applies a pause
_SPACE: Final = "(pauses)"  # note space
_KEPT: Final = timedelta(days=3650)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """One pause."""

    what: str  # `everything`, or the kind and the name: `engine ci`, `tool deploy`, `principal anna`
    reason: str
    since: datetime

    @property
    def text(self) -> str:
        """The pause in one sentence."""
        return f"starts of {self.what} have been paused since {self.since:%Y-%m-%d %H:%M} UTC: {self.reason}"


_PAUSE: Final = TypeAdapter(Pause)


class Pauses:
    """The pauses in a store."""

    def __init__(self, store: Store, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._clock = clock
        self._reading = anyio.Lock()
        self._known: Sequence[Pause] = ()
        self._read = float("-inf")  # on the event loop's clock

    async def begin(self, what: str, reason: str) -> None:
        """Refuse new starts from now on."""
        now = self._clock()
        pause = _PAUSE.dump_python(Pause(what=what, reason=reason, since=now), mode="json")
        await self._store.put_note(_SPACE, what, pause, until=now + _KEPT)

    async def end(self, what: str) -> bool:
        """Allow new starts again; return False if they were not paused."""
        if not any(each.what == what for each in await self.every()):
            return False
        await self._store.put_note(_SPACE, what, None, until=self._clock())
        return True

    async def every(self) -> Sequence[Pause]:
        """Return all pauses, oldest first."""
        notes = (await self._store.notes_under(_SPACE, "")).values()
        found: list[Pause] = []
        for note in notes:
            try:
                found.append(_PAUSE.validate_python(note))
            except ValidationError:  # it has ended
                continue
        return sorted(found, key=lambda each: each.since)

    async def refusal(self, engine: str, tool: str, owner: str) -> LimitReached | None:
        """Return why the tool starts nothing now for the principal with this id; None: it may start."""
        async with self._reading:  # concurrent calls wait for the current state
            if (now := anyio.current_time()) - self._read >= READ_EVERY:
                self._known = await self.every()
                self._read = now
        if not self._known:
            return None
        names = {EVERYTHING, f"engine {engine}", f"tool {tool}", f"principal {owner}"}
        names.add(f"principal {person_of(owner)[1]}")
        pause = next((each for each in self._known if each.what in names), None)
        return None if pause is None else LimitReached(f"{pause.text}; nothing was started")
