"""The server of `commands.py`: it imports the command line and the adapters, and forks for each request."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
import time
from collections.abc import Collection, Sequence
from importlib import import_module, invalidate_caches
from pathlib import Path
from pkgutil import iter_modules
from types import FrameType
from typing import Final

from mcp_workflows.adapter import installed_adapters, load_adapter
from mcp_workflows.sidecar import cli
from tests.support.commands import COMMAND, INHERITED, MESSAGE_BYTES, STANDARD_FILES, Request, take_terminal
from tests.support.entry_points import remember_entry_points

_PR_SET_PDEATHSIG: Final = 1  # prctl(2), Linux only
_LOCAL_ENGINES: Final = frozenset({"mcp_workflows_google_local", "mcp_workflows_stepfunctions_local"})


def serve(line: socket.socket) -> Request | None:
    """Fork for each request: return it in the new process, and nothing in the server once the tests have ended."""
    statuses: dict[int, int] = {}  # of process ids: where to tell the exit status
    wakeup, woken = socket.socketpair()
    woken.setblocking(False)
    signal.signal(signal.SIGCHLD, _wake)
    signal.set_wakeup_fd(woken.fileno())
    while True:
        ready, _, _ = select.select([line, wakeup], [], [])
        if wakeup in ready:
            wakeup.recv(4096)
            _tell_statuses(statuses)
        if line not in ready:
            continue
        message, files, _, _ = socket.recv_fds(line, MESSAGE_BYTES, STANDARD_FILES + 1)
        if not message:
            for pid in statuses:
                os.kill(pid, signal.SIGKILL)
            return None
        request: Request = json.loads(message)
        for engine in _LOCAL_ENGINES.intersection(request["argv"][1:3]):
            program = f"{engine}.__main__"
            import_module(program)  # what it needs is there for all that are started
            del sys.modules[program]
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for each in (line, wakeup, woken):
                each.close()
            for status in (*statuses.values(), files[STANDARD_FILES]):
                os.close(status)
            _take(files[:STANDARD_FILES], request["ignored"])
            return request
        for each in files[:STANDARD_FILES]:
            os.close(each)
        statuses[pid] = files[STANDARD_FILES]
        os.write(statuses[pid], b"%d\n" % pid)


def _wake(_: int, __: FrameType | None) -> None:
    """A handler: without one there would be no wakeup."""


def _tell_statuses(statuses: dict[int, int]) -> None:
    while statuses:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        where = statuses.pop(pid)
        try:
            os.write(where, b"%d\n" % os.waitstatus_to_exitcode(status))
        except BrokenPipeError:
            pass
        finally:
            os.close(where)


def _take(files: Sequence[int], ignored: Collection[int]) -> None:
    """Make these the standard files, and the signals as they are after an `exec`."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    take_terminal()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for each in INHERITED:
        usual = signal.default_int_handler if each is signal.SIGINT else signal.SIG_DFL
        signal.signal(each, signal.SIG_IGN if each in ignored and not os.isatty(0) else usual)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def become(request: Request) -> None:
    """Run what is asked for, as this process."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    added = [each for each in request["env"].get("PYTHONPATH", "").split(os.pathsep) if each and each not in sys.path]
    sys.path[1:1] = added
    sys.dont_write_bytecode = bool(request["env"].get("PYTHONDONTWRITEBYTECODE"))
    invalidate_caches()
    if request["argv"][0] == COMMAND:
        sys.argv = request["argv"]
        sys.path[0] = str(Path(COMMAND).parent)
        import_module("mcp_workflows.__main__").main()
    else:
        _, _, module, *words = request["argv"]
        sys.argv = [module, *words]
        sys.path[0] = request["cwd"]
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def _preload() -> None:
    for module in iter_modules(cli.__path__, f"{cli.__name__}."):
        if not module.ispkg:
            import_module(module.name)
    remember_entry_points()
    for name in installed_adapters():
        load_adapter(name)
    gc.collect()
    gc.freeze()  # what is shared is not copied by the collector


if __name__ == "__main__":
    _preload()
    with socket.socket(fileno=int(sys.argv[1])) as from_tests:
        found = serve(from_tests)
    if found is not None:
        become(found)
