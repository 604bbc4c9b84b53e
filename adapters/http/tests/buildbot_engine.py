"""A real Buildbot: a master with a worker of its own, in an environment of its own."""

from __future__ import annotations

import http.client
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.engine_process import EngineProcess
from tests.support.environments import BUILDBOT, python_of

_CONFIG = """
from buildbot.plugins import schedulers, steps, util, worker

def builder(name, *made):
    factory = util.BuildFactory(list(made))
    return util.BuilderConfig(name=name, workernames=["local"], factory=factory, collapseRequests=False)

def step(name, script, **more):
    return steps.ShellCommand(name=name, command=["sh", "-c", script], **more)

names = ["echo", "decline", "forever"]
c = BuildmasterConfig = {{
    "workers": [worker.LocalWorker("local", max_builds=20)],
    "protocols": {{"null": {{}}}},
    "builders": [
        builder("echo", step("say", "echo hi")),
        builder("decline", step("charge", "echo the card was declined; exit 1", haltOnFailure=True)),
        builder("forever", step("wait", "echo it waits; echo password=hunter22; sleep 600")),
    ],
    "schedulers": [
        schedulers.ForceScheduler(
            name="force",
            builderNames=names,
            properties=[util.StringParameter(name="text", label="text", default="")],
        )
    ],
    "www": {{"port": "tcp:{port}:interface=127.0.0.1", "plugins": {{}}}},
    "db": {{"db_url": "sqlite:///state.sqlite"}},
    "buildbotNetUsageData": None,
    "title": "tests",
    "buildbotURL": "http://127.0.0.1:{port}/",
}}
"""


class Buildbot(EngineProcess):
    """One master."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        super().__init__(folder, port, "buildbot.log")
        self._python = python_of("buildbot", BUILDBOT)
        self._program = str(self._python.with_name("buildbot"))
        self._master = folder / "master"
        subprocess.run([self._program, "create-master", "-q", str(self._master)], check=True, capture_output=True)
        (self._master / "master.cfg").write_text(_CONFIG.format(port=self.port))

    def argv(self) -> Sequence[str]:
        """In the foreground."""
        return [self._program, "start", "--nodaemon", str(self._master)]

    def answers(self) -> bool:
        """Whether its worker is there: builds wait for it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/api/v2/workers")
            workers = json.loads(connection.getresponse().read()).get("workers", [])
            return any(worker["connected_to"] for worker in workers)
        except (OSError, ValueError):
            return False
        finally:
            connection.close()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"
