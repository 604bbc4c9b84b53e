"""What the stopwatch of the tests counts, and what not: a bound that could never be missed would prove nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

from tests.support.stopwatch import stopwatch

SHOWN = """
import time
from tests.support.stopwatch import stopwatch
with stopwatch() as seconds:
    print("begun", flush=True)
    input()
    print(seconds(), flush=True)
"""


def test_waiting_counts() -> None:
    deadline = time.monotonic() + 20
    with stopwatch() as seconds:
        while seconds() < 0.3:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_stall_of_the_process_does_not() -> None:
    command, pipe = [sys.executable, "-c", SHOWN], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.7)
        print(file=process.stdin, flush=True)
        process.send_signal(signal.SIGCONT)
        assert float(process.stdout.readline()) < 0.4
