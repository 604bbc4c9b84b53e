"""The workflow id of a tool: our own retry finds its own, and nobody gets somebody else's execution."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import anyio
import pytest
from mcp_workflows_temporal_worker.contract import MEMO_CONTEXT, MEMO_KEY

from adapters.temporal.tests.scene import Scene, open_adapter, plan, workflow_id
from mcp_workflows.adapter import Ref, Start
from mcp_workflows.errors import EngineRefused, StartConflict
from tests.support.dev_server import DevServer


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


async def test_our_own_retry_finds_its_own_execution_running_or_ended(scene: Scene, dev_server: DevServer) -> None:
    start = order("Echo", "x")
    handle = await scene.adapter.start(start)
    assert await scene.adapter.start(start) == handle
    async with scene.worker():
        await scene.ended(Ref(workflow="Echo", handle=handle))
    async with open_adapter(dev_server, scene.queue) as reborn:
        assert await reborn.start(start) == handle


async def test_the_key_itself_is_not_in_the_memo(scene: Scene) -> None:
    start = order()
    await scene.adapter.start(start)
    found = await memo(scene, chosen(start))
    assert len(found[MEMO_KEY]) == 64
    assert start.key not in str(found)


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


async def test_a_taken_id_is_refused_and_said_what_is_there(scene: Scene) -> None:
    start = order()
    await scene.adapter.start(start)
    with pytest.raises(StartConflict, match="is taken: Waits is running there"):
        await scene.adapter.start(again(start))


async def test_a_taken_id_of_another_owner_is_refused_and_nothing_is_said_of_it(scene: Scene) -> None:
    start = order()
    await scene.adapter.start(start)
    with pytest.raises(StartConflict, match=r"is taken by an execution that is not yours$"):
        await scene.adapter.start(replace(again(start), context={"owner": "mallory"}))


async def test_a_taken_id_is_refused_after_its_execution_ended(scene: Scene) -> None:
    start = order("Echo", "x")
    handle = await scene.adapter.start(start)
    async with scene.worker():
        await scene.ended(Ref(workflow="Echo", handle=handle))
    with pytest.raises(StartConflict, match="Echo completed there; an id is used once"):
        await scene.adapter.start(again(start))


async def test_adopting_joins_the_execution_of_the_same_owner(scene: Scene) -> None:
    start = order("Waits", "one", on_existing="adopt")
    handle = await scene.adapter.start(start)
    second = replace(again(start), arguments=["other"])
    assert await scene.adapter.start(second) == handle
    assert await scene.adapter.start(second) == handle


async def test_adopting_joins_an_execution_that_has_ended(scene: Scene) -> None:
    start = order("Echo", "x", on_existing="adopt")
    handle = await scene.adapter.start(start)
    async with scene.worker():
        await scene.ended(Ref(workflow="Echo", handle=handle))
    joined = Ref(workflow="Echo", handle=await scene.adapter.start(again(start)))
    assert (await scene.adapter.describe(joined)).output == "x"


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
