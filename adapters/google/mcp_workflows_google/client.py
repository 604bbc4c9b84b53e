"""The operations of Google's APIs that the adapter uses, with results in plain types; see `api_calls` for retries."""

# pyright: reportUnknownMemberType=false
# Reason: the official client is typed in parts; what it answers is read into types of our own at once.

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final

import anyio
from google.api_core.exceptions import FailedPrecondition
from google.cloud import workflows_v1
from google.cloud.workflows import executions_v1

from mcp_workflows.adapter import JSON, Allowance
from mcp_workflows.errors import EngineRefused, EngineUnavailable
from mcp_workflows.kit.token_bucket import BUCKETS, Buckets
from mcp_workflows_google.api_calls import ApiCall, ApiCaller
from mcp_workflows_google.channels import WORKFLOWS, GrpcClients
from mcp_workflows_google.credentials import Credentials
from mcp_workflows_google.error_table import CallKind
from mcp_workflows_google.names import ExecutionName, Place, WorkflowName
from mcp_workflows_google.resources import (
    Callback,
    ExecutionResource,
    WorkflowResource,
    read_callback,
    read_execution,
    read_workflow,
)
from mcp_workflows_google.rest import DeliveryOutcome, Rest, rest_url
from mcp_workflows_google.settings import GoogleSettings

logger = logging.getLogger(__name__)

FULL_PAGE: Final = 50  # executions with argument (32 KB) and result (512 KB) fit into `channels.LARGEST`
BASIC_PAGE: Final = 1000  # Google's maximum
_WORKFLOWS_PAGE: Final = 500
_CALLBACKS_PAGE: Final = 100
_SWEEP_EVERY: Final = 2.0  # seconds
_BATCH: Final = 10_000  # executions in 10 lists
_UNLIMITED_LOOKS: Final = 50.0  # per second, where no quota is known
_CALLBACK: Final = re.compile(r"/v1/(?P<execution>projects/[^?#]+?)/callbacks?/")


