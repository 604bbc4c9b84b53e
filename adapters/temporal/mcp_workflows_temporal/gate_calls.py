"""The calls that gates need: history from its end, a query, a signal and an update by the workflow's own names."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from temporalio.api.common.v1 import Payload, Payloads, WorkflowExecution
from temporalio.api.enums.v1 import QueryRejectCondition, UpdateWorkflowExecutionLifecycleStage
from temporalio.api.failure.v1 import Failure as FailureMessage
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.update.v1 import Input, Meta, Request, WaitPolicy
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse as Described
from temporalio.api.workflowservice.v1 import (
    GetWorkflowExecutionHistoryReverseRequest,
    QueryWorkflowRequest,
    SignalWorkflowExecutionRequest,
    UpdateWorkflowExecutionRequest,
)

from mcp_workflows.adapter import JSON
from mcp_workflows_temporal.client import UPDATE_SHARE, Frontend

_OPEN = QueryRejectCondition.QUERY_REJECT_CONDITION_NOT_OPEN
_COMPLETED = UpdateWorkflowExecutionLifecycleStage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_COMPLETED
_ANSWERS = uuid.UUID("c3bd4d0f-13b3-4a2c-9a3e-6c4c7a1f2f64")  # where the request ids of our signals are from


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A stretch of history, the oldest event first, and where what lies before it begins (empty: nothing does)."""

    events: Sequence[HistoryEvent]
    before: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of an execution, as a look found it."""

    frontend: Frontend
    execution: WorkflowExecution
    first_run_id: str
    length: int  # events
    queue: str

    @staticmethod
    def of(frontend: Frontend, found: Described) -> Run:
        """The current run."""
        info = found.workflow_execution_info
        return Run(
            frontend=frontend,
            execution=info.execution,
            first_run_id=info.first_run_id or info.execution.run_id,
            length=info.history_length,
            queue=info.task_queue,
        )

    @property
    def place(self) -> tuple[str, str]:
        """Its ids."""
        return self.execution.workflow_id, self.execution.run_id


async def page_of_history(run: Run, size: int, before: bytes) -> Page:
    """The last events of a run, or those before a page; Temporal gives at most 256 at once."""
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=run.frontend.client.namespace, execution=run.execution, maximum_page_size=size, next_page_token=before
    )
    found = await run.frontend.client.workflow_service.get_workflow_execution_history_reverse(
        request, retry=True, timeout=run.frontend.timeout
    )
    return Page(events=found.history.events[::-1], before=found.next_page_token)


async def query(run: Run, name: str, args: Sequence[JSON]) -> Payload | None:
    """What a query gives, None if nothing; one try of a quarter of the time, since a live worker takes some 10 ms.

    Raises:
        RPCError: among others if no worker took it in time.
    """
    request = QueryWorkflowRequest(
        namespace=run.frontend.client.namespace,
        execution=run.execution,
        query=WorkflowQuery(query_type=name, query_args=await _payloads(run, args)),
        query_reject_condition=_OPEN,
    )
    found = await run.frontend.client.workflow_service.query_workflow(
        request, timeout=run.frontend.timeout * UPDATE_SHARE
    )
    return found.query_result.payloads[0] if found.query_result.payloads else None


def request_id(execution: WorkflowExecution, key: str) -> str:
    """By which Temporal dedupes the signal that answers this question; it is in the history with the signal."""
    return str(uuid.uuid5(_ANSWERS, f"{execution.workflow_id}/{execution.run_id}/{key}"))


async def signal(run: Run, name: str, args: Sequence[JSON], key: str) -> None:
    """Leave an answer in the history of this run, once, however often it is delivered: Temporal dedupes by the key."""
    request = SignalWorkflowExecutionRequest(
        namespace=run.frontend.client.namespace,
        workflow_execution=run.execution,
        signal_name=name,
        input=await _payloads(run, args),
        identity=run.frontend.client.identity,
        request_id=request_id(run.execution, key),
    )
    await run.frontend.client.workflow_service.signal_workflow_execution(
        request, retry=True, timeout=run.frontend.timeout
    )


async def update(run: Run, name: str, args: Sequence[JSON], key: str) -> FailureMessage | None:
    """Deliver an answer to a live worker; what the workflow says against it, or None if it took it.

    Raises:
        RPCError: among others if no worker took it in time: it may still come to the workflow.
    """
    asked = Request(
        meta=Meta(update_id=f"mcp:{key}", identity=run.frontend.client.identity),
        input=Input(name=name, args=await _payloads(run, args)),
    )
    request = UpdateWorkflowExecutionRequest(
        namespace=run.frontend.client.namespace,
        workflow_execution=run.execution,
        request=asked,
        wait_policy=WaitPolicy(lifecycle_stage=_COMPLETED),
    )
    patience = run.frontend.timeout * UPDATE_SHARE
    done = await run.frontend.client.workflow_service.update_workflow_execution(request, timeout=patience)
    return done.outcome.failure if done.outcome.HasField("failure") else None


async def _payloads(run: Run, args: Sequence[JSON]) -> Payloads:
    return Payloads(payloads=await run.frontend.converter(run.execution.workflow_id).encode(args) if args else [])
