"""Many waiting tasks in one process; prints JSON.

`python -m scripts.bench_load polled FOLDER TASKS [STEP]` (which all executions tell), `memory FOLDER [listened]`, or
`listened FOLDER`.

The engine is a stub that counts what it is asked and can be swept; what is measured is all that lies above it, but for
HTTP: 10,000 clients that poll over HTTP need more than one core for the SDK alone.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from types import TracebackType

import psutil
from pydantic import BaseModel

from mcp_workflows.access import ANONYMOUS
from mcp_workflows.adapter import JSON, Adapter, Execution, Ref, Start, StartGuarantee, Status
from mcp_workflows.engines.polling.policy import PollingPolicy
from mcp_workflows.engines.registry import Engines
from mcp_workflows.sidecar.cli.serve import collect_rarely
from mcp_workflows.store.protocol import open_store
from mcp_workflows.task import Task
from mcp_workflows.tasks.executions import Executions
from mcp_workflows.tasks.service import TaskService
from mcp_workflows.tools.tool import Tool
from mcp_workflows.wire.commands import Call, Created, Get, Listen, TaskView
from scripts.bench_rounds import lags, pin, spread

TASKS = 10_000  # to listen to
CAP = 50.0  # engine calls per second
SETTLING = 15.0  # seconds until all pollers have come
MEASURED = 40.0  # seconds
ENDING = 100  # tasks that end meanwhile
BATCH = 500  # polls at once
SIZES = (10, 100, 1_000, 5_000, 10_000)
SLOPE_FROM = 1_000  # of them: what a process takes once is not a task's
RETENTION = timedelta(days=1)
_OUTPUT: JSON = {"type": "object", "properties": {"sku": {"type": "string"}, "total": {"type": "number"}}}


class Nothing(BaseModel):
    """No settings."""


class Stub(Adapter):
    """All executions go on until they are told to end; remembers when it told of each."""

    Settings = Nothing
    Options = Nothing
    starts = StartGuarantee.KEYED

    def __init__(self, settings: Nothing, step: str | None = None) -> None:
        """All executions tell this step."""
        self.step = step
        self.calls: list[float] = []
        self.verbs: Counter[str] = Counter()
        self.told: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.remembers = True

    async def __aenter__(self) -> Stub:
        """Nothing to open."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to close."""

    async def start(self, start: Start) -> str:
        """The handle is the key."""
        return start.key

    async def describe(self, ref: Ref) -> Execution:
        """One look."""
        self._count("describe")
        return self._seen(ref)

    async def describe_many(self, refs: Sequence[Ref]) -> Mapping[str, Execution]:
        """One sweep."""
        self._count("describe_many")
        return {ref.handle: self._seen(ref) for ref in refs}

    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        """Nobody asks."""

    async def cancel(self, ref: Ref) -> None:
        """Nobody cancels."""

    def _count(self, verb: str) -> None:
        self.calls.append(time.monotonic())
        self.verbs[verb] += 1

    def _seen(self, ref: Ref) -> Execution:
        if self.remembers:
            self.told[ref.handle] = time.monotonic()
        ended = ref.handle in self.ended
        return Execution(
            status=Status.SUCCEEDED if ended else Status.RUNNING,
            message=self.step,
            output={"total": 1} if ended else None,
            execution_id=f"{ref.handle}-",
            url=f"http://localhost:8233/workflows/{ref.handle}",
        )


@asynccontextmanager
async def service(folder: Path, stub: Stub, polling: PollingPolicy) -> AsyncGenerator[TaskService]:
    """All above the engine and below HTTP."""
    tool = Tool(name="order", engine="stub", workflow="FulfilOrder", output=_OUTPUT)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(f"sqlite:///{folder}/load-{os.getpid()}.db"))
        engines = await stack.enter_async_context(Engines({"stub": stub}))
        executions = Executions(store=store, engines=engines, retention=RETENTION, polling=polling)
        yield TaskService(
            tools={tool.name: tool}, executions=await stack.enter_async_context(executions), retention=RETENTION
        )


async def create(there: TaskService, count: int) -> list[str]:
    """So many tasks."""
    call = Call(tool="order", arguments={"sku": "A1"}, takes_tasks=True, takes_questions=True)
    ids: list[str] = []
    for _ in range(count):
        outcome = await there.call(call, ANONYMOUS, _quiet)
        assert isinstance(outcome, Created)
        ids.append(outcome.task.task_id)
    return ids


async def _quiet(_: Execution) -> None:
    """Nobody wants progress."""


