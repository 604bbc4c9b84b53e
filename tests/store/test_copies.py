"""`mcp-workflows store copy`, `backup` and `migrate`: a move keeps all, and two stores never have the same tasks."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from subprocess import CompletedProcess

import anyio
import anyio.lowlevel
import pytest
from anyio import to_thread

from mcp_workflows.errors import StoreUnavailable, StoreUnusable
from mcp_workflows.store.encryption import new_key
from mcp_workflows.store.protocol import TaskFilter, open_store
from mcp_workflows.store.sqlite.file import MIGRATIONS
from mcp_workflows.task import EventName, LoggedEvent, Task, bind, expire
from mcp_workflows.testing import make_task
from mcp_workflows.testing.tasks import NOON
from tests.store.places import PostgresSchema, SQLiteFile, store_in
from tests.store.test_migrations import old_file
from tests.support.commands import COMMAND, run, start
from tests.support.config_files import FINE
from tests.support.postgres_server import Postgres
from tests.support.waiting import TIMEOUT, until

pytestmark = pytest.mark.process

KEY = new_key()
MANY = 1_200  # rows: more than are read and written at once
LATER = NOON + timedelta(days=300)
EVERYTHING = TaskFilter(live_only=False)
SECRET = "s3cret"
EVENT = LoggedEvent(id="", name=EventName.EXECUTION_ENDED, at=NOON)


@pytest.fixture
def source(tmp_path: Path) -> SQLiteFile:
    return SQLiteFile(tmp_path)


@pytest.fixture
def target(postgres_server: Postgres) -> PostgresSchema:
    return PostgresSchema(postgres_server)


def store(*words: str, cwd: Path | None = None) -> CompletedProcess[str]:
    return run([COMMAND, "store", *words], cwd=cwd)


def move(source: SQLiteFile, target: PostgresSchema) -> CompletedProcess[str]:
    return store("copy", source.url, target.url)


async def filled(source: SQLiteFile, *keys: str, many: int = 0) -> tuple[Sequence[Task], bytes]:
    """Rows of every kind in a store, the tombstone at the end; and its key for starts."""
    ended = replace(bind(make_task(tool="a", idempotency_key="e" * 22), "h", NOON), ended=NOON)
    rows = [make_task(tool="a", idempotency_key="k" * 22), make_task(owner="ann\0a"), ended, make_task()]
    async with store_in(source, *keys) as kept:
        for task in [*rows, *(make_task(tool="many") for _ in range(many))]:
            assert await kept.create(task, durable=False) == task
        assert await kept.change(rows[-1].id, rows[-1].owner, expire)
        await kept.put_note("space", "key\0", {"a": ["\0"]}, until=LATER)
        for number in range(2):
            await kept.add_event(replace(EVENT, id=f"evt_{number}"))
        return rows, await kept.secret("start-keys")


async def has_all(
    place: SQLiteFile | PostgresSchema, rows: Sequence[Task], secret: bytes, *keys: str, many: int = 0
) -> None:
    """Check that a store has what `filled` made, and that each idempotency key finds its row."""
    async with store_in(place, *keys) as kept:
        for task in rows[:-1]:
            assert await kept.get(task.id, task.owner) == task
            if task.idempotency_key:
                again = make_task(tool=task.tool, idempotency_key=task.idempotency_key)
                assert (await kept.create(again)).id == task.id
        assert await kept.get(rows[-1].id, rows[-1].owner) == expire(rows[-1])
        assert await kept.count_all(TaskFilter(tool="many")) == many
        assert await kept.count_all(EVERYTHING) == many + len(rows) - 1
        assert await kept.note("space", "key\0") == {"a": ["\0"]}
        page = await kept.events(0, 10)
        assert [event.id for event in page.events[:2]] == ["evt_0", "evt_1"]
        assert [event.position for event in page.events[:2]] == [1, 2]
        await kept.add_event(replace(EVENT, id="evt_later"))
        assert (await kept.events(page.last, 10)).events[0].position == page.last + 1
        assert await kept.secret("start-keys") == secret


async def refuses(source: SQLiteFile, text: str) -> None:
    with pytest.raises(StoreUnusable, match=text):
        async with open_store(source.url):
            pass


@pytest.mark.parametrize("keys", [(), (KEY,)], ids=["plain", "encrypted"])
async def test_a_move_keeps_every_row_and_the_keys_for_them(
    source: SQLiteFile, target: PostgresSchema, keys: Sequence[str]
) -> None:
    rows, secret = await filled(source, *keys, many=MANY)
    done = move(source, target)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"copied {MANY + len(rows)} tasks, ")
    await has_all(target, rows, secret, *keys, many=MANY)
    await refuses(source, rf"the store was moved to postgresql://.*\?schema={target.schema}: use that one")
    if keys:
        with pytest.raises(StoreUnusable, match="encrypted"):
            async with store_in(target):
                pass


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS)))
async def test_a_file_of_an_older_version_is_moved(source: SQLiteFile, target: PostgresSchema, version: int) -> None:
    task = make_task(idempotency_key="once")
    old_file(source.folder / "tasks.db", version, task)
    assert move(source, target).returncode == 0
    async with store_in(target) as kept:
        assert await kept.get(task.id, task.owner) == task
        assert await kept.create(make_task(idempotency_key="once")) == task
        assert await kept.count_all(TaskFilter()) == 1


async def test_a_server_that_still_has_the_old_store_open_writes_nothing_more(
    source: SQLiteFile, target: PostgresSchema
) -> None:
    task = make_task(idempotency_key="once")
    async with open_store(source.url) as kept:
        await kept.create(task)
        assert move(source, target).returncode == 0
        before = [source.execute(f"SELECT * FROM {table}") for table in ("tasks", "leases", "notes", "secrets")]
        for write in (
            lambda: kept.create(make_task()),
            lambda: kept.create(make_task(), durable=False),
            lambda: kept.change(task.id, task.owner, lambda row: bind(row, "h", NOON)),
            lambda: kept.change(task.id, task.owner, lambda _: None),
            lambda: kept.lease("a", "b", lasting=timedelta(seconds=1)),
            lambda: kept.delete_expired(LATER, LATER),
            lambda: kept.add_note("a", "b", 1, until=LATER),
            lambda: kept.put_note("a", "b", 1, until=LATER),
            lambda: kept.secret("new"),
            kept.check,
        ):
            with pytest.raises(StoreUnavailable, match="was moved to"):
                await write()
        assert await kept.get(task.id, task.owner) == task  # its clients can read on until it is stopped
        assert [source.execute(f"SELECT * FROM {table}") for table in ("tasks", "leases", "notes", "secrets")] == before


async def test_a_target_in_use_leaves_both_stores_as_they_were(source: SQLiteFile, target: PostgresSchema) -> None:
    rows, secret = await filled(source)
    task = make_task()
    async with store_in(target) as kept:
        await kept.create(task)
    done = move(source, target)
    assert done.returncode == 1
    assert "has tasks or notes already: name another schema" in done.stderr
    await has_all(source, rows, secret)
    async with store_in(target) as kept:
        assert await kept.list_all() == [task]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (f"postgresql://ann:{SECRET}@127.0.0.1:1/db", "cannot be reached"),
        (f"postgresql://ann:{SECRET}/x@host/db", "percent-encoded"),
        (f"//ann:{SECRET}@host/db", "no store for"),
        ("sqlite:///other.db", "FROM must be an SQLite store, TO a PostgreSQL one"),
    ],
)
async def test_a_target_that_is_not_there_leaves_the_source_usable(source: SQLiteFile, url: str, reason: str) -> None:
    rows, secret = await filled(source)
    done = store("copy", source.url, url)
    assert done.returncode == 1
    assert reason in done.stderr
    assert SECRET not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    await has_all(source, rows, secret)


async def test_a_copy_that_fails_midway_is_undone_on_both_sides(source: SQLiteFile, target: PostgresSchema) -> None:
    rows, secret = await filled(source, many=MANY)
    async with store_in(target):
        pass
    target.execute("ALTER TABLE notes ADD CHECK (false)")  # tasks come before them
    done = move(source, target)
    assert (done.returncode, done.stdout) == (1, "")
    assert target.execute("SELECT count(*) FROM tasks") == [("0",)]
    async with open_store(source.url) as kept:
        await kept.check()
        await kept.create(make_task(tool="many"))
    target.execute("ALTER TABLE notes DROP CONSTRAINT notes_check")
    assert move(source, target).returncode == 0
    await has_all(target, rows, secret, many=MANY + 1)


async def copying(target: PostgresSchema) -> None:
    """Wait until a copy waits for a lock of the target."""
    waits = f"relation = '{target.schema}.notes'::regclass AND NOT granted"
    with anyio.fail_after(TIMEOUT):
        while target.execute(f"SELECT count(*) FROM pg_locks WHERE {waits}") != [("1",)]:
            await anyio.sleep(0.02)


async def test_a_copy_whose_connection_is_lost_begins_again_with_the_first_row(
    source: SQLiteFile, target: PostgresSchema
) -> None:
    rows, secret = await filled(source, many=MANY)
    async with store_in(target):
        pass
    process = start([COMMAND, "store", "copy", source.url, target.url])
    with target.server.holding(f"LOCK TABLE {target.schema}.notes IN EXCLUSIVE MODE"):
        await copying(target)
        waiting = f"SELECT pid FROM pg_locks WHERE relation = '{target.schema}.notes'::regclass AND NOT granted"
        target.execute(f"SELECT pg_terminate_backend(pid) FROM ({waiting}) AS found")
        await copying(target)
    assert await to_thread.run_sync(process.wait, TIMEOUT) == 0
    await has_all(target, rows, secret, many=MANY)


@pytest.mark.parametrize("committed", [False, True], ids=["before its commit", "after its commit"])
async def test_a_copy_that_is_killed_is_finished_by_the_same_command(
    source: SQLiteFile, target: PostgresSchema, committed: bool
) -> None:
    rows, secret = await filled(source, many=MANY)
    async with store_in(target):
        pass
    process = start([COMMAND, "store", "copy", f"{source.url}?busy_timeout_ms=60000", target.url])
    with closing(sqlite3.connect(source.folder / "tasks.db", isolation_level=None)) as other:
        with target.server.holding(f"LOCK TABLE {target.schema}.notes IN EXCLUSIVE MODE"):
            await copying(target)
            if committed:
                other.execute("BEGIN IMMEDIATE")  # so that the source cannot be marked
            else:
                process.kill()
                process.wait()
        if committed:
            await until(lambda: target.execute("SELECT count(*) FROM notes") == [("1",)])
            assert process.poll() is None
            process.kill()
            process.wait()
    await refuses(source, "is being moved to .*: finish it with the same `mcp-workflows store copy` again")
    elsewhere = store("copy", source.url, target.url.replace(target.schema, f"{target.schema}x"))
    assert elsewhere.returncode == 1
    assert "is being moved to" in elsewhere.stderr
    done = move(source, target)
    assert (done.returncode, done.stderr) == (0, "")
    await has_all(target, rows, secret, many=MANY)
    await refuses(source, "was moved to")
    again = move(source, target)
    assert again.returncode == 1
    assert "was moved to" in again.stderr


async def test_a_relative_path_is_that_of_the_current_folder(source: SQLiteFile, target: PostgresSchema) -> None:
    rows, secret = await filled(source)
    (source.folder / "below").mkdir()
    assert store("copy", "sqlite:///../tasks.db", target.url, cwd=source.folder / "below").returncode == 0
    await has_all(target, rows, secret)
    missing = store("copy", "sqlite:///missing.db", target.url, cwd=source.folder)
    assert missing.returncode == 1
    assert f"there is no store {source.folder}/missing.db" in missing.stderr
    assert not (source.folder / "missing.db").exists()


# --- backups


def config(folder: Path, url: str, more: str = "") -> str:
    path = folder / "workflows.yaml"
    path.write_text(f'store: {{url: "{url}"{more}}}\n{FINE}')
    return str(path)


@pytest.mark.parametrize("key", ["", KEY], ids=["plain", "encrypted"])
async def test_a_backup_has_all_rows_while_others_write(source: SQLiteFile, key: str) -> None:
    keys = [key] if key else []
    rows, secret = await filled(source, *keys)
    written = config(source.folder, source.url, f", encryption: {{keys: [{key}]}}" if key else "")
    copied = source.folder / "copied"
    copied.mkdir()
    target, stopped, made = copied / "tasks.db", anyio.Event(), list[str]()
    async with store_in(source, *keys) as kept, anyio.create_task_group() as group:

        async def write() -> None:
            while not stopped.is_set():
                made.append((await kept.create(make_task(tool="many"))).id)
                await anyio.lowlevel.checkpoint()

        async def back_up() -> None:
            await until(lambda: len(made) > 10)
            before = len(made)
            done = await to_thread.run_sync(lambda: store("backup", str(target), written))
            assert (done.returncode, done.stderr) == (0, "")
            assert len(made) > before, "they went on meanwhile"
            stopped.set()

        group.start_soon(write)
        group.start_soon(back_up)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert [file.name for file in copied.iterdir()] == ["tasks.db"]
    async with store_in(SQLiteFile(copied), *keys) as kept:
        found = {task.id for task in await kept.list_all(TaskFilter(tool="many"), limit=100_000)}
        await kept.check()
    assert found == set(made[: len(found)])
    assert len(found) > 10
    await has_all(SQLiteFile(copied), rows, secret, *keys, many=len(found))


async def test_a_backup_never_replaces_a_file(source: SQLiteFile) -> None:
    await filled(source)
    written, target = config(source.folder, source.url), source.folder / "there"
    target.write_text("mine")
    for path in (target, source.folder / "no-folder" / "file"):
        done = store("backup", str(path), written)
        assert done.returncode == 1
        assert f"the backup {path} cannot be made" in done.stderr
    assert target.read_text() == "mine"
    assert not (source.folder / "no-folder").exists()


async def test_a_store_on_postgresql_is_backed_up_by_its_own_means(target: PostgresSchema, tmp_path: Path) -> None:
    done = store("backup", str(tmp_path / "file"), config(tmp_path, target.url))
    assert done.returncode == 1
    assert "use pg_dump" in done.stderr
    assert not (tmp_path / "file").exists()


# --- migrations


def test_tables_are_made_for_a_server_that_may_not(target: PostgresSchema, tmp_path: Path) -> None:
    written = config(tmp_path, target.url, ", migrate: false")
    refused = run([COMMAND, "check", written])
    assert refused.returncode == 1
    assert "run `mcp-workflows store migrate`" in refused.stdout + refused.stderr
    for _ in range(2):
        done = store("migrate", written)
        assert (done.returncode, done.stdout) == (0, "the store's tables match this version\n")
    assert run([COMMAND, "check", written]).returncode == 0


def test_an_sqlite_file_is_migrated(tmp_path: Path) -> None:
    old_file(tmp_path / "tasks.db", 1, make_task())
    assert store("migrate", config(tmp_path, f"sqlite:///{tmp_path}/tasks.db")).returncode == 0
    assert SQLiteFile(tmp_path).execute("PRAGMA user_version") == [(len(MIGRATIONS),)]
