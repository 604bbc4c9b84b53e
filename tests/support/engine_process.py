"""An engine in a process of its own, for tests: it can be killed, frozen and started again on its port."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

import psutil

from tests.support.child_processes import free_port
from tests.support.commands import Forked, start
from tests.support.waiting import TIMEOUT

_DIE_WITH_PARENT: Final = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL; kept over exec
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the parent is gone already")
os.execv(sys.argv[2], sys.argv[2:])
"""


class EngineProcess(ABC):
    """One engine on a free port, with a log in `folder`; dies with this process, however that ends (Linux)."""

    patience: ClassVar[float] = TIMEOUT  # seconds until an engine that does not answer is given up

    def __init__(self, folder: Path, port: int | None, log: str) -> None:
        self.folder = folder
        self.port = port or free_port()
        self.log = folder / log
        self._process: Forked | subprocess.Popen[bytes] | None = None

    @abstractmethod
    def argv(self) -> Sequence[str]:
        """What starts it."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it takes requests now."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start, or start again with what it has kept, and wait until it answers."""
        argv = self.argv()
        with self.log.open("ab") as log:
            if argv[0] == sys.executable:
                self._process = start(argv, stdout=log, stderr=log)
            else:
                argv = [sys.executable, "-c", _DIE_WITH_PARENT, str(os.getpid()), *argv]
                self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + self.patience
        while not self.answers():
            if self._running.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the engine does not answer; {self.log} ends:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.05)

    @property
    def is_running(self) -> bool:
        """Whether it was started, and neither stopped nor killed."""
        return self._process is not None

    def kill(self) -> None:
        """kill -9: nothing is flushed, nobody is told."""
        self._running.kill()
        self._running.wait()
        self._process = None

    def freeze(self) -> None:
        """SIGSTOP: connections stay open, nothing answers; returns when every thread has stopped."""
        self._running.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + TIMEOUT
        while any(psutil.Process(thread).status() != psutil.STATUS_STOPPED for thread in self._threads()):
            if time.monotonic() > deadline:
                raise RuntimeError("the engine does not stop")
            time.sleep(0.01)

    def _threads(self) -> Iterable[int]:
        return [thread.id for thread in psutil.Process(self._running.pid).threads()]

    def thaw(self) -> None:
        """SIGCONT: it goes on where it was."""
        self._running.send_signal(signal.SIGCONT)

    def end(self, wish: signal.Signals, seconds: float = TIMEOUT) -> int:
        """Ask it to end with this signal, and answer its exit code; raises if it takes longer."""
        self._running.send_signal(wish)
        code = self._running.wait(seconds)
        self._process = None
        return code

    def stop(self) -> None:
        """Stop if it runs; kill it if it takes longer than 10 s."""
        if self._process is None:
            return
        self.thaw()  # or it would not hear that it shall end
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    @property
    def _running(self) -> Forked | subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the engine does not run")
        return self._process
