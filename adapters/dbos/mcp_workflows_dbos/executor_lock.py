"""The lock that makes one process the executor of an application.

Without it, DBOS would recover executions that another process still runs. The lock ends with its process, however
that ends.
"""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, Protocol

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError

from mcp_workflows_dbos.settings import is_sqlite

_CONNECT_TIMEOUT: Final = 5  # seconds


class ExecutorLock(Protocol):
    """A lock on the executions of an application. All methods block."""

    def acquire(self) -> bool:
        """Take the lock, or return False if another process has it."""
        ...

    def is_held(self) -> bool:
        """Return False once the lock is lost: its file or its connection is gone, and another process may take it."""
        ...

    def release(self) -> None:
        """Release the lock, if this process has it."""
        ...


def lock_for(url: str, application: str) -> ExecutorLock:
    """Return the lock for an application on this database."""
    parsed = make_url(url)
    return _SqliteLock(Path(parsed.database or "")) if is_sqlite(url) else _PostgresLock(parsed, application)


class _SqliteLock:
    """An exclusive transaction on a file beside the database; it works alike on every platform."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._path = database.with_name(f"{database.name}-executor")
        self._held: sqlite3.Connection | None = None
        self._file = 0

    def acquire(self) -> bool:
        connection = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.DatabaseError as error:
            connection.close()
            if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                return False
            raise
        self._held, self._file = connection, self._path.stat().st_ino
        return True

    def is_held(self) -> bool:
        try:
            return self._database.exists() and self._path.stat().st_ino == self._file
        except OSError:
            return False

    def release(self) -> None:
        if self._held is not None:
            with closing(self._held):
                self._held.execute("ROLLBACK")
            self._held = None


class _PostgresLock:
    """An advisory lock of PostgreSQL, on a connection of its own."""

    def __init__(self, url: URL, application: str) -> None:
        arguments = {"connect_timeout": _CONNECT_TIMEOUT, "application_name": "mcp-workflows executor"}
        psycopg_url = url.set(drivername="postgresql+psycopg")
        self._engine = sa.create_engine(psycopg_url, poolclass=sa.NullPool, connect_args=arguments)
        name = hashlib.sha256(f"mcp-workflows {application}".encode()).digest()[:8]
        self._id = int.from_bytes(name, "big", signed=True)
        self._held: sa.Connection | None = None

    def acquire(self) -> bool:
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        if connection.execute(sa.text("SELECT pg_try_advisory_lock(:n)"), {"n": self._id}).scalar():
            self._held = connection
            return True
        connection.close()
        return False

    def is_held(self) -> bool:
        try:
            return self._held is not None and bool(self._held.execute(sa.text("SELECT 1")).scalar())
        except SQLAlchemyError:
            return False

    def release(self) -> None:
        if self._held is not None:
            with suppress(SQLAlchemyError):
                self._held.close()
            self._held = None
