"""Goals (v), (w) and (x) of `make bench ENGINE=dbos`: durable functions beside FastMCP's tasks.

Both sides are what users have: a sidecar that runs a file of workflows, and a FastMCP server, each on core 0 with all
that it needs. Redis is measured where its server is installed.
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
from scripts.bench_dbos_flows import DONE, GATE
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
from scripts.engines import BIN
from scripts.environments import FASTMCP, python_of
from scripts.processes import Child, Command, free_port
from scripts.stack import ROOT

HALF: Final = 10  # tasks that have ended when a process is killed, and as many that run: FastMCP runs no more at once
SIZES: Final = (0, 1_000, 2_000)  # tasks, for memory
LISTENERS: Final = 10  # clients at once, for notifications; see HALF
ENDS: Final = 10  # of each of them
_SECONDS: Final = (0.5, 3.0)  # after its start in which a workflow ends
_PATIENCE: Final = 60.0  # seconds for tasks to end after a kill
_FLOWS: Final = ROOT / "scripts" / "bench_dbos_flows.py"
_FASTMCP: Final = ROOT / "tests" / "clients" / "fastmcp_bench.py"
_TOOLS: Final = ("echo", "stepped", "brief", "work")
_ECHO: Final = to_result("echo", {"a": 1})
_ALWAYS: Final = ("--appendonly", "yes", "--appendfsync", "always")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A way to have tasks: a server, and the process that keeps its tasks if there is one."""

    name: str
    server: Callable[[Path, int, int], Command]  # of a folder, its own port and the port of the keeper
    keeper: Callable[[Path, int], Command] | None = None


@dataclass(slots=True)
class Processes:
    """The processes of a contender over one folder."""

    place: Place
    contender: Contender
    folder: Path
    keeper: Served | None = None
    servers: list[Served] = field(default_factory=list[Served])

    @property
    def all(self) -> Sequence[Served]:
        """The servers that were started, and the keeper."""
        return [*self.servers, *([self.keeper] if self.keeper else [])]

    def start(self) -> Served:
        """Start the keeper and a server."""
        if self.contender.keeper is not None:
            port = free_port()
            self.keeper = self.place.serving(self.contender.keeper(self.folder, port), port)
        return self.start_server()

    def start_server(self) -> Served:
        """Start a server, also beside another one."""
        port = free_port()
        command = self.contender.server(self.folder, port, self.keeper.port if self.keeper else 0)
        self.servers.append(self.place.serving(command, port))
        return self.servers[-1]

    def kill(self, *served: Served) -> None:
        """Kill -9 these, or all that there are."""
        killed = served or self.all
        for each in killed:
            kill(each.child)
        self.servers = [each for each in self.servers if each not in killed]


def kill(child: Child) -> None:
    """Kill -9 a process, without asking it before."""
    child.end(time.monotonic())


def ours(name: str, **settings: object) -> Contender:
    """Return a sidecar with our workflows in its process and SQLite beside them; `settings` are those of its server."""

    def server(folder: Path, port: int, _: int) -> Command:
        module, config = shutil.copy(_FLOWS, folder), folder / "workflows.yaml"
        named = Path(module).stem
        tools = {each: {"engine": "app", "workflow": each, "input": f"{named}:{each}"} for each in _TOOLS}
        written = {
            "server": {"name": "bench", "drain": "0s", **settings},
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
    """Return a FastMCP server, its tasks in memory or in a Redis server."""
    python = str(python_of("fastmcp", FASTMCP))

    def server(folder: Path, port: int, keeper: int) -> Command:
        backend = f"redis://127.0.0.1:{keeper}/0" if keeper else "memory://"
        argv = [python, str(_FASTMCP), str(port), backend, str(folder)]
        return Command(name=f"fastmcp {port}", argv=argv, cwd=folder, env={})

    def run_redis(folder: Path, port: int) -> Command:
        argv = on_core_0(str(redis), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), *settings)
        return Command(name=f"redis {port}", argv=argv, cwd=folder, env={})

    return Contender(name=name, server=server, keeper=run_redis if redis else None)


def peers() -> Sequence[Contender]:
    """Return FastMCP with each of its backends; with Redis where a server of it is installed."""
    redis = shutil.which("redis-server")
    kept = (
        fastmcp("FastMCP, Redis as installed", redis),
        fastmcp("FastMCP, Redis that syncs each write", redis, *_ALWAYS),
    )
    return (fastmcp("FastMCP, in memory"), *(kept if redis else ()))


