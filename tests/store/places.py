"""Places for stores of each kind, for tests of what is promised of all."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from mcp_workflows.store.encryption import Cipher
from mcp_workflows.store.protocol import Store, open_store
from tests.support.postgres_server import Postgres, new_schema


class Place(Protocol):
    """Where stores share their rows: a second one is another replica, or the same one after a restart."""

    @property
    def url(self) -> str:
        """The URL of the store."""
        ...

    def execute(self, query: str) -> Sequence[tuple[object, ...]]:
        """Do a statement past the store, and return its rows."""
        ...


@dataclass(frozen=True)
class SQLiteFile:
    """A file in a folder."""

    folder: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder}/tasks.db"

    def execute(self, query: str) -> Sequence[tuple[object, ...]]:
        with closing(sqlite3.connect(self.folder / "tasks.db")) as connection, connection:
            return connection.execute(query).fetchall()


@dataclass(frozen=True)
class PostgresSchema:
    """A schema of the server of this run."""

    server: Postgres
    schema: str = field(default_factory=new_schema)

    @property
    def url(self) -> str:
        return self.server.url(self.schema)

    def execute(self, query: str) -> Sequence[tuple[object, ...]]:
        said = self.server.run(f"SET search_path = {self.schema}; {query}")
        return [tuple(line.split("|")) for line in said.splitlines()]


def store_in(place: Place, *keys: str) -> Store:
    """Return a store there, encrypted by these keys; none: not encrypted."""
    return open_store(place.url, Cipher(keys) if keys else None)
