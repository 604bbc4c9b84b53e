"""The local Step Functions engine as a fixture: moto's server with our additions, in a process of its own.

    def test_it(stepfunctions: StepFunctions) -> None:
        arn = stepfunctions.machine({"StartAt": "A", "States": {"A": {"Type": "Pass", "End": True}}})
        client = stepfunctions.client()                       # boto3, with credentials that nobody checks
        execution = client.start_execution(stateMachineArn=arn, name="one", input="{}")["executionArn"]
        assert stepfunctions.ended(execution)["status"] == "SUCCEEDED"

`stepfunctions` is one server for all tests of a process: use the unique names it makes, and stop what you start (each
execution that runs is a thread of the server). `own_stepfunctions` is one of the test alone, to kill and to start
again (it remembers nothing). `.url` goes into `endpoint_url`, `.environ` into a subprocess that uses boto3.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import boto3
import pytest
from botocore.config import Config

from tests.support.engine_process import EngineProcess

REGION: Final = "us-east-1"
ACCOUNT: Final = "123456789012"  # the account that moto makes of any credentials
ROLE: Final = f"arn:aws:iam::{ACCOUNT}:role/steps"
CREDENTIALS: Final = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}


class StepFunctions(EngineProcess):
    """`python -m mcp_workflows_stepfunctions_local`; it forgets all when it is killed."""

    def __init__(self, folder: Path, *, port: int | None = None, region: str = REGION) -> None:
        super().__init__(folder, port, "stepfunctions.log")
        self.region = region
        self.account = ACCOUNT
        self._session: Any = None
        self._clients: dict[str, Any] = {}

    @property
    def url(self) -> str:
        """What goes into `endpoint_url`."""
        return f"http://127.0.0.1:{self.port}"

    endpoint = url

    @property
    def environ(self) -> Mapping[str, str]:
        """What a process needs in its environment so that all its boto3 clients come here."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self, service: str = "stepfunctions") -> Any:
        """A boto3 client of the server, the same one each time; botocore has no types."""
        if service not in self._clients:
            self._session = self._session or boto3.Session(region_name=self.region, **CREDENTIALS)
            config = Config(inject_host_prefix=False, retries={"total_max_attempts": 1}, max_pool_connections=50)
            self._clients[service] = self._session.client(service, endpoint_url=self.url, config=config)
        return self._clients[service]

    def machine(
        self,
        definition: Mapping[str, Any],
        type: str = "STANDARD",  # noqa: A002 the API's own name
        name: str | None = None,
        **more: Any,
    ) -> str:
        """Create a state machine, of a name that is nobody else's, and answer its ARN.

        `more` are other parameters of CreateStateMachine, such as tags.
        """
        name = name or f"m-{uuid.uuid4().hex[:12]}"
        created = self.client().create_state_machine(
            name=name, definition=json.dumps(definition), roleArn=ROLE, type=type, **more
        )
        return str(created["stateMachineArn"])

    def ended(self, execution: str, seconds: float = 60.0) -> Any:
        """What DescribeExecution answers once the execution does not run any more."""
        deadline = time.monotonic() + seconds
        while (found := self.client().describe_execution(executionArn=execution))["status"] == "RUNNING":
            if time.monotonic() > deadline:
                raise AssertionError(f"{execution} still runs after {seconds} s")
            time.sleep(0.01)
        return found

    def event(self, execution: str, kind: str, seconds: float = 60.0, nth: int = 1) -> Any:
        """The first (or nth) event of this type in the history, once it is there."""
        deadline = time.monotonic() + seconds
        while True:
            events = self.client().get_execution_history(executionArn=execution, maxResults=1000)["events"]
            found = [event for event in events if event["type"] == kind]
            if len(found) >= nth:
                return found[nth - 1]
            if time.monotonic() > deadline:
                raise AssertionError(f"{execution} has {len(found)} {kind} after {seconds} s, not {nth}")
            time.sleep(0.01)

    def argv(self) -> Sequence[str]:
        """The local engine, which remembers nothing when it is started again."""
        return [sys.executable, "-m", "mcp_workflows_stepfunctions_local", "--port", str(self.port)]

    def answers(self) -> bool:
        """Whether it takes requests now."""
        try:
            with urllib.request.urlopen(f"{self.url}/moto-api/config", timeout=5):
                return True
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def forget(self) -> None:
        """Delete everything in it."""
        reset = urllib.request.Request(f"{self.url}/moto-api/reset", method="POST")
        with urllib.request.urlopen(reset, timeout=30):
            pass

    def stop(self) -> None:
        """Close the clients, and stop it if it runs."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        super().stop()


@pytest.fixture
def any_aws_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Credentials that nobody checks, and no file, variable or metadata service that could bring others."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    empty = tmp_path / "no-aws-configuration"
    empty.touch()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(empty),
        "AWS_SHARED_CREDENTIALS_FILE": str(empty),
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def stepfunctions(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StepFunctions]:
    """One engine for all tests of this process that leave nothing running."""
    with StepFunctions(tmp_path_factory.mktemp("stepfunctions")) as engine:
        yield engine


@pytest.fixture
def own_stepfunctions(processes: None, tmp_path: Path) -> Iterator[StepFunctions]:
    """An engine of this one test, to kill."""
    with StepFunctions(tmp_path) as engine:
        yield engine
