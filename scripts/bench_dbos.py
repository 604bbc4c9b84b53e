"""Goals (v), (w) and (x) of `make bench ENGINE=dbos`: durable functions beside FastMCP's tasks.

Both sides run as users run them: a sidecar that serves a file of workflows, and a FastMCP server, each on core 0 with
the processes that it needs. FastMCP on Redis is measured if a Redis server is installed.
"""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import psutil

from scripts.bench_clients import UNREACHED
from scripts.bench_goals import (
    CLIENTS,
    Line,
    beside,
    compared,
    exactly,
    finished,
    milliseconds,
    to_result,
    turns_per_second,
)
from scripts.bench_place import PATIENCE, Place, Served
from scripts.bench_rounds import ROUNDS, interval, on_core_0, ratio, spread
from scripts.bench_wire import BadReplyError, Session, Wire
from tests.support.child_processes import Child, Command, free_port
from tests.support.environments import FASTMCP, ROOT, python_of
from tests.support.local_engines import BIN

HALF: Final = 10  # tasks that have ended at a kill, and tasks that run: FastMCP runs no more at once
SIZES: Final = (0, 1_000, 2_000)  # tasks that have ended when memory is measured
LISTENERS: Final = 10  # clients at once that wait for ends; see HALF
ENDS: Final = 10  # tasks that each of these clients waits for
_SECONDS: Final = (0.5, 3.0)  # the shortest and the longest time that `brief` sleeps
_PATIENCE: Final = 60.0  # seconds for tasks to end after a kill
_FLOWS: Final = ROOT / "scripts" / "bench_dbos_flows.py"  # an import would register its workflows in this process
DONE: Final = "done"  # files of `work` there: a line for each first step that ran
GATE: Final = "gate"  # what it waits for
_FASTMCP: Final = ROOT / "tests" / "clients" / "programs" / "fastmcp_bench.py"
_TOOLS: Final = ("echo", "stepped", "brief", "work")
_ECHO: Final = to_result("echo", {"a": 1})
_SYNC_EACH_WRITE: Final = ("--appendonly", "yes", "--appendfsync", "always")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A server with tasks to compare, and the Redis server that holds its tasks, if it has one."""

    name: str
    server: Callable[[Path, int, int], Command]  # from a folder, its own port and the port of Redis (0: none)
    redis: Callable[[Path, int], Command] | None = None  # from a folder and its port


@dataclass(slots=True)
class Processes:
    """The processes of a contender, with their data in one folder."""

    place: Place
    contender: Contender
    folder: Path
    redis: Served | None = None
    servers: list[Served] = field(default_factory=list[Served])

    @property
    def all(self) -> Sequence[Served]:
        """The servers that run, and Redis."""
        return [*self.servers, *([self.redis] if self.redis else [])]

    def start(self) -> Served:
        """Start Redis, if the contender has it, and a server."""
        if self.contender.redis is not None:
            port = free_port()
            self.redis = self.place.serving(self.contender.redis(self.folder, port), port)
        return self.start_server()

    def start_server(self) -> Served:
        """Start a server, or one more."""
        port = free_port()
        command = self.contender.server(self.folder, port, self.redis.port if self.redis else 0)
        self.servers.append(self.place.serving(command, port))
        return self.servers[-1]

    def kill(self, *served: Served) -> None:
        """Kill these with SIGKILL, or all processes if none are given."""
        killed = served or self.all
        for each in killed:
            kill(each.child)
        self.servers = [each for each in self.servers if each not in killed]


def kill(child: Child) -> None:
    """Kill a process with SIGKILL, without SIGTERM before it."""
    child.end(time.monotonic())


def ours(name: str) -> Contender:
    """Return a sidecar that runs the workflows itself, on SQLite."""

    def server(folder: Path, port: int, _: int) -> Command:
        module, config = shutil.copy(_FLOWS, folder), folder / "workflows.yaml"
        named = Path(module).stem
        tools = {each: {"engine": "app", "workflow": each, "input": f"{named}:{each}"} for each in _TOOLS}
        written = {
            "server": {"name": "bench", "drain": "0s"},
            "store": f"sqlite:///{folder / 'tasks.db'}",
            "limits": UNREACHED,
            "engines": {"app": {"adapter": "dbos", "module": named}},
            "tools": tools,
        }
        config.write_text(json.dumps(written))  # JSON is YAML
        argv = on_core_0(str(BIN / "mcp-workflows"), "serve", str(config), "--http", f"127.0.0.1:{port}")
        return Command(name=f"sidecar {port}", argv=argv, cwd=folder, env={})

    return Contender(name=name, server=server)


def fastmcp(name: str, redis: str | None = None, *settings: str) -> Contender:
    """Return a FastMCP server with its tasks in memory, or in Redis; `settings` are options of `redis-server`."""
    python = str(python_of("fastmcp", FASTMCP))

    def server(folder: Path, port: int, redis_port: int) -> Command:
        backend = f"redis://127.0.0.1:{redis_port}/0" if redis_port else "memory://"
        argv = [python, str(_FASTMCP), str(port), backend, str(folder)]
        return Command(name=f"fastmcp {port}", argv=argv, cwd=folder, env={})

    def run_redis(folder: Path, port: int) -> Command:
        argv = on_core_0(str(redis), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), *settings)
        return Command(name=f"redis {port}", argv=argv, cwd=folder, env={})

    return Contender(name=name, server=server, redis=run_redis if redis else None)


def peers() -> Sequence[Contender]:
    """Return FastMCP in memory, and on Redis if its server is installed."""
    redis = shutil.which("redis-server")
    on_redis = (
        fastmcp("FastMCP, Redis as installed", redis),
        fastmcp("FastMCP, Redis that syncs each write", redis, *_SYNC_EACH_WRITE),
    )
    return (fastmcp("FastMCP, in memory"), *(on_redis if redis else ()))


@contextmanager
def running(place: Place, contender: Contender) -> Generator[Processes]:
    """Run the processes of a contender in a new folder within this context, and kill them at the end."""
    folder = place.folder / f"{contender.name}-{random.getrandbits(32):08x}".replace(" ", "-").replace(",", "")
    folder.mkdir()
    processes = Processes(place, contender, folder)
    try:
        processes.start()
        yield processes
    finally:
        processes.kill()


def compared_with_fastmcp(place: Place) -> Iterator[Line]:
    """(v) Completed tasks per second, and tasks that survive when processes are killed."""
    us, others = ours("ours on DBOS, SQLite"), peers()
    with ExitStack() as stack:
        served = [stack.enter_context(running(place, each)).servers[0] for each in (us, *others)]
        turns = [(each, _ECHO) for each in served]
        turns.insert(1, (served[0], to_result("stepped", {"a": 1})))
        our_rates, step_rates, *their_rates = _rates(turns)
    for peer, rates in zip(others, their_rates, strict=True):
        what = f"tasks to their result, {CLIENTS} clients, to those of {peer.name}"
        yield compared("v", what, ratio(our_rates, rates))
    yield _with_losses(us.name, our_rates, ours_left := survivors(place, us))
    yield beside("v", f"{us.name}, with a step each", f"{interval(step_rates).median:.0f} tasks/s")
    for peer, rates in zip(others, their_rates, strict=True):
        yield _with_losses(peer.name, rates, survivors(place, peer))
    if not others[1:]:
        yield beside("v", "FastMCP, Redis", "no Redis server here")
    yield exactly("v", f"of ours, lost of {3 * 2 * HALF}", 3 * 2 * HALF - sum(ours_left.left.values()))


def _rates(turns: Sequence[tuple[Served, Callable[[Wire], object]]]) -> Sequence[Sequence[float]]:
    """Return the tasks per second of each turn, in rounds of alternating order; the first round only warms up."""
    found: list[list[float]] = [[] for _ in turns]
    for number in range(ROUNDS + 1):
        order = list(zip(turns, found, strict=True))
        for (served, turn), rates in order if number % 2 else reversed(order):
            rates.append(turns_per_second(served, turn))
    return [rates[1:] for rates in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivors:
    """The number of tasks that completed with their result, by the processes that were killed."""

    left: Mapping[str, int]
    repeated: int  # first steps that ran twice, with the server killed
    seconds: float  # from the kill to the last result, with the server killed


def _with_losses(name: str, rates: Sequence[float], found: Survivors) -> Line:
    left = ", ".join(f"{what} {count}" for what, count in found.left.items())
    again = f"; done again: {found.repeated} of {HALF}; all there after {found.seconds:.0f} s"
    there = again if found.left["server"] == 2 * HALF else ""
    return beside("v", name, f"{interval(rates).median:.0f} tasks/s; of {2 * HALF} left: {left}{there}")


def survivors(place: Place, contender: Contender, patience: float = _PATIENCE) -> Survivors:
    """Kill the server, all processes, and one of two servers; count the tasks that complete afterwards."""
    found: dict[str, int] = {}
    repeated, seconds = 0, 0.0
    for killed in ("server", "everything", "one of two"):
        with running(place, contender) as processes:
            first = processes.servers[0]
            wanted, began = _under_way(first, processes.folder), time.monotonic()
            if killed == "everything":
                processes.kill()
                processes.start()
            elif killed == "server":
                processes.kill(first)
                processes.start_server()
            else:
                processes.start_server()
                processes.kill(first)
            (processes.folder / GATE).touch()
            found[killed] = _count_results(processes.servers[0], wanted, patience)
            if killed == "server":
                seconds, done = time.monotonic() - began, _first_steps(processes.folder)
                repeated = len(done) - len(set(done))
    return Survivors(left=found, repeated=repeated, seconds=seconds)


def _under_way(served: Served, folder: Path) -> Mapping[str, Any]:
    """Start tasks and return their expected results, by task id: half have ended, half are past their first step."""
    wanted: dict[str, Any] = {}
    with closing(served.wire()) as wire:
        for tool in ("echo", "work"):
            for number in range(HALF):
                task_id = wire.call(tool, {"a": number})["taskId"]
                wanted[task_id] = {"a": number}
                if tool == "echo":
                    finished(wire, task_id)
    deadline = time.monotonic() + PATIENCE
    while len(_first_steps(folder)) < HALF:
        if time.monotonic() > deadline:
            raise BadReplyError(f"only {len(_first_steps(folder))} of {HALF} tasks run after {PATIENCE:g} s")
        time.sleep(0.05)
    return wanted


def _first_steps(folder: Path) -> Sequence[str]:
    file = folder / DONE
    return file.read_text().split() if file.exists() else ()


def _count_results(served: Served, wanted: Mapping[str, Any], patience: float) -> int:
    """Return how many of the tasks complete with their result; an unknown task counts as lost."""
    deadline = time.monotonic() + patience
    with closing(served.wire()) as wire:
        return sum(_result(wire, task_id, deadline) == result for task_id, result in wanted.items())


def _result(wire: Wire, task_id: str, deadline: float) -> Any:  # any JSON value
    try:
        while (seen := wire.get(task_id))["status"] == "working" and time.monotonic() < deadline:
            time.sleep(0.1)
    except BadReplyError:
        return None
    return seen["result"]["structuredContent"] if seen["status"] == "completed" else None


def memory(place: Place) -> Iterator[Line]:
    """(w) Memory of each process after each number of completed tasks."""
    for contender in (ours("ours on DBOS, SQLite"), *peers()):
        with running(place, contender) as processes:
            sizes: dict[int, list[float]] = {}
            for size in SIZES:
                _complete_tasks(processes.servers[0], size - max(sizes, default=0))
                sizes[size] = [psutil.Process(each.pid).memory_info().rss / 2**20 for each in processes.all]
        for name, values in zip(("server", "Redis"), zip(*sizes.values(), strict=True), strict=False):
            what = f"MiB after {', '.join(f'{size:,}' for size in SIZES)} tasks: {contender.name}, the {name}"
            measured = ", ".join(f"{value:.0f}" for value in values)
            yield Line(goal="w", what=what, measured=measured, series=dict(zip(SIZES, values, strict=True)))


def _complete_tasks(served: Served, count: int) -> None:
    with ThreadPoolExecutor(CLIENTS) as pool:
        wires = [served.wire() for _ in range(CLIENTS)]
        for wire, number in zip(wires, range(CLIENTS), strict=True):
            pool.submit(_complete_some, wire, len(range(number, count, CLIENTS)))


def _complete_some(wire: Wire, count: int) -> None:
    for _ in range(count):
        _ECHO(wire)
    wire.close()


def notification_lags(place: Place) -> Iterator[Line]:
    """(x) Seconds from the end of a workflow until its client knows, ours beside FastMCP's."""
    for way, peer in zip_longest(WAYS.items(), peers()):
        with ExitStack() as stack:
            lags_by: dict[str, Callable[[], Sequence[float]]] = {}
            if way is not None:
                served = stack.enter_context(running(place, ours("ours"))).servers[0]
                lags_by[way[0]] = partial(way[1], served.port)
            if peer is not None:
                served = stack.enter_context(running(place, peer)).servers[0]
                lags_by[f"{peer.name}, polled at its pollIntervalMs"] = partial(_by_polling, served.port)
            with ThreadPoolExecutor(LISTENERS * len(lags_by)) as pool:
                found = {name: [pool.submit(wait) for _ in range(LISTENERS)] for name, wait in lags_by.items()}
        for name, clients in found.items():
            lags = [lag for client in clients for lag in client.result()]
            yield beside("x", f"end to its client, of {len(lags)}, p50 / p99 / max: {name}", milliseconds(spread(lags)))


