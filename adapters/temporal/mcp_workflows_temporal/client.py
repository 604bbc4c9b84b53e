"""All calls to Temporal's frontend, each with a time limit.

The calls are raw requests. The SDK's `describe()` and `list_workflows()` raise ValueError for a paused execution (1.35:
its enum ends before PAUSED=8), and its handles pin one run, whereas the adapter means the chain of runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypedDict, TypeVar
from uuid import uuid4

import anyio
from temporalio.api.common.v1 import Payload, Payloads, WorkflowExecution
from temporalio.api.enums.v1 import (
    HistoryEventFilterType,
    QueryRejectCondition,
    TaskQueueType,
    UpdateWorkflowExecutionLifecycleStage,
)
from temporalio.api.enums.v1 import WorkflowExecutionStatus as State
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.update.v1 import Input, Meta, Request, UpdateRef, WaitPolicy
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
    PollWorkflowExecutionUpdateRequest,
    QueryWorkflowRequest,
    RequestCancelWorkflowExecutionRequest,
    SignalWorkflowExecutionRequest,
    TerminateWorkflowExecutionRequest,
    UpdateWorkflowExecutionRequest,
    UpdateWorkflowExecutionResponse,
)
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse as Described
from temporalio.api.workflowservice.v1 import PollWorkflowExecutionUpdateResponse as PolledUpdate
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter, WorkflowSerializationContext
from temporalio.service import RPCError, WorkflowService

from mcp_workflows.adapter import JSON, EndedExecution, Status
from mcp_workflows.errors import EngineRefused, EngineUnavailable, ExecutionNotFound
from mcp_workflows_temporal.errors import Call
from mcp_workflows_temporal.settings import Place

UPDATE_SHARE = 0.25  # of the time limit, 2 s of 8: a live worker takes some 20 ms, without one a signal is sent
REMEMBERED = 1000  # runs, task queues
REMEMBERED_ENDS = 50  # each is consumed by the poll that follows within milliseconds
LONGEST_POLL = timedelta(seconds=60)  # Temporal itself returns an empty page after some 20 s
STILL_POLLING = timedelta(seconds=90)  # one poll takes up to 60 s; Temporal lists pollers for 5 minutes
GOOD_FOR = 5.0  # seconds for which the pollers of a task queue are cached
QUEUE_SECONDS = 1.0  # a poll must not fail because the task queue cannot be described

WORKFLOWS = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
ACTIVITIES = TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY

STATUSES: Mapping[int, Status] = {
    State.WORKFLOW_EXECUTION_STATUS_RUNNING: Status.RUNNING,
    State.WORKFLOW_EXECUTION_STATUS_COMPLETED: Status.SUCCEEDED,
    State.WORKFLOW_EXECUTION_STATUS_FAILED: Status.FAILED,
    State.WORKFLOW_EXECUTION_STATUS_CANCELED: Status.CANCELLED,
    State.WORKFLOW_EXECUTION_STATUS_TERMINATED: Status.CANCELLED,
    State.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW: Status.RUNNING,  # the chain continues under the same id
    State.WORKFLOW_EXECUTION_STATUS_TIMED_OUT: Status.FAILED,
    State.WORKFLOW_EXECUTION_STATUS_PAUSED: Status.RUNNING,  # unknown to the SDK's own enum (1.35)
}
"""An unknown state counts as RUNNING, so that no execution that may continue is declared ended."""

Renew = Callable[[Client], Awaitable[Client]]
"""Returns the client for further calls."""

_SHIPPED = (DataConverter.default, pydantic_data_converter)
_CLOSE_EVENT = HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT
COMPLETED = UpdateWorkflowExecutionLifecycleStage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_COMPLETED
ACCEPTED = UpdateWorkflowExecutionLifecycleStage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_ACCEPTED
_IF_OPEN = QueryRejectCondition.QUERY_REJECT_CONDITION_NOT_OPEN
_ALWAYS = QueryRejectCondition.QUERY_REJECT_CONDITION_NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """One chain of runs: retries, continue-as-new and resets keep the workflow id and the first run's id."""

    workflow_id: str
    first_run_id: str

    def __str__(self) -> str:
        return f"{self.workflow_id}/{self.first_run_id}"

    @staticmethod
    def parse(text: str) -> Handle:
        """Parse a stored handle.

        Raises:
            ExecutionNotFound: the text is not a handle of this adapter.
        """
        workflow_id, _, first_run_id = text.rpartition("/")
        if not workflow_id or not first_run_id:
            raise ExecutionNotFound("this is not the handle of a Temporal execution")
        return Handle(workflow_id=workflow_id, first_run_id=first_run_id)

    @property
    def execution(self) -> WorkflowExecution:
        """The current run of the chain."""
        return WorkflowExecution(workflow_id=self.workflow_id)


