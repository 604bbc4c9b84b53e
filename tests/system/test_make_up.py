"""`make up`: three processes behind one, and nothing left when that one is told to stop."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import psutil
import pytest

from tests.support.child_processes import accept_interrupts, free_port

ROOT = Path(__file__).parents[2]
UP_WITHIN = 120.0  # seconds
DOWN_WITHIN = 60.0

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="what tells us that make is gone exists on Linux only")


@dataclass(frozen=True, slots=True, kw_only=True)
class Up:
    """A `make up` that says it is ready."""

    make: subprocess.Popen[bytes]
    port: int
    log: Path
    children: list[psutil.Process]

    @property
    def said(self) -> str:
        """All it printed so far."""
        return self.log.read_text()

    def child(self, words: str) -> psutil.Process:
        """The one whose command line has these words."""
        return next(child for child in self.children if words in " ".join(child.cmdline()))

    def is_gone(self) -> bool:
        """Whether nothing of it is left, and its port is free."""
        return not any(map(_lives, self.children)) and not _listens(self.port)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _wait(condition: Callable[[], bool], within: float) -> bool:
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _make(port: int, log: Path, **settings: str) -> subprocess.Popen[bytes]:
    words = [f"{name.upper()}={value}" for name, value in settings.items()]
    with log.open("wb") as output:
        return subprocess.Popen(
            ["make", "up", f"PORT={port}", *words],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=accept_interrupts,
        )


@contextmanager
def made_up(tmp_path: Path, **settings: str) -> Generator[Up]:
    """Run it until it is ready; whatever a test leaves of it is killed."""
    port = free_port()
    log = tmp_path / f"{port}.log"
    make = _make(port, log, **settings)
    ready = f"\nready: http://127.0.0.1:{port}/mcp\n"
    try:
        assert _wait(lambda: ready in log.read_text() or make.poll() is not None, UP_WITHIN), log.read_text()
        assert make.poll() is None, log.read_text()
        children = psutil.Process(make.pid).children(recursive=True)
        yield Up(make=make, port=port, log=log, children=children)
    finally:
        _clean_up(make, port)


def _clean_up(make: subprocess.Popen[bytes], port: int) -> None:
    if make.poll() is None:
        for child in psutil.Process(make.pid).children(recursive=True):
            child.kill()
        make.kill()
    make.wait()
    for state in (ROOT / ".cache" / "up").glob(f"*-{port}"):
        shutil.rmtree(state)


def test_a_signal_stops_all_of_it(tmp_path: Path) -> None:
    with made_up(tmp_path) as up:
        assert [_get(up.port, path) for path in ("/readyz", "/enginez")] == [200] * 2
        up.make.send_signal(signal.SIGTERM)
        assert _wait(up.is_gone, DOWN_WITHIN), up.said


@pytest.mark.slow
def test_two_run_side_by_side_and_a_part_that_dies_stops_all_of_one(tmp_path: Path) -> None:
    second_one = made_up(tmp_path, engine="stepfunctions", sample="conformance")
    with made_up(tmp_path) as first, second_one as second:
        _assert_all_stops_without(first, "worker.py", "worker")
        assert not second.is_gone()
        assert _get(second.port, "/readyz") == 200
        _assert_all_stops_without(second, "mcp-workflows serve", "sidecar")


ENDS: Mapping[str, Callable[[Up], None]] = {
    "an interrupt of make": lambda up: up.make.send_signal(signal.SIGINT),
    "Ctrl-C": lambda up: os.killpg(up.make.pid, signal.SIGINT),
    "a kill of make": lambda up: up.make.kill(),
    "a kill of what make started": lambda up: up.child("scripts.up").kill(),
}


@linux_only
@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_whatever_ends_it_leaves_nothing_running(end: Callable[[Up], None], tmp_path: Path) -> None:
    with made_up(tmp_path) as up:
        end(up)
        assert _wait(up.is_gone, DOWN_WITHIN), up.said


@linux_only
@pytest.mark.slow
def test_killing_what_make_started_leaves_no_process_of_airflow_running(tmp_path: Path) -> None:
    with made_up(tmp_path, engine="airflow", sample="release") as up:
        assert len(up.children) > 10
        up.child("scripts.up").kill()
        assert _wait(up.is_gone, DOWN_WITHIN), up.said


def _assert_all_stops_without(up: Up, words: str, name: str) -> None:
    up.child(words).kill()
    assert _wait(up.is_gone, DOWN_WITHIN), up.said
    assert up.make.wait(DOWN_WITHIN) == 2  # make's own code for a recipe that failed
    assert f"make up: the {name} ended by itself (killed by SIGKILL)" in up.said


@pytest.mark.slow
def test_a_signal_while_it_starts_stops_everything(tmp_path: Path) -> None:
    port = free_port()
    make = _make(port, tmp_path / "log")
    try:
        started = psutil.Process(make.pid)
        assert _wait(lambda: any("start-dev" in " ".join(_words(child)) for child in _below(started)), UP_WITHIN)
        children = _below(started)
        make.send_signal(signal.SIGTERM)
        assert _wait(lambda: not any(map(_lives, children)), DOWN_WITHIN), (tmp_path / "log").read_text()
    finally:
        _clean_up(make, port)


def _below(process: psutil.Process) -> list[psutil.Process]:
    return process.children(recursive=True)


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def test_a_taken_port_is_said_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
        make = _make(port, tmp_path / "log")
        assert make.wait(UP_WITHIN) == 2
    assert f"port {port} is taken; try another one: PORT={port + 1}" in (tmp_path / "log").read_text()


def test_an_unknown_engine_lists_what_there_is(tmp_path: Path) -> None:
    make = _make(free_port(), tmp_path / "log", engine="steam")
    assert make.wait(UP_WITHIN) == 2
    said = "no engine 'steam'; there is: airflow, buildbot, dbos, google, stepfunctions, temporal"
    assert said in (tmp_path / "log").read_text()


def _get(port: int, path: str) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()
