"""A store's file that is deleted, moved, replaced or damaged while it is open: nothing is kept there any more."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.errors import StoreUnavailable
from mcp_workflows.store.encryption import Cipher, new_key
from mcp_workflows.store.protocol import Store, open_store
from mcp_workflows.store.sqlite.store import SQLiteStore
from mcp_workflows.task import Task, bind
from mcp_workflows.testing import make_task
from tests.support.here import Scene, elder, over_http, scene
from tests.support.served import Peer, peer, site

pytestmark = pytest.mark.anyio

PAGE = 4096  # bytes
KEY = "one-key-for-one-execution-" * 2

LOST: Mapping[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "moved": lambda file: file.rename(file.with_suffix(".old")),
    "replaced": lambda file: shutil.copy(file, file.with_suffix(".new")) and file.with_suffix(".new").replace(file),
    "log deleted": lambda file: file.with_name("tasks.db-wal").unlink(),
    "index deleted": lambda file: file.with_name("tasks.db-shm").unlink(),
    "folder moved": lambda file: file.parent.rename(file.parent.with_suffix(".old")),
}

STEPS: Mapping[str, Callable[[Store, Task], Awaitable[object]]] = {
    "get": lambda store, task: store.get(task.id, task.owner),
    "notes_under": lambda store, _: store.notes_under("engine", ""),
    "due": lambda store, task: store.due(task.engine, task.created, 1),
    "create": lambda store, _: store.create(make_task()),
    "change": lambda store, task: store.change(task.id, task.owner, lambda row: bind(row, "h", row.created)),
    "change for now": lambda store, task: store.change(task.id, task.owner, lambda row: row, durable=False),
    "lease": lambda store, task: store.lease("it", "me", lasting=timedelta(1)),
    "add_note": lambda store, task: store.add_note("engine", "claim", "ours", until=task.created),
    "put_note": lambda store, task: store.put_note("engine", "claim", "ours", until=task.created),
    "sweep": lambda store, task: store.delete_expired(task.created, task.created),
    "secret": lambda store, _: store.secret("another"),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the store is."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "tasks.db"


@pytest.mark.parametrize("how", LOST)
async def test_nothing_is_read_or_written_in_a_file_that_nobody_finds_again(file: Path, how: str) -> None:
    async with open_store(f"sqlite:///{file}") as store:
        task = await store.create(make_task())
        LOST[how](file)
        for step in STEPS.values():
            with pytest.raises(StoreUnavailable, match="was deleted, moved or replaced"):
                await step(store, task)
        with pytest.raises(StoreUnavailable, match="deleted"):
            await store.check()


async def test_the_file_that_has_taken_the_place_of_another_is_left_alone_by_those_who_have_that_one_open(
    file: Path,
) -> None:
    async with open_store(f"sqlite:///{file}") as stale:
        task = await stale.create(make_task())
        LOST["deleted"](file)
        async with open_store(f"sqlite:///{file}") as store:
            rows = [await store.create(make_task()) for _ in range(20)]
            with pytest.raises(StoreUnavailable):
                await stale.get(task.id, task.owner)
            await stale.__aexit__(None, None, None)
            rows.append(await store.create(make_task()))
            await store.check()
        async with open_store(f"sqlite:///{file}") as store:
            assert [await store.get(row.id, row.owner) for row in rows] == rows


async def test_a_file_that_is_put_back_is_written_again(file: Path) -> None:
    async with open_store(f"sqlite:///{file}") as store:
        LOST["moved"](file)
        with pytest.raises(StoreUnavailable):
            await store.create(make_task())
        file.with_suffix(".old").rename(file)
        assert await store.create(make_task())
        await store.check()


# --- served


@asynccontextmanager
async def served(found: Scene) -> AsyncGenerator[Peer]:
    async with over_http(found) as url, peer(url) as client:
        yield client


def place(folder: Path) -> Scene:
    return scene(folder, "  forever: {engine: here, workflow: forever}\n  ask: {engine: here, workflow: ask}")


async def readiness(client: Peer) -> tuple[int, Mapping[str, Any]]:
    reply = await client.http.get(client.url.replace("/mcp", "/readyz"))
    return reply.status_code, reply.json()


async def test_a_replica_whose_file_was_deleted_starts_nothing_and_says_so_in_both_revisions(tmp_path: Path) -> None:
    stale, key = place(tmp_path), {"mcp-workflows/idempotencyKey": KEY}
    async with served(stale) as client, elder(client.url) as old:
        kept = (await client.call("forever")).result["taskId"]
        (tmp_path / "tasks.db").unlink()
        async with served(place(tmp_path)) as restarted:
            created = (await restarted.call("forever", meta=key)).result
            assert created["resultType"] == "task"
            assert (await readiness(restarted))[0] == 200
        refused = (await client.call("forever", meta=key)).error
        of_old = (await old.send("tools/call", {"name": "forever", "arguments": {}, "task": {}}))["error"]
        for error in (refused, of_old):
            assert error["code"] == -32603
            assert "was deleted, moved or replaced" in error["message"]
            assert "restart" in error["message"]
            assert str(tmp_path) not in str(error)
        status, body = await readiness(client)
        assert status == 503
        assert "was deleted, moved or replaced" in body["store"]
        assert (await client.send("tasks/get", {"taskId": kept})).code == -32603, "it is in no file any more"
    assert len(stale.engine.handles) == 2, "what was there before, and what the other replica has started"


async def test_an_answer_that_cannot_be_noted_does_not_reach_the_engine(file: Path) -> None:
    engine = MemoryAdapter(MemorySettings(name=str(file)))
    async with (
        site(store=f"sqlite:///{file}?busy_timeout_ms=50", adapters={"memory": engine}) as found,
        peer(found.url) as client,
    ):
        asking = (await client.call("ask")).result["taskId"]
        await client.until(asking, "input_required")
        yes = {"action": "accept", "content": {"answer": "yes"}}
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            refused = await client.answer(asking, question=yes)
            assert (refused.code, "locked" in refused.error["message"]) == (-32603, True)
            assert engine.calls["answer"] == 0
            other.execute("ROLLBACK")
        await client.answer(asking, question=yes)
        assert (await client.until(asking))["status"] == "completed"


# --- damage


@pytest.fixture(params=["plain", "encrypted"])
async def store(request: pytest.FixtureRequest, file: Path) -> AsyncGenerator[SQLiteStore]:
    """A store with rows enough to damage, all of them in the file."""
    cipher = Cipher([new_key()]) if request.param == "encrypted" else None
    async with SQLiteStore(f"sqlite:///{file}", cipher=cipher) as first:
        for number in range(200):
            await first.create(make_task(id=f"task-{number:03}", input=["x" * 2000]))
    async with SQLiteStore(f"sqlite:///{file}", cipher=cipher) as found:
        yield found


def overwritten(file: Path, start: int, end: int) -> bytes:
    """Garbage in the place of these pages; what was there before."""
    with file.open("r+b") as opened:
        opened.seek(start * PAGE)
        before = opened.read((end - start) * PAGE)
        opened.seek(start * PAGE)
        opened.write(os.urandom(len(before)))
    return before


def repaired(file: Path, start: int, before: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(start * PAGE)
        opened.write(before)


async def meets_damage(store: Store) -> None:
    async def read_all() -> None:
        for number in range(200):
            await store.get(f"task-{number:03}", "anna")

    with pytest.raises(StoreUnavailable, match="damaged"):
        await read_all()


async def test_a_file_found_damaged_is_not_ready_and_not_written_until_it_is_whole(
    store: SQLiteStore, file: Path
) -> None:
    await store.check()
    before = overwritten(file, 20, 200)
    await meets_damage(store)
    for check in (store.check, lambda: store.create(make_task()), store.check):
        with pytest.raises(StoreUnavailable, match="damaged: stop the server, restore the file from a backup"):
            await check()
    await store.check_integrity()
    with pytest.raises(StoreUnavailable, match="damaged"):
        await store.check()
    repaired(file, 20, before)
    await store.check_integrity()
    await store.check()
    assert await store.create(make_task())


async def test_damage_that_nobody_has_met_is_found_by_a_look_at_the_whole_file(
    store: SQLiteStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.check_integrity()
    overwritten(file, 20, 200)
    await store.check_integrity()
    await store.check()  # it was looked at just now
    monkeypatch.setattr("mcp_workflows.store.sqlite.store.INTEGRITY_EVERY", 0.0)
    monkeypatch.setattr("mcp_workflows.store.sqlite.store.INTEGRITY_UP_TO", PAGE)
    await store.check_integrity()
    await store.check()  # it is too large to be read as a whole
    monkeypatch.undo()
    monkeypatch.setattr("mcp_workflows.store.sqlite.store.INTEGRITY_EVERY", 0.0)
    await store.check_integrity()
    with pytest.raises(StoreUnavailable, match="damaged"):
        await store.check()


async def test_a_look_at_the_whole_file_that_was_cancelled_is_done_again(store: SQLiteStore, file: Path) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(store.check_integrity)
        await anyio.lowlevel.checkpoint()
        assert await store.get("task-000", "anna")
        group.cancel_scope.cancel()
    assert await store.create(make_task())
    await store.check()
    overwritten(file, 20, 200)
    await store.check_integrity()
    with pytest.raises(StoreUnavailable, match="damaged"):
        await store.check()


async def test_a_server_looks_at_its_file_in_the_background_and_is_not_ready_if_it_is_damaged(tmp_path: Path) -> None:
    async with served(place(tmp_path)) as client:
        await client.call("forever")
    size = (tmp_path / "tasks.db").stat().st_size // PAGE
    overwritten(tmp_path / "tasks.db", size - 3, size)
    async with served(place(tmp_path)) as client:
        with anyio.fail_after(60):
            while (found := await readiness(client))[0] == 200:
                await anyio.sleep(0.02)
        assert "damaged" in found[1]["store"]
