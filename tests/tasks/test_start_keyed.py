"""An engine that dedupes by key: the disk takes the row while the engine starts it, and either may fail."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from mcp_workflows.adapter import Start
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import StoreUnavailable
from mcp_workflows.store.sqlite.file import LogFile
from mcp_workflows.store.sqlite.store import SQLiteStore
from mcp_workflows.task import Task
from mcp_workflows.tasks.start import TaskCreation
from mcp_workflows.testing import make_task
from mcp_workflows.units import utc_now
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Here:
    """What creates tasks, and what it uses."""

    create: Callable[[Task], Coroutine[None, None, Task]]
    store: SQLiteStore
    engine: MemoryAdapter

    async def row(self, task: Task) -> Task:
        """As the store has it."""
        row = await self.store.get(task.id, task.owner)
        assert row is not None
        return row


@asynccontextmanager
async def creation(folder: Path, kind: type[SQLiteStore] = SQLiteStore) -> AsyncGenerator[Here]:
    engine = MemoryAdapter(MemorySettings(name=str(folder)))
    async with kind(f"sqlite:///{folder}/tasks.db") as store, Engines({"memory": engine}) as engines:
        yield Here(TaskCreation(store, engines, utc_now).create, store, engine)


def new_task(idempotency_key: str | None = None) -> Task:
    now = utc_now()
    return make_task(
        engine="memory",
        workflow="forever",
        created=now,
        updated=now,
        expires=now + timedelta(days=1),
        idempotency_key=idempotency_key,
    )


async def test_an_engine_learns_whether_an_earlier_attempt_can_have_started_it(tmp_path: Path) -> None:
    attempts: list[int | None] = []

    class Noting(MemoryAdapter):
        async def start(self, start: Start) -> str:
            attempts.append(start.attempt)
            return await super().start(start)

    engine = Noting(MemorySettings(name=str(tmp_path)))
    engine.faults.lost_start_replies = 1
    async with SQLiteStore(f"sqlite:///{tmp_path}/tasks.db") as store, Engines({"memory": engine}) as engines:
        tasks = TaskCreation(store, engines, utc_now)
        await tasks.ensure_started(await tasks.create(new_task()))
    assert attempts == [1, 2]


async def test_nobody_is_told_of_a_task_before_it_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, sync = threading.Event(), LogFile.sync

    def wait(log: LogFile) -> float:
        synced.wait()
        return sync(log)

    monkeypatch.setattr(LogFile, "sync", wait)
    task = new_task()
    async with creation(tmp_path) as here:
        async with anyio.create_task_group() as group:
            group.start_soon(here.create, task)
            try:
                await until(lambda: bool(here.engine.handles))
                assert (await here.row(task)).pending(utc_now())
            finally:
                synced.set()
        assert not (await here.row(task)).pending(utc_now())


async def test_when_the_disk_fails_the_error_says_that_it_may_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(log: LogFile) -> float:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LogFile, "sync", broken)
    async with creation(tmp_path) as here:
        task = new_task(idempotency_key="k")
        with pytest.raises(StoreUnavailable, match="No space left on device; it may have started anyway"):
            await here.create(task)
        assert (await here.create(new_task(idempotency_key="k"))).id == task.id
        assert len(here.engine.handles) == 1
