"""Time limits, search attributes, priority, versions, cancelling by signal: as the real server has them."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import anyio
import pytest
from mcp_workflows_temporal import TemporalAdapter, TemporalSettings
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest, DescribeWorkflowExecutionResponse
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import Worker, WorkerDeploymentConfig

from adapters.temporal.tests.cancelled_by_signal import StopsBySignal
from adapters.temporal.tests.scene import PATIENCE, Scene, plan, workflow_id
from mcp_workflows.adapter import Previews, Ref, Start
from mcp_workflows.errors import EngineRefused, ExecutionNotFound
from tests.support.dev_server import DevServer

ATTRIBUTES = {
    "McpOrder": "Keyword",
    "McpNote": "Text",
    "McpUrgent": "Int",
    "McpDue": "Datetime",
    "McpTags": "KeywordList",
}


@pytest.fixture(scope="module")
def attributes(dev_server: DevServer) -> Iterator[None]:
    """Search attributes that are registered."""
    for name, kind in ATTRIBUTES.items():
        done = dev_server.cli("operator", "search-attribute", "create", "--name", name, "--type", kind)
        assert done.returncode == 0, done.stderr
    yield
    for name in ATTRIBUTES:
        dev_server.cli("operator", "search-attribute", "remove", "--name", name, "--yes")


async def started(scene: Scene, start: Start) -> Ref:
    return Ref(workflow=start.workflow, handle=await scene.adapter.start(start), options=start.options)


def with_options(**options: Any) -> Start:
    return replace(plan("Waits"), options=options)


async def found(scene: Scene, ref: Ref) -> DescribeWorkflowExecutionResponse:
    request = DescribeWorkflowExecutionRequest(
        namespace="default", execution=WorkflowExecution(workflow_id=workflow_id(ref))
    )
    return await scene.client.workflow_service.describe_workflow_execution(request)


async def test_time_limits_reach_the_server(scene: Scene) -> None:
    ref = await started(scene, with_options(execution_timeout="1h", run_timeout="30m", task_timeout="5s"))
    config = (await found(scene, ref)).execution_config
    limits = (config.workflow_execution_timeout, config.workflow_run_timeout, config.default_workflow_task_timeout)
    assert [limit.ToSeconds() for limit in limits] == [3600, 1800, 5]


async def test_priority_and_version_reach_the_server(scene: Scene) -> None:
    chosen = {"key": 2, "fairness_key": "acme", "fairness_weight": 1.5}
    info = (await found(scene, await started(scene, with_options(priority=chosen)))).workflow_execution_info
    assert (info.priority.priority_key, info.priority.fairness_key, info.priority.fairness_weight) == (2, "acme", 1.5)
    upgraded = await found(scene, await started(scene, with_options(versioning_override="auto_upgrade")))
    assert upgraded.workflow_execution_info.versioning_info.versioning_override.auto_upgrade


async def test_an_execution_is_pinned_to_a_version_once_that_is_there(scene: Scene) -> None:
    deployment = f"orders-{uuid.uuid4().hex}"
    pinned = {"pinned": {"deployment": deployment, "build_id": "1.0"}}
    start = with_options(versioning_override=pinned)
    with pytest.raises(EngineRefused, match=f"'{deployment}:1.0' is not present in task queue"):
        await started(scene, start)
    version = WorkerDeploymentVersion(deployment_name=deployment, build_id="1.0")
    behaviour = VersioningBehavior.PINNED
    config = WorkerDeploymentConfig(version=version, use_worker_versioning=True, default_versioning_behavior=behaviour)
    async with Worker(scene.client, task_queue=scene.queue, workflows=[StopsBySignal], deployment_config=config):
        ref = await accepted(scene, start)
        info = (await found(scene, ref)).workflow_execution_info
        await scene.client.get_workflow_handle(workflow_id(ref)).terminate()
    there = info.versioning_info.versioning_override.pinned.version
    assert (there.deployment_name, there.build_id) == (deployment, "1.0")


async def accepted(scene: Scene, start: Start) -> Ref:
    """Started once the server knows the worker's version."""
    with anyio.fail_after(PATIENCE):
        while True:  # no event tells us
            try:
                return await started(scene, start)
            except EngineRefused:
                await anyio.sleep(0.2)


