"""A real Prefect: a server, and a process that serves deployments, in an environment of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

from tests.support.engine_process import EngineProcess
from tests.support.environments import PREFECT, python_of

_FLOWS: Final = """
import time

from prefect import flow, serve, task
from prefect.artifacts import create_markdown_artifact
from prefect.flow_runs import pause_flow_run
from prefect.input import RunInput

class Approval(RunInput):
    answer: str

@task
def write(text):
    create_markdown_artifact(text, key="result")

@flow
def echo(text: str = ""):
    create_markdown_artifact(text, key="result")

@flow
def decline():
    raise ValueError("the card was declined")

@flow
def forever():
    time.sleep(600)

@flow
def ask():
    pause_flow_run(wait_for_input=Approval, timeout=600, poll_interval=1)

@flow
def approve():
    question = Approval.with_initial_data(description="Ship it?")
    write(pause_flow_run(wait_for_input=question, timeout=600, poll_interval=1).answer)

@flow
def hold():
    pause_flow_run(timeout=600, poll_interval=1)

FLOWS = (echo, decline, forever, ask, approve, hold)
if __name__ == "__main__":  # each run imports this file
    serve(*(each.to_deployment(each.name) for each in FLOWS))
"""


class Prefect(EngineProcess):
    """One server and one process that runs flows."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        super().__init__(folder, port, "server.log")
        self._runner = _Runner(folder, self.port)

    def argv(self) -> Sequence[str]:
        """In the foreground."""
        return _argv(self, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self.port))

    def answers(self) -> bool:
        """Whether it takes requests now."""
        return _deployments(self.url) is not None

    def start(self) -> None:
        """Start the server, and then what runs flows, unless it is running."""
        super().start()
        if not self._runner.is_running:
            self._runner.start()

    def stop(self) -> None:
        """Stop both."""
        self._runner.stop()
        super().stop()

    def deployment(self, name: str) -> str:
        """The id of one."""
        return (_deployments(self.url) or {})[name]

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"


class _Runner(EngineProcess):
    """Serves deployments: each run is a process of its own."""

    def __init__(self, folder: Path, server: int) -> None:
        super().__init__(folder, server, "runner.log")

    def argv(self) -> Sequence[str]:
        """In the foreground."""
        script = self.folder / "flows.py"
        script.write_text(_FLOWS)
        return _argv(self, str(script))

    def answers(self) -> bool:
        """Whether its deployments are there."""
        return len(_deployments(f"http://127.0.0.1:{self.port}") or ()) == _FLOWS.count("@flow")


def _argv(process: EngineProcess, *arguments: str) -> Sequence[str]:
    """Return Prefect's interpreter with these, and with settings of this folder alone."""
    settings = {
        "DO_NOT_TRACK": "1",
        "PREFECT_API_URL": f"http://127.0.0.1:{process.port}/api",
        "PREFECT_HOME": str(process.folder),
        "PREFECT_RUNNER_POLL_FREQUENCY": "1",  # seconds
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_ENABLED": "false",
    }
    given = [f"{name}={value}" for name, value in settings.items()]
    return ["/usr/bin/env", *given, str(python_of("prefect", PREFECT)), *arguments]


def _deployments(url: str) -> Mapping[str, str] | None:
    """Return the ids of deployments by name; None while the server does not answer."""
    try:
        return {each["name"]: each["id"] for each in _post(url, "deployments/filter")}
    except (OSError, ValueError):
        return None


def _post(url: str, path: str) -> Any:  # any JSON value
    request = Request(f"{url}/api/{path}", b"{}", {"content-type": "application/json"})
    with urlopen(request, timeout=5) as reply:
        return json.load(reply)
