"""The processes of `make bench`: servers and sidecars on core 0, engines and stubs on core 1."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.control import AWS_CREDENTIALS, Control
from benchmarks.rounds import on_core_0
from benchmarks.servers import UNREACHED
from benchmarks.wire import Wire
from tests.support.child_processes import Child, Command, free_port, is_taken, stop_all
from tests.support.environments import ROOT
from tests.support.local_engines import BIN, SAMPLES, TemporalDevServer
from tests.support.postgres_server import Postgres, postgres

PATIENCE = 60.0  # seconds for each to serve
_IN_MEMORY = Path("/dev/shm")  # for stores where the speed of a disk is not measured


class NotServingError(Exception):
    """A server or the engine does not answer."""


@dataclass(frozen=True, slots=True)
class Served:
    """A server that listens."""

    child: Child
    port: int

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.child.pid

    def wire(self) -> Wire:
        """Return a new connection to it."""
        return Wire(self.port)


class Place:
    """A folder and the processes that run in it, which are stopped at the end. Use it with `with`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._served: dict[str, Served] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def serve(self, kind: str) -> Served:
        """Return the server of this kind (see `benchmarks.servers`); it stays for other goals."""
        if kind not in self._served:
            env = self.temporal.environment() if kind in {"temporal", "uncached", "naive"} else dict[str, str]()
            port = free_port()
            argv = [sys.executable, "-m", "benchmarks.servers", kind, str(port), str(self.folder)]
            self._served[kind] = self.start(Command(name=f"{kind} server", argv=argv, cwd=ROOT, env=env), port)
        return self._served[kind]

    def start(self, command: Command, port: int) -> Served:
        """Start a server, and wait until it listens at this port; it stays until it is ended."""
        return Served(self.launch(command, lambda: is_taken(port)), port)

    def launch(self, command: Command, answers: Callable[[], bool]) -> Child:
        """Start a process, and wait until it answers; it stays until it is ended."""
        child = Child(command, self.folder / f"{command.name.replace(' ', '-')}.log")
        self._stack.callback(stop_all, [child])
        deadline = time.monotonic() + PATIENCE
        while not answers():
            child.check()
            if time.monotonic() > deadline:
                raise NotServingError(f"the {child.name} does not answer after {PATIENCE:g} s")
            time.sleep(0.05)
        return child

    def run(self, module: str, *words: str) -> Mapping[str, Any]:
        """Run a module in a new process, and return the JSON that it prints."""
        log = self.folder / f"{module}-{'-'.join(words)}.log".replace("/", "_")
        child = Child(Command(name=module, argv=[sys.executable, "-m", module, *words], cwd=ROOT, env={}), log)
        self._stack.callback(stop_all, [child])
        child.wait()
        found: Mapping[str, Any] = json.loads(log.read_text().splitlines()[-1])
        return found

    @contextmanager
    def beside(self, module: str, *words: str) -> Generator[Path]:
        """Run a module in a new process within this context; yield the file of its output."""
        log = self.folder / f"{module}-{time.monotonic_ns()}.log"
        child = Child(Command(name=module, argv=[sys.executable, "-m", module, *words], cwd=ROOT, env={}), log)
        self._stack.callback(stop_all, [child])
        try:
            yield log
        finally:
            stop_all([child])

    @contextmanager
    def stub(self, engine: str) -> Generator[Control]:
        """Run the stub of an engine, without executions, within this context."""
        control = Control(free_port(), free_port())
        argv = [sys.executable, "-m", "benchmarks.stub", engine, str(control.port), str(control.control_port)]
        child = self.launch(Command(name=f"{engine} stub", argv=argv, cwd=ROOT, env={}), control.answers)
        try:
            yield control
        finally:
            control.close()
            stop_all([child])

    @contextmanager
    def sidecar(
        self, engine: Mapping[str, Any], tools: Mapping[str, Any], store: str, **server: Any
    ) -> Generator[Served]:
        """Run `mcp-workflows serve` within this context, with limits that are checked and not reached.

        `server` are further settings of the server.
        """
        port = free_port()
        command = sidecar_command(self.folder, port, engine, tools, store, **server)
        served = self.start(command, port)
        try:
            yield served
        finally:
            stop_all([served.child])

    @contextmanager
    def fast_folder(self) -> Generator[Path]:
        """Yield a folder in memory, where the system has one; it is removed at the end."""
        with tempfile.TemporaryDirectory(dir=_IN_MEMORY if _IN_MEMORY.is_dir() else self.folder) as folder:
            yield Path(folder)

    @cached_property
    def postgres(self) -> Postgres:
        """A PostgreSQL server that writes to the disk as it does for users."""
        return self._stack.enter_context(postgres("fsync=on", "full_page_writes=on"))

    @cached_property
    def temporal(self) -> TemporalDevServer:
        """A Temporal dev server with a worker for the sample's workflows."""
        engine = TemporalDevServer(self.folder)
        self.launch(engine.command(), engine.answers)
        folder = SAMPLES / "conformance"
        env = {**engine.environment(), "PYTHONPATH": str(folder)}
        worker = Command(name="worker", argv=[sys.executable, "worker.py"], cwd=folder, env=env)
        self.launch(worker, lambda: engine.has_worker("conformance"))
        return engine


def sidecar_command(
    folder: Path, port: int, engine: Mapping[str, Any], tools: Mapping[str, Any], store: str, **server: Any
) -> Command:
    """Return the command of a sidecar on core 0, whose configuration is written below `folder`."""
    written = {
        "server": {"name": "bench", "drain": "0s", **server},
        "store": store,
        "limits": UNREACHED,
        "engines": {"engine": engine},
        "tools": {name: {"engine": "engine", **tool} for name, tool in tools.items()},
    }
    config = folder / f"sidecar-{port}.yaml"
    config.write_text(json.dumps(written))  # JSON is YAML
    argv: Sequence[str] = on_core_0(str(BIN / "mcp-workflows"), "serve", str(config), "--http", f"127.0.0.1:{port}")
    return Command(name=f"sidecar {port}", argv=argv, cwd=folder, env=AWS_CREDENTIALS)
