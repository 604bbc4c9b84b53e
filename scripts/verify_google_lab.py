"""What `verify_google` works with: clients, and what it has made and removes again."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import google.auth
import grpc
import httpx2
from google.api_core.exceptions import GoogleAPICallError, NotFound
from google.auth.transport.requests import Request
from google.cloud.workflows.executions_v1 import Execution, ExecutionsClient, ExecutionView
from google.cloud.workflows.executions_v1.services.executions.transports import ExecutionsGrpcTransport
from google.cloud.workflows_v1 import Workflow, WorkflowsClient
from google.cloud.workflows_v1.services.workflows.transports import WorkflowsGrpcTransport

from scripts.verify_lab import PREFIX, console, until

REST: Final = "https://workflowexecutions.googleapis.com"
SCOPES: Final = ("https://www.googleapis.com/auth/cloud-platform",)
CALL: Final = 20.0  # seconds of one call
DEPLOY: Final = 120.0  # seconds until a workflow is deployed
ENDED: Final = frozenset({Execution.State.SUCCEEDED, Execution.State.FAILED, Execution.State.CANCELLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What came out of a point, beside what the adapter assumes."""

    assumed: str
    text: str
    ok: bool | None  # None: either will do


@dataclass(slots=True, kw_only=True)
class Lab:
    """Clients of one project and location, and what has been made with them."""

    workflows: Any  # WorkflowsClient, which is typed in part
    executions: Any  # ExecutionsClient, likewise
    http: httpx2.Client
    place: str  # projects/P/locations/L
    account: str | None  # what the workflows run as
    sidecar: str | None  # the URL of an engine at a sidecar of yours
    audience: str | None
    token: Callable[[], str]
    made: list[str] = field(default_factory=list[str])
    running: list[str] = field(default_factory=list[str])

    def workflow(self, source: str, **more: Any) -> str:  # Any: fields of Workflow
        """A new workflow of this source; its resource name."""
        name = f"{PREFIX}-{uuid.uuid4().hex[:8]}"
        account = {"service_account": self.account} if self.account else {}
        workflow = Workflow(source_contents=source, **account, **more)
        self.made.append(f"{self.place}/workflows/{name}")
        operation = self.workflows.create_workflow(parent=self.place, workflow=workflow, workflow_id=name, timeout=CALL)
        return str(operation.result(timeout=DEPLOY).name)

    def start(self, workflow: str, argument: str = "", **labels: str) -> str:
        """A new execution; its resource name as Google tells it."""
        execution = Execution(argument=argument, labels={key.replace("_", "-"): value for key, value in labels.items()})
        found = self.executions.create_execution(parent=workflow, execution=execution, retry=None, timeout=CALL)
        self.running.append(str(found.name))
        return self.running[-1]

    def get(self, name: str, *, full: bool = True) -> Execution:
        """One look at an execution."""
        view = ExecutionView.FULL if full else ExecutionView.BASIC
        request = {"name": name, "view": view}
        found: Execution = self.executions.get_execution(request=request, retry=None, timeout=CALL)
        return found

    def cancel(self, name: str) -> None:
        """Ask for its end."""
        self.executions.cancel_execution(name=name, retry=None, timeout=CALL)

    def ended(self, name: str) -> Execution:
        """The execution once it has ended."""
        return until(lambda: found if (found := self.get(name)).state in ENDED else None, f"the end of {name}")

    def listed(self, workflow: str, only: str = "", *, full: bool = False) -> Sequence[Execution]:
        """The executions of a workflow that fit a filter, as they are listed."""
        view = ExecutionView.FULL if full else ExecutionView.BASIC
        request = {"parent": workflow, "view": view, "filter": only, "page_size": 100}
        return list(self.executions.list_executions(request=request, retry=None, timeout=CALL))

    def deployed(self, only: str = "") -> Sequence[Workflow]:
        """The workflows that fit a filter, as they are listed."""
        request = {"parent": self.place, "filter": only, "page_size": 500}
        return list(self.workflows.list_workflows(request=request, retry=None, timeout=CALL))

    def callbacks(self, name: str) -> Sequence[Mapping[str, Any]]:  # Any: JSON
        """The callbacks that an execution has open."""
        reply = self.http.get(f"/v1/{name}/callbacks", headers=self._headers)
        rows: Sequence[Mapping[str, Any]] = reply.json().get("callbacks", []) if reply.status_code == 200 else []
        return rows

    def waiting(self, name: str) -> Mapping[str, Any]:
        """Its first callback, once it has one."""
        return until(lambda: next(iter(self.callbacks(name)), None), f"a callback of {name}")

    def deliver(self, path: str, body: object, method: str = "POST") -> int:
        """A request to a callback; its HTTP status."""
        return self.http.request(method, path, json=body, headers=self._headers).status_code

    @property
    def _headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self.token()}"}

    def tidy(self) -> None:
        """Cancel and remove everything; what cannot be removed is named."""
        for name in self.running:
            with suppress(GoogleAPICallError):
                if self.get(name, full=False).state not in ENDED:
                    self.cancel(name)
        for name in self.made:
            try:
                self.workflows.delete_workflow(name=name, retry=None, timeout=CALL).result(timeout=DEPLOY)
            except NotFound:
                pass  # it was never deployed
            except GoogleAPICallError as error:
                console.print(f"could not remove {name}: {code(error)}", markup=False)


def lab(
    project: str | None,
    location: str,
    emulator: str | None,
    *,
    account: str | None,
    sidecar: str | None,
    audience: str | None,
) -> Lab:
    """Its clients: Google's with application default credentials, or those of a local engine.

    Raises:
        GoogleAuthError: there are no credentials.
    """
    if emulator:
        workflows = WorkflowsClient(transport=WorkflowsGrpcTransport(channel=grpc.insecure_channel(emulator)))
        executions = ExecutionsClient(transport=ExecutionsGrpcTransport(channel=grpc.insecure_channel(emulator)))
        http, found, token = httpx2.Client(base_url=f"http://{emulator}"), project or "demo", lambda: "local"
    else:
        auth: Any = google.auth  # typed in part
        credentials, default = auth.default(scopes=SCOPES)
        workflows, executions = WorkflowsClient(credentials=credentials), ExecutionsClient(credentials=credentials)
        http, found, token = httpx2.Client(base_url=REST, timeout=CALL), project or default, _token_of(credentials)
    return Lab(
        workflows=workflows,
        executions=executions,
        http=http,
        place=f"projects/{found}/locations/{location}",
        account=account,
        sidecar=sidecar,
        audience=audience,
        token=token,
    )


def _token_of(credentials: Any) -> Callable[[], str]:
    def token() -> str:
        if not credentials.valid:
            credentials.refresh(Request())
        return str(credentials.token)

    return token


def code(error: GoogleAPICallError) -> str:
    """The gRPC status."""
    status: grpc.StatusCode | None = getattr(error, "grpc_status_code", None)
    return str(status.name) if status else type(error).__name__


def answer(call: Callable[[], object]) -> str:
    """The gRPC status of a call, or `accepted`."""
    try:
        call()
    except GoogleAPICallError as error:
        return code(error)
    return "accepted"


def seconds(call: Callable[[], object]) -> float:
    """How long it takes."""
    began = time.monotonic()
    call()
    return time.monotonic() - began