def _brief_arguments() -> Mapping[str, float]:
    return {"seconds": random.uniform(*_SECONDS)}


def _by_subscription(port: int) -> Sequence[float]:
    """Return the seconds from each end to its notification on a stream of `subscriptions/listen`."""
    found: list[float] = []
    for _ in range(ENDS):
        with closing(Wire(port)) as wire, closing(Wire(port)) as listener:
            task_id = wire.call("brief", _brief_arguments())["taskId"]
            for frame in listener.listen([task_id]):
                if frame.get("params", {}).get("status") == "completed":
                    break
            at = time.time()
        found.append(at - _get(port, task_id)["result"]["structuredContent"]["ended"])
    return found


def _by_session(port: int) -> Sequence[float]:
    """Return the seconds from each end to its `notifications/tasks/status` in a session."""
    found: list[float] = []
    with closing(Session(port)) as session, closing(session.again()) as listener:
        frames = listener.stream()
        for _ in range(ENDS):
            with closing(session.again()) as caller:
                task_id = caller.call("brief", _brief_arguments())["taskId"]
            for frame in frames:
                seen = frame.get("params", {})
                if (seen.get("taskId"), seen.get("status")) == (task_id, "completed"):
                    break
            at = time.time()
            with closing(session.again()) as caller:
                found.append(at - caller.result(task_id)["structuredContent"]["ended"])
    return found


def _by_polling(port: int) -> Sequence[float]:
    """Return the seconds from each end to the `tasks/get` that finds it, polling at `pollIntervalMs`."""
    found: list[float] = []
    for _ in range(ENDS):
        with closing(Wire(port)) as wire:
            seen = wire.call("brief", _brief_arguments())
        while seen["status"] == "working":
            time.sleep(seen["pollIntervalMs"] / 1000)
            seen = _get(port, seen["taskId"])
        found.append(time.time() - seen["result"]["structuredContent"]["ended"])
    return found


def _get(port: int, task_id: str) -> Mapping[str, Any]:
    """Return the result of `tasks/get` on a new connection; a server closes one that was idle for five seconds."""
    with closing(Wire(port)) as wire:
        return wire.get(task_id)


WAYS: Final[Mapping[str, Callable[[int], Sequence[float]]]] = {
    "ours, notified (2026-07-28)": _by_subscription,
    "ours, notified (2025-11-25)": _by_session,
    "ours, polled at its pollIntervalMs": _by_polling,
}
