"""The load generator: many tasks with a client each, in one process; prints JSON.

`python -m benchmarks.load ENGINE PORT CONTROL_PORT FOLDER MODE` with a mode of `Mode`; the ports are those of the stub.
The load covers all layers above the engine's API except HTTP towards clients: 10,000 clients that poll over HTTP need
more than one core for the SDK alone. It begins as after a restart: the store knows all tasks.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import sys
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import partial
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.control import AWS_CREDENTIALS, MACHINE, QUOTAS, REPOSITORY, STEP, Control, settings
from benchmarks.report import Line, beside, exactly, milliseconds, seconds, within
from benchmarks.rounds import pin, spread
from mcp_workflows.access import ANONYMOUS
from mcp_workflows.adapter import Adapter, Execution, Status, load_adapter
from mcp_workflows.engines.registry import Engines
from mcp_workflows.sidecar.cli.serve import collect_rarely
from mcp_workflows.store.protocol import open_store
from mcp_workflows.task import Task
from mcp_workflows.tasks.executions import Executions
from mcp_workflows.tasks.service import TaskService
from mcp_workflows.tools.tool import Tool
from mcp_workflows.units import utc_now
from mcp_workflows.wire.commands import TaskView

RETENTION: Final = timedelta(days=1)
WORKFLOWS: Final = {"http": "deploy.yml"}
LAG: Final = 0.05  # seconds: the goal of the event loop
_TICK: Final = 0.01  # seconds


class Mode(StrEnum):
    """The activity of the clients."""

    LISTEN = "listen"
    EVENTS = "events"  # listen, and the engine sends its events
    POLL = "poll"


MEMORY_KB: Final = {Mode.LISTEN: 8000, Mode.EVENTS: 8000, Mode.POLL: 3000}
"""The goals of the memory for 1,000 tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The number of tasks, and times in seconds."""

    tasks: int = 10_000
    settling: float = 15.0
    measured: float = 45.0
    ending: int = 100  # tasks that end in the first half of `measured`
    asking: int = 0  # tasks that ask then


SIZES: Final[Mapping[tuple[str, Mode], Size]] = {
    ("stepfunctions", Mode.POLL): Size(tasks=1000, measured=90.0),
    ("stepfunctions", Mode.LISTEN): Size(asking=20),
    ("stepfunctions", Mode.EVENTS): Size(asking=20),
    ("google", Mode.LISTEN): Size(),
    ("http", Mode.LISTEN): Size(tasks=1000, settling=120.0, measured=480.0, ending=40, asking=10),
}


class Clients:
    """A client for each task, which listens or polls; the times at which they are notified."""

    def __init__(self, service: TaskService, mode: Mode) -> None:
        self._service = service
        self._mode = mode
        self.ends: dict[str, float] = {}
        self.questions: dict[str, float] = {}
        self.poll_interval_ms = 0  # the longest
        self.polls: list[float] = []

    async def follow(self, tasks: Sequence[Task], every: int = 1, begin_within: float = 5.0) -> None:
        """Listen to tasks, or poll each at its pollIntervalMs (or every so many of these), until they end."""
        async with asyncio.TaskGroup() as group:
            if self._mode is not Mode.POLL:
                for task in tasks:
                    note = partial(self._note, task.id)
                    group.create_task(self._service.follow(task, note, ANONYMOUS))
                return
            due = [(time.monotonic() + random.random() * begin_within, task.id) for task in tasks]
            heapify(due)
            while True:  # a client that polls over HTTP leaves nothing here between two polls
                while due and due[0][0] <= time.monotonic():
                    group.create_task(self._poll(heappop(due)[1], due, every))
                await asyncio.sleep(_TICK)

    async def _poll(self, task_id: str, due: list[tuple[float, str]], every: int) -> None:
        view = await self._service.get(task_id, ANONYMOUS)
        self.polls.append(time.monotonic())
        await self._note(task_id, view)
        if task_id not in self.ends:
            heappush(due, (time.monotonic() + every * view.poll_interval_ms / 1000, task_id))

    async def _note(self, task_id: str, view: TaskView) -> None:
        self.poll_interval_ms = max(self.poll_interval_ms, view.poll_interval_ms)
        if view.status is Status.SUCCEEDED:
            self.ends[task_id] = time.monotonic()
        elif view.status is Status.INPUT_REQUIRED:
            self.questions.setdefault(task_id, time.monotonic())


async def run_load(engine: str, control: Control, folder: Path, mode: Mode, size: Size) -> Mapping[str, Any]:
    """Run a client for each task while some end and some ask; return what was measured, times in seconds."""
    names = {f"task-{number}": name for number, name in enumerate(control.order(seed=size.tasks, forget=True))}
    tasks = [known_task(engine, name, task_id) for task_id, name in names.items()]
    there, store = adapter(engine, control.port, events=mode is Mode.EVENTS), f"sqlite:///{folder}/load.db"
    async with there, serving(engine, there, tasks, store) as (service, _), asyncio.TaskGroup() as group:
        collect_rarely()  # as `serve` does
        clients, rest = Clients(service, mode), tasks[size.tasks // 10 :]
        following = [group.create_task(clients.follow(tasks[: size.tasks // 10]))]
        await asyncio.sleep(size.settling / 2)
        memory = memory_bytes()
        following.append(group.create_task(clients.follow(rest)))
        await asyncio.sleep(size.settling)
        memory = memory_bytes() - memory
        since, cpu = time.monotonic(), time.process_time()
        lags: list[float] = []
        following.append(group.create_task(measure_lags(lags)))
        changed: dict[str, float] = {}
        chosen = random.sample(list(names), size.ending + size.asking)
        for number, task_id in enumerate(chosen):
            await asyncio.sleep(size.measured / 2 / len(chosen))
            changed[task_id] = time.monotonic()
            order = "end" if number < size.ending else "ask"
            await asyncio.to_thread(control.order, **{order: [names[task_id]]})
        await asyncio.sleep(since + size.measured - time.monotonic())
        cpu = time.process_time() - cpu
        report = await asyncio.to_thread(control.report)
        for each in following:
            each.cancel()
    ends, questions = set(chosen[: size.ending]), set(chosen[size.ending :])
    return {
        "tasks": size.tasks,
        "quotas": _quotas(engine, report["calls"], since, size.measured),
        "calls": sum(at >= since for _, at in report["calls"]) / size.measured,
        "polls": sum(at >= since for at in clients.polls) / size.measured,
        "ends": len(ends),
        "ends_missed": len(ends - clients.ends.keys()),
        "end": spread([at - changed[name] for name, at in clients.ends.items()]),
        "questions": len(questions),
        "questions_missed": len(questions - clients.questions.keys()),
        "question": spread([at - changed[name] for name, at in clients.questions.items()]),
        "age": spread(report["ages"]),
        "poll_interval_ms": clients.poll_interval_ms,
        "cores": cpu / size.measured,
        "lag": spread(lags),
        "memory": memory / len(rest) * 1000,  # bytes for 1,000 tasks
    }


def _quotas(engine: str, calls: Sequence[tuple[str, float]], since: float, measured: float) -> Sequence[Any]:
    """Return for each quota its API, the calls per second once settled, its refill, and the calls that it refuses."""
    found: list[Any] = []
    for quota in QUOTAS[engine]:
        times = [at for api, at in calls if quota.api in {"", api}]
        rate = sum(at >= since for at in times) / measured
        found.append([quota.api or "all", rate, quota.refill, quota.refused(times)])
    return found


def load_lines(found: Mapping[str, Any], mode: Mode) -> Iterator[Line]:
    """Return the lines of a load."""
    for api, rate, refill, refused in found["quotas"]:
        yield within(f"{api}: calls/s for {found['tasks']:,} tasks", f"{rate:.2f}", rate, refill, f"<= {refill:.3g}")
        yield exactly(f"{api}: calls that our share of the quota would refuse", refused)
    if found["polls"]:
        share = found["calls"] / found["polls"]
        yield beside("engine calls for a poll; polls/s", f"{share:.3f}; {found['polls']:.0f}")
    missed, what = found["ends_missed"], f"ends that no client knew of, of {found['ends']}"
    yield beside(what, missed) if mode is Mode.POLL else exactly(what, missed)
    yield beside("from an end to its client, p50 / p99 / max", seconds(found["end"]))
    if found["questions"]:
        missed, what = found["questions_missed"], f"questions that no client knew of, of {found['questions']}"
        yield beside(what, missed) if mode is Mode.LISTEN else exactly(what, missed)
        yield beside("from a question to its client, p50 / p99 / max", seconds(found["question"]))
    yield beside("age of what the engine last said of each, p50 / p99 / max", seconds(found["age"]))
    yield beside("pollIntervalMs; cores in use", f"{found['poll_interval_ms']}; {found['cores']:.2f}")
    kilobytes = found["memory"] / 1024
    limit = MEMORY_KB[mode]
    yield within("memory for 1,000 tasks", f"{kilobytes:,.0f} kB", kilobytes, limit, f"<= {limit:,} kB")
    lag = found["lag"]
    yield within("event loop lag, p50 / p99 / max", milliseconds(lag), lag["max"], LAG, f"max <= {LAG * 1e3:.0f} ms")


def adapter(engine: str, port: int, *, events: bool = False, **more: Any) -> Adapter:
    """Return our adapter in front of the stub at this port, with the quotas as shipped; `more` are further settings."""
    given = dict(settings(engine, port, events=events))
    kind = load_adapter(given.pop("adapter"))
    return kind(kind.Settings.model_validate({**given, **more}))


def handle_of(engine: str, name: str) -> str:
    """Return the handle of an execution, by the engine's name for it."""
    if engine != "http":
        return name
    workflow = WORKFLOWS["http"]
    parts = {"run": name, "workflow": workflow, "at": 0.0, "vars": REPOSITORY, "definition": "", "reply": None}
    return json.dumps({"v": 1, **parts})


