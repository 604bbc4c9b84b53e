"""What the SQLite store promises beyond the laws of a store."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from mcp_workflows.errors import ConfigError, StoreUnavailable
from mcp_workflows.store.protocol import open_store
from mcp_workflows.store.sqlite.file import MIGRATIONS, LogFile
from mcp_workflows.store.sqlite.store import SQLiteStore
from mcp_workflows.task import CLOCKS_DIFFER
from mcp_workflows.testing import make_task

NOON = datetime(2026, 7, 28, 12, tzinfo=UTC)

ENDLESS_WRITER = """
import asyncio, sys
from mcp_workflows.store.protocol import open_store
from mcp_workflows.task import bind
from mcp_workflows.testing import make_task

async def main():
    async with open_store(sys.argv[1]) as store:
        while True:
            task = await store.create(make_task())
            await store.change(task.id, task.owner, lambda row: bind(row, "handle", row.created))
            print(task.id, flush=True)

asyncio.run(main())
"""

FIRST_USER = """
import asyncio, sys
from mcp_workflows.store.protocol import open_store
from mcp_workflows.testing import make_task

async def main():
    print("ready", flush=True)
    sys.stdin.readline()
    async with open_store(sys.argv[1]) as store:
        secret = await store.secret("seal")
        task = await store.create(make_task(idempotency_key="once"))
        print(secret.hex(), task.id)

asyncio.run(main())
"""

GREEDY = """
import asyncio, sys
from datetime import timedelta
from mcp_workflows.store.protocol import CapReached, Caps, open_store
from mcp_workflows.testing import make_task

async def main():
    async with open_store(sys.argv[1]) as store:
        print("ready", flush=True)
        sys.stdin.readline()
        made = 0
        for _ in range(200):
            task = make_task()
            caps = Caps(live_of_owner=100, created_of_tool=150, since=task.created - timedelta(minutes=1))
            try:
                await store.create(task, caps)
            except CapReached:
                pass
            else:
                made += 1
        print(made)

asyncio.run(main())
"""


def python(script: str, url: str) -> subprocess.Popen[str]:
    """A process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", script, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/tasks.db"


@pytest.mark.usefixtures("processes")
async def test_no_acknowledged_row_is_lost_when_the_writer_is_killed(url: str) -> None:
    with python(ENDLESS_WRITER, url) as writer:
        assert writer.stdout is not None
        acknowledged = [writer.stdout.readline().strip() for _ in range(50)]
        writer.send_signal(signal.SIGKILL)
        acknowledged += writer.stdout.read().split("\n")[:-1]
    async with open_store(url) as store:
        rows = [await store.get(task_id, "anna") for task_id in acknowledged]
    assert len(rows) >= 50
    assert all(row is not None and row.handle == "handle" for row in rows)


@pytest.mark.usefixtures("processes")
def test_processes_that_open_a_new_file_at_once_share_it(url: str) -> None:
    first_users = [python(FIRST_USER, url) for _ in range(4)]
    for user in first_users:
        assert user.stdout is not None
        assert user.stdout.readline() == "ready\n"
    for user in first_users:
        assert user.stdin is not None
        user.stdin.write("go\n")
        user.stdin.flush()
    said = [user.communicate(timeout=60)[0] for user in first_users]
    assert [user.returncode for user in first_users] == [0, 0, 0, 0]
    assert len(set(said)) == 1


@pytest.mark.usefixtures("processes")
def test_processes_that_share_a_file_share_the_caps(url: str) -> None:
    greedy = [python(GREEDY, url) for _ in range(2)]
    for process in greedy:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in greedy:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    made = [int(process.communicate(timeout=60)[0]) for process in greedy]
    assert sum(made) == 100


async def test_the_file_is_readable_by_its_user_only(tmp_path: Path, url: str) -> None:
    before = os.umask(0)
    try:
        async with SQLiteStore(url) as store:
            await store.create(make_task())
            modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in os.listdir(tmp_path)}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("tasks.db", "tasks.db-wal", "tasks.db-shm"), 0o600)