@contextmanager
def running(place: Place, contender: Contender) -> Generator[Processes]:
    """Have its processes in a new folder; they are killed at the end."""
    folder = place.folder / f"{contender.name}-{random.getrandbits(32):08x}".replace(" ", "-").replace(",", "")
    folder.mkdir()
    processes = Processes(place, contender, folder)
    try:
        processes.start()
        yield processes
    finally:
        processes.kill()


def compared_with_fastmcp(place: Place) -> Iterator[Line]:
    """(v) Tasks per second to their result, and what is left of tasks when processes are killed."""
    us, others = ours("ours on DBOS, SQLite"), peers()
    with ExitStack() as stack:
        served = [stack.enter_context(running(place, each)).servers[0] for each in (us, *others)]
        turns = [(each, _ECHO) for each in served]
        turns.insert(1, (served[0], to_result("stepped", {"a": 1})))
        rates = _rates(turns)
    first, steps, *theirs = rates
    for peer, rate in zip(others, theirs, strict=True):
        yield compared("v", f"tasks to their result, {CLIENTS} clients, to those of {peer.name}", ratio(first, rate))
    yield _with_losses(us.name, first, ours_left := survivors(place, us))
    yield beside("v", f"{us.name}, with a step each", f"{interval(steps).median:.0f} tasks/s")
    for peer, rate in zip(others, theirs, strict=True):
        yield _with_losses(peer.name, rate, survivors(place, peer))
    if not others[1:]:
        yield beside("v", "FastMCP, Redis", "no Redis server here")
    yield exactly("v", f"of ours, lost of {3 * 2 * HALF}", 3 * 2 * HALF - sum(ours_left.left.values()))


