"""The file of an SQLite store: its tables, and the checks that it is ours, still in place and undamaged.

Each entry of `MIGRATIONS` brings the tables from one version to the next.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import psutil
from anyio import to_thread

from mcp_workflows.errors import ConfigError, StoreUnavailable, StoreUnusable
from mcp_workflows.store.sqlite.rows import backfill

MIGRATIONS: Final[Sequence[Sequence[str | Callable[[sqlite3.Connection], None]]]] = (
    (
        """
        CREATE TABLE tasks (
            id TEXT NOT NULL PRIMARY KEY, owner TEXT NOT NULL, tool TEXT NOT NULL, engine TEXT NOT NULL,
            idempotency_key TEXT, created INTEGER NOT NULL, expires INTEGER,
            attempts INTEGER NOT NULL, bound INTEGER NOT NULL, ended INTEGER NOT NULL, tombstone INTEGER NOT NULL,
            task TEXT NOT NULL
        )
        """,
        "CREATE UNIQUE INDEX tasks_key ON tasks (owner, tool, idempotency_key) WHERE idempotency_key IS NOT NULL",
        """
        CREATE INDEX tasks_unbound ON tasks (engine, attempts, created, id)
        WHERE bound = 0 AND ended = 0 AND tombstone = 0
        """,
        "CREATE INDEX tasks_expires ON tasks (tombstone, expires) WHERE expires IS NOT NULL",
        "CREATE TABLE secrets (name TEXT NOT NULL PRIMARY KEY, value BLOB NOT NULL)",
    ),
    ("CREATE INDEX tasks_created ON tasks (created, id, ended) WHERE tombstone = 0",),
    ("CREATE INDEX tasks_owner ON tasks (owner, created, id) WHERE tombstone = 0",),
    (
        """
        CREATE TABLE notes (
            space TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, until INTEGER NOT NULL,
            PRIMARY KEY (space, key)
        )
        """,
        "CREATE INDEX notes_until ON notes (until)",
    ),
    (
        "ALTER TABLE tasks ADD COLUMN status TEXT NOT NULL DEFAULT 'running'",
        "ALTER TABLE tasks ADD COLUMN updated INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE tasks ADD COLUMN due INTEGER",
        backfill,
        "DROP INDEX tasks_expires",
        "CREATE INDEX tasks_expires ON tasks (tombstone, expires, due) WHERE expires IS NOT NULL",
        """
        CREATE INDEX tasks_live ON tasks (owner, tool, expires, ended, tombstone) WHERE ended = 0 AND tombstone = 0
        """,
        """
        CREATE INDEX tasks_open ON tasks (tool, created, id, expires, ended, tombstone)
        WHERE ended = 0 AND tombstone = 0
        """,
        "CREATE INDEX tasks_made_by ON tasks (owner, created)",
        "CREATE INDEX tasks_made_with ON tasks (tool, created)",
        "CREATE INDEX tasks_due ON tasks (engine, due, id) WHERE due IS NOT NULL",
        """
        CREATE INDEX tasks_census ON tasks (tool, engine, status, created, updated, expires, tombstone)
        WHERE tombstone = 0
        """,
        "CREATE TABLE leases (name TEXT NOT NULL PRIMARY KEY, holder TEXT NOT NULL, until INTEGER NOT NULL)",
    ),
    (
        """
        CREATE INDEX tasks_working ON tasks (created DESC, id, tool, engine, expires, ended, tombstone)
        WHERE ended = 0 AND tombstone = 0
        """,
    ),
    (
        "ALTER TABLE tasks ADD COLUMN unanswered TEXT",
        "ALTER TABLE tasks ADD COLUMN unanswered_until INTEGER",
        "CREATE INDEX tasks_unanswered ON tasks (unanswered, created, id) WHERE unanswered IS NOT NULL",
    ),
    (
        """
        CREATE TABLE events (
            position INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, name TEXT NOT NULL,
            at INTEGER NOT NULL, tool TEXT NOT NULL, owner TEXT NOT NULL, task_id TEXT NOT NULL, key TEXT NOT NULL
        )
        """,
        "CREATE INDEX events_at ON events (at)",
    ),
)
"""The statements from each version of the tables to the next; `user_version` is the number of entries applied.

