"""The notes of engine adapters, kept in our store; each engine sees only its own."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import datetime

from mcp_workflows.adapter import JSON, Notes
from mcp_workflows.errors import EngineUnavailable, StoreError
from mcp_workflows.store.protocol import Store


class StoreNotes(Notes):
    """The notes of one engine. The space is its name in the configuration, so a renamed engine starts without notes."""

    def __init__(self, store: Store, engine: str) -> None:
        self._store = store
        self._engine = engine

    async def get(self, key: str) -> JSON:
        """Return the value of this key, or None."""
        with _as_engine_errors():
            return await self._store.note(self._engine, key)

    async def under(self, beginning: str) -> Mapping[str, JSON]:
        """Return all values whose keys begin with this text, sorted by key."""
        with _as_engine_errors():
            return await self._store.notes_under(self._engine, beginning)

    async def add(self, key: str, value: JSON, *, until: datetime) -> JSON:
        """Return the value of this key: the existing one, or else this one, which is stored; atomic."""
        with _as_engine_errors():
            return await self._store.add_note(self._engine, key, value, until=until)

    async def put(self, key: str, value: JSON, *, until: datetime) -> None:
        """Store this value, replacing any other."""
        with _as_engine_errors():
            await self._store.put_note(self._engine, key, value, until=until)


def notes_in(store: Store) -> Callable[[str], Notes]:
    """Return a function that creates the notes of an engine from its name."""
    return lambda engine: StoreNotes(store, engine)


@contextmanager
def _as_engine_errors() -> Generator[None]:
    """Translate errors of the store into `EngineUnavailable`."""
    try:
        yield
    except StoreError as error:
        text = f"its stored data cannot be read or written now: {error}"
        raise EngineUnavailable(text, silent=False) from None
