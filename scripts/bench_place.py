"""What `make bench` measures: servers on core 0, and Temporal with a worker for those that need it."""

from __future__ import annotations

import http.client
import json
import pstats
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from io import StringIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from scripts.bench_wire import Wire
from tests.support.child_processes import Child, Command, free_port, stop_all
from tests.support.environments import ROOT
from tests.support.local_engines import SAMPLES, TemporalDevServer

PATIENCE = 60.0  # seconds for each to serve
_TOP = 15  # lines of a profile that are printed
_IN_MEMORY = Path("/dev/shm")  # where it is not a disk's speed that is to be measured


class NotServingError(Exception):
    """A server or the engine does not answer."""


class Served:
    """One server of `scripts.bench_servers`."""

    def __init__(self, child: Child, port: int) -> None:
        self.child = child
        self.pid = child.pid
        self.port = port

    def wire(self) -> Wire:
        """A new connection to it."""
        return Wire(self.port)

    def calls(self) -> Mapping[str, int]:
        """How often its engine in memory was asked, by verb."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", "/calls")
        found: Mapping[str, int] = json.loads(connection.getresponse().read())
        connection.close()
        return found

    def answers(self) -> bool:
        """Whether it listens."""
        return listens(self.port)


def listens(port: int) -> bool:
    """Whether somebody does at this port."""
    try:
        Wire(port).close()
    except OSError:
        return False
    return True


class Place:
    """All that is started, stopped at the end. Use it with `with`."""

    def __init__(self, folder: Path, out: Path) -> None:
        self.folder = folder
        self.out = out
        self._stack = ExitStack()
        self._served: dict[str, Served] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def serve(self, kind: str, number: int = 0) -> Served:
        """The server of this kind and number; it stays for the other goals."""
        name = f"{kind}-{number}"
        if name not in self._served:
            self._served[name] = self._start(kind)
        return self._served[name]

    def profile(self, name: str, kind: str, work: Callable[[Served], object]) -> Sequence[str]:
        """The top of what a server of this kind spends its time on while it does that; all of it in a file."""
        stats = self.folder / f"{name}.prof"
        served = self._start(kind, str(stats))
        work(served)
        stop_all([served.child])
        text = StringIO()
        found = pstats.Stats(str(stats), stream=text)
        found.sort_stats("tottime").print_stats(60)
        self.out.mkdir(exist_ok=True)
        (self.out / f"bench-{name}.txt").write_text(text.getvalue())
        lines = [line.strip() for line in text.getvalue().splitlines() if line.strip()[:1].isdigit()]
        return [line.replace(f"{ROOT}/", "") for line in lines[1 : _TOP + 1]]

    def run(self, module: str, *words: str) -> Mapping[str, Any]:
        """The JSON that a module prints, run on core 0 in a process of its own."""
        log = self.folder / f"{module}-{'-'.join(words)}.log".replace("/", "_")
        argv = [sys.executable, "-m", f"scripts.{module}", *words]
        child = Child(Command(name=module, argv=argv, cwd=ROOT, env=self._environment()), log)
        self._stack.callback(stop_all, [child])
        child.wait()
        last = log.read_text().splitlines()[-1]
        found: Mapping[str, Any] = json.loads(last)
        return found

    def launch(self, command: Command, answers: Callable[[], bool]) -> Child:
        """Start it, and wait until it answers; it stays for the other goals, unless it is stopped before."""
        child = self._launch(command)
        _until(answers, f"the {child.name} does not answer", child)
        return child

    @contextmanager
    def running(self, command: Command, answers: Callable[[], bool]) -> Generator[Child]:
        """Likewise; it is stopped at the end of the block."""
        child = self.launch(command, answers)
        try:
            yield child
        finally:
            stop_all([child])

    @contextmanager
    def fast_folder(self) -> Generator[Path]:
        """A folder that is no disk, where there is such a thing; it is gone at the end."""
        with tempfile.TemporaryDirectory(dir=_IN_MEMORY if _IN_MEMORY.is_dir() else self.folder) as folder:
            yield Path(folder)

    @cached_property
    def temporal(self) -> TemporalDevServer:
        """A Temporal dev server with a worker for the sample's workflows."""
        engine = TemporalDevServer(self.folder)
        self._launch(engine.command())
        _until(engine.answers, "Temporal does not answer")
        folder = SAMPLES / "conformance"
        env = {**engine.environment(), "PYTHONPATH": str(folder)}
        self._launch(Command(name="worker", argv=[sys.executable, "worker.py"], cwd=folder, env=env))
        _until(lambda: engine.has_worker("conformance"), "the worker does not poll")
        return engine

    def fastmcp(self, python: str) -> Served:
        """FastMCP with its tasks companion, in its own environment."""
        port = free_port()
        script = str(ROOT / "tests" / "clients" / "programs" / "fastmcp_bench.py")
        command = Command(name="fastmcp", argv=[python, script, str(port)], cwd=ROOT, env={})
        return self.serving(command, port)

    def serving(self, command: Command, port: int) -> Served:
        """Start a server, and wait until it listens at this port; it stays until somebody ends it."""
        child = self._launch(command)
        served = Served(child, port)
        _until(served.answers, f"the {child.name} does not answer", child)
        return served

    def _start(self, kind: str, *profile: str) -> Served:
        needs_temporal = kind not in {"memory", "volatile", "bare"}
        env = self.temporal.environment() if needs_temporal else dict[str, str]()
        port = free_port()
        argv = [sys.executable, "-m", "scripts.bench_servers", kind, str(port), str(self.folder), *profile]
        return self.serving(Command(name=f"{kind} server", argv=argv, cwd=ROOT, env=env), port)

    def _launch(self, command: Command) -> Child:
        child = Child(command, self.folder / f"{command.name}.log")
        self._stack.callback(stop_all, [child])
        return child

    def _environment(self) -> Mapping[str, str]:
        return self.temporal.environment() if "temporal" in self.__dict__ else {}


def _until(condition: Callable[[], bool], complaint: str, child: Child | None = None) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if child is not None:
            child.check()
        if time.monotonic() > deadline:
            raise NotServingError(f"{complaint} after {PATIENCE:g} s")
        time.sleep(0.05)
