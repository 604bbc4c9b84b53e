"""Starts: one key, one execution; workflow ids of tools; options as the real server has them; and cancels by signal."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from typing import Any

import anyio
import pytest
from mcp_workflows_temporal import TemporalAdapter, TemporalSettings
from mcp_workflows_temporal.settings import MAX_INPUT_BYTES
from mcp_workflows_temporal.start import read_start
from mcp_workflows_temporal_worker.contract import MEMO_CONTEXT, MEMO_DIGEST, MEMO_KEY
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest, DescribeWorkflowExecutionResponse
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.converter import PayloadConverter
from temporalio.worker import Worker, WorkerDeploymentConfig

from adapters.temporal.tests.scene import PATIENCE, Scene, open_adapter, plan, workflow_id
from adapters.temporal.tests.workflows import StopsBySignal
from mcp_workflows.adapter import Ref, Start, Status
from mcp_workflows.errors import EngineRefused, ExecutionNotFound, StartConflict
from mcp_workflows.kit.tooling import Previews
from tests.support.dev_server import DevServer


async def test_the_workflow_id_is_made_of_the_key(scene: Scene) -> None:
    ref = await scene.start("Waits", key="order-1.a_b")
    assert workflow_id(ref) == "mcp-order-1.a_b"
    assert (await scene.adapter.describe(ref)).execution_id == "mcp-order-1.a_b"


async def test_a_key_starts_nothing_again_after_it_continued_as_new(scene: Scene) -> None:
    start = plan("TimesOut")
    handle = await scene.adapter.start(start)
    async with scene.worker():
        await scene.ended(Ref(workflow="TimesOut", handle=handle))
    assert await scene.adapter.start(start) == handle


async def test_an_execution_of_somebody_else_is_not_adopted(scene: Scene) -> None:
    await scene.client.start_workflow("Waits", id=f"mcp-{scene.queue}", task_queue=scene.queue)
    with pytest.raises(StartConflict):
        await scene.start("Waits", key=scene.queue)


async def test_a_cron_workflow_is_refused(scene: Scene) -> None:
    await scene.client.start_workflow(
        "Waits",
        id=f"mcp-{scene.queue}",
        task_queue=scene.queue,
        cron_schedule="0 0 1 1 *",
        memo={MEMO_DIGEST: read_start(plan("Waits"), "q").fingerprint},
    )
    with pytest.raises(EngineRefused, match="cron"):
        await scene.start("Waits", key=scene.queue)


async def test_the_options_of_a_tool_choose_its_task_queue(scene: Scene, dev_server: DevServer) -> None:
    start = plan("Waits")
    async with open_adapter(dev_server) as adapter:
        with pytest.raises(EngineRefused, match="task queue"):
            await adapter.start(start)
    handle = await scene.adapter.start(replace(start, options={"task_queue": "elsewhere"}))
    seen = await scene.until(Ref(workflow="Waits", handle=handle), lambda seen: seen.message)
    assert seen.message == "nobody polls task queue elsewhere"


async def test_what_cannot_be_started_is_refused_without_repeating_options(scene: Scene) -> None:
    with pytest.raises(EngineRefused, match="queue") as caught:
        await scene.adapter.start(replace(plan("Waits"), options={"queue": "hush-hush"}))
    assert "hush-hush" not in str(caught.value)
    with pytest.raises(EngineRefused, match="cannot be encoded"):
        await scene.start("Echo", "\ud800")
    with pytest.raises(EngineRefused):  # the engine takes no such id
        await scene.start("Waits", key="x" * 1001)


async def test_an_input_just_under_the_limit_starts_and_one_over_it_is_refused_before_any_call(scene: Scene) -> None:
    async with TemporalAdapter(TemporalSettings(address="127.0.0.1:1", task_queue="q")) as adapter:
        with pytest.raises(EngineRefused, match=rf"too large.*\d+ bytes, the limit is {MAX_INPUT_BYTES} bytes"):
            await adapter.start(plan("Echo", "x" * MAX_INPUT_BYTES))
    ref = await scene.start("Echo", "x" * (MAX_INPUT_BYTES - 1000))
    assert (await scene.adapter.describe(ref)).status is Status.RUNNING


async def test_what_is_no_list_is_the_one_argument(scene: Scene) -> None:
    alone = replace(plan("Echo"), arguments={"a": 1})
    async with scene.worker():
        ref = Ref(workflow="Echo", handle=await scene.adapter.start(alone))
        assert (await scene.ended(ref)).output == {"a": 1}


async def test_the_trace_and_the_context_are_where_they_are_looked_for(scene: Scene) -> None:
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b"}
    start = replace(plan("Waits"), context={"owner": "alice", **trace})
    name = workflow_id(Ref(workflow="Waits", handle=await scene.adapter.start(start)))
    events = [event async for event in scene.client.get_workflow_handle(name).fetch_history_events()]
    fields = events[0].workflow_execution_started_event_attributes.header.fields
    [carrier] = PayloadConverter.default.from_payloads([fields["_tracer-data"]])
    assert carrier == trace
    assert (await memo(scene, name))["mcp.context"]["owner"] == "alice"


def order(
    workflow: str = "Waits", *arguments: Any, taken: str | None = None, owner: str | None = "alice", **options: Any
) -> Start:
    """A start under a workflow id of its own, on somebody's behalf; a new key each time."""
    context = {"owner": owner} if owner else {}
    chosen = {"workflow_id": taken or f"fulfil/{uuid.uuid4().hex}", **options}
    return replace(plan(workflow, *arguments), options=chosen, context=context)


