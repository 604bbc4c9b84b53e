"""Definitions as of the start of tasks, and states that answer polls until the engine may be polled again."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from mcp_workflows.adapter.boundary import JSON, Execution, Failure, Status, digest
from mcp_workflows.adapter.capabilities import Finding, Notes
from mcp_workflows.errors import EngineUnavailable, ResultUnavailable
from mcp_workflows.kit.definition import StatusMap

Definition = TypeVar("Definition", bound=BaseModel)

KEPT: Final = timedelta(days=400)  # longer than the ttl of tasks
READ_FOR: Final = timedelta(minutes=10)  # how long an unreadable result is requested again
_UNREAD: Final = "unread/"
_MOST_UNREAD: Final = 10_000  # executions
_UNMAPPED: Final = "unmapped/"
_TELL_AFTER: Final = timedelta(days=1)
_TELL_FOR: Final = timedelta(days=30)
_MOST_UNMAPPED: Final = 100  # words: an API may invent any number
_AGAIN: Final = timedelta(days=1)  # before it is stored again
_MOST: Final = 10_000  # states


class KeptDefinitions(Generic[Definition]):
    """The current definition, and earlier ones by digest from the store."""

    def __init__(self, now: Definition, written: Mapping[str, JSON], model: type[Definition]) -> None:
        """Set the current definition; `written` is its JSON, in the format of `model`."""
        self._written = written
        self._model = model
        self.current_digest: Final = digest(written)
        self._known: dict[str, Definition] = {self.current_digest: now}
        self._notes: Notes | None = None
        self._kept_until = datetime.now(UTC)
        self._unmapped = set[str]()
        self._unread = dict[str, float]()  # without a store: when a result was first unreadable

    def remember(self, notes: Notes) -> None:
        """Use this store."""
        self._notes = notes

    async def keep(self) -> None:
        """Store the current definition before an execution is started with it.

        Raises:
            EngineUnavailable: the store is not available.
        """
        now = datetime.now(UTC)
        if self._notes is not None and now >= self._kept_until:
            await self._notes.put(_place(self.current_digest), dict(self._written), until=now + KEPT)
            self._kept_until = now + _AGAIN

    async def note_unmapped(self, word: str) -> None:
        """Note a status word that no map lists; `check --store` reports it after a day."""
        if self._notes is not None and word not in self._unmapped and len(self._unmapped) < _MOST_UNMAPPED:
            now = datetime.now(UTC)
            await self._notes.add(f"{_UNMAPPED}{word}", now.timestamp(), until=now + _TELL_FOR)
            self._unmapped.add(word)

    async def without_result(self, handle: str, error: ResultUnavailable) -> Execution:
        """Return the state of a succeeded execution with an unreadable result: running, and failed after `READ_FOR`.

        Raises:
            EngineUnavailable: the store is not available.
        """
        now, place = datetime.now(UTC), f"{_UNREAD}{digest(handle)}"
        if self._notes is None:
            since = self._unread.setdefault(place, now.timestamp())
            while len(self._unread) > _MOST_UNREAD:
                del self._unread[next(iter(self._unread))]
        else:
            until = now + 2 * READ_FOR  # a failure long after this one starts a new period
            since = float(str(await self._notes.add(place, now.timestamp(), until=until)))
        text = f"it has succeeded, but its result cannot be read: {error}"
        if now.timestamp() - since < READ_FOR.total_seconds():
            return Execution(status=Status.RUNNING, message=text)
        return Execution(status=Status.FAILED, failure=Failure(text=text, kind="ResultUnavailable"))

    async def unmapped_finding(self, statuses: StatusMap) -> Finding | None:
        """Return a finding about status words that no map has listed for a day; None if there are none.

        Raises:
            EngineUnavailable: the store is not available.
        """
        unnamed = ", ".join(repr(word) for word in await self._unmapped_words() if statuses.status(word) is None)
        if not unnamed:
            return None
        text = f"its status {unnamed} has been in no map for a day: a task with it goes on for ever"
        return Finding(ok=False, text=text, hint="say in describe.map what it means")

    async def _unmapped_words(self) -> Sequence[str]:
        found: Mapping[str, JSON] = {} if self._notes is None else await self._notes.under(_UNMAPPED)
        before = (datetime.now(UTC) - _TELL_AFTER).timestamp()
        return [place.removeprefix(_UNMAPPED) for place, since in found.items() if float(str(since)) < before]

    async def get(self, name: str) -> Definition:
        """Return the definition with this digest; the current one if it is unknown.

        Raises:
            EngineUnavailable: the store is not available.
        """
        known = self._known.get(name)
        if known is not None:
            return known
        found = None if self._notes is None else await self._notes.get(_place(name))
        self._known[name] = self._read(found)
        return self._known[name]

    def _read(self, found: object) -> Definition:
        if not isinstance(found, Mapping):
            return self._known[self.current_digest]
        try:
            return self._model.model_validate(found)
        except ValidationError:
            raise EngineUnavailable(
                "its definition was kept by another version of this adapter, which reads it no more", silent=False
            ) from None


def _place(name: str) -> str:
    return f"definition/{name}"


class KeptStates:
    """The last known states of executions that the engine asks not to poll yet."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[float, Execution]] = OrderedDict()

    def keep(self, handle: str, seen: Execution, seconds: float) -> None:
        """Answer polls with this state for this number of seconds."""
        self._kept[handle] = (time.monotonic() + seconds, seen)
        if len(self._kept) > _MOST:
            self._kept.popitem(last=False)

    def get(self, handle: str) -> Execution | None:
        """Return the stored state; None: poll the engine."""
        until, seen = self._kept.get(handle, (0.0, None))
        if until <= time.monotonic():
            self._kept.pop(handle, None)
            return None
        return seen

    def drop(self, handle: str) -> None:
        """Drop the state of an execution that is about to change, so that the next poll asks the engine."""
        self._kept.pop(handle, None)
