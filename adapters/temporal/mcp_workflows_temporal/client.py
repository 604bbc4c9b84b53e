"""The calls to Temporal's frontend that the adapter needs, by workflow id, chain-safe.

Raw calls, because the SDK's own `describe()` raises ValueError for a paused execution (1.35: its enum ends
before PAUSED=8), and because its handles pin a run where we mean the whole chain of runs.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from mcp_workflows_temporal_worker.contract import ANSWER_SIGNAL, ANSWER_UPDATE
from temporalio.api.common.v1 import Payloads, WorkflowExecution
from temporalio.api.enums.v1 import HistoryEventFilterType, TaskQueueType, UpdateWorkflowExecutionLifecycleStage
from temporalio.api.failure.v1 import Failure as FailureMessage
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.update.v1 import Input, Meta, Request, WaitPolicy
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
    DescribeTaskQueueResponse,
    DescribeWorkflowExecutionRequest,
    DescribeWorkflowExecutionResponse,
    GetWorkflowExecutionHistoryRequest,
    RequestCancelWorkflowExecutionRequest,
    SignalWorkflowExecutionRequest,
    UpdateWorkflowExecutionRequest,
)
from temporalio.client import Client
from temporalio.converter import DataConverter, WorkflowSerializationContext

from mcp_workflows.adapter import JSON
from mcp_workflows.errors import EngineUnavailable, ExecutionNotFound
from mcp_workflows_temporal.calls import call
from mcp_workflows_temporal.connection import Place
from mcp_workflows_temporal.task_queues import WORKFLOWS, Queues

UPDATE_SHARE = 0.25  # of the total time, 2 s of 8: a live worker takes some 20 ms, without one the signal does it
REMEMBERED_RUNS = 1000
REMEMBERED_ENDS = 50  # each is taken by the look that follows within milliseconds

Renew = Callable[[Client], Awaitable[Client]]  # the client to use from now on

_CLOSE_EVENT = HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT
_COMPLETED = UpdateWorkflowExecutionLifecycleStage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_COMPLETED


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """One chain of runs: retries, continue-as-new and resets keep the id and the first run's id."""

    workflow_id: str
    first_run_id: str

    def __str__(self) -> str:
        return f"{self.workflow_id}/{self.first_run_id}"

    @staticmethod
    def parse(text: str) -> Handle:
        """The handle as it was stored.

        Raises:
            ExecutionNotFound: it is none of ours.
        """
        workflow_id, _, first_run_id = text.rpartition("/")
        if not workflow_id or not first_run_id:
            raise ExecutionNotFound("this is not the handle of a Temporal execution")
        return Handle(workflow_id=workflow_id, first_run_id=first_run_id)