def known_task(engine: str, name: str, task_id: str) -> Task:
    """Return a task as the store has it while its execution runs."""
    now, handle = utc_now(), handle_of(engine, name)
    return Task(
        id=task_id,
        owner=ANONYMOUS.id,
        tool="order",
        engine="engine",
        workflow=WORKFLOWS.get(engine, MACHINE),
        key=task_id,
        input=None,
        created=now - timedelta(minutes=10),
        updated=now - timedelta(minutes=9),
        expires=None,
        max_result=100_000,
        fingerprint="-",
        attempts=1,
        handle=handle,
        execution=Execution(status=Status.RUNNING, message=STEP, execution_id=handle),
    )


@asynccontextmanager
async def serving(
    engine: str, there: Adapter, tasks: Sequence[Task], url: str
) -> AsyncGenerator[tuple[TaskService, Executions]]:
    """Open all layers between the engine and HTTP, with these tasks in the store of this URL."""
    tool = Tool(name="order", engine="engine", workflow=WORKFLOWS.get(engine, MACHINE))
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(url))
        for task in tasks:
            await store.create(task)
        engines = await stack.enter_async_context(Engines({"engine": there}))
        executions = await stack.enter_async_context(Executions(store=store, engines=engines, retention=RETENTION))
        yield TaskService(tools={tool.name: tool}, executions=executions, retention=RETENTION), executions


def memory_bytes() -> int:
    """Return the resident memory of this process after a garbage collection."""
    gc.collect()
    return psutil.Process().memory_info().rss


async def measure_lags(into: list[float]) -> None:
    """Store how many seconds after its time the event loop runs a timer that is due every 10 ms."""
    while True:
        due = time.monotonic() + _TICK
        await asyncio.sleep(_TICK)
        into.append(max(0.0, time.monotonic() - due))


def main() -> None:
    """Run on core 0."""
    engine, port, control_port, folder, word = sys.argv[1:]
    mode = Mode(word)
    pin(0)
    os.environ.update(AWS_CREDENTIALS)
    control = Control(int(port), int(control_port))
    print(json.dumps(asyncio.run(run_load(engine, control, Path(folder), mode, SIZES[engine, mode]))))


if __name__ == "__main__":
    main()