class Client:
    """The API of one engine, in one project and location."""

    def __init__(self, settings: GoogleSettings, buckets: Buckets = BUCKETS) -> None:
        self._settings = settings
        self._clients = GrpcClients(settings)
        self._rest = Rest(settings)
        self._credentials = Credentials(settings)
        self._edge = ApiCaller(settings, self._clients, self._credentials, buckets)

    async def close(self) -> None:
        """Close all connections; running calls are aborted."""
        await self._rest.close()
        await self._clients.close()

    @property
    def allowance(self) -> Allowance:
        """The rate of reads that this process may make now."""
        sweep = _SWEEP_EVERY if self._edge.quota is None else max(_SWEEP_EVERY, 1 / self.refill("list_executions"))
        return Allowance(
            looks_per_second=min(self.refill("get_execution"), _UNLIMITED_LOOKS),
            sweep_every=sweep,
            batch=_BATCH,
            burst=int(min(self._edge.bucket("get_execution").spare, _UNLIMITED_LOOKS)),
        )

    @property
    def rest_url(self) -> str:
        """The base URL of the Executions API: `https://workflowexecutions.googleapis.com`."""
        return rest_url(self._settings)

    @property
    def endpoint(self) -> str:
        """The address of the Executions API."""
        return self._clients.executions_endpoint

    def refill(self, api: str) -> float:
        """Return the calls per second that the quota of this API allows this process now; infinite without a quota."""
        return self._edge.bucket(api).refill

    async def place(self) -> Place:
        """Return the project and location of the workflows; the project is looked up once.

        Raises:
            EngineError: the project is unknown.
        """
        if self._edge.project is None:
            self._edge.project = await self._credentials.project()
        return Place(project=self._edge.project, location=self._settings.location)

    async def create(self, workflow: WorkflowName, argument: str, labels: Mapping[str, str]) -> ExecutionResource:
        """Start an execution in a single attempt, which cancellation of the caller does not abort.

        Raises:
            EngineRefused: no execution was created.
            EngineUnavailable: if `sent`, one may have been created.
        """
        call = _of_workflow(CallKind.CREATE, "write_executions", "workflows.executions.create", workflow)
        execution = executions_v1.Execution(argument=argument, labels=dict(labels))
        request = executions_v1.CreateExecutionRequest(parent=workflow.name, execution=execution)

        async def attempt(headers: Mapping[str, str], seconds: float) -> ExecutionResource:
            client = await self._clients.executions()
            return read_execution(
                await client.create_execution(request, retry=None, timeout=seconds, metadata=tuple(headers.items()))
            )

        return await self._edge.make(call, attempt)

    async def get(self, name: ExecutionName, *, full: bool) -> ExecutionResource:
        """Get an execution.

        Raises:
            ExecutionNotFound, EngineError: see `error_table`.
        """
        call = _of_execution(CallKind.DESCRIBE, "get_execution", "workflows.executions.get", name)
        request = executions_v1.GetExecutionRequest(name=name.name, view=_view(full))

        async def attempt(headers: Mapping[str, str], seconds: float) -> ExecutionResource:
            client = await self._clients.executions()
            return read_execution(
                await client.get_execution(request, retry=None, timeout=seconds, metadata=tuple(headers.items()))
            )

        return await self._edge.make(call, attempt)

    async def executions(
        self,
        workflow: WorkflowName,
        *,
        only: str = "",
        full: bool = False,
        limit: int | None = None,
        since: datetime | None = None,
    ) -> Sequence[ExecutionResource]:
        """Return executions of a workflow that match the filter `only`, the newest first; each page is one call.

        With `since`, the list ends at the first execution that started before; queued ones have not started.

        Raises:
            EngineError: see `error_table`.
        """
        call = _of_workflow(CallKind.READ, "list_executions", "workflows.executions.list", workflow)
        size = min(FULL_PAGE if full else BASIC_PAGE, limit or BASIC_PAGE)

        async def page(
            token: str, headers: Mapping[str, str], seconds: float
        ) -> tuple[Sequence[ExecutionResource], str]:
            client = await self._clients.executions()
            request = executions_v1.ListExecutionsRequest(
                parent=workflow.name, view=_view(full), page_size=size, filter=only, page_token=token
            )
            reply = await client.list_executions(request, retry=None, timeout=seconds, metadata=tuple(headers.items()))
            return [read_execution(row) for row in reply.executions], reply.next_page_token

        def earlier(row: ExecutionResource) -> bool:
            return since is not None and row.start_time is not None and row.start_time < since

        return await self._edge.pages(call, page, limit, earlier)

    async def cancel(self, name: ExecutionName) -> None:
        """Cancel an execution; do nothing if it has ended. Cancellation of the caller does not abort the call.

        Raises:
            ExecutionNotFound, EngineError: see `error_table`.
        """
        call = _of_execution(CallKind.CANCEL, "write_executions", "workflows.executions.cancel", name)
        request = executions_v1.CancelExecutionRequest(name=name.name)

        async def attempt(headers: Mapping[str, str], seconds: float) -> None:
            client = await self._clients.executions()
            try:
                await client.cancel_execution(request, retry=None, timeout=seconds, metadata=tuple(headers.items()))
            except FailedPrecondition:
                logger.debug("cancel: it had ended")

        await self._edge.make(call, attempt)

    async def callbacks(self, name: ExecutionName) -> Sequence[Callback]:
        """Return the open callbacks of an execution.

        Raises:
            ExecutionNotFound, EngineError: see `error_table`.
        """
        call = _of_execution(CallKind.DESCRIBE, "list_callbacks", "workflows.callbacks.list", name)

        async def page(token: str, headers: Mapping[str, str], seconds: float) -> tuple[Sequence[Callback], str]:
            params = {"pageSize": str(_CALLBACKS_PAGE)} | ({"pageToken": token} if token else {})
            reply = await self._rest.get(f"/v1/{name.name}/callbacks", params, headers, seconds)
            rows: Any = reply.get("callbacks", [])
            found = [read_callback(row) for row in rows] if isinstance(rows, list) else []  # pyright: ignore[reportUnknownVariableType]
            return [each for each in found if each], str(reply.get("nextPageToken", ""))

        return await self._edge.pages(call, page)

    async def deliver(self, url: str, method: str, body: JSON) -> DeliveryOutcome:
        """Send an answer to a callback once. The caller has validated the URL.

        Raises:
            EngineError: it was certainly not delivered; `EngineUnavailable` has `sent=False`.
        """
        call = _of_execution(CallKind.SEND, "send_callback", "workflows.callbacks.send", _execution_of(url))

        async def attempt(headers: Mapping[str, str], seconds: float) -> DeliveryOutcome:
            return await self._rest.deliver(url, method, body, headers, seconds)

        try:
            return await self._edge.make(call, attempt)
        except EngineUnavailable as error:
            if not error.sent or error.throttled:
                raise
            return DeliveryOutcome.UNKNOWN

    async def workflow(self, name: WorkflowName) -> WorkflowResource:
        """Get a workflow with its source.

        Raises:
            EngineRefused: there is no workflow of that name.
            EngineError: see `error_table`.
        """
        call = _of_workflows("workflows.workflows.get", name.name, name.place)
        request = workflows_v1.GetWorkflowRequest(name=name.name)

        async def attempt(headers: Mapping[str, str], seconds: float) -> WorkflowResource:
            client = await self._clients.workflows()
            return read_workflow(
                await client.get_workflow(request, retry=None, timeout=seconds, metadata=tuple(headers.items()))
            )

        return await self._edge.make(call, attempt)

    async def workflows(self) -> Sequence[WorkflowResource]:
        """Return the workflows of this place. Google decides whether the list contains their sources.

        Raises:
            EngineError: see `error_table`.
        """
        place = await self.place()
        call = _of_workflows("workflows.workflows.list", place.name, place)

        async def page(
            token: str, headers: Mapping[str, str], seconds: float
        ) -> tuple[Sequence[WorkflowResource], str]:
            client = await self._clients.workflows()
            request = workflows_v1.ListWorkflowsRequest(parent=place.name, page_size=_WORKFLOWS_PAGE, page_token=token)
            reply = await client.list_workflows(request, retry=None, timeout=seconds, metadata=tuple(headers.items()))
            return [read_workflow(row) for row in reply.workflows], reply.next_page_token

        return await self._edge.pages(call, page)