class Frontend:
    """One namespace of one Temporal, through the user's or our own client."""

    def __init__(self, client: Client, place: Place, timeout: timedelta, renew: Renew | None = None) -> None:
        self.client = client
        self.place = place
        self.timeout = timeout
        self._renew = renew
        self.queues = Queues(self.describe_task_queue)
        self._original_runs: dict[str, str] = {}
        self._ends: dict[str, HistoryEvent] = {}

    @asynccontextmanager
    async def call(self) -> AsyncGenerator[None]:
        """Bounds all calls made inside it, together, with the secrets of now; see `calls.call`."""
        if self._renew is not None:
            self.client = await self._renew(self.client)
        async with call(self.place, self.timeout.total_seconds()):
            yield

    def converter(self, workflow_id: str) -> DataConverter:
        """The user's data converter, told whose payloads it gets."""
        context = WorkflowSerializationContext(namespace=self.client.namespace, workflow_id=workflow_id)
        return self.client.data_converter.with_context(context)

    async def describe(self, workflow_id: str) -> DescribeWorkflowExecutionResponse:
        """The current run of the chain; needs no worker."""
        execution = WorkflowExecution(workflow_id=workflow_id)
        request = DescribeWorkflowExecutionRequest(namespace=self.client.namespace, execution=execution)
        return await self.client.workflow_service.describe_workflow_execution(request, retry=True, timeout=self.timeout)

    async def first_event(self, execution: WorkflowExecution) -> HistoryEvent:
        """How a run was started."""
        return await self._event(execution, HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)

    async def close_event(self, info: WorkflowExecutionInfo) -> HistoryEvent:
        """How a run ended; a wait may just have brought it."""
        brought = self._ends.pop(info.execution.workflow_id, None)
        if brought is not None and brought.event_time == info.close_time:  # to the nanosecond, so of this run
            return brought
        return await self._event(info.execution, _CLOSE_EVENT)

    def remember_end(self, workflow_id: str, event: HistoryEvent) -> None:
        """What a wait brought, for the next look."""
        if len(self._ends) >= REMEMBERED_ENDS:
            self._ends.pop(next(iter(self._ends)))
        self._ends[workflow_id] = event

    async def original_run(self, execution: WorkflowExecution) -> str:
        """The run that a run goes back to over resets; itself after a retry or continue-as-new."""
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

    async def update(self, handle: Handle, key: str, response: JSON) -> FailureMessage | None:
        """Deliver an answer to a live worker; what the workflow says against it, or None if it took it.

        Raises:
            RPCError: among others if no worker took it in time: it may still come to the workflow.
        """
        update = Request(
            meta=Meta(update_id=f"mcp:{key}", identity=self.client.identity),
            input=Input(name=ANSWER_UPDATE, args=await self._payloads(handle, key, response)),
        )
        request = UpdateWorkflowExecutionRequest(
            namespace=self.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=handle.workflow_id),
            first_execution_run_id=handle.first_run_id,
            request=update,
            wait_policy=WaitPolicy(lifecycle_stage=_COMPLETED),
        )
        patience = self.timeout * UPDATE_SHARE
        done = await self.client.workflow_service.update_workflow_execution(request, timeout=patience)
        return done.outcome.failure if done.outcome.HasField("failure") else None

    async def signal(self, handle: Handle, key: str, response: JSON) -> None:
        """Leave an answer in the history: it waits there for a worker."""
        request = SignalWorkflowExecutionRequest(
            namespace=self.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=handle.workflow_id),
            signal_name=ANSWER_SIGNAL,
            input=await self._payloads(handle, {"key": key, "response": response}),
            identity=self.client.identity,
            request_id=str(uuid.uuid4()),
        )
        await self.client.workflow_service.signal_workflow_execution(request, retry=True, timeout=self.timeout)

    async def cancel(self, handle: Handle) -> None:
        """Ask the whole chain to stop: a handle pinned to a run would do nothing, silently, after continue-as-new."""
        request = RequestCancelWorkflowExecutionRequest(
            namespace=self.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=handle.workflow_id),
            first_execution_run_id=handle.first_run_id,
            identity=self.client.identity,
            request_id=str(uuid.uuid4()),
            reason="the MCP client asked to cancel the task",
        )
        await self.client.workflow_service.request_cancel_workflow_execution(request, retry=True, timeout=self.timeout)

    async def describe_namespace(self) -> None:
        """Nothing, if the namespace is there."""
        request = DescribeNamespaceRequest(namespace=self.client.namespace)
        await self.client.workflow_service.describe_namespace(request, retry=True, timeout=self.timeout)

    async def describe_task_queue(
        self, name: str, kind: TaskQueueType.ValueType = WORKFLOWS, *, patience: timedelta | None = None
    ) -> DescribeTaskQueueResponse:
        """Who polls a task queue, and what waits there; with `patience`, one try."""
        request = DescribeTaskQueueRequest(
            namespace=self.client.namespace,
            task_queue=TaskQueue(name=name),
            task_queue_type=kind,
            report_stats=True,
        )
        return await self.client.workflow_service.describe_task_queue(
            request, retry=patience is None, timeout=patience or self.timeout
        )

    async def _payloads(self, handle: Handle, *values: JSON) -> Payloads:
        return Payloads(payloads=await self.converter(handle.workflow_id).encode(values))
