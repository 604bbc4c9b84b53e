"""All calls to Temporal's frontend, each bounded in time, and the table of its errors.

The calls are raw requests, because the SDK's `describe()` and `list_workflows()` raise ValueError for a paused
execution (1.35: its enum ends before PAUSED=8), and because its handles pin one run, where the adapter means the
chain of runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from uuid import uuid4

import anyio
import temporalio.api.errordetails.v1 as details
from temporalio.api.common.v1 import Payload, Payloads, WorkflowExecution
from temporalio.api.enums.v1 import (
    HistoryEventFilterType,
    QueryRejectCondition,
    TaskQueueType,
    UpdateWorkflowExecutionLifecycleStage,
)
from temporalio.api.failure.v1 import Failure as FailureMessage
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.update.v1 import Input, Meta, Request, WaitPolicy
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
    DescribeTaskQueueResponse,
    DescribeWorkflowExecutionRequest,
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryReverseRequest,
    GetWorkflowExecutionHistoryReverseResponse,
    ListWorkflowExecutionsRequest,
    QueryWorkflowRequest,
    RequestCancelWorkflowExecutionRequest,
    SignalWorkflowExecutionRequest,
    TerminateWorkflowExecutionRequest,
    UpdateWorkflowExecutionRequest,
)
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse as Described
from temporalio.client import Client
from temporalio.converter import DataConverter, WorkflowSerializationContext
from temporalio.service import RPCError, RPCStatusCode

from mcp_workflows.adapter import JSON
from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable, ExecutionNotFound
from mcp_workflows_temporal.connection import Place
from mcp_workflows_temporal.task_queues import WORKFLOWS, TaskQueues

ERRORS: Mapping[RPCStatusCode, type[EngineError]] = {
    RPCStatusCode.CANCELLED: EngineUnavailable,  # the SDK's error when its own time-out passes
    RPCStatusCode.UNKNOWN: EngineUnavailable,
    RPCStatusCode.INVALID_ARGUMENT: EngineRefused,
    RPCStatusCode.DEADLINE_EXCEEDED: EngineUnavailable,
    RPCStatusCode.NOT_FOUND: ExecutionNotFound,
    RPCStatusCode.ALREADY_EXISTS: EngineRefused,
    RPCStatusCode.PERMISSION_DENIED: EngineRefused,
    RPCStatusCode.RESOURCE_EXHAUSTED: EngineUnavailable,
    RPCStatusCode.FAILED_PRECONDITION: EngineRefused,
    RPCStatusCode.ABORTED: EngineUnavailable,
    RPCStatusCode.OUT_OF_RANGE: EngineRefused,
    RPCStatusCode.UNIMPLEMENTED: EngineRefused,
    RPCStatusCode.INTERNAL: EngineUnavailable,
    RPCStatusCode.UNAVAILABLE: EngineUnavailable,
    RPCStatusCode.DATA_LOSS: EngineUnavailable,
    RPCStatusCode.UNAUTHENTICATED: EngineRefused,
}

TEXTS: Mapping[RPCStatusCode, str] = {  # instead of Temporal's own, which mislead or may repeat a credential
    RPCStatusCode.CANCELLED: "no answer in time",
    RPCStatusCode.DEADLINE_EXCEEDED: "no answer in time",
    RPCStatusCode.NOT_FOUND: "it has no such execution: never had, or dropped it after its retention",
    RPCStatusCode.UNAUTHENTICATED: "it does not accept our credentials: check api_key and tls",
    RPCStatusCode.PERMISSION_DENIED: "our credentials do not allow this: check api_key, tls and the namespace",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectFailure:
    """One cause of a failed connection, found by a part of the text: the SDK gives nothing else."""

    sign: str
    text: str
    error: type[EngineError]


REFUSED = "connection refused"
_TLS = "the TLS handshake failed: check tls"
_CERT = "its certificate"
_ENDED = "it ends the connection at once; if it wants TLS with a client_cert, check tls"
CONNECT_FAILURES = (
    ConnectFailure(sign="Unauthenticated", text=TEXTS[RPCStatusCode.UNAUTHENTICATED], error=EngineRefused),
    ConnectFailure(sign="PermissionDenied", text=TEXTS[RPCStatusCode.PERMISSION_DENIED], error=EngineRefused),
    ConnectFailure(sign="ConnectionRefused", text=REFUSED, error=EngineUnavailable),
    ConnectFailure(sign="dns error", text="unknown host", error=EngineUnavailable),
    ConnectFailure(sign="InvalidContentType", text="it does not speak TLS: check tls", error=EngineUnavailable),
    ConnectFailure(sign="UnknownIssuer", text=f"{_TLS}, we do not trust who signed {_CERT}", error=EngineUnavailable),
    ConnectFailure(sign="NotValidForName", text=f"{_TLS}, another name is in {_CERT}", error=EngineUnavailable),
    ConnectFailure(
        sign="InvalidCertificate", text=f"{_TLS}, there is something wrong with {_CERT}", error=EngineUnavailable
    ),
    ConnectFailure(sign="PrivateKeyParse", text=f"{_TLS}, client_key cannot be read", error=EngineUnavailable),
    ConnectFailure(sign="fatal alert", text=f"{_TLS}, it wants another client_cert, or one", error=EngineUnavailable),
    ConnectFailure(sign='"transport error"', text=_ENDED, error=EngineUnavailable),
    ConnectFailure(sign="ConnectionReset", text=_ENDED, error=EngineUnavailable),
    ConnectFailure(sign="BrokenPipe", text=_ENDED, error=EngineUnavailable),
    ConnectFailure(sign='"connection closed"', text=_ENDED, error=EngineUnavailable),
    ConnectFailure(sign="certificate", text=_TLS, error=EngineUnavailable),
    ConnectFailure(sign="", text="cannot connect", error=EngineUnavailable),
)
CONNECT_FAILED = "Failed client connect"  # the beginning of the SDK's RuntimeError for a lazy connection


class Call:
    """An async context manager that bounds all calls made inside to some seconds in total, retries of the SDK included.

    One class with one cancel scope, as each look makes one.

    Raises:
        EngineError: see `ERRORS` and `CONNECT_FAILURES`; no other error of Temporal comes out.
    """

    __slots__ = ("_place", "_prepare", "_scope", "_seconds")

    def __init__(self, place: Place, seconds: float, prepare: Callable[[], Awaitable[None]] | None = None) -> None:
        """`prepare` is awaited first, outside the time limit."""
        self._place = place
        self._seconds = seconds
        self._prepare = prepare
        self._scope = anyio.CancelScope()

    async def __aenter__(self) -> None:
        if self._prepare is not None:
            await self._prepare()
        self._scope.deadline = anyio.current_time() + self._seconds
        self._scope.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._scope.__exit__(kind, error, trace) or isinstance(error, TimeoutError):
            raise EngineUnavailable(f"{_engine(self._place)}: no answer within {self._seconds:g} s") from None
        if isinstance(error, OSError):  # the SDK raises none: it comes from a user's codec that asks a key server
            raise EngineUnavailable(f"the payload codec gives no answer ({type(error).__name__})") from error
        if isinstance(error, RPCError):
            raise translate(error, self._place) from error
        if isinstance(error, RuntimeError) and str(error).startswith(CONNECT_FAILED):
            raise _connect_error(str(error), self._place) from None


def translate(error: RPCError, place: Place) -> EngineError:
    """Return the error of `mcp_workflows.errors` for an error of Temporal."""
    kind = ERRORS[error.status]
    reason = TEXTS.get(error.status) or error.message.partition("\n")[0][:200]
    if any(found.Is(details.NamespaceNotFoundFailure.DESCRIPTOR) for found in error.grpc_status.details):
        kind, reason = EngineRefused, f"it has no namespace {place.namespace!r}"
    if error.status is RPCStatusCode.RESOURCE_EXHAUSTED and "larger than max" in error.message:
        kind = EngineRefused  # a gRPC message over 4 MiB: trying again will not help
    text = f"{_engine(place)}: {reason}"
    if kind is EngineUnavailable:
        return EngineUnavailable(text, throttled=error.status is RPCStatusCode.RESOURCE_EXHAUSTED)
    return kind(text)


def _connect_error(text: str, place: Place) -> EngineError:
    cause = next(row for row in CONNECT_FAILURES if row.sign in text)
    message = f"{_engine(place)}: {cause.text}"
    if cause.text == REFUSED:
        start = " Start it: temporal server start-dev" if place.is_local else ""
        message += f"; is the Temporal server running at {place.address}?{start}"
    return EngineUnavailable(message, sent=False) if cause.error is EngineUnavailable else cause.error(message)


def _engine(place: Place) -> str:
    return f"Temporal at {place.address}"


UPDATE_SHARE = 0.25  # of the total time, 2 s of 8: a live worker takes some 20 ms, without one a signal does it
REMEMBERED_RUNS = 1000
REMEMBERED_ENDS = 50  # each is taken by the look that follows within milliseconds

Renew = Callable[[Client], Awaitable[Client]]
"""Return the client to use from now on."""

_CLOSE_EVENT = HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT
_COMPLETED = UpdateWorkflowExecutionLifecycleStage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_COMPLETED
_IF_OPEN = QueryRejectCondition.QUERY_REJECT_CONDITION_NOT_OPEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """One chain of runs: retries, continue-as-new and resets keep the workflow id and the first run's id."""

    workflow_id: str
    first_run_id: str

    def __str__(self) -> str:
        return f"{self.workflow_id}/{self.first_run_id}"

    @staticmethod
    def parse(text: str) -> Handle:
        """Read a handle as it was stored.

        Raises:
            ExecutionNotFound: the text is no handle of this adapter.
        """
        workflow_id, _, first_run_id = text.rpartition("/")
        if not workflow_id or not first_run_id:
            raise ExecutionNotFound("this is not the handle of a Temporal execution")
        return Handle(workflow_id=workflow_id, first_run_id=first_run_id)

    @property
    def execution(self) -> WorkflowExecution:
        """The current run, whichever that is."""
        return WorkflowExecution(workflow_id=self.workflow_id)