def _view(full: bool) -> executions_v1.ExecutionView:
    views = executions_v1.ExecutionView
    return views(views.FULL if full else views.BASIC)


def _of_execution(kind: CallKind, api: str, permission: str, name: ExecutionName) -> ApiCall:
    return ApiCall(kind=kind, api=api, permission=permission, resource=name.name, place=name.workflow.place)


def _of_workflow(kind: CallKind, api: str, permission: str, name: WorkflowName) -> ApiCall:
    return ApiCall(kind=kind, api=api, permission=permission, resource=name.name, place=name.place)


def _of_workflows(permission: str, resource: str, place: Place) -> ApiCall:
    return ApiCall(
        kind=CallKind.READ,
        api="read_workflows",
        permission=permission,
        resource=resource,
        place=place,
        service=WORKFLOWS,
    )


def _execution_of(url: str) -> ExecutionName:
    """Return the execution of a callback URL. No message contains the URL: it may be enough to answer."""
    found = _CALLBACK.search(url)
    if found is None:
        raise EngineRefused("this is no URL of a callback: nothing is sent there")
    return ExecutionName.parse(found["execution"])


@asynccontextmanager
async def open_client(settings: GoogleSettings) -> AsyncGenerator[Client]:
    """Open the client of an engine; it connects and reads credentials at the first call."""
    client = Client(settings)
    try:
        yield client
    finally:
        with anyio.CancelScope(shield=True):
            await client.close()