async def test_the_file_says_whose_it_is_and_is_written_ahead(tmp_path: Path, url: str) -> None:
    async with SQLiteStore(url):
        pass
    found: dict[str, object] = {}
    connection = sqlite3.connect(tmp_path / "tasks.db")
    for pragma in ("application_id", "user_version", "journal_mode", "integrity_check"):
        found[pragma] = connection.execute(f"PRAGMA {pragma}").fetchone()[0]
    connection.close()
    assert found == {
        "application_id": int.from_bytes(b"mcpw", "big"),
        "user_version": len(MIGRATIONS),
        "journal_mode": "wal",
        "integrity_check": "ok",
    }


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://tasks.db",
        "sqlite:///",
        "sqlite:////",
        "sqlite:///a%00b",
        "sqlite:///tasks.db#part",
        "sqlite:///tasks.db?cache=shared",
        "sqlite:///tasks.db?busy_timeout_ms=soon",
        "sqlite:///tasks.db?busy_timeout_ms=-1",
        "sqlite:///tasks.db?busy_timeout_ms=",
        "postgres://tasks",
    ],
)
def test_a_url_that_names_no_file_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError):
        SQLiteStore(url)


def test_a_url_of_no_installed_store_says_what_is_installed() -> None:
    with pytest.raises(ConfigError, match=r"installed: .*sqlite"):
        open_store("nosuch:///tasks")


async def test_a_store_that_was_not_entered_is_unavailable(url: str) -> None:
    store = SQLiteStore(url)
    with pytest.raises(StoreUnavailable):
        await store.get("x", "anna")
    async with store:
        await store.check()
    with pytest.raises(StoreUnavailable):
        await store.check()


@contextmanager
def no_file_grows_beyond(size: int) -> Generator[None]:
    """What a full disk is to SQLite: a write that fails half way."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_disk_that_takes_no_more_is_unavailable_until_it_does(tmp_path: Path, url: str) -> None:
    async with SQLiteStore(url) as store:
        kept = await store.create(make_task())
        big = make_task(input=["x" * 500_000])
        with (
            no_file_grows_beyond((tmp_path / "tasks.db-wal").stat().st_size + 100_000),
            pytest.raises(StoreUnavailable),
        ):
            await store.create(big)
        assert await store.get(big.id, big.owner) is None
        assert await store.get(kept.id, kept.owner) == kept
        assert await store.create(big) == big


async def test_many_notes_are_all_read_and_others_get_their_turn() -> None:
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    keys = [f"orders/{number:04}" for number in range(1500)]  # three full pages
    async with SQLiteStore("sqlite:///:memory:") as store, anyio.create_task_group() as group:
        for key in ("order", *keys, "orders0"):
            await store.put_note("engine", key, key, until=NOON)
        group.start_soon(take_turns)
        assert list(await store.notes_under("engine", "orders/")) == keys
        group.cancel_scope.cancel()
    assert turns >= 2


async def test_creates_that_come_together_share_a_sync_and_leave_the_event_loop_alone(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def slow(log: LogFile) -> float:
        threads.append(threading.get_ident())
        time.sleep(0.1)
        return 0.1

    monkeypatch.setattr(LogFile, "sync", slow)
    async with SQLiteStore(url) as store, anyio.create_task_group() as group:
        for _ in range(20):
            await store.create(make_task(), durable=False)
            group.start_soon(store.sync)
            await anyio.lowlevel.checkpoint()
        with anyio.fail_after(0.05):
            assert len(await store.list_all()) == 20
    assert len(threads) == 2  # one began before most of the rows were there
    assert threading.get_ident() not in threads


async def test_a_disk_that_fails_to_sync_is_told(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system says it once, and a second sync succeeds, whatever was lost."""
    begun = threading.Event()

    def broken(log: LogFile) -> float:
        if begun.is_set():
            return 0.1
        begun.set()
        time.sleep(0.1)
        raise OSError(5, "Input/output error")

    told: list[str] = []

    async def sync() -> None:
        try:
            await store.sync()
        except StoreUnavailable as error:
            told.append(str(error))

    async with SQLiteStore(url) as store:
        monkeypatch.setattr(LogFile, "sync", broken)
        async with anyio.create_task_group() as group:
            for _ in range(3):
                await store.create(make_task(), durable=False)
            for _ in range(3):
                group.start_soon(sync)
        first, *others = told
        assert first == "the store got an error from its disk: Input/output error"
        assert others == ["the store's disk reported an error, and a power failure may lose the task"] * 2


