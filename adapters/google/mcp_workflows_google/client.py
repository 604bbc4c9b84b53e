"""What everybody gets from Google, in words of ours; how it is got: see `edge`."""

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
from mcp_workflows.adapter.token_bucket import BUCKETS, Buckets
from mcp_workflows.errors import EngineRefused, EngineUnavailable
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

FULL_PAGE: Final = 50  # executions with argument (32 KB) and result (512 KB): they fit `channels.LARGEST`
BASIC_PAGE: Final = 1000  # Google's most
_WORKFLOWS_PAGE: Final = 500
_CALLBACKS_PAGE: Final = 100
_SWEEP_EVERY: Final = 2.0  # seconds
_BATCH: Final = 10_000  # executions: 10 lists
_UNLIMITED_LOOKS: Final = 50.0  # per second, where no quota is known
_CALLBACK: Final = re.compile(r"/v1/(?P<execution>projects/[^?#]+?)/callbacks?/")


class Client:
    """The API of one engine: one project in one location."""

    def __init__(self, settings: GoogleSettings, buckets: Buckets = BUCKETS) -> None:
        self._settings = settings
        self._clients = GrpcClients(settings)
        self._rest = Rest(settings)
        self._credentials = Credentials(settings)
        self._edge = ApiCaller(settings, self._clients, self._credentials, buckets)

    async def close(self) -> None:
        """Every connection; calls under way are broken off."""
        await self._rest.close()
        await self._clients.close()

    @property
    def allowance(self) -> Allowance:
        """How often this process may look now."""
        sweep = _SWEEP_EVERY if self._edge.quota is None else max(_SWEEP_EVERY, 1 / self.refill("list_executions"))
        return Allowance(
            looks_per_second=min(self.refill("get_execution"), _UNLIMITED_LOOKS),
            sweep_every=sweep,
            batch=_BATCH,
            burst=int(min(self._edge.bucket("get_execution").spare, _UNLIMITED_LOOKS)),
        )

    @property
    def rest_url(self) -> str:
        """What URLs of the Executions API begin with: `https://workflowexecutions.googleapis.com`."""
        return rest_url(self._settings)

    @property
    def endpoint(self) -> str:
        """The address of the Executions API."""
        return self._clients.executions_endpoint

    def refill(self, api: str) -> float:
        """How many calls of it per second this process may make now (infinite: no quota); names: see `quota`."""
        return self._edge.bucket(api).refill

    async def place(self) -> Place:
        """Where names of workflows are looked for; found out once.

        Raises:
            EngineError: it cannot be told.
        """
        if self._edge.project is None:
            self._edge.project = await self._credentials.project()
        return Place(project=self._edge.project, location=self._settings.location)

    async def create(
        self, workflow: WorkflowName, argument: str | None, labels: Mapping[str, str]
    ) -> ExecutionResource:
        """Start an execution: one attempt, never a second one; cancelling us does not break it off.

        Raises:
            EngineRefused: none was created.
            EngineUnavailable: `sent`: one may have been.
        """
        call = _of_workflow(CallKind.CREATE, "write_executions", "workflows.executions.create", workflow)
        execution = executions_v1.Execution(argument=argument or "", labels=dict(labels))
        request = executions_v1.CreateExecutionRequest(parent=workflow.name, execution=execution)

        async def attempt(headers: Mapping[str, str], seconds: float) -> ExecutionResource:
            client = await self._clients.executions()
            return read_execution(
                await client.create_execution(request, retry=None, timeout=seconds, metadata=tuple(headers.items()))
            )

        return await self._edge.make(call, attempt)

    async def get(self, name: ExecutionName, *, full: bool) -> ExecutionResource:
        """One look at an execution.

        Raises:
            ExecutionNotFound, EngineError: see `refusals`.
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
        """Executions of a workflow, the newest first; `only`: a filter. Each page is a call of its own.

        `since`: up to the first one that started before; those that are QUEUED have not started.

        Raises:
            EngineError: see `refusals`.
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
        """Cancel an execution; nothing, if it has ended. Cancelling us does not break it off.

        Raises:
            ExecutionNotFound, EngineError: see `refusals`.
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
        """The callbacks that an execution has open.

        Raises:
            ExecutionNotFound, EngineError: see `refusals`.
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
        """Send an answer to a callback, once; the caller has checked whose URL it is.

        Raises:
            EngineError: it was not delivered, for sure; `EngineUnavailable` has `sent=False`.
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
        """A workflow, with its source.

        Raises:
            EngineError: see `refusals`; there is none of that name: `EngineRefused`.
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
        """The workflows of this place. Whether they have their source is Google's choice.

        Raises:
            EngineError: see `refusals`.
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
    """Whose callback it is; its URL itself is in no message, as it may be all that is needed to answer."""
    found = _CALLBACK.search(url)
    if found is None:
        raise EngineRefused("this is no URL of a callback: nothing is sent there")
    return ExecutionName.parse(found["execution"])


@asynccontextmanager
async def open_client(settings: GoogleSettings) -> AsyncGenerator[Client]:
    """The calls of an engine; nothing is called, read or connected before it is needed."""
    client = Client(settings)
    try:
        yield client
    finally:
        with anyio.CancelScope(shield=True):
            await client.close()
