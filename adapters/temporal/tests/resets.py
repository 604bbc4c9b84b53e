"""Resetting an execution, as an operator does it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import anyio
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest

from adapters.temporal.tests.scene import PATIENCE, Scene, workflow_id
from mcp_workflows.adapter import Ref


async def current_run(scene: Scene, ref: Ref) -> str:
    return (await scene.client.get_workflow_handle(workflow_id(ref)).describe()).run_id


async def reset_to_second_task(scene: Scene, ref: Ref) -> None:
    """As an operator does it: `temporal workflow reset --event-id`."""
    with anyio.fail_after(PATIENCE):
        while len(tasks := await completed_tasks(scene, ref)) < 2:  # no event tells us
            await anyio.sleep(0.03)
    request = ResetWorkflowExecutionRequest(
        namespace="default",
        workflow_execution=WorkflowExecution(workflow_id=workflow_id(ref)),
        workflow_task_finish_event_id=tasks[1],
        reason="test",
        request_id=str(uuid.uuid4()),
    )
    await scene.client.workflow_service.reset_workflow_execution(request)


async def completed_tasks(scene: Scene, ref: Ref) -> Sequence[int]:
    events = scene.client.get_workflow_handle(workflow_id(ref)).fetch_history_events()
    done = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    return [event.event_id async for event in events if event.event_type == done]
