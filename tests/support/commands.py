"""`mcp-workflows` and modules of the tests as processes that start at once: forked from one that has imported them.

    done = run([COMMAND, "check", str(config)])           # as subprocess.run, with text
    process = start([COMMAND, "serve", ...], stdout=log)  # as subprocess.Popen

To import the command and the adapters takes two seconds of a core, and hundreds of tests need a process of them. So
each process of pytest has one server (`fork_server.py`) that has imported them, and forks for each request. All else is
as it is after an `exec`: the process has the folder, environment, arguments and files that it is given, and it can be
signalled, killed and frozen. Most of what the interpreter reads when it starts (`PYTHONHASHSEED`, for example) would be
missed: then a process is started as usual. `tests/sidecar/cli/test_cli.py` and `tests/system/test_sidecar.py` run the
real command.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from typing import IO, Final, TypedDict

COMMAND: Final = str(Path(sys.executable).with_name("mcp-workflows"))
STANDARD_FILES: Final = 3  # standard input, output and error; a fourth file takes the process id and the exit status
INHERITED: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)  # if they are ignored, as `nohup` does it
MESSAGE_BYTES: Final = 1 << 20  # of a request at most
FOLLOWED: Final = frozenset({"PYTHONPATH", "PYTHONDONTWRITEBYTECODE"})  # variables that the server does as Python would
_ROOT: Final = Path(__file__).parents[2]
_SERVER_MODULE: Final = "tests.support.fork_server"


class Request(TypedDict):
    """A process to start: the arguments and the environment, as of `execve`, and the signals that it ignores."""

    argv: list[str]
    cwd: str
    env: dict[str, str]
    ignored: list[int]


@dataclass(slots=True)
class Forked:
    """A process of the server, with the names of `subprocess.Popen`."""

    args: Sequence[str]
    status: IO[bytes]
    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code if it has ended: minus the signal's number if one has ended it."""
        if self.returncode is None and select.select([self.status], [], [], 0)[0]:
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended.

        Raises:
            subprocess.TimeoutExpired: if it still runs after so many seconds.
        """
        if self.returncode is None:
            if not select.select([self.status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(list(self.args), timeout or 0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send it SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _end(self) -> None:
        with self.status:
            self.returncode = int(self.status.readline() or -signal.SIGKILL)


@dataclass(slots=True)
class _Server:
    """The server of this process, from its first use."""

    process: subprocess.Popen[bytes] | None = None
    line: socket.socket | None = None
    lock: Lock = field(default_factory=Lock)

    def fork(self, request: Request, files: Sequence[int]) -> Forked:
        sys.audit("subprocess.Popen", request["argv"][0], request["argv"], request["cwd"], request["env"])
        with self.lock:
            line = self.line or self._open()
        readable, writable = os.pipe()
        try:
            socket.send_fds(line, [json.dumps(request).encode()], [*files, writable])
        finally:
            os.close(writable)
        status = os.fdopen(readable, "rb", buffering=0)
        return Forked(request["argv"], status, int(status.readline()))

    def stop(self) -> None:
        if self.line is not None and self.process is not None:
            self.line.close()
            self.process.wait(60)
            self.process = self.line = None

    def _open(self) -> socket.socket:
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_BYTES)
        with theirs:
            command = [sys.executable, "-m", _SERVER_MODULE, str(theirs.fileno())]
            self.process = subprocess.Popen(
                command, cwd=_ROOT, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
            )
        return self.line


SERVER: Final = _Server()


def start(
    argv: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: IO[bytes] | int = subprocess.DEVNULL,
    stdout: IO[bytes] | int = subprocess.DEVNULL,
    stderr: IO[bytes] | int = subprocess.DEVNULL,
) -> Forked | subprocess.Popen[bytes]:
    """Start `mcp-workflows ...` or `python -m ...`, with files or `DEVNULL` as standard ones."""
    environment = dict(os.environ if env is None else env)
    if not _can_be_forked(argv, environment):
        return subprocess.Popen(
            argv, cwd=cwd, env=environment, stdin=stdin, stdout=stdout, stderr=stderr, preexec_fn=take_terminal
        )
    ignored = [int(each) for each in INHERITED if signal.getsignal(each) is signal.SIG_IGN]
    request = Request(argv=list(argv), cwd=str(cwd or Path.cwd()), env=environment, ignored=ignored)
    with open(os.devnull, "r+b") as nothing:
        files = [nothing if given == subprocess.DEVNULL else given for given in (stdin, stdout, stderr)]
        return SERVER.fork(request, [given if isinstance(given, int) else given.fileno() for given in files])


def run(
    argv: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    given: str = "",
    seconds: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Run it to its end, with this text on standard input, and return its code and what it has printed.

    Raises:
        subprocess.TimeoutExpired: if it runs longer; it is killed.
    """
    with TemporaryFile() as stdin, TemporaryFile() as stdout, TemporaryFile() as stderr:
        stdin.write(given.encode())
        stdin.seek(0)
        process = start(argv, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr)
        try:
            code = process.wait(seconds)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return subprocess.CompletedProcess(list(argv), code, _text(stdout), _text(stderr))


@dataclass(frozen=True, slots=True)
class Piped:
    """A process with pipes to its standard input and from its standard output, and a file with its standard error."""

    process: Forked | subprocess.Popen[bytes]
    stdin: IO[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]

    def finish(self, seconds: float = 60) -> tuple[bytes, str]:
        """Close standard input; return the rest of standard output and all of standard error once it has ended."""
        self.stdin.close()
        rest = self.stdout.read()
        self.process.wait(seconds)
        return rest, _text(self.stderr)


@contextmanager
def piped(argv: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Generator[Piped]:
    """Start a process to talk with; kill it at the end of the context."""
    their_input, ours = os.pipe()
    theirs, their_output = os.pipe()
    with open(ours, "wb", buffering=0) as stdin, open(theirs, "rb") as stdout, TemporaryFile() as stderr:
        try:
            process = start(argv, cwd=cwd, env=env, stdin=their_input, stdout=their_output, stderr=stderr)
        finally:
            os.close(their_input)
            os.close(their_output)
        try:
            yield Piped(process, stdin, stdout, stderr)
        finally:
            process.kill()
            process.wait()


def take_terminal() -> None:
    """Make standard input the terminal of this process, if it is one: Ctrl-C there is SIGINT here."""
    if os.isatty(0):
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def _can_be_forked(argv: Sequence[str], environment: Mapping[str, str]) -> bool:
    def read_at_start(of: Mapping[str, str]) -> Mapping[str, str]:
        return {name: value for name, value in of.items() if name.startswith("PYTHON") and name not in FOLLOWED}

    rewrites = "pytest" in argv[2:3]  # modules, when they are imported
    ours = argv[0] == COMMAND or (tuple(argv[:2]) == (sys.executable, "-m") and not rewrites)
    return sys.platform == "linux" and ours and read_at_start(environment) == read_at_start(os.environ)
