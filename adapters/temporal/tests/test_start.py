"""One key starts one execution: twice, at once, after it ended, after a crash, and never somebody else's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio
import pytest
from mcp_workflows_temporal import TemporalAdapter, TemporalSettings
from mcp_workflows_temporal.settings import MAX_INPUT_BYTES
from mcp_workflows_temporal.start import read_start
from mcp_workflows_temporal_worker.contract import MEMO_DIGEST
from temporalio.client import WorkflowExecutionStatus
from temporalio.converter import PayloadConverter

from adapters.temporal.tests.scene import Scene, open_adapter, plan, workflow_id
from mcp_workflows.adapter import Ref, Status
from mcp_workflows.errors import EngineRefused, StartConflict
from tests.support.dev_server import DevServer


async def count(scene: Scene, ref: Ref) -> int:
    """How many runs there ever were under this id."""
    query = f"WorkflowId = '{workflow_id(ref)}'"
    return len([found async for found in scene.client.list_workflows(query)])


async def test_the_workflow_id_is_made_of_the_key(scene: Scene) -> None:
    ref = await scene.start("Waits", key="order-1.a_b")
    assert workflow_id(ref) == "mcp-order-1.a_b"
    assert (await scene.adapter.describe(ref)).execution_id == "mcp-order-1.a_b"


async def test_fifty_starts_at_once_with_one_key_are_one(scene: Scene) -> None:
    start, handles = plan("Waits"), set[str]()

    async def begin() -> None:
        handles.add(await scene.adapter.start(start))

    async with anyio.create_task_group() as group:
        for _ in range(50):
            group.start_soon(begin)
    [handle] = handles
    with anyio.fail_after(30):
        while not (found := await count(scene, Ref(workflow="Waits", handle=handle))):  # no event tells us
            await anyio.sleep(0.05)
    assert found == 1


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


async def test_wrong_options_are_refused_without_repeating_them(scene: Scene) -> None:
    with pytest.raises(EngineRefused, match="queue") as caught:
        await scene.adapter.start(replace(plan("Waits"), options={"queue": "hush-hush"}))
    assert "hush-hush" not in str(caught.value)


@pytest.mark.parametrize("size", [MAX_INPUT_BYTES, 3 * MAX_INPUT_BYTES])
async def test_an_input_over_the_limit_is_refused_before_any_call(size: int) -> None:
    async with TemporalAdapter(TemporalSettings(address="127.0.0.1:1", task_queue="q")) as adapter:
        with pytest.raises(EngineRefused, match=rf"too large.*\d+ bytes, the limit is {MAX_INPUT_BYTES} bytes"):
            await adapter.start(plan("Echo", "x" * size))


async def test_an_input_just_under_the_limit_starts(scene: Scene) -> None:
    ref = await scene.start("Echo", "x" * (MAX_INPUT_BYTES - 1000))
    assert (await scene.adapter.describe(ref)).status is Status.RUNNING


async def test_an_input_that_is_no_unicode_is_refused(scene: Scene) -> None:
    with pytest.raises(EngineRefused, match="cannot be encoded"):
        await scene.start("Echo", "\ud800")


async def test_what_is_no_list_is_the_one_argument(scene: Scene) -> None:
    alone = replace(plan("Echo"), arguments={"a": 1})
    async with scene.worker():
        ref = Ref(workflow="Echo", handle=await scene.adapter.start(alone))
        assert (await scene.ended(ref)).output == {"a": 1}


async def test_the_trace_is_where_tracing_interceptors_look_for_it(scene: Scene) -> None:
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b"}
    start = replace(plan("Waits"), context={"owner": "alice", **trace})
    handle = await scene.adapter.start(start)
    found = scene.client.get_workflow_handle(workflow_id(Ref(workflow="Waits", handle=handle)))
    events = [event async for event in found.fetch_history_events()]
    fields = events[0].workflow_execution_started_event_attributes.header.fields
    [carrier] = PayloadConverter.default.from_payloads([fields["_tracer-data"]])
    assert carrier == trace


async def test_the_context_is_in_the_memo(scene: Scene) -> None:
    ref = await scene.start("Waits")
    description = await scene.client.get_workflow_handle(workflow_id(ref)).describe()
    memo: dict[str, Any] = dict(await description.memo())
    assert memo["mcp.context"] == {"principal": "alice"}
    assert description.status is WorkflowExecutionStatus.RUNNING


async def test_a_workflow_id_the_engine_refuses_is_a_refusal(scene: Scene) -> None:
    with pytest.raises(EngineRefused):
        await scene.start("Waits", key="x" * 1001)
