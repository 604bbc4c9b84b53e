"""The goals of `make bench ENGINE=replicas`: what replicas on one PostgreSQL cost the engine, and how fast they are.

`python -m benchmarks.replicas PORT CONTROL_PORT STORE MODE TASKS NUMBER REPLICAS BEGIN SECONDS` is one replica: all
layers above the engine's API except HTTP towards clients. It prints JSON: the notifications of its clients, with times.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from heapq import heappush
from pathlib import Path
from typing import Any, Final

from benchmarks.control import QUOTAS, Control
from benchmarks.load import Clients, Mode, adapter, known_task, serving
from benchmarks.place import Place
from benchmarks.report import Line, at_most, beside, exactly, milliseconds, seconds, within
from benchmarks.rounds import ROUNDS, ratio, spread
from mcp_workflows.errors import StoreUnavailable
from mcp_workflows.sidecar.cli.serve import collect_rarely
from mcp_workflows.store.protocol import NO_CAPS, Caps, Store, TaskFilter, open_store
from mcp_workflows.task import Task
from tests.support.child_processes import Child, Command, stop_all
from tests.support.environments import ROOT
from tests.support.postgres_server import Postgres, new_schema

ENGINE: Final = "google"  # its quotas are divided, and it can describe many executions in one call
TASKS: Final = 3000
POLLED: Final = 10_000
ENDING: Final = 100
_STARTING: Final = 12.0  # seconds until all replicas run
_SETTLING: Final = {Mode.LISTEN: 75.0, Mode.POLL: 190.0}  # seconds until each has been polled on each replica
_MEASURED: Final = 60.0
_SLICES: Final = 6  # of that, which are compared in pairs
_KILL_AFTER: Final = 10.0
_WATCHED: Final = 0.01
_OPERATIONS: Final = 50  # of one round


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The measurements of one run with several replicas; times are of the monotonic clock."""

    calls: Sequence[tuple[str, float]]
    since: float
    orders: Mapping[str, float]  # by task, when it was ended
    replicas: Sequence[Mapping[str, Any]]  # what each printed
    ended: float | None = None  # when a replica was killed or stopped

    def per_slice(self) -> Sequence[float]:
        """The engine's calls in each part of the measured time."""
        length = _MEASURED / _SLICES
        found = [0] * _SLICES
        for _, at in self.calls:
            if 0 <= (part := int((at - self.since) // length)) < _SLICES:
                found[part] += 1
        return found

    def remote_delays(self) -> Sequence[float]:
        """Seconds from the observation of an end on one replica to the listeners of another one."""
        return [delay for each in self.replicas for delay in each["remote"]]


def calls(place: Place) -> Iterator[Line]:
    """Compare the calls to the engine, and measure how long a change takes to another replica."""
    one, *several = [_run(place, Mode.LISTEN, TASKS, count) for count in (1, 3, 5)]
    yield beside(f"engine calls/s of one process, {TASKS:,} executions", f"{sum(one.per_slice()) / _MEASURED:.2f}")
    for run in several:
        count = len(run.replicas)
        yield at_most(f"engine calls of {count} replicas, to one process", ratio(run.per_slice(), one.per_slice()), 1.1)
        took = spread(run.remote_delays())
        what = f"a change to a listener on another of {count} replicas, p50 / p99 / max"
        yield within(what, milliseconds(took), took["p50"], 0.030, "p50 <= 30 ms")
        yield within("", "", took["p99"], 0.150, "p99 <= 150 ms")
        missed = run.orders.keys() - {name for each in run.replicas for name in each["ends"]}
        yield exactly(f"ends that no client knew of, of {len(run.orders)}", len(missed))
        cores = ", ".join(f"{each['cores']:.2f}" for each in run.replicas)
        yield beside("cores in use by each replica", cores)


def takeover(place: Place) -> Iterator[Line]:
    """Measure how long it takes until others poll the executions of a replica that ended."""
    for sent, limit in ((signal.SIGKILL, 5.0), (signal.SIGTERM, 0.5)):
        run = _run(place, Mode.LISTEN, 300, 3, sent=sent)
        assert run.ended is not None
        taken = [min(at - run.ended for at in each["resharded"] if at > run.ended) for each in run.replicas]
        what = f"from {sent.name} of one of 3 replicas until the others own its executions"
        yield within(what, f"{max(taken):.2f} s", max(taken), limit, f"<= {limit:g} s")


def polled(place: Place) -> Iterator[Line]:
    """Poll many executions on three replicas, each client on another one every time."""
    run = _run(place, Mode.POLL, POLLED, 3)
    for quota in QUOTAS[ENGINE]:
        times = [at for api, at in run.calls if api == quota.api]
        rate = sum(run.since <= at < run.since + _MEASURED for at in times) / _MEASURED
        yield within(f"{quota.api}: calls/s", f"{rate:.2f}", rate, quota.refill, f"<= {quota.refill:g}")
        yield exactly(f"{quota.api}: calls that our share of the quota would refuse", quota.refused(times))
    yield beside("polls/s of clients", f"{sum(each['polls'] for each in run.replicas) / _MEASURED:.0f}")
    yield beside("polls that the store did not answer", sum(each["failed"] for each in run.replicas))
    late = [each["ends"][name] - at for name, at in run.orders.items() for each in run.replicas if name in each["ends"]]
    yield beside("from an end to its client, p50 / p99 / max", seconds(spread(late)))


def store(place: Place) -> Iterator[Line]:
    """Compare the operations of the two stores, each on the disk; and the room that rows take."""
    server, schema = place.postgres, new_schema()
    urls = f"sqlite:///{place.folder}/costs.db", server.url(schema)
    measured = f"SELECT pg_total_relation_size('{schema}.tasks')"
    sides, sizes = asyncio.run(_compare_stores(urls, lambda: int(server.run(measured))))
    for name, (sqlite, postgres) in sides.items():
        words = f"{statistics.median(sqlite) * 1e6:.0f}, {statistics.median(postgres) * 1e6:.0f} us"
        yield beside(f"{name}: PostgreSQL to SQLite; SQLite, PostgreSQL", f"{ratio(postgres, sqlite)}; {words}")
    yield beside("rows of 2 kB of JSON per GB, with indexes: SQLite, PostgreSQL", ", ".join(f"{n:,}" for n in sizes))


async def _compare_stores(
    urls: Sequence[str], size: Callable[[], int]
) -> tuple[Mapping[str, Sequence[list[float]]], Sequence[int]]:
    """Return for each operation the seconds of each round on each store, and the rows per GB of each."""
    found: dict[str, Sequence[list[float]]] = {}
    async with open_store(urls[0]) as sqlite, open_store(urls[1]) as postgres:
        stores = sqlite, postgres
        row = await sqlite.create(known_task(ENGINE, "cost", "cost"))
        await postgres.create(row)

        async def create(store: Store, caps: Caps = NO_CAPS) -> None:
            task = replace(known_task(ENGINE, "cost", new_schema()), input="-" * 1000)
            await store.create(task, caps)

        def touch(task: Task) -> Task:
            return replace(task, updated=task.updated + timedelta(seconds=1))

        operations: Mapping[str, Callable[[Store], Awaitable[object]]] = {
            "get": lambda store: store.get(row.id, row.owner),
            "create": create,
            "create under three caps": partial(
                create, caps=Caps(live_of_owner=10**6, live_of_tool=10**6, live_of_owner_and_tool=10**6)
            ),
            "change": lambda store: store.change(row.id, row.owner, touch),
            "change that need not be durable": lambda store: store.change(row.id, row.owner, touch, durable=False),
            "list of 20": lambda store: store.list_of_owner(row.owner, now=row.created, limit=20),
        }
        for name, operation in operations.items():
            found[name] = [], []
            for number in range(ROUNDS + 1):
                for store, into in zip(stores, found[name], strict=True):
                    began = time.perf_counter()
                    for _ in range(_OPERATIONS):
                        await operation(store)
                    if number:  # the first round warms up
                        into.append((time.perf_counter() - began) / _OPERATIONS)
        rows = await postgres.count_all(TaskFilter(live_only=False))
    file = urls[0].removeprefix("sqlite:///")
    return found, [int(rows / each * 1e9) for each in (os.stat(file).st_size, size())]


def _run(place: Place, mode: Mode, tasks: int, replicas: int, sent: signal.Signals | None = None) -> Run:
    """Run so many replicas with clients for all tasks; `sent`: end one of them by this signal."""
    server: Postgres = place.postgres
    url = server.url(new_schema())
    settling = _KILL_AFTER if sent else _SETTLING[mode]
    measured = 10.0 if sent else _MEASURED
    with place.stub(ENGINE) as control, ExitStack() as stack:
        names = control.order(seed=tasks, forget=True)
        asyncio.run(_store(url, [known_task(ENGINE, name, f"task-{number}") for number, name in enumerate(names)]))
        begin = time.monotonic() + _STARTING
        words = [str(control.port), str(control.control_port), url, mode, str(tasks)]
        children: list[Child] = []
        logs: list[Path] = []
        for number in range(replicas):
            last = [str(number), str(replicas), str(begin), str(settling + measured)]
            argv = [sys.executable, "-m", "benchmarks.replicas", *words, *last]
            logs.append(place.folder / f"replica-{time.monotonic_ns()}.log")
            children.append(Child(Command(name=f"replica {number}", argv=argv, cwd=ROOT, env={}), logs[-1]))
            stack.callback(stop_all, children[-1:])
        since, ended, orders = begin + settling, None, dict[str, float]()
        _until(since)
        if sent:
            ended = time.monotonic()
            os.kill(children.pop().pid, sent)
        else:
            for number in random.sample(range(tasks), ENDING):
                _until(since + len(orders) * measured / 2 / ENDING)
                orders[f"task-{number}"] = time.monotonic()
                control.order(end=[names[number]])
        _until(since + measured)
        found = control.report()["calls"]
        for child in children:
            child.wait()
        printed = [json.loads(log.read_text().splitlines()[-1]) for log, _ in zip(logs, children, strict=False)]
    return Run(calls=found, since=since, orders=orders, replicas=printed, ended=ended)


def _until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


async def _store(url: str, tasks: Sequence[Task]) -> None:
    async with open_store(url) as store:
        for task in tasks:
            await store.create(task, durable=False)


class Replica(Clients):
    """The clients of one replica."""

    def __init__(self, *given: Any, is_mine: Callable[[str], bool]) -> None:
        super().__init__(*given)
        self._is_mine = is_mine
        self.remote: list[float] = []
        self.failed = 0

    async def _poll(self, task_id: str, due: list[tuple[float, str]], every: int) -> None:
        try:
            await super()._poll(task_id, due, every)
        except StoreUnavailable:  # as a client does, try again
            self.failed += 1
            heappush(due, (time.monotonic() + random.uniform(5, 15), task_id))

    async def _note(self, task_id: str, view: Any) -> None:
        is_news = task_id not in self.ends
        await super()._note(task_id, view)
        if is_news and task_id in self.ends and not self._is_mine(task_id):
            self.remote.append(time.time() - view.updated.timestamp())


async def _serve(
    control: Control, url: str, mode: Mode, tasks: int, number: int, replicas: int, begin: float, until: float
) -> Any:
    there = adapter(ENGINE, control.port)
    async with there, serving(ENGINE, there, (), url) as (service, executions), asyncio.TaskGroup() as group:
        collect_rarely()
        peers = executions.replicas
        clients = Replica(service, mode, is_mine=peers.is_mine)
        polled = range(tasks) if mode is Mode.POLL else range(number, tasks, replicas)
        names = control.order()
        mine = [known_task(ENGINE, names[each], f"task-{each}") for each in polled]
        await asyncio.sleep(max(0.0, begin - time.monotonic()))
        following = group.create_task(clients.follow(mine, replicas, begin_within=_SETTLING[Mode.POLL]))
        resharded: list[float] = []
        known, cpu, began = peers.resharded, time.process_time(), time.monotonic()
        while time.monotonic() < until and not _is_stopped:
            await asyncio.sleep(_WATCHED)
            if known != peers.resharded:
                known = peers.resharded
                resharded.append(time.monotonic())
        cores = (time.process_time() - cpu) / (time.monotonic() - began)
        following.cancel()
    return {
        "ends": clients.ends,
        "remote": clients.remote,
        "resharded": resharded,
        "polls": sum(at >= until - _MEASURED for at in clients.polls),
        "failed": clients.failed,
        "cores": cores,
    }


_is_stopped: list[bool] = []


def main() -> None:
    """Run one replica."""
    port, control_port, url, mode, tasks, number, replicas, begin, length = sys.argv[1:]
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))  # replicas would be on different machines
    signal.signal(signal.SIGTERM, lambda _number, _frame: _is_stopped.append(True))
    control = Control(int(port), int(control_port))
    times = float(begin), float(begin) + float(length)
    print(json.dumps(asyncio.run(_serve(control, url, Mode(mode), int(tasks), int(number), int(replicas), *times))))


if __name__ == "__main__":
    main()