async def test_search_attributes_of_every_type_can_be_searched_for(scene: Scene, attributes: None) -> None:
    order = uuid.uuid4().hex
    start = with_options(
        search_attributes={
            "McpOrder": order,
            "McpNote": "fragile glass",
            "McpUrgent": {"type": "Int", "value": "7"},
            "McpDue": {"type": "Datetime", "value": "2026-07-28T12:00:00Z"},
            "McpTags": ["a", "b"],
        }
    )
    ref = await started(scene, start)
    query = f"McpOrder = '{order}' AND McpUrgent = 7 AND McpTags IN ('b') AND McpDue < '2026-07-29T00:00:00Z'"
    with anyio.fail_after(PATIENCE):
        while not (rows := [row async for row in scene.client.list_workflows(query)]):  # no event tells us
            await anyio.sleep(0.05)
    assert [row.id for row in rows] == [workflow_id(ref)]


async def test_a_search_attribute_that_is_not_registered_is_named(scene: Scene) -> None:
    with pytest.raises(EngineRefused, match="search attribute Nope is not registered in namespace default") as caught:
        await started(scene, with_options(search_attributes={"Nope": "x"}))
    assert "--name Nope" in str(caught.value)


async def test_the_preview_is_what_is_sent(scene: Scene) -> None:
    start = replace(
        plan("Waits", {"id": 1}),
        options={"workflow_id": f"w-{uuid.uuid4().hex}", "execution_timeout": "90s", "priority": {"key": 1}},
    )
    assert isinstance(scene.adapter, Previews)
    said = scene.adapter.preview(start)
    info = await found(scene, await started(scene, start))
    assert said["workflowId"] == info.workflow_execution_info.execution.workflow_id
    assert said["workflowType"] == {"name": info.workflow_execution_info.type.name}
    assert said["taskQueue"] == {"name": info.execution_config.task_queue.name}
    assert (said["input"], said["workflowExecutionTimeout"], said["priority"]) == (
        [{"id": 1}],
        "90s",
        {"priorityKey": 1},
    )
    assert set(said["memo"]) == set(info.workflow_execution_info.memo.fields)


async def test_a_preview_needs_no_engine_and_refuses_what_the_start_would() -> None:
    settings = TemporalSettings(address="127.0.0.1:1", namespace="shop", max_input_bytes=100)
    async with TemporalAdapter(settings) as adapter:
        assert adapter.preview(with_options(task_queue="q"))["namespace"] == "shop"
        with pytest.raises(EngineRefused, match="no task queue"):
            adapter.preview(plan("Waits"))
        with pytest.raises(EngineRefused, match="empty"):
            adapter.preview(with_options(task_queue="q", workflow_id=""))
        with pytest.raises(EngineRefused, match="too large"):
            adapter.preview(replace(with_options(task_queue="q"), arguments=["x" * 200]))
        with pytest.raises(EngineRefused, match="is no Datetime"):
            adapter.preview(
                with_options(task_queue="q", search_attributes={"Due": {"type": "Datetime", "value": "soon"}})
            )


async def test_a_task_queue_that_the_arguments_choose_cannot_be_checked_and_is_said_to_be_so(scene: Scene) -> None:
    found = await scene.adapter.check("Waits", {"task_queue": "orders-{{tenant}}", "execution_timeout": "{{wait}}"})
    assert (found.ok, found.text) == (None, "the arguments choose the task queue of Waits: orders-{{tenant}}")


@pytest.fixture
async def stoppable(scene: Scene) -> AsyncIterator[Ref]:
    """An execution that stops by a signal."""
    async with Worker(scene.client, task_queue=scene.queue, workflows=[StopsBySignal]):
        start = replace(plan("StopsBySignal"), options={"cancel": {"signal": "stop", "args": ["by alice"]}})
        yield await started(scene, start)


async def signals(scene: Scene, ref: Ref) -> int:
    history = await scene.client.get_workflow_handle(workflow_id(ref)).fetch_history()
    return sum(event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED for event in history.events)


async def test_cancelling_by_signal_sends_it_once_however_often_it_is_asked_for(scene: Scene, stoppable: Ref) -> None:
    for _ in range(3):
        await scene.adapter.cancel(stoppable)
    assert (await scene.ended(stoppable)).output == "stopped by alice"
    assert await signals(scene, stoppable) == 1


async def test_cancelling_by_signal_what_has_ended_does_nothing(scene: Scene, stoppable: Ref) -> None:
    await scene.adapter.cancel(stoppable)
    await scene.ended(stoppable)
    await scene.adapter.cancel(stoppable)
    with pytest.raises(ExecutionNotFound):
        await scene.adapter.cancel(replace(stoppable, handle="nobody/no-run"))
