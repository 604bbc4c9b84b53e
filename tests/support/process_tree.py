"""Run a program whose processes leave our process group: `python process_tree.py PROGRAM ARGUMENT ...`.

When this process is asked to end, or its parent is gone, or the program ends, all that it has started are killed.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from types import FrameType
from typing import Final

import psutil

_PR_SET_PDEATHSIG: Final = 1  # prctl(2), Linux only
_PR_SET_CHILD_SUBREAPER: Final = 36
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class _StopError(Exception):
    """We were asked to end."""


def main() -> int:
    """Return the exit code of the program; 0 when asked to end."""
    try:
        for number in _SIGNALS:
            signal.signal(number, _stop)
        if sys.platform == "linux":
            libc = ctypes.CDLL(None)
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # a process whose parent is gone becomes our child
        return subprocess.call(sys.argv[1:])
    except _StopError:
        return 0
    finally:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        while left := psutil.Process().children(recursive=True):
            for process in left:
                process.kill()
            psutil.wait_procs(left, timeout=1)


def _stop(number: int, frame: FrameType | None) -> None:
    raise _StopError


if __name__ == "__main__":
    sys.exit(main())
