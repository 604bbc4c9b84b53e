"""Temporary workflows and calls about them, for `mcp-workflows check --live`.

Everything blocks, and runs in a thread. A cancelled run ends with the next poll.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Reason: the official clients are partly typed.

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import httpx2
from google.api_core.client_options import ClientOptions
from google.api_core.exceptions import GoogleAPICallError, NotFound
from google.cloud.workflows.executions_v1 import Execution, ExecutionsClient, ExecutionView
from google.cloud.workflows.executions_v1.services.executions.transports import ExecutionsGrpcTransport
from google.cloud.workflows_v1 import Workflow, WorkflowsClient
from google.cloud.workflows_v1.services.workflows.transports import WorkflowsGrpcTransport
from pydantic import BaseModel, ConfigDict, Field

from mcp_workflows.errors import EngineRefused
from mcp_workflows.testing.laws import until_found
from mcp_workflows_google.connections import rest_url, workflows_host
from mcp_workflows_google.credentials import load, refreshed
from mcp_workflows_google.settings import GOOGLE, GoogleSettings

PREFIX: Final = "mcp-workflows-verify"
_CALL: Final = 20.0  # seconds of one call
_DEPLOY: Final = 120.0  # seconds until a workflow is deployed
_ENDED: Final = frozenset({Execution.State.SUCCEEDED, Execution.State.FAILED, Execution.State.CANCELLED})


class FixtureSettings(BaseModel):
    """Settings of `check --live` for the workflows that it deploys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    service_account: str | None = Field(
        default=None, description="The service account that the workflows run as, its email. Default: the project's."
    )
    sidecar: str | None = Field(
        default=None, description="https://HOST/engines/ENGINE of a sidecar that has `inbound` and Google can reach."
    )
    audience: str | None = Field(default=None, description="Its `inbound.audience`. Default: the URL of `sidecar`.")


