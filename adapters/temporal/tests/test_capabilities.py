"""What Temporal can do beyond the four verbs: sweep, wait, terminate, adopt, each where it bites."""

from __future__ import annotations

import uuid

import anyio
import pytest
from mcp_workflows_temporal import TemporalAdapter, describe
from temporalio.api.workflowservice.v1 import PauseWorkflowExecutionRequest
from temporalio.client import Client

from adapters.temporal.tests.scene import PATIENCE, Scene, workflow_id
from adapters.temporal.tests.troubled import troubled_worker
from mcp_workflows.adapter import Execution, Ref, Status
from mcp_workflows.errors import EngineRefused, EngineUnavailable, ExecutionNotFound

ODD_IDS = ("it's", "x') OR ('1'='1", "per%cent_", "ü☕", "a`b", 'say "hi"', "back\\slash", "new\nline", "a/b", "\\'")


async def swept(scene: Scene, ref: Ref, status: Status) -> Execution:
    """The sweep that shows this status: the list lags behind a little."""
    with anyio.fail_after(PATIENCE):
        while True:
            seen = (await scene.adapter.describe_many([ref])).get(ref.handle)
            if seen and seen.status is status:
                return seen
            await anyio.sleep(0.03)


# --- sweeps


async def test_odd_ids_are_quoted_or_left_out_and_never_find_another(scene: Scene) -> None:
    mark = uuid.uuid4().hex
    refs: list[Ref] = []
    for odd in ODD_IDS:
        name = f"{mark}{odd}"
        await scene.client.start_workflow("Waiter", id=name, task_queue=scene.queue)
        refs.append(await scene.adapter.adopt(name))
    known = {ref.handle for ref in refs[:5]} | {refs[8].handle}
    seen: dict[str, Execution] = {}
    with anyio.fail_after(PATIENCE):
        while set(seen) != known:
            seen = dict(await scene.adapter.describe_many(refs))
    assert {handle: look.execution_id for handle, look in seen.items()} == {
        handle: handle.rpartition("/")[0] for handle in known
    }
    assert await scene.adapter.describe_many([Ref(workflow="Waiter", handle="no handle")]) == {}


async def test_a_sweep_of_more_than_one_page_sees_them_all(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe, "BATCH", 4)
    refs = [await scene.start("Waiter") for _ in range(10)]
    with anyio.fail_after(PATIENCE):
        while len(await scene.adapter.describe_many(refs)) < len(refs):  # the list lags behind
            await anyio.sleep(0.1)


async def test_a_sweep_sees_the_current_run_of_a_chain(troubled: Scene) -> None:
    ref = await troubled.start("Again", 3)
    await troubled.until(ref, lambda seen: seen.message == "the last run")
    await swept(troubled, ref, Status.RUNNING)
    await troubled.client.get_workflow_handle(workflow_id(ref)).signal("go")
    await swept(troubled, ref, Status.SUCCEEDED)


async def test_a_sweep_sees_words_progress_questions_and_that_it_is_paused(working: Scene) -> None:
    ref = await working.start("Ask", "Bob")
    asked = await working.asked(ref)
    seen = await swept(working, ref, Status.INPUT_REQUIRED)
    assert (seen.message, seen.progress, seen.requests) == (asked.message, asked.progress, asked.requests)
    await working.client.workflow_service.pause_workflow_execution(
        PauseWorkflowExecutionRequest(namespace="default", workflow_id=workflow_id(ref), reason="stocktaking")
    )
    assert not (await swept(working, ref, Status.RUNNING)).requests


# --- waits


async def test_a_wait_lasts_over_continue_as_new_until_the_chain_ends(troubled: Scene) -> None:
    ref = await troubled.start("Again", 3)
    over = anyio.Event()

    async def wait() -> None:
        await troubled.adapter.wait(ref)
        over.set()

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await troubled.until(ref, lambda seen: seen.message == "the last run")
        assert not over.is_set()
        await troubled.client.get_workflow_handle(workflow_id(ref)).signal("go")
        with anyio.fail_after(PATIENCE):
            await over.wait()
    assert (await troubled.adapter.describe(ref)).output == "done"


async def test_a_wait_for_what_nobody_started_is_refused(scene: Scene) -> None:
    with pytest.raises(ExecutionNotFound):
        await scene.adapter.wait(Ref(workflow="Waiter", handle="nobody/nothing"))


async def test_an_adapter_on_your_own_client_ends_its_waits(scene: Scene) -> None:
    ref = await scene.start("Waiter")
    caught: list[EngineUnavailable] = []
    other = TemporalAdapter.from_client(scene.client)

    async def wait() -> None:
        try:
            await other.wait(ref)
        except EngineUnavailable as error:
            caught.append(error)

    async with anyio.create_task_group() as group, other:
        group.start_soon(wait)
        await other.describe(ref)
    assert "was closed" in str(caught[0])


# --- terminate and adopt


async def test_a_whole_chain_is_terminated_with_the_reason(scene: Scene) -> None:
    async with troubled_worker(scene.client, scene.queue):
        ref = await scene.start("Again", 2)
        await scene.until(ref, lambda seen: seen.message == "the last run")
        await scene.adapter.terminate(ref, "stocktaking")
    seen = await scene.adapter.describe(ref)
    assert (seen.status, seen.message) == (Status.CANCELLED, "terminated: stocktaking")


async def test_another_chain_under_the_same_id_is_not_terminated(scene: Scene) -> None:
    ref = await scene.start("Waiter")
    other = Ref(workflow="Waiter", handle=f"{workflow_id(ref)}/{uuid.uuid4()}")
    with pytest.raises(ExecutionNotFound):
        await scene.adapter.terminate(other, "no reason")
    assert (await scene.adapter.describe(ref)).status is Status.RUNNING


async def test_an_execution_is_adopted_by_its_id_with_or_without_its_run(scene: Scene, client: Client) -> None:
    handle = await client.start_workflow("Waiter", id=f"a/b-{scene.queue}", task_queue=scene.queue)
    ref = await scene.adapter.adopt(handle.id)
    assert ref == Ref(workflow="Waiter", handle=f"{handle.id}/{handle.first_execution_run_id}")
    assert await scene.adapter.adopt(f"{handle.id}/{handle.first_execution_run_id}") == ref
    for nobodys in (f"{handle.id}/{uuid.uuid4()}", "nobody", "nobody/nothing", "/", ""):
        with pytest.raises((ExecutionNotFound, EngineRefused)):
            await scene.adapter.adopt(nobodys)


async def test_a_cron_workflow_cannot_be_adopted(scene: Scene, client: Client) -> None:
    name = f"cron-{scene.queue}"
    await client.start_workflow("Waiter", id=name, task_queue=scene.queue, cron_schedule="0 0 1 1 *")
    with pytest.raises(EngineRefused, match="cron schedule"):
        await scene.adapter.adopt(name)
