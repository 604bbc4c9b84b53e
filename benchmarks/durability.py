"""The goals of `make bench ENGINE=dbos`: durable functions beside FastMCP's tasks.

Both sides run as users run them: a sidecar that serves a file of workflows, and a FastMCP server, each on core 0 with
the processes that it needs. FastMCP on Redis is measured if a Redis server is installed.
"""

from __future__ import annotations

import random
import shutil
import statistics
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.comparisons import CLIENTS, FASTMCP_SERVER, echo, rates
from benchmarks.place import PATIENCE, Place, Served, sidecar_command
from benchmarks.report import Line, at_least, beside, exactly
from benchmarks.rounds import on_core_0, ratio
from benchmarks.wire import BadReplyError, Wire
from tests.support.child_processes import Command, free_port
from tests.support.environments import FASTMCP, ROOT, python_of

HALF: Final = 10  # tasks that have ended at a kill, and tasks that run: FastMCP runs no more at once
KILLS: Final = ("the server", "all processes", "one of two servers")
_PATIENCE: Final = 60.0  # seconds for tasks to end after a kill
_FLOWS: Final = ROOT / "benchmarks" / "dbos_flows.py"  # an import would register its workflows in this process
_SYNC_EACH_WRITE: Final = ("--appendonly", "yes", "--appendfsync", "always")


@dataclass(slots=True, kw_only=True)
class Contender:
    """A server with tasks, and the Redis server of its tasks if it has one."""

    name: str
    server: Callable[[Path, int, int], Command]  # from a folder, its own port and that of Redis (0: none)
    redis_options: Sequence[str] | None = None
    folder: Path = Path()
    servers: list[Served] = field(default_factory=list[Served])
    redis: list[Served] = field(default_factory=list[Served])

    def start_server(self, place: Place) -> None:
        """Start a server, or one more."""
        port = free_port()
        command = self.server(self.folder, port, self.redis[0].port if self.redis else 0)
        self.servers.append(place.start(command, port))

    def start(self, place: Place) -> None:
        """Start Redis, if the contender has it, and a server."""
        if self.redis_options is not None:
            port = free_port()
            options = ("--port", str(port), "--bind", "127.0.0.1", "--dir", str(self.folder), *self.redis_options)
            argv = on_core_0(str(shutil.which("redis-server")), *options)
            self.redis = [place.start(Command(name=f"redis {port}", argv=argv, cwd=self.folder, env={}), port)]
        self.start_server(place)

    def kill(self, *killed: Served) -> None:
        """Kill these with SIGKILL, or all processes if none are given."""
        for each in killed or (*self.servers, *self.redis):
            each.child.end(time.monotonic())
        self.servers = [each for each in self.servers if killed and each not in killed]


def ours() -> Contender:
    """Return a sidecar that runs the workflows itself, on SQLite."""
    return Contender(name="ours on DBOS, SQLite", server=_sidecar)


def _sidecar(folder: Path, port: int, _: int) -> Command:
    module = Path(shutil.copy(_FLOWS, folder)).stem
    tools = {each: {"workflow": each, "input": f"{module}:{each}"} for each in ("echo", "work")}
    return sidecar_command(folder, port, {"adapter": "dbos", "module": module}, tools, f"sqlite:///{folder}/tasks.db")


def contenders() -> Sequence[Contender]:
    """Return ours, FastMCP in memory, and FastMCP on Redis if its server is installed."""
    python = str(python_of("fastmcp", FASTMCP))

    def server(folder: Path, port: int, redis_port: int) -> Command:
        backend = f"redis://127.0.0.1:{redis_port}/0" if redis_port else "memory://"
        argv = [python, str(FASTMCP_SERVER), str(port), backend, str(folder)]
        return Command(name=f"fastmcp {port}", argv=argv, cwd=folder, env={})

    kinds: Mapping[str, Sequence[str] | None] = {"in memory": None}
    if shutil.which("redis-server"):
        kinds = {**kinds, "Redis as installed": (), "Redis that syncs each write": _SYNC_EACH_WRITE}
    theirs = [Contender(name=f"FastMCP, {kind}", server=server, redis_options=each) for kind, each in kinds.items()]
    return [ours(), *theirs]


@contextmanager
def running(place: Place, contender: Contender) -> Generator[Contender]:
    """Run a contender in a new folder within this context, and kill its processes at the end."""
    contender.folder = place.folder / f"contender-{random.getrandbits(32):08x}"
    contender.folder.mkdir()
    try:
        contender.start(place)
        yield contender
    finally:
        contender.kill()


def throughput(place: Place) -> Iterator[Line]:
    """Compare tasks per second to their result."""
    compared = contenders()
    with ExitStack() as stack:
        served = [stack.enter_context(running(place, each)).servers[0] for each in compared]
        found = rates([(each, echo) for each in served])
    for contender, theirs in zip(compared, found, strict=True):
        yield beside(f"tasks/s, {CLIENTS} clients: {contender.name}", f"{statistics.median(theirs):.0f}")
    for contender, theirs in zip(compared[1:], found[1:], strict=True):
        yield at_least(f"ours to {contender.name}", ratio(found[0], theirs), 1.0)


def kill(place: Place) -> Iterator[Line]:
    """Count the tasks that complete although processes are killed: of `HALF` that have ended and `HALF` that run."""
    for contender in contenders():
        for killed in KILLS:
            left, repeated, took = survivors(place, contender, killed)
            what = f"{contender.name}, with kill -9 of {killed}"
            if contender.name == ours().name:
                yield exactly(f"{what}: tasks lost of {2 * HALF}", 2 * HALF - left)
            else:
                yield beside(f"{what}: tasks lost of {2 * HALF}", 2 * HALF - left)
            if left == 2 * HALF:
                yield beside("first steps that ran twice; until the last result", f"{repeated}; {took:.0f} s")


def survivors(place: Place, contender: Contender, killed: str) -> tuple[int, int, float]:
    """Kill processes; return the tasks that complete, the first steps that ran twice, and the seconds until all end."""
    with running(place, contender):
        first, wanted = contender.servers[0], dict[str, int]()
        with closing(first.wire()) as wire:
            for number in range(HALF):
                wanted[wire.complete("echo", {"a": number})] = number
                wanted[wire.call("work", {"a": number})["taskId"]] = number
        done, deadline = contender.folder / "done", time.monotonic() + PATIENCE
        while not done.exists() or len(done.read_text().split()) < HALF:
            if time.monotonic() > deadline:
                raise BadReplyError(f"{HALF} tasks of {contender.name} do not all run after {PATIENCE:g} s")
            time.sleep(0.05)
        began = time.monotonic()
        if killed == "all processes":
            contender.kill()
            contender.start(place)
        elif killed == "the server":
            contender.kill(first)
            contender.start_server(place)
        else:
            contender.start_server(place)
            contender.kill(first)
        (contender.folder / "gate").touch()
        deadline = time.monotonic() + _PATIENCE
        with closing(contender.servers[0].wire()) as wire:
            left = sum(_result(wire, task_id, deadline) == {"a": number} for task_id, number in wanted.items())
        steps = done.read_text().split()
    return left, len(steps) - len(set(steps)), time.monotonic() - began


def _result(wire: Wire, task_id: str, deadline: float) -> Any:  # any JSON value
    """Return the result of a task, or None if it is unknown or does not complete in time."""
    try:
        while (seen := wire.get(task_id))["status"] == "working" and time.monotonic() < deadline:
            time.sleep(0.1)
    except BadReplyError:
        return None
    return seen["result"]["structuredContent"] if seen["status"] == "completed" else None
