"""What the tests say about an adapter and its executions, in short words."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import anyio
from mcp_workflows_temporal import TemporalAdapter, TemporalSettings
from mcp_workflows_temporal.connection import quiet_runtime
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from adapters.temporal.tests.workflows import ACTIVITIES, WORKFLOWS
from mcp_workflows.adapter import Execution, Ref, Start
from tests.support.dev_server import DevServer

PATIENCE = 60.0  # seconds


async def connect(server: DevServer) -> Client:
    return await Client.connect(server.address, data_converter=pydantic_data_converter, runtime=quiet_runtime())


def open_adapter(server: DevServer, queue: str | None = None, **settings: Any) -> TemporalAdapter:
    return TemporalAdapter(TemporalSettings(address=server.address, task_queue=queue, **settings))


def plan(workflow: str, *arguments: Any, key: str | None = None) -> Start:
    """What to start, positional; a new key if none is given."""
    return Start(
        workflow=workflow,
        arguments=list(arguments),
        key=key or uuid.uuid4().hex,
        created=datetime.now(UTC),
        context={"principal": "alice"},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One task queue, one adapter on it."""

    client: Client
    queue: str
    opened: TemporalAdapter | None = None

    @staticmethod
    def new(client: Client) -> Scene:
        return Scene(client=client, queue=f"q-{uuid.uuid4().hex}")

    def on(self, adapter: TemporalAdapter) -> Scene:
        return replace(self, opened=adapter)

    @property
    def adapter(self) -> TemporalAdapter:
        assert self.opened is not None
        return self.opened

    def worker(
        self, workflows: Sequence[type[Any]] = WORKFLOWS, activities: Sequence[Callable[..., Any]] = ACTIVITIES
    ) -> Worker:
        """Return a worker that polls this queue while it is entered, without the sandbox.

        The sandbox imports every module again for every workflow class of every worker, and the adapter cannot see it.
        """
        runner = UnsandboxedWorkflowRunner()
        return Worker(
            self.client, task_queue=self.queue, workflows=workflows, activities=activities, workflow_runner=runner
        )

    def sandboxed_worker(self, *names: str) -> Worker:
        """Return a worker of the workflows of these names, as authors run it: in the sandbox."""
        chosen = [each for each in WORKFLOWS if each.__name__ in names]
        assert len(chosen) == len(names)
        return Worker(self.client, task_queue=self.queue, workflows=chosen, activities=ACTIVITIES)

    async def start(self, workflow: str, *arguments: Any, key: str | None = None) -> Ref:
        handle = await self.adapter.start(plan(workflow, *arguments, key=key))
        return Ref(workflow=workflow, handle=handle)

    async def until(self, ref: Ref, wanted: Callable[[Execution], object]) -> Execution:
        """Look again and again until it is as wanted; fails after a while."""
        seen: Execution | None = None
        try:
            with anyio.fail_after(PATIENCE):
                while not wanted(seen := await self.adapter.describe(ref)):  # no event tells us
                    await anyio.sleep(0.03)
        except TimeoutError:
            raise AssertionError(f"never as wanted, last seen: {seen}") from None
        return seen

    async def asked(self, ref: Ref, count: int = 1) -> Execution:
        return await self.until(ref, lambda seen: len(seen.requests) == count)

    async def ended(self, ref: Ref) -> Execution:
        return await self.until(ref, lambda seen: seen.terminal)


def workflow_id(ref: Ref) -> str:
    return ref.handle.rpartition("/")[0]


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
