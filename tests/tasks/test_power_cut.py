"""A power cut at each step of a start: what was told is known, and a call repeated with its key starts nothing twice.

The disk has what it had at the last sync. What was written since is lost, though every process saw it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from mcp_workflows.adapter import Adapter, Start, StartGuarantee
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.engines.registry import Engines
from mcp_workflows.store.protocol import NO_CAPS, Caps
from mcp_workflows.store.sqlite.store import SQLiteStore
from mcp_workflows.task import Task
from mcp_workflows.tasks.start import TaskCreation
from mcp_workflows.testing import FindableMemoryAdapter, FindableMemorySettings, make_task
from mcp_workflows.tools.prepare import Idempotency
from mcp_workflows.units import utc_now

LATER = timedelta(minutes=10)
STEPS = range(1, 13)


class PowerCut(BaseException):
    """The machine is off: no handler of errors runs on."""


class Machine:
    """Loses power at one step of those counted here."""

    def __init__(self, folder: Path, cut_at: int, *, is_slow: bool = False) -> None:
        self.memory, self.disk = folder / "memory", folder / "disk"
        self.memory.mkdir()
        self.is_slow = is_slow  # its disk: a start does not wait for it
        self._cut_at = cut_at
        self._steps = 0
        self._is_off = False

    def step(self) -> None:
        self._steps += 1
        self._is_off = self._is_off or self._steps == self._cut_at
        if self._is_off:
            raise PowerCut

    def flush(self) -> None:
        """All that was written is on disk."""
        if not self._is_off:
            shutil.rmtree(self.disk, ignore_errors=True)
            shutil.copytree(self.memory, self.disk, ignore=shutil.ignore_patterns("*-shm"))


class Volatile(SQLiteStore):
    """A store on that machine."""

    machine: Machine

    async def create(self, task: Task, caps: Caps = NO_CAPS, *, durable: bool = True) -> Task:
        """Committed, and perhaps on disk."""
        self.machine.step()
        row = await super().create(task, caps, durable=durable)
        self._done(durable)
        return row

    async def change(
        self, task_id: str, owner: str, change: Callable[[Task], Task | None], *, durable: bool = True
    ) -> Task | None:
        """Committed, and perhaps on disk."""
        self.machine.step()
        row = await super().change(task_id, owner, change, durable=durable)
        self._done(durable)
        return row

    async def sync(self, *, briefly: bool = False) -> bool:
        """On disk, unless that takes too long."""
        if briefly and self.machine.is_slow:
            return False
        self.machine.step()
        await super().sync()
        self._done(True)
        return True

    def release(self) -> None:
        """Close the file after the power cut, as the end of the process would."""
        assert self._opened
        self._opened.close()

    def _done(self, on_disk: bool) -> None:
        if on_disk:
            self.machine.flush()
        self.machine.step()


class Elsewhere(MemoryAdapter):
    """An engine on another machine, which goes on."""

    machine: Machine | None = None

    async def start(self, start: Start) -> str:
        """The power may fail before and after."""
        if self.machine:
            self.machine.step()
        handle = await super().start(start)
        if self.machine:
            self.machine.step()
        return handle


class FindableElsewhere(Elsewhere, FindableMemoryAdapter):
    """Each start is an execution of its own, which can be looked for."""


class OnceElsewhere(FindableElsewhere):
    """Nothing tells whether a start worked."""

    starts = StartGuarantee.ONCE


KINDS: dict[StartGuarantee, Callable[[str], Elsewhere]] = {
    StartGuarantee.KEYED: lambda name: Elsewhere(MemorySettings(name=name)),
    StartGuarantee.FINDABLE: lambda name: FindableElsewhere(FindableMemorySettings(name=name)),
    StartGuarantee.ONCE: lambda name: OnceElsewhere(FindableMemorySettings(name=name)),
}


def new_task(same: Idempotency) -> Task:
    """One that the client's key names at the engine, too; a key of a window does not."""
    now = utc_now()
    task = make_task(
        created=now,
        updated=now,
        expires=now + LATER * 2,
        engine="elsewhere",
        workflow="forever",
        idempotency_key=same.key,
    )
    if same is NAMING_THE_TASK:
        task = replace(task, input={"task": task.id})
    return task if same.window else replace(task, key=f"key-{same.key}")


async def create(store: SQLiteStore, adapter: Adapter, same: Idempotency, late: timedelta) -> Task:
    async with Engines({"elsewhere": adapter}) as engines:
        return await TaskCreation(store, engines, lambda: utc_now() + late).create(new_task(same), same=same)


async def cut_off(
    folder: Path, adapter: Elsewhere, cut_at: int, same: Idempotency, *, is_slow: bool = False
) -> Task | None:
    """The task that the client is told of before the power fails, if it is."""
    told: Task | None = None
    machine = Machine(folder, cut_at, is_slow=is_slow)
    store = Volatile(f"sqlite:///{machine.memory}/tasks.db")
    try:
        async with store:
            machine.flush()
            store.machine = adapter.machine = machine
            told = await create(store, adapter, same, timedelta())
    except PowerCut:
        store.release()
    adapter.machine = None
    return told


BY_KEY = Idempotency(key="a-key-of-the-client")
NAMING_THE_TASK = Idempotency(key="a-key-of-the-client", holds_at_engine=False)
BY_ARGUMENTS = Idempotency(key="digest", window=LATER * 2, since=utc_now() - LATER, holds_at_engine=False)


PROMISES = [*((promise, False) for promise in StartGuarantee), (StartGuarantee.KEYED, True)]


@pytest.mark.parametrize("cut_at", STEPS)
@pytest.mark.parametrize("same", [BY_KEY, NAMING_THE_TASK, BY_ARGUMENTS], ids=["key", "key, id sent", "arguments"])
@pytest.mark.parametrize(("promise", "is_slow"), PROMISES)
async def test_a_call_repeated_after_a_power_cut_starts_nothing_twice(
    tmp_path: Path, promise: StartGuarantee, is_slow: bool, same: Idempotency, cut_at: int
) -> None:
    adapter = KINDS[promise](str(tmp_path))
    told = await cut_off(tmp_path, adapter, cut_at, same, is_slow=is_slow)
    async with SQLiteStore(f"sqlite:///{tmp_path}/disk/tasks.db") as store:
        assert told is None or await store.get(told.id, told.owner)
        row = await create(store, adapter, same, LATER)
    assert told is None or row.id == told.id
    assert row.handle is not None or (promise is StartGuarantee.ONCE and row.ended)
    assert len(adapter.handles) == 1 or (promise is StartGuarantee.ONCE and not adapter.handles)


async def test_all_steps_are_cut(tmp_path: Path) -> None:
    adapter = KINDS[StartGuarantee.KEYED](str(tmp_path))
    assert await cut_off(tmp_path, adapter, STEPS[-1], BY_KEY, is_slow=True)
