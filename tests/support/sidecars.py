"""Sidecars as the user runs them: processes of `mcp-workflows serve`, to be stopped and killed."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from tests.support.child_processes import free_port
from tests.support.commands import COMMAND, start
from tests.support.waiting import TIMEOUT

WORKFLOWS_YAML = """
server: {{name: tests}}
store: sqlite:///tasks.db
engines:
  temporal: {{adapter: temporal, address: "{address}", task_queue: {queue}}}
tools:
  slow:
    engine: temporal
    workflow: SlowCompute
    input: {{type: object, properties: {{seconds: {{type: number}}, label: {{type: string}}}}, required: [seconds]}}
    args: ["{{{{seconds}}}}", "{{{{label}}}}"]
  confirm:
    engine: temporal
    workflow: ConfirmDelete
    args: ["{{{{filename}}}}"]
"""


def write_config(folder: Path, address: str, queue: str) -> Path:
    """A configuration over the conformance fixtures' workflows, with its store beside it."""
    config = folder / "workflows.yaml"
    config.write_text(WORKFLOWS_YAML.format(address=address, queue=queue))
    return config


class Process:
    """One sidecar."""

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        log: Path,
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}/mcp"
        self.log = log
        with log.open("ab") as output:
            self.process = start(command, cwd=cwd, env=env, stdout=output, stderr=output)

    def wait_until_ready(self) -> None:
        """Until `/readyz` says yes; fails with the log if the process ends first."""
        deadline = time.monotonic() + TIMEOUT
        while not self._ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the sidecar is not ready:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.05)

    def _ready(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5) as response:
                return response.status == 200
        except (URLError, OSError):
            return False

    def stop(self) -> int:
        """SIGINT, which does not drain; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(TIMEOUT)


@contextmanager
def sidecar(config: Path, *options: str, port: int | None = None) -> Generator[Process]:
    """`mcp-workflows serve CONFIG --http ...`, ready."""
    chosen = port or free_port()
    command = [COMMAND, "serve", str(config), "--http", f"127.0.0.1:{chosen}", *options]
    with _running(command, chosen, config.with_suffix(".log")) as process:
        yield process


@contextmanager
def dying_sidecar(config: Path, step: str, *, port: int | None = None) -> Generator[Process]:
    """A sidecar that kills itself with SIGKILL at one step of the first creation or answer (`tests.support.dying`)."""
    chosen = port or free_port()
    command = [sys.executable, "-m", "tests.support.dying", str(config), str(chosen), step]
    with _running(command, chosen, config.with_suffix(".dying.log")) as process:
        yield process


@contextmanager
def _running(command: Sequence[str], port: int, log: Path) -> Generator[Process]:
    process = Process(command, port, log)
    try:
        process.wait_until_ready()
        yield process
    finally:
        if process.process.poll() is None:
            process.process.send_signal(signal.SIGKILL)
        process.process.wait(TIMEOUT)
