"""The file of an SQLite store: its URL, its place on a disk, and whether it is ours."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

import psutil

from mcp_workflows.errors import ConfigError, StoreUnusable
from mcp_workflows.store.sqlite_tables import MIGRATIONS

APPLICATION_ID: Final = 0x6D637077  # "mcpw" in the header of the file: it is ours

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
    patience = options.pop("busy_timeout_ms", str(busy_timeout_ms))
    if options or not patience.isdecimal():
        raise ConfigError(f"{url!r}: the only option is busy_timeout_ms, a whole number of ms")
    return file, int(patience)


def prepare(file: str) -> Path | None:
    """Where the file is, created for its user alone (an existing one is left as it is); None: in memory."""
    if file == ":memory:":
        return None
    path = Path(file).resolve()
    _refuse_network(path)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        pass  # and not to be opened here: closing any descriptor of it would drop the locks SQLite has on it
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
    """Bring the tables to our version, in one transaction; refuse what is not ours or newer."""
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
        if version < len(MIGRATIONS):
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
    """Readers never wait for a writer, nor a writer for readers; a commit is on disk before the client hears of it."""
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA trusted_schema = OFF")
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode not in {"wal", "memory"}:
        raise StoreUnusable(f"the disk of the store's file cannot do write-ahead logging (it stays {mode!r})")


def overwrite(connection: sqlite3.Connection) -> None:
    """What is deleted or changed is overwritten in the file, not only given up."""
    connection.execute("PRAGMA secure_delete = ON")


def rewrite_version(connection: sqlite3.Connection) -> None:
    """Write a page, without changing anything."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        connection.execute(f"PRAGMA user_version = {_number(connection, 'PRAGMA user_version')}")


def _number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])


def inode_of(path: Path | None) -> int | None:
    """Which file is there now; None: none (in memory: never one)."""
    try:
        return path.stat().st_ino if path else None
    except FileNotFoundError:
        return None