async def polled(folder: Path, tasks: int, step: str | None) -> Mapping[str, JSON]:
    """So many waiting tasks, each with a poller that polls as often as it is told to."""
    stub = Stub(Nothing(), step)
    async with service(folder, stub, PollingPolicy(looks_per_second=CAP)) as there:
        ids = await create(there, tasks)
        handles = {row.id: row.handle or "" for task_id in ids for row in await _rows(there, task_id)}
        polls: list[tuple[float, float]] = []  # when, and how old what was told was
        noticed: list[float] = []
        intervals: list[int] = []

        async def poll(task_id: str) -> None:
            handle = handles[task_id]
            await asyncio.sleep(random.random() * 5)
            while True:
                seen = (await there.get(Get(task_id=task_id), ANONYMOUS)).task
                now = time.monotonic()
                if seen.status is Status.SUCCEEDED:
                    noticed.append(now - stub.ended[handle])
                    return
                polls.append((now, now - stub.told.get(handle, began)))
                intervals.append(seen.poll_interval_ms)
                await asyncio.sleep(seen.poll_interval_ms / 1000)

        began = time.monotonic()
        pollers = [asyncio.create_task(poll(task_id)) for task_id in ids]
        await asyncio.sleep(SETTLING)
        since, cpu = time.monotonic(), time.process_time()
        ending = random.sample(ids, min(ENDING, tasks // 2))
        for task_id in ending:
            await asyncio.sleep(MEASURED / 2 / ENDING)
            stub.ended[handles[task_id]] = time.monotonic()
        await asyncio.sleep(since + MEASURED - time.monotonic())
        cpu = time.process_time() - cpu
        for poller in pollers:
            poller.cancel()
        await asyncio.gather(*pollers, return_exceptions=True)
    calls = [at for at in stub.calls if at >= since]
    ages = [age for at, age in polls if at >= since]
    return {
        "tasks": tasks,
        "cap": CAP,
        "calls_per_second": len(calls) / MEASURED,
        "busiest_second": max(Counter(int(at - since) for at in calls).values()),
        "polls_per_second": len(ages) / MEASURED,
        "cores": cpu / MEASURED,
        "age": spread(ages),
        "noticed": spread(noticed),
        "missed": len(ending) - len(noticed),
        "poll_interval_ms": max(intervals),
        "sweeps": stub.verbs["describe_many"],
    }


async def _rows(there: TaskService, task_id: str) -> Sequence[Task]:
    return await there.listen(Listen(task_ids=(task_id,)), ANONYMOUS)


async def memory(folder: Path, listened: bool) -> Mapping[str, JSON]:
    """How much memory each waiting task takes, by the slope over three sizes; looked at, or also listened to."""
    stub = Stub(Nothing())
    stub.remembers = False
    sizes: list[tuple[int, int]] = []
    async with (
        service(folder, stub, PollingPolicy(looks_per_second=float("inf"))) as there,
        asyncio.TaskGroup() as group,
    ):
        ids: list[str] = []
        listeners: list[asyncio.Task[None]] = []
        for size in SIZES:
            new = await create(there, size - len(ids))
            ids += new
            if listened:
                rows = [row for task_id in new for row in await there.listen(Listen(task_ids=(task_id,)), ANONYMOUS)]
                listeners += [group.create_task(there.follow(row, _told, ANONYMOUS)) for row in rows]
            for _ in range(2):
                for batch in (ids[at : at + BATCH] for at in range(0, size, BATCH)):
                    await asyncio.gather(*(there.get(Get(task_id=task_id), ANONYMOUS) for task_id in batch))
            gc.collect()
            sizes.append((size, psutil.Process().memory_info().rss))
        for listener in listeners:
            listener.cancel()
    slope = _slope([(size, held) for size, held in sizes if size >= SLOPE_FROM])
    return {"slope": slope, "sizes": [list(pair) for pair in sizes]}


async def listened(folder: Path) -> Mapping[str, JSON]:
    """How late the event loop is while 10,000 tasks wait with a listener each, in a process set up as `serve` is."""
    stub = Stub(Nothing(), "packing")
    async with (
        service(folder, stub, PollingPolicy(looks_per_second=CAP)) as there,
        asyncio.TaskGroup() as group,
    ):
        collect_rarely()
        ids = await create(there, TASKS)
        rows = [row for task_id in ids for row in await _rows(there, task_id)]
        listeners = [group.create_task(there.follow(row, _told, ANONYMOUS)) for row in rows]
        await asyncio.sleep(SETTLING)
        with lags() as late:
            await asyncio.sleep(MEASURED)
        for listener in listeners:
            listener.cancel()
    return {"lag": spread(late), "collections": gc.get_stats()[2]["collections"]}


async def _told(_: TaskView) -> None:
    """A client that listens."""


def _slope(points: Sequence[tuple[int, int]]) -> float:
    """Least squares: bytes for each task."""
    x_mean = sum(x for x, _ in points) / len(points)
    y_mean = sum(y for _, y in points) / len(points)
    return sum((x - x_mean) * (y - y_mean) for x, y in points) / sum((x - x_mean) ** 2 for x, _ in points)


def main() -> None:
    """Measure, on core 0."""
    what, folder, *more = sys.argv[1:]
    pin(0)
    found = {
        "polled": lambda: polled(Path(folder), int(more[0]), more[1] if more[1:] else None),
        "memory": lambda: memory(Path(folder), "listened" in more),
        "listened": lambda: listened(Path(folder)),
    }[what]()
    print(json.dumps(asyncio.run(found)))


if __name__ == "__main__":
    main()
