"""What has ended, as Temporal lists it: runs that others follow are no ends, and none is lost in a long list."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import anyio
import pytest
from mcp_workflows_temporal.tooling import discover
from temporalio.client import Client
from temporalio.common import RetryPolicy

from adapters.temporal.tests.scene import PATIENCE, Scene, current_run, reset_to_second_task, workflow_id
from mcp_workflows.adapter import EndedExecution, Status
from mcp_workflows.errors import ExecutionNotFound

SOON = timedelta(seconds=1)


@pytest.fixture
def since() -> datetime:
    return datetime.now(UTC) - timedelta(minutes=1)


@pytest.fixture
def kind() -> str:
    """A workflow type that nobody else starts, and nobody runs; its executions time out, or are terminated."""
    return f"It's-{uuid.uuid4().hex}"


async def listed(scene: Scene, kind: str, since: datetime, *names: str) -> Sequence[EndedExecution]:
    """What has ended, once all of these ids are among it: the list lags behind a little."""
    with anyio.fail_after(PATIENCE):
        while True:
            found = await scene.adapter.list_ended(kind, since)
            if {*names} <= {each.handle.rpartition("/")[0] for each in found}:
                return found
            await anyio.sleep(0.05)


async def closed_runs(client: Client, name: str, status: str) -> int:
    query = f"WorkflowId = '{name}' AND ExecutionStatus = '{status}'"
    return len([row async for row in client.list_workflows(query)])


async def until_closed(client: Client, name: str, count: int, status: str) -> None:
    with anyio.fail_after(PATIENCE):
        while await closed_runs(client, name, status) < count:
            await anyio.sleep(0.05)


async def begin(scene: Scene, kind: str, name: str) -> None:
    await scene.client.start_workflow(kind, id=name, task_queue=scene.queue)


async def test_more_than_fit_are_listed_the_earliest_first_and_none_is_lost(
    scene: Scene, client: Client, kind: str, since: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discover, "MOST_ENDED", 3)
    monkeypatch.setattr(discover, "PAGE", 2)
    names = [f"{number}-{uuid.uuid4()}" for number in range(8)]
    for name in reversed(names):
        await begin(scene, kind, name)
    for name in names:
        await client.get_workflow_handle(name).terminate()
    await until_closed(client, names[-1], 1, "Terminated")
    await listed(scene, kind, since, *names[:3])
    seen: dict[str, EndedExecution] = {}
    while len(page := await scene.adapter.list_ended(kind, since)) == 3:
        seen |= {each.execution_id: each for each in page}
        since = page[-1].ended
    seen |= {each.execution_id: each for each in page}
    assert list(seen) == names
    assert {each.status for each in seen.values()} == {Status.CANCELLED}


async def test_a_run_that_is_tried_again_or_is_one_of_a_schedule_is_no_end(
    scene: Scene, client: Client, kind: str, since: datetime
) -> None:
    once, again, cron = (f"{what}-{uuid.uuid4()}" for what in ("once", "again", "cron"))
    retry = RetryPolicy(maximum_attempts=2, initial_interval=SOON)
    for name, policy, schedule in ((once, None, ""), (again, retry, ""), (cron, None, "@every 1s")):
        await client.start_workflow(
            kind, id=name, task_queue=scene.queue, run_timeout=SOON, retry_policy=policy, cron_schedule=schedule
        )
    await until_closed(client, again, 1, "TimedOut")
    await until_closed(client, cron, 1, "TimedOut")
    before = await listed(scene, kind, since, once)
    assert await closed_runs(client, again, "TimedOut") == 2 or [each.execution_id for each in before] == [once]
    found = await listed(scene, kind, since, once, again)
    assert [(each.execution_id, each.status) for each in found] == [(once, Status.FAILED), (again, Status.FAILED)]
    assert found[1].handle == (await scene.adapter.adopt(again)).handle
    await client.get_workflow_handle(cron).terminate()
    assert [each.execution_id for each in await listed(scene, kind, since, cron)] == [once, again, cron]


async def test_a_chain_that_continues_as_new_ends_once(troubled: Scene, since: datetime) -> None:
    ref = await troubled.start("Again", 3)
    await troubled.until(ref, lambda seen: seen.message == "the last run")
    assert ref.handle not in {each.handle for each in await troubled.adapter.list_ended("Again", since)}
    await troubled.client.get_workflow_handle(workflow_id(ref)).signal("go")
    found = await listed(troubled, "Again", since, workflow_id(ref))
    ended = [each for each in found if each.handle.startswith(workflow_id(ref))]
    assert [(each.handle, each.status) for each in ended] == [(ref.handle, Status.SUCCEEDED)]


async def test_a_run_that_is_reset_is_no_end(working: Scene, since: datetime) -> None:
    ref = await working.start("Ask", "Bob")
    await working.asked(ref)
    await working.client.get_workflow_handle(workflow_id(ref)).signal("nobody_listens")  # one more workflow task
    first = await current_run(working, ref)
    await reset_to_second_task(working, ref)
    await until_closed(working.client, workflow_id(ref), 1, "Terminated")
    assert await current_run(working, ref) != first
    assert ref.handle not in {each.handle for each in await working.adapter.list_ended("Ask", since)}
    await working.adapter.terminate(ref, "over")
    found = await listed(working, "Ask", since, workflow_id(ref))
    assert [each.status for each in found if each.handle == ref.handle] == [Status.CANCELLED]


async def test_an_id_that_was_used_again_is_told_with_the_run_that_ended(
    scene: Scene, client: Client, kind: str, since: datetime
) -> None:
    name, retry = f"nightly-{uuid.uuid4()}", RetryPolicy(maximum_attempts=2, initial_interval=SOON)
    old = await client.start_workflow(kind, id=name, task_queue=scene.queue, run_timeout=SOON, retry_policy=retry)
    await until_closed(client, name, 2, "TimedOut")
    await begin(scene, kind, name)
    [found] = await listed(scene, kind, since, name)
    assert found.handle == found.execution_id == f"{name}/{old.first_execution_run_id}"
    with pytest.raises(ExecutionNotFound):
        await scene.adapter.adopt(found.execution_id)