Times are whole microseconds since 1970, UTC. The columns other than `task` are for searches. An index that names a
column in both its row and its condition allows counting without reading the table.
"""


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")

logger = logging.getLogger(__name__)

APPLICATION_ID: Final = 0x6D637077  # "mcpw", which marks the file as ours

NETWORK_FILE_SYSTEMS: Final = frozenset(
    {"9p", "afpfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs"}
    | {"nfs3", "nfs4", "orangefs", "smb2", "smb3", "smbfs", "webdav", "fuse.ceph", "fuse.cephfs", "fuse.davfs"}
    | {"fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs"}
)


def read_url(url: str, busy_timeout_ms: int) -> tuple[str, int]:
    parts = urlsplit(url)
    file = unquote(parts.path.removeprefix("/"))
    if parts.scheme != "sqlite" or parts.netloc or parts.fragment or not file.rstrip("/") or "\0" in file:
        raise ConfigError(f"{url!r} names no SQLite file: write sqlite:///relative.db or sqlite:////absolute.db")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    timeout = options.pop("busy_timeout_ms", str(busy_timeout_ms))
    if options or not timeout.isdecimal():
        raise ConfigError(f"{url!r}: the only option is busy_timeout_ms, a whole number of ms")
    return file, int(timeout)


def prepare(file: str) -> Path | None:
    """Return the path of the file, and create it readable only by its user if it is missing; None: in memory."""
    if file == ":memory:":
        return None
    path = Path(file).resolve()
    _refuse_network(path)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        logger.info("created a new store, without tasks: %s", path)
    except FileExistsError:
        pass  # do not open it here: closing any descriptor of it would release SQLite's locks
    except FileNotFoundError:
        raise StoreUnusable(f"{path} cannot be created: there is no folder {path.parent}, create it first") from None
    except OSError as error:
        raise StoreUnusable(f"{path} cannot be created: {error.strerror}") from None
    return path


def _refuse_network(path: Path) -> None:
    mounts = [mount for mount in psutil.disk_partitions(all=True) if path.is_relative_to(mount.mountpoint)]
    if not mounts:
        return
    deepest = max(enumerate(mounts), key=lambda item: (len(Path(item[1].mountpoint).parts), item[0]))[1]
    if deepest.fstype.lower() in NETWORK_FILE_SYSTEMS:
        raise StoreUnusable(
            f"{path} is on a network file system ({deepest.fstype} at {deepest.mountpoint}), where SQLite's locks do "
            "not hold and tasks would be lost: put the file on a local disk, and share it between processes of one host"
        )


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the tables to this version in one transaction; refuse a foreign file and a newer version.

    A file of this version needs no write lock, which busy processes may hold for long.
    """
    if (version := _number(connection, "PRAGMA user_version")) >= len(MIGRATIONS):
        _refuse_foreign(connection, version)
        return
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        version = _number(connection, "PRAGMA user_version")
        _refuse_foreign(connection, version)
        for statements in MIGRATIONS[version:]:
            for statement in statements:
                if callable(statement):
                    statement(connection)
                else:
                    connection.execute(statement)
        if version < len(MIGRATIONS):  # no other process did it first
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def _refuse_foreign(connection: sqlite3.Connection, version: int) -> None:
    program = _number(connection, "PRAGMA application_id")
    empty = not (program or version or _number(connection, "SELECT count(*) FROM sqlite_master"))
    if program != APPLICATION_ID and not empty:
        raise StoreUnusable("the store's file is an SQLite database of another program: name another file")
    if version > len(MIGRATIONS):
        raise StoreUnusable(
            f"the store's file has version {version}, this mcp-workflows knows version {len(MIGRATIONS)}: "
            "install a newer mcp-workflows, or name another file"
        )


def write_ahead(connection: sqlite3.Connection) -> None:
    """Turn on write-ahead logging: readers and writers never block each other, and each commit is flushed to disk."""
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA trusted_schema = OFF")
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode not in {"wal", "memory"}:
        raise StoreUnusable(f"the disk of the store's file cannot do write-ahead logging (it stays {mode!r})")


