"""Child processes with a log of their own: they are stopped politely, and never outlive us."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import cycle, islice
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # prctl(2), Linux only
_LIBC = ctypes.CDLL(None)

_PORTS = (15_000, 32_768)  # below the ephemeral ports of Linux, macOS and Windows
_LANES = 8  # processes that were started one after the other give out different ports
_TRIES = 100


class ChildDiedError(Exception):
    """A child ended by itself; the message says which, and holds the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to start: a name for people, the arguments, where, what to add to the environment, and how it is ended."""

    name: str
    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    stop: signal.Signals = signal.SIGTERM


class Child:
    """One started command, in a session of its own so that Ctrl-C reaches only us and we keep the order."""

    def __init__(self, command: Command, log: Path) -> None:
        self.name = command.name
        self._stop = command.stop
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command.argv,
                cwd=command.cwd,
                env={**os.environ, **command.env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_dying_with(os.getpid()),  # safe: we start children from one thread
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def check(self) -> None:
        """Raise `ChildDiedError` if it has ended."""
        code = self._process.poll()
        if code is not None:
            raise ChildDiedError(
                f"the {self.name} ended by itself ({_how(code)}); the end of {self._log.name}:\n{self.tail()}"
            )

    def wait(self) -> None:
        """Until it has ended well; raise `ChildDiedError` if it did not."""
        if self._process.wait():
            self.check()

    def tail(self, lines: int = 20) -> str:
        """The last lines of its log."""
        text = self._log.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join(f"  | {line}" for line in text) or "  | (nothing)"

    def ask_to_stop(self) -> None:
        """Send it the signal to."""
        self._signal(self._stop)

    def end(self, deadline: float) -> None:
        """Wait for its end until `deadline` (monotonic seconds), then kill it and all it started."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
            os.killpg(self._process.pid, number)


def stop_all(children: Iterable[Child], grace: float = 5.0) -> None:
    """Stop these together; whoever still lives after `grace` seconds is killed."""
    group = list(children)
    for child in group:
        child.ask_to_stop()
    deadline = time.monotonic() + grace
    for child in group:
        child.end(deadline)


@contextmanager
def running_server(
    command: Command, log: Path, port: int, *, pause: Callable[[float], None] = time.sleep
) -> Generator[Child]:
    """Run a server; yield it once it listens on this port of the loopback. `pause` is how to wait (seconds).

    Raises:
        ChildDiedError: it ended by itself before it listened.
    """
    child = Child(command, log)
    try:
        while not is_taken(port):
            child.check()
            pause(0.05)
        yield child
    finally:
        stop_all([child])


def die_with_parent(number: signal.Signals) -> None:
    """Have the kernel send us this signal when the process that started us is gone (Linux)."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, number)


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on now, and that the kernel gives to nobody who asks for any.

    Binding port 0 would answer with an ephemeral port: between now and its use, the next outgoing connection of
    any process may have got it. Nobody here gets it twice, either, before it is used: see `_in_turn`.
    """
    for port in islice(_in_turn(), _TRIES):
        if not is_taken(port):
            return port
    raise OSError(f"no free port of {_TRIES} tried from {_PORTS[0]} to {_PORTS[1] - 1}")


@cache
def _in_turn() -> Iterator[int]:
    """The ports of this process, in an order of its own: none comes again before all have come."""
    lane = range(_PORTS[0] + os.getpid() % _LANES, _PORTS[1], _LANES)
    return cycle(random.SystemRandom().sample(lane, len(lane)))


def is_taken(port: int) -> bool:
    """Whether somebody listens on this port of the loopback."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def accept_interrupts() -> None:
    """Stop ignoring SIGINT, which a process in the background of a shell ignores, and with it its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _dying_with(parent: int) -> Callable[[], None]:
    """Run between fork and exec: a child whose parent is killed is killed too."""

    def prepare() -> None:
        die_with_parent(signal.SIGKILL)
        accept_interrupts()
        if os.getppid() != parent:
            os._exit(1)

    return prepare


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