class Frontend:
    """The calls to one Temporal namespace, through a client of the user's or of ours."""

    def __init__(self, client: Client, place: Place, timeout: timedelta, renew: Renew | None = None) -> None:
        self.client = client
        self.place = place
        self.timeout = timeout
        self.task_queues = TaskQueues(self.describe_task_queue)
        self._renew = renew
        self._original_runs: dict[str, str] = {}
        self._ends: dict[str, HistoryEvent] = {}

    def call(self) -> Call:
        """Bound all calls made inside, together, and make them with the current secrets; see `Call`."""
        return Call(self.place, self.timeout.total_seconds(), self._renewed if self._renew is not None else None)

    async def _renewed(self) -> None:
        if self._renew is not None:
            self.client = await self._renew(self.client)

    def converter(self, workflow_id: str) -> DataConverter:
        """Return the user's data converter, in the context of this workflow."""
        context = WorkflowSerializationContext(namespace=self.client.namespace, workflow_id=workflow_id)
        return self.client.data_converter.with_context(context)

    async def describe(self, workflow_id: str) -> Described:
        """Describe the current run of a workflow id; needs no worker."""
        request = DescribeWorkflowExecutionRequest(
            namespace=self.client.namespace, execution=WorkflowExecution(workflow_id=workflow_id)
        )
        return await self.client.workflow_service.describe_workflow_execution(request, retry=True, timeout=self.timeout)

    async def describe_chain(self, handle: Handle) -> Described:
        """Describe the current run of a chain.

        Raises:
            ExecutionNotFound: the workflow id belongs to another chain by now.
        """
        found = await self.describe(handle.workflow_id)
        first = found.workflow_execution_info.first_run_id
        if first and first != handle.first_run_id:
            raise ExecutionNotFound(f"workflow id {handle.workflow_id} belongs to another execution by now")
        return found

    async def list_executions(
        self, query: str, *, page: int, pages: int | None = None
    ) -> AsyncIterator[WorkflowExecutionInfo]:
        """Yield the rows that a query finds, `page` rows a call, at most so many pages.

        Open executions come first, then the closed ones, the latest first. The list lags behind the executions.
        """
        request = ListWorkflowExecutionsRequest(namespace=self.client.namespace, page_size=page, query=query)
        while pages is None or pages > 0:
            found = await self.client.workflow_service.list_workflow_executions(
                request, retry=True, timeout=self.timeout
            )
            for row in found.executions:
                yield row
            if not found.next_page_token:
                return
            request.next_page_token = found.next_page_token
            pages = None if pages is None else pages - 1

    async def first_event(self, execution: WorkflowExecution) -> HistoryEvent:
        """Return the event that started a run."""
        return await self._event(execution, HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)

    async def close_event(self, info: WorkflowExecutionInfo) -> HistoryEvent:
        """Return the event that ended a run, without a call if a long poll has just brought it."""
        brought = self._ends.pop(info.execution.workflow_id, None)
        if brought is not None and brought.event_time == info.close_time:  # to the nanosecond, so of this run
            return brought
        return await self._event(info.execution, _CLOSE_EVENT)

    def remember_end(self, workflow_id: str, event: HistoryEvent) -> None:
        """Keep the close event that a long poll brought for the next look."""
        if len(self._ends) >= REMEMBERED_ENDS:
            self._ends.pop(next(iter(self._ends)))
        self._ends[workflow_id] = event

    async def original_run(self, execution: WorkflowExecution) -> str:
        """Return the run that a reset run goes back to; any other run is its own original."""
        if execution.run_id not in self._original_runs:
            event = await self.first_event(execution)
            started = event.workflow_execution_started_event_attributes
            if len(self._original_runs) >= REMEMBERED_RUNS:
                self._original_runs.pop(next(iter(self._original_runs)))
            self._original_runs[execution.run_id] = started.original_execution_run_id
        return self._original_runs[execution.run_id]

    async def _event(self, execution: WorkflowExecution, which: HistoryEventFilterType.ValueType) -> HistoryEvent:
        request = GetWorkflowExecutionHistoryRequest(
            namespace=self.client.namespace,
            execution=execution,
            maximum_page_size=1,
            history_event_filter_type=which,
            skip_archival=True,
        )
        response = await self.client.workflow_service.get_workflow_execution_history(
            request, retry=True, timeout=self.timeout
        )
        if not response.history.events:
            text = f"Temporal at {self.place.address}: it gave no event of {execution.workflow_id}"
            raise EngineUnavailable(text, silent=False)
        return response.history.events[0]

    async def history_page(
        self, execution: WorkflowExecution, size: int, token: bytes = b""
    ) -> GetWorkflowExecutionHistoryReverseResponse:
        """Return the last events of a run, newest first, or those before a page; Temporal gives at most 256 a call."""
        request = GetWorkflowExecutionHistoryReverseRequest(
            namespace=self.client.namespace, execution=execution, maximum_page_size=size, next_page_token=token
        )
        return await self.client.workflow_service.get_workflow_execution_history_reverse(
            request, retry=True, timeout=self.timeout
        )

    async def query(self, execution: WorkflowExecution, name: str, args: Sequence[JSON]) -> Payload | None:
        """Query an open run once, within a quarter of the time: a live worker takes some 10 ms.

        Raises:
            RPCError: among others if no worker took the query in time.
        """
        request = QueryWorkflowRequest(
            namespace=self.client.namespace,
            execution=execution,
            query=WorkflowQuery(query_type=name, query_args=await self._payloads(execution, args)),
            query_reject_condition=_IF_OPEN,
        )
        found = await self.client.workflow_service.query_workflow(request, timeout=self.timeout * UPDATE_SHARE)
        return found.query_result.payloads[0] if found.query_result.payloads else None

    async def update(
        self,
        execution: WorkflowExecution,
        name: str,
        args: Sequence[JSON],
        key: str,
        first_run_id: str = "",
        identity: str = "",
    ) -> FailureMessage | None:
        """Deliver an answer to a live worker; return the workflow's refusal, or None if it accepted the answer.

        Raises:
            RPCError: among others if no worker took the update in time: the workflow may still get it.
        """
        request = UpdateWorkflowExecutionRequest(
            namespace=self.client.namespace,
            workflow_execution=execution,
            first_execution_run_id=first_run_id,
            request=Request(
                meta=Meta(update_id=f"mcp:{key}", identity=identity or self.client.identity),
                input=Input(name=name, args=await self._payloads(execution, args)),
            ),
            wait_policy=WaitPolicy(lifecycle_stage=_COMPLETED),
        )
        patience = self.timeout * UPDATE_SHARE
        done = await self.client.workflow_service.update_workflow_execution(request, timeout=patience)
        return done.outcome.failure if done.outcome.HasField("failure") else None

    async def signal(
        self,
        execution: WorkflowExecution,
        name: str,
        args: Sequence[JSON],
        request_id: str | None = None,
        identity: str = "",
    ) -> None:
        """Append a signal to the history, where it waits for a worker; Temporal drops a second one with its id."""
        request = SignalWorkflowExecutionRequest(
            namespace=self.client.namespace,
            workflow_execution=execution,
            signal_name=name,
            input=await self._payloads(execution, args),
            identity=identity or self.client.identity,
            request_id=request_id or str(uuid4()),
        )
        await self.client.workflow_service.signal_workflow_execution(request, retry=True, timeout=self.timeout)

    async def request_cancel(self, handle: Handle) -> None:
        """Request the cancellation of the whole chain: pinned to a run it would be lost after continue-as-new."""
        request = RequestCancelWorkflowExecutionRequest(
            namespace=self.client.namespace,
            workflow_execution=handle.execution,
            first_execution_run_id=handle.first_run_id,
            identity=self.client.identity,
            request_id=str(uuid4()),
            reason="the MCP client asked to cancel the task",
        )
        await self.client.workflow_service.request_cancel_workflow_execution(request, retry=True, timeout=self.timeout)

    async def terminate(self, handle: Handle, reason: str) -> None:
        """Terminate the whole chain."""
        request = TerminateWorkflowExecutionRequest(
            namespace=self.client.namespace,
            workflow_execution=handle.execution,
            first_execution_run_id=handle.first_run_id,
            reason=reason,
            identity=self.client.identity,
        )
        await self.client.workflow_service.terminate_workflow_execution(request, retry=True, timeout=self.timeout)

    async def describe_namespace(self) -> None:
        """Raise an RPCError unless the namespace exists."""
        request = DescribeNamespaceRequest(namespace=self.client.namespace)
        await self.client.workflow_service.describe_namespace(request, retry=True, timeout=self.timeout)

    async def describe_task_queue(
        self, name: str, kind: TaskQueueType.ValueType = WORKFLOWS, *, patience: timedelta | None = None
    ) -> DescribeTaskQueueResponse:
        """Return the pollers and the backlog of a task queue; with `patience`, after one try."""
        request = DescribeTaskQueueRequest(
            namespace=self.client.namespace,
            task_queue=TaskQueue(name=name),
            task_queue_type=kind,
            report_stats=True,
        )
        return await self.client.workflow_service.describe_task_queue(
            request, retry=patience is None, timeout=patience or self.timeout
        )

    async def _payloads(self, execution: WorkflowExecution, args: Sequence[JSON]) -> Payloads:
        return Payloads(payloads=await self.converter(execution.workflow_id).encode(args) if args else [])


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The current run of an execution, as described."""

    frontend: Frontend
    execution: WorkflowExecution
    first_run_id: str
    length: int  # events
    queue: str

    @staticmethod
    def of(frontend: Frontend, found: Described) -> Run:
        """Read the run from its description."""
        info = found.workflow_execution_info
        return Run(
            frontend=frontend,
            execution=info.execution,
            first_run_id=info.first_run_id or info.execution.run_id,
            length=info.history_length,
            queue=info.task_queue,
        )

    @property
    def ids(self) -> tuple[str, str]:
        """The workflow id and the run id."""
        return self.execution.workflow_id, self.execution.run_id


def quoted(text: str) -> str:
    """Return a text as a literal of a list query."""
    return "'{}'".format(text.replace("'", "''"))