@dataclass(slots=True, kw_only=True)
class Deployment:
    """Clients of one project and location, and their created resources."""

    workflows: Any  # WorkflowsClient, which is typed in part
    executions: Any  # ExecutionsClient, typed in part
    http: httpx2.Client
    place: str  # projects/P/locations/L
    settings: FixtureSettings
    token: Callable[[], str]
    made: list[str] = field(default_factory=list[str])
    running: list[str] = field(default_factory=list[str])

    @classmethod
    def open(cls, engine: GoogleSettings, place: str, settings: FixtureSettings) -> Deployment:
        """Create the clients.

        Raises:
            GoogleAuthError, OSError, ValueError: there are no credentials.
        """
        token: Callable[[], str] = lambda: "local"  # noqa: E731  # or the one below
        if engine.emulator:
            channel = grpc.insecure_channel(engine.emulator)
            workflows = WorkflowsClient(transport=WorkflowsGrpcTransport(channel=channel))
            executions = ExecutionsClient(transport=ExecutionsGrpcTransport(channel=channel))
        else:
            known = load(engine)
            endpoint = engine.endpoint or GOOGLE
            workflows = WorkflowsClient(
                credentials=known.credentials, client_options=ClientOptions(api_endpoint=workflows_host(endpoint))
            )
            executions = ExecutionsClient(
                credentials=known.credentials, client_options=ClientOptions(api_endpoint=endpoint)
            )

            def token() -> str:
                return str((known if known.credentials.valid else refreshed(known)).credentials.token)

        http = httpx2.Client(base_url=rest_url(engine), timeout=_CALL)
        return cls(workflows=workflows, executions=executions, http=http, place=place, settings=settings, token=token)

    def workflow(self, source: str, **more: Any) -> str:  # Any: fields of Workflow
        """Deploy a workflow of this source; return its resource name."""
        name = f"{PREFIX}-{uuid.uuid4().hex[:8]}"
        account = {"service_account": self.settings.service_account} if self.settings.service_account else {}
        workflow = Workflow(source_contents=source, **account, **more)
        self.made.append(f"{self.place}/workflows/{name}")
        operation = self.workflows.create_workflow(
            parent=self.place, workflow=workflow, workflow_id=name, timeout=_CALL
        )
        return str(operation.result(timeout=_DEPLOY).name)

    def start(self, workflow: str, argument: str = "", **labels: str) -> str:
        """Start an execution; return its resource name from Google's reply."""
        execution = Execution(argument=argument, labels={key.replace("_", "-"): value for key, value in labels.items()})
        found = self.executions.create_execution(parent=workflow, execution=execution, retry=None, timeout=_CALL)
        self.running.append(str(found.name))
        return self.running[-1]

    def get(self, name: str, *, full: bool = True) -> Execution:
        """Poll an execution once."""
        view = ExecutionView.FULL if full else ExecutionView.BASIC
        request = {"name": name, "view": view}
        found: Execution = self.executions.get_execution(request=request, retry=None, timeout=_CALL)
        return found

    def cancel(self, name: str) -> None:
        """Request cancellation."""
        self.executions.cancel_execution(name=name, retry=None, timeout=_CALL)

    def ended(self, name: str) -> Execution:
        """Wait until the execution has ended, and return it."""
        return until_found(lambda: found if (found := self.get(name)).state in _ENDED else None, f"the end of {name}")

    def listed(self, workflow: str, only: str = "", *, full: bool = False) -> Sequence[Execution]:
        """Return the executions of a workflow in Google's list with a filter."""
        view = ExecutionView.FULL if full else ExecutionView.BASIC
        request = {"parent": workflow, "view": view, "filter": only, "page_size": 100}
        return list(self.executions.list_executions(request=request, retry=None, timeout=_CALL))

    def deployed(self, only: str = "") -> Sequence[Workflow]:
        """Return the workflows in Google's list with a filter."""
        request = {"parent": self.place, "filter": only, "page_size": 500}
        return list(self.workflows.list_workflows(request=request, retry=None, timeout=_CALL))

    def callbacks(self, name: str) -> Sequence[Mapping[str, Any]]:  # Any: JSON
        """Return the open callbacks of an execution."""
        reply = self.http.get(f"/v1/{name}/callbacks", headers=self._headers)
        rows: Sequence[Mapping[str, Any]] = reply.json().get("callbacks", []) if reply.status_code == 200 else []
        return rows

    def waiting(self, name: str) -> Mapping[str, Any]:
        """Wait for the first callback of an execution, and return it."""
        return until_found(lambda: next(iter(self.callbacks(name)), None), f"a callback of {name}")

    def deliver(self, path: str, body: object, method: str = "POST") -> int:
        """Send a request to a callback; return its HTTP status."""
        return self.http.request(method, path, json=body, headers=self._headers).status_code

    @property
    def _headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self.token()}"}

    def remove(self) -> None:
        """Cancel and remove everything.

        Raises:
            EngineRefused: some cannot be removed; the message names them.
        """
        for name in self.running:
            with suppress(GoogleAPICallError):
                if self.get(name, full=False).state not in _ENDED:
                    self.cancel(name)
        left: list[str] = []
        for name in self.made:
            try:
                self.workflows.delete_workflow(name=name, retry=None, timeout=_CALL).result(timeout=_DEPLOY)
            except NotFound:
                pass  # it was never deployed
            except GoogleAPICallError as error:
                left.append(f"{name} ({code(error)})")
        self.http.close()
        if left:
            raise EngineRefused(f"could not be removed: {', '.join(left)}")


def code(error: GoogleAPICallError) -> str:
    """Return the gRPC status."""
    status: grpc.StatusCode | None = getattr(error, "grpc_status_code", None)
    return str(status.name) if status else type(error).__name__


def answer(call: Callable[[], object]) -> str:
    """Return the gRPC status of a call, or `accepted`."""
    try:
        call()
    except GoogleAPICallError as error:
        return code(error)
    return "accepted"