def _rates(turns: Sequence[tuple[Served, Callable[[Wire], object]]]) -> Sequence[Sequence[float]]:
    """Tasks per second of each, in rounds that alternate; the first warms up."""
    found: list[list[float]] = [[] for _ in turns]
    for number in range(ROUNDS + 1):
        order = list(zip(turns, found, strict=True))
        for (served, turn), rates in order if number % 2 else reversed(order):
            rates.append(turns_per_second(served, turn))
    return [rates[1:] for rates in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivors:
    """Tasks that ended with their result, by what was killed; and first steps done again in the first case."""

    left: Mapping[str, int]
    repeated: int
    seconds: float  # from the kill to the last of them, in the first case


def _with_losses(name: str, rates: Sequence[float], found: Survivors) -> Line:
    left = ", ".join(f"{what} {count}" for what, count in found.left.items())
    again = f"; done again: {found.repeated} of {HALF}; all there after {found.seconds:.0f} s"
    there = again if found.left["server"] == 2 * HALF else ""
    return beside("v", name, f"{interval(rates).median:.0f} tasks/s; of {2 * HALF} left: {left}{there}")


def survivors(place: Place, contender: Contender, patience: float = _PATIENCE) -> Survivors:
    """Kill -9 the server, everything, and one of two servers; count the tasks that have their result afterwards."""
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
            found[killed] = _count(processes.servers[0], wanted, patience)
            if killed == "server":
                seconds, done = time.monotonic() - began, _done(processes.folder)
                repeated = len(done) - len(set(done))
    return Survivors(left=found, repeated=repeated, seconds=seconds)


def _under_way(served: Served, folder: Path) -> Mapping[str, Any]:
    """The results that tasks should have, by task id: half of them have ended, the others are past their first step."""
    wanted: dict[str, Any] = {}
    with closing(served.wire()) as wire:
        for tool in ("echo", "work"):
            for number in range(HALF):
                task_id = wire.call(tool, {"a": number})["taskId"]
                wanted[task_id] = {"a": number}
                if tool == "echo":
                    finished(wire, task_id)
    deadline = time.monotonic() + PATIENCE
    while len(_done(folder)) < HALF:
        if time.monotonic() > deadline:
            raise BadReplyError(f"only {len(_done(folder))} of {HALF} tasks run after {PATIENCE:g} s")
        time.sleep(0.05)
    return wanted


def _done(folder: Path) -> Sequence[str]:
    file = folder / DONE
    return file.read_text().split() if file.exists() else ()


def _count(served: Served, wanted: Mapping[str, Any], patience: float) -> int:
    """How many of the tasks end with their result; a task that is unknown does not."""
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
    """(w) Memory of each process after so many tasks."""
    for contender in (ours("ours on DBOS, SQLite"), *peers()):
        with running(place, contender) as processes:
            sizes: dict[int, list[float]] = {}
            for size in SIZES:
                _end_tasks(processes.servers[0], size - max(sizes, default=0))
                sizes[size] = [psutil.Process(each.pid).memory_info().rss / 2**20 for each in processes.all]
        for name, values in zip(("server", "Redis"), zip(*sizes.values(), strict=True), strict=False):
            what = f"MiB after {', '.join(f'{size:,}' for size in SIZES)} tasks: {contender.name}, the {name}"
            measured = ", ".join(f"{value:.0f}" for value in values)
            yield Line(goal="w", what=what, measured=measured, series=dict(zip(SIZES, values, strict=True)))


def _end_tasks(served: Served, count: int) -> None:
    with ThreadPoolExecutor(CLIENTS) as pool:
        wires = [served.wire() for _ in range(CLIENTS)]
        for wire, number in zip(wires, range(CLIENTS), strict=True):
            pool.submit(_end_some, wire, len(range(number, count, CLIENTS)))


def _end_some(wire: Wire, count: int) -> None:
    for _ in range(count):
        _ECHO(wire)
    wire.close()


def told(place: Place) -> Iterator[Line]:
    """(x) From the end of a workflow to its client, a way of ours beside a backend of FastMCP's."""
    for way, peer in zip_longest(WAYS.items(), peers()):
        with ExitStack() as stack:
            asked: dict[str, Callable[[], Sequence[float]]] = {}
            if way is not None:
                served = stack.enter_context(running(place, ours("ours"))).servers[0]
                asked[way[0]] = partial(way[1], served.port)
            if peer is not None:
                served = stack.enter_context(running(place, peer)).servers[0]
                asked[f"{peer.name}, polled at its pollIntervalMs"] = partial(_by_polling, served.port)
            with ThreadPoolExecutor(LISTENERS * len(asked)) as pool:
                found = {name: [pool.submit(ask) for _ in range(LISTENERS)] for name, ask in asked.items()}
        for name, clients in found.items():
            lags = [lag for client in clients for lag in client.result()]
            yield beside("x", f"end to its client, of {len(lags)}, p50 / p99 / max: {name}", milliseconds(spread(lags)))


def _brief() -> Mapping[str, float]:
    return {"seconds": random.uniform(*_SECONDS)}


def _by_subscription(port: int) -> Sequence[float]:
    """Seconds from each end to its notification on a stream of `subscriptions/listen`."""
    found: list[float] = []
    for _ in range(ENDS):
        with closing(Wire(port)) as wire, closing(Wire(port)) as listener:
            task_id = wire.call("brief", _brief())["taskId"]
            for frame in listener.listen([task_id]):
                if frame.get("params", {}).get("status") == "completed":
                    break
            at = time.time()
        found.append(at - _get(port, task_id)["result"]["structuredContent"]["ended"])
    return found


def _by_session(port: int) -> Sequence[float]:
    """Likewise with `notifications/tasks/status` of a session."""
    found: list[float] = []
    with closing(Session(port)) as session, closing(session.again()) as listener:
        frames = listener.stream()
        for _ in range(ENDS):
            with closing(session.again()) as caller:
                task_id = caller.call("brief", _brief())["taskId"]
            for frame in frames:
                seen = frame.get("params", {})
                if (seen.get("taskId"), seen.get("status")) == (task_id, "completed"):
                    break
            at = time.time()
            with closing(session.again()) as caller:
                found.append(at - caller.result(task_id)["structuredContent"]["ended"])
    return found


def _by_polling(port: int) -> Sequence[float]:
    """Likewise with a look whenever the server wants one."""
    found: list[float] = []
    for _ in range(ENDS):
        with closing(Wire(port)) as wire:
            seen = wire.call("brief", _brief())
        while seen["status"] == "working":
            time.sleep(seen["pollIntervalMs"] / 1000)
            seen = _get(port, seen["taskId"])
        found.append(time.time() - seen["result"]["structuredContent"]["ended"])
    return found


def _get(port: int, task_id: str) -> Mapping[str, Any]:
    """`tasks/get` on a new connection: a server closes one that was idle for five seconds."""
    with closing(Wire(port)) as wire:
        return wire.get(task_id)


WAYS: Final[Mapping[str, Callable[[int], Sequence[float]]]] = {
    "ours, notified (2026-07-28)": _by_subscription,
    "ours, notified (2025-11-25)": _by_session,
    "ours, polled at its pollIntervalMs": _by_polling,
}