def again(start: Start, **options: Any) -> Start:
    """The same order under another key, as another task would place it."""
    return replace(start, key=uuid.uuid4().hex, options={**start.options, **options})


def chosen(start: Start) -> str:
    return str(start.options["workflow_id"])


async def memo(scene: Scene, execution_id: str) -> Mapping[str, Any]:
    return dict(await (await scene.client.get_workflow_handle(execution_id).describe()).memo())


async def test_of_twenty_tasks_at_once_one_gets_the_id_and_its_retries_find_it(scene: Scene) -> None:
    first = order()
    handles, refused = list[tuple[str, str]](), list[str]()

    async def begin(start: Start) -> None:
        try:
            handles.append((start.key, await scene.adapter.start(start)))
        except StartConflict as conflict:
            refused.append(str(conflict))

    async with anyio.create_task_group() as group:
        for start in [again(first) for _ in range(10)]:
            group.start_soon(begin, start)
            group.start_soon(begin, start)
    assert len(set(handles)) == 1
    assert (len(handles), len(refused)) == (2, 18)


async def test_a_taken_id_is_refused_and_its_owner_is_told_what_is_there(scene: Scene) -> None:
    start = order()
    handle = await scene.adapter.start(start)
    found = await memo(scene, chosen(start))
    assert len(found[MEMO_KEY]) == 64
    assert start.key not in str(found)
    assert await scene.adapter.start(start) == handle, "our own retry"
    with pytest.raises(StartConflict, match="is taken: Waits is running there"):
        await scene.adapter.start(again(start))
    with pytest.raises(StartConflict, match=r"is taken by an execution that is not yours$"):
        await scene.adapter.start(replace(again(start), context={"owner": "mallory"}))


async def test_an_id_is_used_once_and_what_has_ended_there_can_be_adopted(scene: Scene, dev_server: DevServer) -> None:
    start = order("Echo", "x")
    ref = Ref(workflow="Echo", handle=await scene.adapter.start(start))
    async with scene.worker():
        await scene.ended(ref)
    with pytest.raises(StartConflict, match="Echo completed there; an id is used once"):
        await scene.adapter.start(again(start))
    async with open_adapter(dev_server, scene.queue) as reborn:
        assert await reborn.start(start) == ref.handle, "our own retry"
        assert await reborn.start(again(start, on_existing="adopt")) == ref.handle
    assert (await scene.adapter.describe(ref)).output == "x"


async def test_adopting_joins_the_execution_of_the_same_owner(scene: Scene) -> None:
    start = order("Waits", "one", on_existing="adopt")
    handle = await scene.adapter.start(start)
    second = replace(again(start), arguments=["other"])
    assert await scene.adapter.start(second) == handle
    assert await scene.adapter.start(second) == handle


async def refusal(scene: Scene, start: Start) -> str:
    with pytest.raises(StartConflict) as caught:
        await scene.adapter.start(start)
    return str(caught.value).replace(chosen(start), "ID")


async def test_what_is_not_ours_looks_the_same_whoever_it_belongs_to(scene: Scene) -> None:
    mine = order(on_existing="adopt")
    others = order(owner="bob")
    another_workflow_of_others = order("Ask", "x", owner="bob")
    nobodys = order(owner=None)
    strangers, forged = f"stranger-{uuid.uuid4().hex}", f"forged-{uuid.uuid4().hex}"
    for start in (others, another_workflow_of_others, nobodys):
        await scene.adapter.start(start)
    await scene.client.start_workflow("Waits", id=strangers, task_queue=scene.queue)
    await scene.client.start_workflow("Waits", id=forged, task_queue=scene.queue, memo={MEMO_CONTEXT: "alice"})
    ids = [chosen(others), chosen(another_workflow_of_others), chosen(nobodys), strangers, forged]
    said = {await refusal(scene, again(mine, workflow_id=taken)) for taken in ids}
    assert said == {"workflow id ID is taken by an execution that is not yours"}


async def test_nobody_without_a_name_adopts_what_nobody_in_particular_started(scene: Scene) -> None:
    start = order(owner=None, on_existing="adopt")
    await scene.adapter.start(start)
    assert "not yours" in await refusal(scene, again(start))


async def test_an_execution_of_another_workflow_is_not_adopted(scene: Scene) -> None:
    start = order("Ask", "x")
    await scene.adapter.start(start)
    other = replace(again(start, on_existing="adopt"), workflow="Waits")
    with pytest.raises(StartConflict, match="another workflow, Ask"):
        await scene.adapter.start(other)


async def test_the_id_of_a_task_without_one_cannot_be_chosen(scene: Scene) -> None:
    ref = await scene.start("Waits")
    with pytest.raises(EngineRefused, match="begin with mcp-") as caught:
        await scene.adapter.start(order(taken=workflow_id(ref)))
    assert caught.value.final


async def test_one_subject_of_two_issuers_is_two_owners(scene: Scene) -> None:
    start = order("Waits", "one", on_existing="adopt")
    mine = replace(start, context={"owner": "alice", "principal": '["web","https://login","alice"]'})
    handle = await scene.adapter.start(mine)
    assert await scene.adapter.start(replace(again(start), context=mine.context)) == handle
    older = {"owner": '["web","https://login","alice"]'}  # as it was told before subjects were known
    assert await scene.adapter.start(replace(again(start), context=older)) == handle
    for context in ({"owner": "alice"}, {"owner": "alice", "principal": '["web","https://elsewhere","alice"]'}):
        with pytest.raises(StartConflict, match="not yours"):
            await scene.adapter.start(replace(again(start), context=context))


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


async def test_options_reach_the_server(scene: Scene) -> None:
    chosen = {"key": 2, "fairness_key": "acme", "fairness_weight": 1.5}
    limits = {"execution_timeout": "1h", "run_timeout": "30m", "task_timeout": "5s"}
    ref = await started(scene, with_options(priority=chosen, versioning_override="auto_upgrade", **limits))
    config, info = (there := await found(scene, ref)).execution_config, there.workflow_execution_info
    timeouts = (config.workflow_execution_timeout, config.workflow_run_timeout, config.default_workflow_task_timeout)
    assert [each.ToSeconds() for each in timeouts] == [3600, 1800, 5]
    assert (info.priority.priority_key, info.priority.fairness_key, info.priority.fairness_weight) == (2, "acme", 1.5)
    assert info.versioning_info.versioning_override.auto_upgrade


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
    assert isinstance(scene.adapter.tooling, Previews)
    said = scene.adapter.tooling.preview(start)
    info = await found(scene, await started(scene, start))
    assert said["workflowId"] == info.workflow_execution_info.execution.workflow_id
    assert said["workflowType"] == {"name": info.workflow_execution_info.type.name}
    assert said["taskQueue"] == {"name": info.execution_config.task_queue.name}
    assert (said["input"], said["priority"]) == ([{"id": 1}], {"priorityKey": 1})
    assert said["workflowExecutionTimeout"] == "90s"
    assert set(said["memo"]) == set(info.workflow_execution_info.memo.fields)


async def test_a_preview_needs_no_engine_and_refuses_what_the_start_would() -> None:
    settings = TemporalSettings(address="127.0.0.1:1", namespace="shop", max_input_bytes=100)
    async with TemporalAdapter(settings) as adapter:
        assert adapter.tooling.preview(with_options(task_queue="q"))["namespace"] == "shop"
        with pytest.raises(EngineRefused, match="no task queue"):
            adapter.tooling.preview(plan("Waits"))
        with pytest.raises(EngineRefused, match="empty"):
            adapter.tooling.preview(with_options(task_queue="q", workflow_id=""))
        with pytest.raises(EngineRefused, match="too large"):
            adapter.tooling.preview(replace(with_options(task_queue="q"), arguments=["x" * 200]))
        due = {"Due": {"type": "Datetime", "value": "hush-hush"}}
        with pytest.raises(EngineRefused, match="search attribute Due is no Datetime") as caught:
            adapter.tooling.preview(with_options(task_queue="q", search_attributes=due))
        assert "hush" not in str(caught.value)


async def test_a_task_queue_that_the_arguments_choose_cannot_be_checked_and_is_said_to_be_so(scene: Scene) -> None:
    options = {"task_queue": "orders-{{tenant}}", "execution_timeout": "{{wait}}"}
    found = await scene.adapter.tooling.check("Waits", options)
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
    await scene.adapter.cancel(stoppable)  # it has ended
    assert await signals(scene, stoppable) == 1
    with pytest.raises(ExecutionNotFound):
        await scene.adapter.cancel(replace(stoppable, handle="nobody/no-run"))