K = TypeVar("K")
V = TypeVar("V")


class Latest(dict[K, V]):
    """A mapping limited to its most recently set entries."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        """Set an entry, and drop the oldest one above the limit."""
        self.pop(key, None)
        super().__setitem__(key, value)
        if len(self) > self._most:
            del self[next(iter(self))]


class _Limits(TypedDict):
    retry: bool
    timeout: timedelta


class Frontend:
    """The calls to one Temporal namespace, through the user's client or ours."""

    def __init__(self, client: Client, place: Place, timeout: timedelta, renew: Renew | None = None) -> None:
        self.client = client
        self.place = place
        self.timeout = timeout
        self.task_queues = TaskQueues(partial(self.describe_task_queue, seconds=QUEUE_SECONDS))
        self._converter = client.data_converter
        # The SDK's own converters use no context, and write JSON of a known size.
        self.has_shipped_converter = any(self._converter is each for each in _SHIPPED)
        self._limits = _Limits(retry=True, timeout=timeout)
        self._renew = renew
        self.ended_chains = Latest[str, EndedExecution | None](REMEMBERED)  # by run; None: not the last of its chain
        self._original_runs = Latest[str, str](REMEMBERED)
        self._ends = Latest[str, HistoryEvent](REMEMBERED_ENDS)

    def call(self) -> Call:
        """Limit the total time of all calls made inside, and use the current secrets; see `Call`."""
        return Call(self.place, self.timeout.total_seconds(), self._use_current_secrets)

    @property
    def _service(self) -> WorkflowService:
        return self.client.workflow_service

    async def _use_current_secrets(self) -> None:
        if self._renew is not None:
            self.client = await self._renew(self.client)

    def converter(self, workflow_id: str) -> DataConverter:
        """Return the user's data converter, in the context of this workflow."""
        if self.has_shipped_converter:
            return self._converter
        context = WorkflowSerializationContext(namespace=self.client.namespace, workflow_id=workflow_id)
        return self._converter.with_context(context)

    async def describe(self, workflow_id: str, run_id: str = "") -> Described:
        """Describe a run of a workflow id, by default the current one; needs no worker."""
        execution = WorkflowExecution(workflow_id=workflow_id, run_id=run_id)
        request = DescribeWorkflowExecutionRequest(namespace=self.client.namespace, execution=execution)
        return await self._service.describe_workflow_execution(request, **self._limits)

    async def describe_chain(self, handle: Handle) -> Described:
        """Describe the current run of a chain.

        Raises:
            ExecutionNotFound: the workflow id now belongs to another chain.
        """
        found = await self.describe(handle.workflow_id)
        first = found.workflow_execution_info.first_run_id
        if first and first != handle.first_run_id:
            raise ExecutionNotFound(f"workflow id {handle.workflow_id} belongs to another execution by now")
        return found

    async def list_executions(
        self, query: str, *, page: int, pages: int | None = None
    ) -> AsyncIterator[WorkflowExecutionInfo]:
        """Yield the rows of a query, `page` rows per call, at most `pages` pages.

        Open executions come first, then closed ones, the latest first. The list lags behind the executions.
        """
        request = ListWorkflowExecutionsRequest(namespace=self.client.namespace, page_size=page, query=query)
        while pages is None or pages > 0:
            found = await self._service.list_workflow_executions(request, **self._limits)
            for row in found.executions:
                yield row
            if not found.next_page_token:
                return
            request.next_page_token = found.next_page_token
            pages = None if pages is None else pages - 1

    async def first_event(self, execution: WorkflowExecution) -> HistoryEvent:
        """Return the event that started a run."""
        return await self._event(execution, HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)

    async def refuse_cron(self, execution: WorkflowExecution, name: str, *, final: bool = False) -> None:
        """Raise EngineRefused if an execution has a cron schedule; `name` is for the message."""
        if (await self.first_event(execution)).workflow_execution_started_event_attributes.cron_schedule:
            text = f"{name} has a cron schedule: it never ends, so it cannot be a task"
            raise EngineRefused(text, final=final)

    async def close_event(self, info: WorkflowExecutionInfo) -> HistoryEvent:
        """Return the event that ended a run, without a call if a long poll has just returned it."""
        brought = self._ends.pop(info.execution.workflow_id, None)
        if brought is not None and brought.event_time == info.close_time:  # to the nanosecond, so of this run
            return brought
        return await self._event(info.execution, _CLOSE_EVENT)

    async def wait_for_end(self, handle: Handle) -> None:
        """Wait until the chain may have ended, with one open call that returns within milliseconds of the end.

        A run that is followed by another one is not the end. A namespace allows 1,200 of these calls (server 1.32),
        including those of other clients. The next `close_event` needs no call.

        Raises:
            EngineError: waiting is not possible now.
        """
        token = b""
        while True:
            request = GetWorkflowExecutionHistoryRequest(
                namespace=self.client.namespace,
                execution=handle.execution,
                history_event_filter_type=_CLOSE_EVENT,
                wait_new_event=True,
                skip_archival=True,
                next_page_token=token,
            )
            async with Call(self.place, LONGEST_POLL.total_seconds()):
                page = await self._service.get_workflow_execution_history(request, retry=True, timeout=LONGEST_POLL)
            if page.history.events:
                event = page.history.events[-1]
                if not is_followed(event):
                    self._ends[handle.workflow_id] = event
                    return
            token = b"" if page.history.events else page.next_page_token

    async def original_run(self, execution: WorkflowExecution) -> str:
        """Return the run that a reset run goes back to; any other run is its own original."""
        if execution.run_id not in self._original_runs:
            event = await self.first_event(execution)
            original = event.workflow_execution_started_event_attributes.original_execution_run_id
            self._original_runs[execution.run_id] = original
        return self._original_runs[execution.run_id]

    async def _event(self, execution: WorkflowExecution, which: HistoryEventFilterType.ValueType) -> HistoryEvent:
        request = GetWorkflowExecutionHistoryRequest(
            namespace=self.client.namespace,
            execution=execution,
            maximum_page_size=1,
            history_event_filter_type=which,
            skip_archival=True,
        )
        response = await self._service.get_workflow_execution_history(request, **self._limits)
        if not response.history.events:
            raise EngineUnavailable(f"{self.place}: it gave no event of {execution.workflow_id}", silent=False)
        return response.history.events[0]

    async def history_page(
        self, execution: WorkflowExecution, size: int, token: bytes = b""
    ) -> GetWorkflowExecutionHistoryReverseResponse:
        """Return the last events of a run, newest first, or those before a page; Temporal returns at most 256 per
        call."""
        request = GetWorkflowExecutionHistoryReverseRequest(
            namespace=self.client.namespace, execution=execution, maximum_page_size=size, next_page_token=token
        )
        return await self._service.get_workflow_execution_history_reverse(request, **self._limits)

    async def read_input(self, execution: WorkflowExecution) -> Sequence[Payload]:
        """Return the input of a run, unconverted, from its first event."""
        event = await self.first_event(execution)
        return event.workflow_execution_started_event_attributes.input.payloads

    async def search_attributes(self) -> frozenset[str]:
        """Return the names of the namespace's search attributes."""
        request = ListSearchAttributesRequest(namespace=self.client.namespace)
        found = await self.client.operator_service.list_search_attributes(request, **self._limits)
        return frozenset({*found.custom_attributes, *found.system_attributes})

    async def query(
        self,
        execution: WorkflowExecution,
        name: str,
        args: Sequence[JSON] = (),
        *,
        share: float = UPDATE_SHARE,
        only_open: bool = True,
    ) -> Payload | None:
        """Query a run once, within this share of the time limit: a live worker takes some 10 ms.

        Raises:
            RPCError: including the case that no worker took the query in time.
        """
        request = QueryWorkflowRequest(
            namespace=self.client.namespace,
            execution=execution,
            query=WorkflowQuery(query_type=name, query_args=await self._payloads(execution, args)),
            query_reject_condition=_IF_OPEN if only_open else _ALWAYS,
        )
        found = await self._service.query_workflow(request, timeout=self.timeout * share)
        return found.query_result.payloads[0] if found.query_result.payloads else None

    async def update(
        self,
        execution: WorkflowExecution,
        name: str,
        args: Sequence[JSON],
        key: str,
        first_run_id: str = "",
        identity: str = "",
        stage: UpdateWorkflowExecutionLifecycleStage.ValueType = COMPLETED,
    ) -> UpdateWorkflowExecutionResponse:
        """Deliver an update to a live worker, and wait for this stage; the outcome contains its failure, if it failed.

        Raises:
            RPCError: including the case that no worker took the update in time: the workflow may still get it.
        """
        request = UpdateWorkflowExecutionRequest(
            namespace=self.client.namespace,
            workflow_execution=execution,
            first_execution_run_id=first_run_id,
            request=Request(
                meta=Meta(update_id=f"mcp:{key}", identity=identity or self.client.identity),
                input=Input(name=name, args=await self._payloads(execution, args)),
            ),
            wait_policy=WaitPolicy(lifecycle_stage=stage),
        )
        return await self._service.update_workflow_execution(request, timeout=self.timeout * UPDATE_SHARE)

    async def poll_update(self, workflow_id: str, run_id: str, key: str) -> PolledUpdate:
        """Return an accepted update, with its outcome if it has ended.

        Raises:
            RPCError: including the case that the run has accepted no such update.
        """
        execution = WorkflowExecution(workflow_id=workflow_id, run_id=run_id)
        request = PollWorkflowExecutionUpdateRequest(
            namespace=self.client.namespace,
            update_ref=UpdateRef(workflow_execution=execution, update_id=f"mcp:{key}"),
            identity=self.client.identity,
        )
        return await self._service.poll_workflow_execution_update(request, **self._limits)

    async def signal(
        self,
        execution: WorkflowExecution,
        name: str,
        args: Sequence[JSON],
        request_id: str | None = None,
        identity: str = "",
        retry: bool = True,
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
        await self._service.signal_workflow_execution(request, retry=retry, timeout=self.timeout)

    async def request_cancel(self, handle: Handle) -> None:
        """Request the cancellation of the whole chain: a request pinned to a run is lost after continue-as-new."""
        request = RequestCancelWorkflowExecutionRequest(
            namespace=self.client.namespace,
            workflow_execution=handle.execution,
            first_execution_run_id=handle.first_run_id,
            identity=self.client.identity,
            request_id=str(uuid4()),
            reason="the MCP client asked to cancel the task",
        )
        await self._service.request_cancel_workflow_execution(request, **self._limits)

    async def terminate(self, handle: Handle, reason: str) -> None:
        """Terminate the whole chain."""
        request = TerminateWorkflowExecutionRequest(
            namespace=self.client.namespace,
            workflow_execution=handle.execution,
            first_execution_run_id=handle.first_run_id,
            reason=reason,
            identity=self.client.identity,
        )
        await self._service.terminate_workflow_execution(request, **self._limits)

    async def describe_namespace(self) -> None:
        """Raise an RPCError unless the namespace exists."""
        request = DescribeNamespaceRequest(namespace=self.client.namespace)
        await self._service.describe_namespace(request, **self._limits)

    async def describe_task_queue(
        self, name: str, kind: TaskQueueType.ValueType = WORKFLOWS, *, seconds: float | None = None
    ) -> DescribeTaskQueueResponse:
        """Return the pollers and the backlog of a task queue; with `seconds`, after one try within this time."""
        request = DescribeTaskQueueRequest(
            namespace=self.client.namespace,
            task_queue=TaskQueue(name=name),
            task_queue_type=kind,
            report_stats=True,
        )
        limits = self._limits
        if seconds is not None:
            limits = _Limits(retry=False, timeout=timedelta(seconds=seconds))
        return await self._service.describe_task_queue(request, **limits)

    async def _payloads(self, execution: WorkflowExecution, args: Sequence[JSON]) -> Payloads:
        return Payloads(payloads=await self.converter(execution.workflow_id).encode(args) if args else [])


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The current run of an execution, from its description."""

    frontend: Frontend
    execution: WorkflowExecution
    first_run_id: str
    length: int  # events
    queue: str

    @staticmethod
    def of(frontend: Frontend, found: Described) -> Run:
        """Return the run in a description."""
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


class TaskQueues:
    """The pollers of task queues, requested at most once in five seconds, one request at a time."""

    def __init__(
        self, describe: Callable[[str, TaskQueueType.ValueType], Awaitable[DescribeTaskQueueResponse]]
    ) -> None:
        self._describe = describe
        self._deserted = Latest[tuple[str, int], tuple[float, bool]](REMEMBERED)  # with the event loop's time
        self._lock = anyio.Lock()

    async def is_deserted(self, name: str, kind: TaskQueueType.ValueType) -> bool:
        """True if nobody polls the queue for certain, as of at most 5 s ago."""
        async with self._lock:
            at, deserted = self._deserted.get((name, kind), (float("-inf"), False))
            if anyio.current_time() - at > GOOD_FOR:
                try:
                    deserted = not live_pollers(await self._describe(name, kind))
                except RPCError:
                    deserted = False  # unknown
                self._deserted[name, kind] = anyio.current_time(), deserted
        return deserted


def live_pollers(found: DescribeTaskQueueResponse) -> Sequence[PollerInfo]:
    """Return the current pollers; Temporal also lists those of the last minutes."""
    return [poller for poller in found.pollers if idle_time(poller) < STILL_POLLING]


def idle_time(poller: PollerInfo) -> timedelta:
    """Return the time since the last poll began."""
    return datetime.now(UTC) - poller.last_access_time.ToDatetime(UTC)


def is_open(found: Described) -> bool:
    """True if a described execution has not ended."""
    return STATUSES.get(found.workflow_execution_info.status, Status.RUNNING) is Status.RUNNING


def is_followed(event: HistoryEvent) -> bool:
    """True if the run that ended with this event continues in another: as new, by a retry or a cron run."""
    return bool(getattr(getattr(event, event.WhichOneof("attributes") or "", None), "new_execution_run_id", ""))


def quoted(text: str) -> str:
    """Return a text as a literal of a list query."""
    return "'{}'".format(text.replace("'", "''"))
