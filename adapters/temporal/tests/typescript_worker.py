"""A real TypeScript worker as a fixture: npm packages in a cache of their own, the workflows bundled once a session.

Its workflows are in `typescript/workflows/`: `shipOrder` knows nothing of us, `asks` and its like use `mcpwf.ts`.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO

import pytest
from mcp_workflows_temporal import TemporalAdapter

from adapters.temporal.tests.installed import installed, run
from tests.support.dev_server import DevServer

SOURCE = Path(__file__).with_name("typescript")
INSTALL = ("npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error")
PATIENCE = 60.0  # seconds until a worker that does not poll is given up
INSTALL_PATIENCE = 540.0  # seconds for npm, once a machine


class TypeScriptWorker:
    """One worker process on one task queue; it can be killed and started again, and dies with this process."""

    def __init__(self, project: Path, server: DevServer, queue: str) -> None:
        self._command = ["node", "worker.mjs", server.address, queue, "bundle.js"]
        self._project = project
        self._log = project / f"{queue}-{uuid.uuid4().hex}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> TypeScriptWorker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start, or start again, and wait until the server knows that it polls."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=self._project, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        timer = threading.Timer(PATIENCE, self._process.kill)
        timer.start()
        said = _output(self._process).readline()
        timer.cancel()
        if said != b"polling\n":
            self.kill()
            raise RuntimeError(f"the TypeScript worker does not poll:\n{self._log.read_text()[-2000:]}")

    def kill(self) -> None:
        """kill -9, if it runs: nothing is finished, nobody is told."""
        if self._process is None:
            return
        self._process.kill()
        with self._process:  # closes its pipes and waits
            self._process = None


Factory = Callable[[DevServer, str], TypeScriptWorker]


@pytest.fixture(scope="session")
def typescript_project(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workflows with mcpwf.ts beside them, as an author has them, bundled; skipped without Node and npm."""
    project = tmp_path_factory.mktemp("typescript")
    packages = installed_packages()
    shutil.copytree(SOURCE, project, dirs_exist_ok=True)
    (project / "mcpwf.ts").write_text(TemporalAdapter.tooling.embeds()["typescript"])
    (project / "node_modules").symlink_to(packages)
    run(["node", "bundle.mjs", "bundle.js"], project, PATIENCE)
    return project


@pytest.fixture(scope="session")
def typescript_worker(typescript_project: Path) -> Iterator[Factory]:
    """Start a worker: `typescript_worker(dev_server, queue)`; it polls on return, and is killed at the end at last."""
    with ExitStack() as workers:
        yield lambda server, queue: workers.enter_context(TypeScriptWorker(typescript_project, server, queue))


def installed_packages() -> Path:
    """The node_modules of `typescript/package.json`, installed once per machine; skips where there is no npm."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not on the PATH")
    pins = SOURCE / "package.json"

    def install(folder: Path) -> None:
        shutil.copy(pins, folder)
        run(INSTALL, folder, INSTALL_PATIENCE)

    return installed(f"typescript/{hashlib.sha256(pins.read_bytes()).hexdigest()[:16]}", install) / "node_modules"


def _output(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout
