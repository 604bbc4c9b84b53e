"""The notes in an SQLite store: JSON values by space and key, each kept until a time of its own.

The connection, the locks and the errors are those of `store.py`; times are microseconds, as there.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mcp_workflows.adapter import JSON
from mcp_workflows.errors import StoreUnavailable
from mcp_workflows.store.encryption import Cipher, CipherError
from mcp_workflows.store.sqlite import secrets
from mcp_workflows.store.sqlite.rows import opened

logger = logging.getLogger(__name__)

_READ: Final = "SELECT value FROM notes WHERE space = ? AND key = ?"
_FROM: Final = "SELECT key, value FROM notes WHERE space = ? AND key >= ? ORDER BY key LIMIT ?"
_AFTER: Final = "SELECT key, value FROM notes WHERE space = ? AND key > ? ORDER BY key LIMIT ?"
_ADD: Final = "INSERT OR IGNORE INTO notes (space, key, value, until) VALUES (?, ?, ?, ?)"
_PUT: Final = "INSERT OR REPLACE INTO notes (space, key, value, until) VALUES (?, ?, ?, ?)"
PAGE: Final = 500  # notes that are read at once: others wait no longer than a few ms
_DROP: Final = "DELETE FROM notes WHERE rowid IN (SELECT rowid FROM notes WHERE until <= ? ORDER BY until LIMIT ?)"
_TABLE: Final = "notes"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteRows:
    """The conversion of values into notes, and back."""

    cipher: Cipher | None = None

    def read(self, connection: sqlite3.Connection, space: str, key: str) -> JSON:
        """Return the value; None: there is none."""
        row = connection.execute(_READ, (space, key)).fetchone()
        return None if row is None else self._value(row[0], space, key)

    def under(
        self, connection: sqlite3.Connection, space: str, beginning: str, after: str | None
    ) -> Mapping[str, JSON]:
        """Return the first values whose keys have this beginning, or the first after a key; less than `PAGE`: no more.

        Keys are compared here, as no pattern of SQL takes every character literally.
        """
        query, first = (_FROM, beginning) if after is None else (_AFTER, after)
        found: dict[str, JSON] = {}
        for key, value in connection.execute(query, (space, first, PAGE)):
            if not key.startswith(beginning):
                break
            found[key] = self._value(value, space, key)
        return found

    def add(self, connection: sqlite3.Connection, space: str, key: str, value: JSON, until: int) -> JSON:
        """Return the value that is there from now on: the first that anybody added."""
        text = self.sealed(space, key, json.dumps(value))
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            secrets.mark(connection, self.cipher)
            connection.execute(_ADD, (space, key, text, until))
            return self.read(connection, space, key)

    def put(self, connection: sqlite3.Connection, space: str, key: str, value: JSON, until: int) -> None:
        """Keep this value in place of any other."""
        text = self.sealed(space, key, json.dumps(value))
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            secrets.mark(connection, self.cipher)
            connection.execute(_PUT, (space, key, text, until))

    def sealed(self, space: str, key: str, text: str) -> str:
        """Return the JSON of a value, encrypted if there is a cipher."""
        return text if self.cipher is None else self.cipher.seal(text, _TABLE, space, key)

    def opened(self, space: str, key: str, text: str) -> str:
        """Return the JSON of a value, decrypted if it was encrypted.

        Raises:
            CipherError: it cannot be decrypted.
        """
        return opened(self.cipher, text, _TABLE, space, key)

    def _value(self, text: str, space: str, key: str) -> JSON:
        try:
            value: JSON = json.loads(self.opened(space, key, text))
        except CipherError as error:
            logger.error("a note of the store cannot be read: %s", error)
            raise StoreUnavailable("the store has a note that cannot be read; see the log") from None
        return value


def drop(connection: sqlite3.Connection, now: int, limit: int) -> int:
    """Drop notes whose time is over, up to a limit; return their number."""
    return connection.execute(_DROP, (now, limit)).rowcount