class LogFile:
    """The write-ahead log: for syncing it, and for locking it by the process that writes next.

    It stays open, because the system reports a disk error once to each descriptor that was already open, and because
    other files may use up all descriptors.
    """

    def __init__(self, path: Path) -> None:
        """Open the log of the database at this path; the database must be open."""
        self._descriptor = os.open(f"{path}-wal", os.O_RDWR)

    def sync(self) -> float:
        """Flush everything committed by any connection to disk, and return the seconds it took.

        Raises:
            OSError: the disk failed. Committed data may never reach it, even if a later sync succeeds.
        """
        began = time.perf_counter()
        getattr(os, "fdatasync", os.fsync)(self._descriptor)  # macOS and Windows have no fdatasync
        return time.perf_counter() - began

    def take_turn(self) -> bool:
        """Reserve the next write for this process; False: another one has it. SQLite alone lets any waiter write next.

        SQLite's own locks are on the other two files. The system releases this one when the process ends.
        """
        if fcntl is None:
            return True
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def leave_turn(self) -> None:
        """Release the reservation of the next write."""
        if fcntl is not None:
            with suppress(OSError):  # it was closed meanwhile
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the log."""
        os.close(self._descriptor)


def overwrite(connection: sqlite3.Connection) -> None:
    """Overwrite deleted and changed data in the file."""
    connection.execute("PRAGMA secure_delete = ON")


def rewrite_version(connection: sqlite3.Connection) -> None:
    """Write a page without changing anything."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        connection.execute(f"PRAGMA user_version = {_number(connection, 'PRAGMA user_version')}")


def _number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])


class OpenFiles:
    """The store's file, its `-wal` and its `-shm`, as they were right after opening.

    SQLite never recreates them while the store is open. So if a name leads to another file, one was deleted or
    replaced. Later writes are then lost, and a process that opens the file now does not see them. Reading is unsafe,
    too: that process may share the index of the log (`-shm`) with this one, and fill it with the content of another
    file.

    Source: https://www.sqlite.org/howtocorrupt.html, section 4.
    """

    def __init__(self, file: str, path: Path | None) -> None:
        """Keep the identity of the files. `file` is the given name or link, `path` its target (None: in memory)."""
        self._names = () if path is None else (str(Path(file).absolute()), f"{path}-wal", f"{path}-shm")
        self._opened = self._now()

    def check(self) -> None:
        """Check that each name still leads to the open file; takes microseconds.

        Raises:
            StoreUnavailable: one does not.
        """
        if self._now() != self._opened:
            raise StoreUnavailable(
                "the store's file was deleted, moved or replaced while it was open, so nothing can be read or kept: "
                "the server has to be restarted with the file that is there now"
            )

    def _now(self) -> Sequence[tuple[int, int] | None]:
        return [_place(name) for name in self._names]


def _place(name: str) -> tuple[int, int] | None:
    """Return device and inode; None: there is no file."""
    try:
        found = os.stat(name)  # twice as fast as Path.stat, and called before each write
    except OSError:
        return None
    return found.st_dev, found.st_ino


async def read_apart(path: Path, read: Callable[[sqlite3.Connection], T]) -> T:
    """Run a long read on a separate connection in a thread; cancelling the caller interrupts it.

    Raises:
        sqlite3.Error: the file cannot be read now, or not at all (`SQLITE_CORRUPT`, `SQLITE_NOTADB`).
    """
    opened: list[sqlite3.Connection] = []

    def run() -> T:
        url = f"{path.as_uri()}?mode=ro"
        with closing(sqlite3.connect(url, uri=True, isolation_level=None, check_same_thread=False)) as connection:
            opened.append(connection)
            return read(connection)

    try:
        return await to_thread.run_sync(run, abandon_on_cancel=True)
    finally:
        with suppress(sqlite3.ProgrammingError):  # already closed
            for connection in opened:
                connection.interrupt()


def damage_in(connection: sqlite3.Connection) -> str | None:
    """Return the damage that SQLite's quick check finds in the whole file, or None."""
    found = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    return None if found == "ok" else found