async def test_after_a_failed_sync_the_log_is_begun_anew(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that it has is in the database then; without that, what is written behind the gap is lost, too."""

    def broken(log: LogFile) -> float:
        raise OSError(5, "Input/output error")

    async with SQLiteStore(url) as store:
        lost = await store.create(make_task(), durable=False)
        monkeypatch.setattr(LogFile, "sync", broken)
        with pytest.raises(StoreUnavailable):
            await store.sync()
        row = await store.create(make_task(), durable=False)
        await store.sync()  # this row is on disk already
        without_log = tmp_path / "copy.db"
        shutil.copy(url.removeprefix("sqlite:///"), without_log)
        with closing(sqlite3.connect(without_log)) as found:
            assert found.execute("SELECT id FROM tasks").fetchall() == [(lost.id,)]
        assert await store.get(row.id, row.owner)


async def test_while_another_reads_the_log_nothing_is_written_behind_a_gap(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(log: LogFile) -> float:
        raise OSError(5, "Input/output error")

    async with SQLiteStore(url) as store:
        await store.create(make_task(), durable=False)
        monkeypatch.setattr(LogFile, "sync", broken)
        with pytest.raises(StoreUnavailable):
            await store.sync()
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as other:
            other.execute("BEGIN")
            other.execute("SELECT count(*) FROM tasks").fetchall()
            with pytest.raises(StoreUnavailable, match="other processes are using its log"):
                await store.create(make_task(), durable=False)
        await store.create(make_task(), durable=False)


async def test_it_is_closed_after_a_sync_that_is_under_way(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = LogFile.sync

    def slow(log: LogFile) -> float:
        time.sleep(0.1)
        return sync(log)

    monkeypatch.setattr(LogFile, "sync", slow)
    async with anyio.create_task_group() as group, SQLiteStore(url) as store:
        await store.create(make_task(), durable=False)
        group.start_soon(store.sync)
        await anyio.sleep(0.02)
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.sync()


async def test_a_row_of_another_process_is_synced_before_it_is_told(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs: list[LogFile] = []

    def count(log: LogFile) -> float:
        syncs.append(log)
        return 1.0

    async with SQLiteStore(url) as other, SQLiteStore(url) as store:
        await other.create(make_task(idempotency_key="k"), durable=False)
        monkeypatch.setattr(LogFile, "sync", count)
        await store.create(make_task(idempotency_key="k"))
        await store.sync()
        assert len(syncs) == 1
        monkeypatch.undo()


async def test_a_lease_of_a_clock_that_was_ahead_is_void(url: str) -> None:
    now, minute, day = NOON, timedelta(minutes=1), timedelta(days=1)

    async with SQLiteStore(url, clock=lambda: now) as store:
        now = NOON + day
        assert await store.lease("sweep", "ahead", lasting=minute)
        now = NOON
        assert await store.lease("sweep", "one", lasting=minute)
        now = NOON + CLOCKS_DIFFER
        assert await store.lease("sweep", "one", lasting=minute)
        now = NOON
        assert not await store.lease("sweep", "two", lasting=minute)
        now = NOON - day
        assert not await store.lease("sweep", "two", lasting=timedelta())  # gives back what it has lost
        now = NOON
        assert not await store.lease("sweep", "two", lasting=minute)
        now = NOON - timedelta(microseconds=1)
        assert await store.lease("sweep", "two", lasting=minute)
