"""The lock that makes one process the executor of an application.

Without it, DBOS would recover executions that another process still runs. The lock ends when its process ends for any
reason.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, Protocol

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError

from mcp_workflows_dbos.settings import is_sqlite

_CONNECT_TIMEOUT: Final = 5  # seconds
_UNACKNOWLEDGED: Final = 1000  # ms that a query of the holder waits on a lost network
TAKEOVER: Final = 2.5  # seconds until the lock is used, if work is left: the previous holder checks each second
_NAME: Final = "mcp-workflows executor "  # name of the connection: this, and a digest of the workflow names
_HOLDER: Final = """
SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND ((classid::bigint << 32) | objid::bigint) = :id
AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_TABLE: Final = "SELECT to_regclass('dbos.workflow_status')"
_WORK: Final = "SELECT EXISTS (SELECT FROM dbos.workflow_status WHERE status = 'PENDING')"


class ExecutorLock(Protocol):
    """A lock on the executions of an application. All methods block."""

    is_for_others: bool
    """True if, at the last `acquire`, a process with other workflows had it: two applications share a name."""

    def acquire(self) -> bool:
        """Take the lock, or return False if another process has it."""
        ...

    def is_held(self) -> bool:
        """Return False after the lock is lost: its file or connection no longer exists, and another process may take
        it."""
        ...

    def release(self) -> None:
        """Release the lock, if this process has it."""
        ...


def lock_for(url: str, application: str, workflows: Iterable[str]) -> ExecutorLock:
    """Return the lock for an application on this database; `workflows` are the names of its workflows."""
    parsed = make_url(url)
    if is_sqlite(url):
        return _SqliteLock(Path(parsed.database or ""))
    return _PostgresLock(parsed, application, workflows)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:8]


class _SqliteLock:
    """An exclusive transaction on a file beside the database; it works the same on every platform."""

    def __init__(self, database: Path) -> None:
        self.is_for_others = False  # each module has a separate file, unless the settings name another one
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
    """An advisory lock of PostgreSQL, on a separate connection whose name identifies the workflows of the process."""

    def __init__(self, url: URL, application: str, workflows: Iterable[str]) -> None:
        self.is_for_others = False
        self._name = f"{_NAME}{_digest(' '.join(sorted(workflows))).hex()}"
        arguments = {
            "connect_timeout": _CONNECT_TIMEOUT,
            "application_name": self._name,
            "tcp_user_timeout": _UNACKNOWLEDGED,
        }
        psycopg_url = url.set(drivername="postgresql+psycopg")
        self._engine = sa.create_engine(psycopg_url, poolclass=sa.NullPool, connect_args=arguments)
        self._id = int.from_bytes(_digest(f"mcp-workflows {application}"), "big", signed=True)
        self._held: sa.Connection | None = None

    def acquire(self) -> bool:
        """Take the lock. If executions are running, wait until a previous holder must have noticed the loss."""
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        if connection.execute(sa.text("SELECT pg_try_advisory_lock(:id)"), {"id": self._id}).scalar():
            self._held, self.is_for_others = connection, False
            if connection.execute(sa.text(_TABLE)).scalar() and connection.execute(sa.text(_WORK)).scalar():
                time.sleep(TAKEOVER)
            if self.is_held():
                return True
            self.release()
            return False
        names = connection.execute(sa.text(_HOLDER), {"id": self._id}).scalars().all()
        self.is_for_others = any(name.startswith(_NAME) and name != self._name for name in names if name)
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
