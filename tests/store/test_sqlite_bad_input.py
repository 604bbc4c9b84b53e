"""What the SQLite store says to a file it cannot or must not use."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.lowlevel
import psutil
import pytest

from mcp_workflows.errors import StoreUnavailable, StoreUnusable
from mcp_workflows.store.sqlite.file import APPLICATION_ID, MIGRATIONS
from mcp_workflows.store.sqlite.store import SQLiteStore
from mcp_workflows.testing import make_task

NOBODY = 65534


@contextmanager
def nobody() -> Generator[None]:
    """As a user without rights: for root, whom no permission stops, somebody else; everybody else is one already."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder everybody may enter and nobody may write in."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o555)
        yield path
        path.chmod(0o755)


@contextmanager
def writable(folder: Path) -> Generator[None]:
    folder.chmod(0o755)
    yield
    folder.chmod(0o555)


async def complaint(path: Path) -> str:
    """What it says when it is entered."""
    with pytest.raises(StoreUnusable) as unusable:
        async with SQLiteStore(f"sqlite:///{path}"):
            pass
    return str(unusable.value)


async def test_a_folder_that_cannot_be_written_is_named(folder: Path) -> None:
    with nobody():
        said = await complaint(folder / "tasks.db")
    assert f"{folder}/tasks.db cannot be created: Permission denied" in said


async def test_a_file_that_cannot_be_written_is_named(folder: Path) -> None:
    path = folder / "tasks.db"
    with writable(folder):
        async with SQLiteStore(f"sqlite:///{path}") as store:
            await store.create(make_task())
        path.chmod(0o444)
    with nobody():
        said = await complaint(path)
    assert f"{path} cannot be written" in said
    assert "permissions" in said


async def test_a_folder_in_place_of_the_file_is_named(tmp_path: Path) -> None:
    assert f"{tmp_path} cannot be written" in await complaint(tmp_path)


async def test_a_missing_folder_is_named_and_not_created(tmp_path: Path) -> None:
    said = await complaint(tmp_path / "not" / "there" / "tasks.db")
    assert f"there is no folder {tmp_path}/not/there, create it first" in said
    assert os.listdir(tmp_path) == []


async def test_a_file_that_is_no_database_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    text = "Not a database at all, whoever says so.\n" * 200
    path.write_text(text)
    assert f"{path} is not an SQLite database" in await complaint(path)
    assert path.read_text() == text


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE songs (title TEXT)", "PRAGMA application_id = 7", "PRAGMA user_version = 1"]
)
async def test_the_database_of_another_program_is_left_as_it_is(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "songs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
    before = path.read_bytes()
    assert "another program" in await complaint(path)
    assert path.read_bytes() == before


async def test_a_newer_version_names_both_versions_and_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    newer = len(MIGRATIONS) + 41
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {newer}")
    before = path.read_bytes()
    said = await complaint(path)
    assert f"version {newer}" in said
    assert f"version {len(MIGRATIONS)}" in said
    assert path.read_bytes() == before


class Mount(NamedTuple):
    """As psutil gives it, as far as it is looked at."""

    mountpoint: str
    fstype: str


def pretend(monkeypatch: pytest.MonkeyPatch, mounts: Sequence[Mount]) -> None:
    """What no test can mount: psutil says that these file systems are mounted."""

    def disk_partitions(**options: bool) -> Sequence[Mount]:
        assert options == {"all": True}
        return mounts

    monkeypatch.setattr(psutil, "disk_partitions", disk_partitions)


@pytest.mark.parametrize("fstype", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs", "lustre"])
async def test_a_network_file_system_is_refused_before_a_file_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fstype: str
) -> None:
    mounts = [Mount("/", "ext4"), Mount(str(tmp_path), fstype), Mount(f"{tmp_path}/other", "ext4")]
    pretend(monkeypatch, mounts)
    said = await complaint(tmp_path / "tasks.db")
    assert f"{fstype} at {tmp_path}" in said
    assert "local disk" in said
    assert os.listdir(tmp_path) == []


MOUNTS: dict[str, Callable[[str], Sequence[Mount]]] = {
    "a local disk inside a network one": lambda path: [Mount("/", "nfs"), Mount(path, "ext4")],
    "a network disk with a similar name": lambda path: [Mount("/", "ext4"), Mount(path[:-1], "nfs")],
    "a local disk mounted over a network one": lambda path: [Mount(path, "nfs"), Mount(path, "ext4")],
    "nothing known": lambda path: [],
}


@pytest.mark.parametrize("mounts", MOUNTS.values(), ids=MOUNTS)
async def test_what_is_a_local_disk_after_all_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounts: Callable[[str], Sequence[Mount]]
) -> None:
    pretend(monkeypatch, mounts(str(tmp_path)))
    async with SQLiteStore(f"sqlite:///{tmp_path}/tasks.db") as store:
        await store.check()


HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE" if sys.argv[2:] else "BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
print("free", flush=True)
"""


@contextmanager
def locked(path: Path, *options: str) -> Generator[subprocess.Popen[str]]:
    """Another process holds the lock until it is spoken to."""
    command = [sys.executable, "-c", HOLDER, str(path), *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        yield holder
        holder.communicate("\n")


@pytest.mark.usefixtures("processes")
async def test_a_lock_held_beyond_the_busy_timeout_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    async with SQLiteStore(f"sqlite:///{path}?busy_timeout_ms=100") as store:
        task = await store.create(make_task())
        with locked(path):
            writes: Sequence[Callable[[], Awaitable[object]]] = (
                lambda: store.create(make_task()),
                lambda: store.change(task.id, task.owner, lambda row: replace(row, attempts=7)),
                store.check,
            )
            for write in writes:
                with pytest.raises(StoreUnavailable, match="locked by another process"):
                    await write()
            assert await store.get(task.id, task.owner) == task
        await store.check()


@pytest.mark.usefixtures("processes")
async def test_the_loop_turns_while_a_lock_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    created = make_task()
    async with SQLiteStore(f"sqlite:///{path}") as store, anyio.create_task_group() as group:
        with locked(path) as holder:
            group.start_soon(store.create, created)
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            assert await store.get(created.id, created.owner) is None
            assert holder.stdin is not None
            holder.stdin.write("\n")
            holder.stdin.flush()
            with anyio.fail_after(60):
                while await store.get(created.id, created.owner) is None:
                    await anyio.lowlevel.checkpoint()


@pytest.mark.usefixtures("processes")
async def test_a_new_file_locked_by_another_process_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    with locked(path, "exclusive"), pytest.raises(StoreUnavailable, match=f"{path} is locked"):
        async with SQLiteStore(f"sqlite:///{path}", busy_timeout_ms=50):
            pass
