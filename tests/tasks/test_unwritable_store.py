"""A store that can be read and not written: reads go on and say so, writes fail clearly, and no end is taken back."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest

from mcp_workflows.access import ANONYMOUS
from mcp_workflows.adapter import Status
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.engines.polling.policy import DEFAULT_POLICY
from mcp_workflows.errors import RequestError, StoreUnavailable
from mcp_workflows.task import Task
from mcp_workflows.tasks.results import uri_of
from tests.support.client_2025 import Session, session
from tests.support.places import Place, place
from tests.support.served import ENDED, peer, site
from tests.support.unwritable import Disk
from tests.support.unwritable import disk as disk

pytestmark = pytest.mark.anyio

YES = {"question": {"action": "accept", "content": {"answer": "yes"}}}


@asynccontextmanager
async def on(disk: Disk) -> AsyncGenerator[tuple[Place, MemoryAdapter]]:
    engine = MemoryAdapter(MemorySettings(name=str(disk.folder)))
    async with place(disk.folder, engine, DEFAULT_POLICY, store=disk.store, call_timeout=0.3) as here:
        yield here, engine


async def stored(disk: Disk, task_id: str) -> Task:
    """The row as it is."""
    row = await disk.store.get(task_id, ANONYMOUS.id)
    assert row is not None
    return row


async def test_an_end_that_could_not_be_saved_is_never_taken_back_and_is_saved_later_though_nobody_asks(
    disk: Disk,
) -> None:
    async with on(disk) as (here, engine):
        (task_id,) = await here.start("echo", 1, a=1)
        disk.refuse()
        seen = await here.get(task_id)
        assert (seen.status, disk.said in str(seen.message)) == (Status.SUCCEEDED, True)
        engine.faults.silent = frozenset({"describe"})
        engine.forget(engine.handles[0])  # nobody could tell again how it ended
        for _ in range(20):
            again = await here.get(task_id)
            assert (again.status, again.result, again.updated) == (seen.status, seen.result, seen.updated)
            await anyio.sleep(0.05)
        assert not (await stored(disk, task_id)).ended
        disk.recover()
        with anyio.fail_after(60):
            while not (await stored(disk, task_id)).ended:
                await anyio.sleep(0.05)
        assert (await here.get(task_id)).message is None


async def test_what_cannot_be_noted_is_refused_and_reaches_no_engine(disk: Disk) -> None:
    async with on(disk) as (here, engine):
        (asks,) = await here.start("ask", 1)
        await here.get(asks)
        disk.refuse()
        calls = engine.calls.copy()
        with pytest.raises(RequestError, match=r"the answer was not delivered: the store .*; try again"):
            await here.service.update(asks, YES, ANONYMOUS)
        with pytest.raises(RequestError, match=r"not cancelled: the store .*; the task continues; try again"):
            await here.service.cancel(asks, ANONYMOUS)
        with pytest.raises(StoreUnavailable):
            await here.start("echo", 1)
        assert [engine.calls[verb] for verb in ("start", "answer", "cancel")] == [
            calls[verb] for verb in ("start", "answer", "cancel")
        ]
        disk.recover()
        await here.service.update(asks, YES, ANONYMOUS)
        assert (await here.get(asks)).status is Status.SUCCEEDED


async def test_a_task_whose_start_or_cancellation_cannot_be_noted_can_be_read(disk: Disk) -> None:
    async with on(disk) as (here, engine):
        engine.faults.unavailable = frozenset({"cancel"})
        (stops,) = await here.start("forever", 1)
        await here.service.cancel(stops, ANONYMOUS)
        engine.faults.unavailable, engine.faults.silent = frozenset(), frozenset({"start"})
        (starts,) = await here.start("forever", 1)
        engine.faults.silent = frozenset()
        disk.refuse()
        with anyio.fail_after(60):
            while (seen := await here.get(stops)).status is not Status.CANCELLED:
                await anyio.sleep(0.05)
        assert str(seen.message).startswith(disk.said)
        with anyio.fail_after(60):
            while "the store" not in str((seen := await here.get(starts)).message):
                await anyio.sleep(0.05)
        assert seen.status is Status.RUNNING
        disk.recover()
        with anyio.fail_after(60):
            while (await here.get(starts)).message != "working":
                await anyio.sleep(0.05)


async def test_every_way_to_read_a_task_goes_on_in_both_revisions(disk: Disk) -> None:
    adapters = {"memory": MemoryAdapter(MemorySettings(name=str(disk.folder)))}
    async with (
        site(store=disk.store, adapters=adapters, my_tasks=True, authenticated=True) as served,
        peer(served.url, token="ada") as client,
        peer(served.url, token="ada", capabilities={"elicitation": {"form": {}}}) as plain,
        session(served.url, token="ada") as elder,
    ):
        first, second, third = [(await client.call("echo", {"a": 1})).result["taskId"] for _ in range(3)]
        asks = (await client.call("ask")).result["taskId"]
        disk.refuse()
        for seen in (await client.get(first), await elder_get(elder, second)):
            assert (seen["status"], seen["statusMessage"].startswith(disk.said)) == ("completed", True)
        read = (await client.send("resources/read", {"uri": uri_of(third)})).body
        assert '"a"' in str(read), read
        assert (await elder.request("tasks/result", {"taskId": third})).result["structuredContent"] == {"a": 1}
        looked = (await plain.call("task_status", {"taskId": asks})).result["structuredContent"]
        assert (looked["status"], looked["message"].startswith(disk.said)) == ("input_required", True)
        listed = (await elder.request("tasks/list", {})).result["tasks"]
        assert all(each["statusMessage"].startswith(disk.said) for each in listed), listed
        mine = (await plain.call("my_tasks")).result["structuredContent"]["tasks"]
        assert {each["taskId"] for each in mine} == {first, second, third, asks}
        async with client.stream("subscriptions/listen", {"notifications": {"taskIds": [asks]}}) as (_, frames):
            async for frame in frames:
                if frame.get("method") == "notifications/tasks":
                    assert disk.said in str(frame), frame
                    break
        disk.recover()
        with anyio.fail_after(60):
            while "statusMessage" in (seen := await client.get(first)):
                await anyio.sleep(0.05)
        assert seen["status"] in ENDED


async def elder_get(elder: Session, task_id: str) -> dict[str, str]:
    return dict((await elder.request("tasks/get", {"taskId": task_id})).result)


async def test_what_was_just_seen_is_shown_with_the_reason_why_it_is_not_saved(disk: Disk) -> None:
    async with on(disk) as (here, _):
        (asks,) = await here.start("ask", 1)
        disk.refuse()
        seen = await here.get(asks)
        assert (seen.status, set(seen.requests)) == (Status.INPUT_REQUIRED, {"question"})
        assert str(seen.message).startswith(disk.said)
        assert (await stored(disk, asks)).execution.status is Status.RUNNING
        disk.recover()
        with anyio.fail_after(60):
            while (seen := await here.get(asks)).message != "waiting for an answer":
                await anyio.sleep(0.05)
        assert (await stored(disk, asks)).execution.status is Status.INPUT_REQUIRED
