"""The local engine of Google Cloud Workflows as a fixture: in a process of its own.

    def test_it(google_engine: GoogleEngine) -> None:
        workflow = google_engine.deploy("hello", "main: {steps: [{a: {return: hello}}]}")
        execution = google_engine.execute(workflow, {"name": "Ada"})
        assert google_engine.ended(execution).result == '"hello"'

`google_engine` is one server for all tests of a process: `deploy` makes names that are nobody else's, and what you
start you cancel. `own_google_engine` is one of the test alone, to kill and to start again: it keeps all in a file.
`.address` goes into the engine's setting `emulator`. `executions()` and `workflows()` make official clients of the
server, synchronous ones; `async_executions()` and `async_workflows()` asynchronous ones, for one loop.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import pytest
from google.api_core.exceptions import ServiceUnavailable
from google.cloud import workflows_v1
from google.cloud.workflows import executions_v1
from google.cloud.workflows.executions_v1.services.executions import transports as executions_transports
from google.cloud.workflows_v1.services.workflows import transports as workflows_transports

from tests.support.engine_process import EngineProcess

PROJECT: Final = "demo"
NUMBER: Final = "123456789012"
LOCATION: Final = "us-central1"
ACCOUNT: Final = f"local@{PROJECT}.iam.gserviceaccount.com"  # on whose behalf workflows run

Execution = executions_v1.Execution
_GOING: Final = (Execution.State.ACTIVE, Execution.State.QUEUED)
_FAST_RETRIES: Final = [("grpc.initial_reconnect_backoff_ms", 50)]


class GoogleEngine(EngineProcess):
    """`python -m mcp_workflows_google_local`; with `keeps` it finds everything again after it was killed."""

    def __init__(self, folder: Path, *, port: int | None = None, keeps: bool = False, more: Sequence[str] = ()) -> None:
        super().__init__(folder, port, "google.log")
        self._more = [*more, *(["--db", str(folder / "google.db")] if keeps else [])]
        self._channel: grpc.Channel | None = None

    @property
    def address(self) -> str:
        """Where it listens: HOST:PORT, for gRPC and for HTTP."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The same, for HTTP."""
        return f"http://{self.address}"

    @property
    def place(self) -> str:
        """The resource name of its project and location."""
        return f"projects/{PROJECT}/locations/{LOCATION}"

    @property
    def environ(self) -> Mapping[str, str]:
        """What a process needs in its environment so that samples find it."""
        return {"GOOGLE_WORKFLOWS_EMULATOR": self.address, "GOOGLE_CLOUD_PROJECT": PROJECT}

    def executions(self) -> Any:  # Any: its methods are typed in part only
        """The official client of the Executions service."""
        transport = executions_transports.ExecutionsGrpcTransport(channel=self._open())
        return executions_v1.ExecutionsClient(transport=transport)

    def workflows(self) -> Any:
        """The official client of the Workflows service."""
        return workflows_v1.WorkflowsClient(transport=workflows_transports.WorkflowsGrpcTransport(channel=self._open()))

    @asynccontextmanager
    async def async_executions(self) -> AsyncGenerator[Any]:
        """The official asynchronous client of the Executions service."""
        async with grpc.aio.insecure_channel(self.address, options=_FAST_RETRIES) as channel:
            transport = executions_transports.ExecutionsGrpcAsyncIOTransport(channel=channel)
            yield executions_v1.ExecutionsAsyncClient(transport=transport)

    @asynccontextmanager
    async def async_workflows(self) -> AsyncGenerator[Any]:
        """The official asynchronous client of the Workflows service."""
        async with grpc.aio.insecure_channel(self.address, options=_FAST_RETRIES) as channel:
            transport = workflows_transports.WorkflowsGrpcAsyncIOTransport(channel=channel)
            yield workflows_v1.WorkflowsAsyncClient(transport=transport)

    def deploy(
        self,
        name: str,
        source: str,
        *,
        labels: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        unique: bool = True,
        **more: Any,
    ) -> str:
        """Deploy a workflow, of a name that is nobody else's if it need not be this one, and answer its resource name.

        `more` are other fields of the workflow, such as its description.
        """
        workflow_id = f"{name}-{uuid.uuid4().hex[:8]}" if unique else name
        workflow = workflows_v1.Workflow(
            source_contents=source, labels=dict(labels or {}), user_env_vars=dict(env or {}), **more
        )
        operation = self.workflows().create_workflow(
            parent=self.place, workflow=workflow, workflow_id=workflow_id, timeout=60
        )
        return str(operation.result(timeout=60).name)

    def execute(self, workflow: str, argument: Any = None, labels: Mapping[str, str] | None = None) -> str:
        """Start an execution, and answer its resource name as the server gives it."""
        execution = Execution(argument="" if argument is None else json.dumps(argument), labels=dict(labels or {}))
        return str(self.executions().create_execution(parent=workflow, execution=execution, timeout=60).name)

    def seen(self, execution: str) -> Execution:
        """What GetExecution answers, FULL."""
        return self.executions().get_execution(name=execution, timeout=60)

    def ended(self, execution: str, seconds: float = 60.0) -> Execution:
        """The same once the execution does not run any more."""
        deadline = time.monotonic() + seconds
        while (found := self.seen(execution)).state in _GOING:
            if time.monotonic() > deadline:
                raise AssertionError(f"{execution} still runs after {seconds} s, at {found.status.current_steps}")
            time.sleep(0.01)
        return found

    def at(self, execution: str, step: str, seconds: float = 60.0) -> Execution:
        """The same once a step of this name is a current one."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.seen(execution)
            if step in [current.step for current in found.status.current_steps]:
                return found
            if time.monotonic() > deadline:
                raise AssertionError(f"{execution} is not at {step} after {seconds} s: {found}")
            time.sleep(0.01)

    def argv(self) -> Sequence[str]:
        """The local engine."""
        places = ["--project", PROJECT, "--project-number", NUMBER, "--location", LOCATION]
        return [sys.executable, "-m", "mcp_workflows_google_local", "--port", str(self.port), *places, *self._more]

    def answers(self) -> bool:
        """Whether it takes requests now."""
        try:
            self.workflows().list_workflows(parent=self.place, timeout=5)
        except ServiceUnavailable:
            return False
        return True

    def stop(self) -> None:
        """Close the channel, and stop it if it runs."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        super().stop()

    def _open(self) -> grpc.Channel:
        if self._channel is None:
            self._channel = grpc.insecure_channel(self.address, options=_FAST_RETRIES)
        return self._channel


@pytest.fixture(scope="session")
def google_engine(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoogleEngine]:
    """One engine for all tests of this process that leave nothing running."""
    with GoogleEngine(tmp_path_factory.mktemp("google")) as engine:
        yield engine


@pytest.fixture
def own_google_engine(processes: None, tmp_path: Path) -> Iterator[GoogleEngine]:
    """An engine of this one test, to kill and to start again."""
    with GoogleEngine(tmp_path, keeps=True) as engine:
        yield engine
