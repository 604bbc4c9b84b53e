"""Webhooks: from a subscription to the request that the endpoint gets."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.server.subscriptions import InMemorySubscriptionBus

from mcp_workflows import Tool
from mcp_workflows.adapter.memory import Script, ScriptedAdapter
from mcp_workflows.events.endpoints import EventSettings
from mcp_workflows.receiver.attach import Changes
from tests.support.endpoint import Endpoint, endpoint
from tests.support.in_memory import entered, line
from tests.support.served import Peer, Site, memory_tools, peer, site
from tests.support.waiting import until

LOCALLY = EventSettings(allow_private=True)


@asynccontextmanager
async def served(tmp_path: Path, **settings: Any) -> AsyncGenerator[tuple[Site, Peer]]:
    """Serve the workflows in memory to alice."""
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with (
        site(store=store, authenticated=True, events=LOCALLY, **settings) as found,
        peer(found.url, token="alice") as alice,
    ):
        yield found, alice


def wanted(receiver: Endpoint, name: str = "task.ended", **arguments: str) -> Mapping[str, Any]:
    delivery = {"mode": "webhook", "url": receiver.url, "secret": receiver.secret}
    return {"name": name, "arguments": arguments, "delivery": delivery, "cursor": None}


async def test_the_end_of_a_task_reaches_the_endpoint_of_its_owner(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, alice), endpoint() as receiver:
        subscribed = (await alice.send("events/subscribe", wanted(receiver))).result
        task = (await alice.call("echo", {"text": "hi"})).result
        await receiver.until(lambda: bool(receiver.events()))
    [event] = receiver.events()
    assert event["name"] == "task.ended"
    assert event["data"]["taskId"] == task["taskId"]
    assert event["data"]["status"] == "completed"
    assert receiver.got[0].body["type"] == "verification"
    assert {each.headers["x-mcp-subscription-id"] for each in receiver.got} == {subscribed["id"]}
    assert receiver.got[1].headers["webhook-id"] == event["eventId"]
    assert receiver.forged == []


async def test_events_are_listed_polled_and_streamed(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, alice):
        listed = (await alice.send("events/list")).result["events"]
        assert [each["name"] for each in listed] == ["task.ended", "task.input_required", "task.progress"]
        first = (await alice.send("events/poll", {"name": "task.ended", "arguments": {}, "cursor": None})).result
        assert first["events"] == []
        async with alice.stream("events/stream", {"name": "task.ended", "arguments": {}, "cursor": None}) as (_, got):
            active = await anext(got)
            assert active["method"] == "notifications/events/active"
            task = (await alice.call("echo", {"text": "hi"})).result
            event = await anext(got)
        assert event["method"] == "notifications/events/event"
        assert event["params"]["data"]["taskId"] == task["taskId"]
        cursor: dict[str, Any] = {"name": "task.ended", "arguments": {}, "cursor": first["cursor"]}
        polled = (await alice.send("events/poll", cursor)).result
        assert [each["eventId"] for each in polled["events"]] == [event["params"]["eventId"]]
        again = (await alice.send("events/poll", {**cursor, "cursor": polled["cursor"]})).result
        assert again["events"] == []


async def test_a_question_reaches_the_endpoint_of_its_owner(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, alice), endpoint() as receiver:
        await alice.send("events/subscribe", wanted(receiver, "task.input_required"))
        task = (await alice.call("ask", {})).result
        await receiver.until(lambda: bool(receiver.events()))
    [event] = receiver.events()
    assert event["data"]["taskId"] == task["taskId"]
    assert event["data"]["key"]
    assert "Ask the user" in event["data"]["askTheUser"]


async def test_a_question_that_no_model_answers_is_told_without_its_form(tmp_path: Path) -> None:
    ask = Tool(name="ask", engine="memory", workflow="ask", model_may_answer=False)
    async with served(tmp_path, tools=[ask]) as (_, alice), endpoint() as receiver:
        await alice.send("events/subscribe", wanted(receiver, "task.input_required"))
        await alice.call("ask", {})
        await receiver.until(lambda: bool(receiver.events()))
    [event] = receiver.events()
    assert "requestedSchema" not in event["data"]
    assert event["data"]["askTheUser"].startswith("Tell the user that only a person answers this")


async def test_an_ended_task_that_is_subscribed_to_late_is_told_once(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, alice), endpoint() as receiver:
        task = (await alice.call("echo", {"text": "hi"})).result
        await alice.until(task["taskId"])
        late = {"name": "task.ended", "arguments": {"taskId": task["taskId"]}}
        await alice.send("events/subscribe", {**wanted(receiver, "task.ended", taskId=task["taskId"])})
        await receiver.until(lambda: bool(receiver.events()))
        first = (await alice.send("events/poll", {**late, "cursor": None})).result
        assert first["events"] == []
        assert first["hasMore"]
        second = (await alice.send("events/poll", {**late, "cursor": first["cursor"]})).result
        third = (await alice.send("events/poll", {**late, "cursor": second["cursor"]})).result
        async with alice.stream("events/stream", {**late, "cursor": None}) as (_, got):
            await anext(got)
            streamed = await anext(got)
    [event] = receiver.events()
    assert [each["eventId"] for each in second["events"]] == [event["eventId"]]
    assert third["events"] == []
    assert streamed["params"]["eventId"] == event["eventId"]
    assert event["data"]["taskId"] == task["taskId"]


async def test_an_older_client_is_told_when_the_filters_change(tmp_path: Path) -> None:
    changes = Changes(InMemorySubscriptionBus())
    async with entered(memory_tools(), store=f"sqlite:///{tmp_path}/tasks.db") as (server, _):
        server.middleware.append(changes.serve)
        async with line(server, "2025-11-25") as client:
            await until(lambda: bool(changes._older))  # pyright: ignore[reportPrivateUsage]
            await changes.tools_changed()
            await until(lambda: len(client.notifications) == 2)
    told = [each.method for each in client.notifications]
    assert told == ["notifications/tools/list_changed", "notifications/events/list_changed"]


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18"])
async def test_an_older_client_is_served_events(tmp_path: Path, version: str) -> None:
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with entered(memory_tools(), store=store) as (server, _), line(server, version) as client:
        listed = (await client.send("events/list"))["result"]["events"]
        polled = (await client.send("events/poll", {"name": "task.ended", "cursor": None}))["result"]
    assert {"task.ended", "task.input_required", "task.progress"} <= {each["name"] for each in listed}
    assert polled["events"] == []
    assert "resultType" not in polled


@pytest.mark.parametrize("name", ["task.ended", "task.progress"])
async def test_a_stream_ends_at_once_when_the_server_stops(tmp_path: Path, name: str) -> None:
    async with served(tmp_path) as (found, alice):
        task = (await alice.call("forever", {})).result
        wanted = {"name": name, "arguments": {"taskId": task["taskId"]}, "cursor": None}
        async with alice.stream("events/stream", wanted) as (_, frames):
            await anext(frames)
            found.workflows.stop()
            with anyio.fail_after(10):
                last = [frame async for frame in frames][-1]
    assert last["result"].keys() <= {"_meta", "resultType"}


async def test_the_progress_of_a_task_is_streamed_until_its_end(tmp_path: Path) -> None:
    script = Script()
    tools = [Tool(name="work", engine="memory", workflow="Work")]
    async with served(tmp_path, tools=tools, adapters={"memory": ScriptedAdapter(script)}) as (_, alice):
        task = (await alice.call("work", {})).result
        wanted = {"name": "task.progress", "arguments": {"taskId": task["taskId"]}, "cursor": None}
        first = (await alice.send("events/poll", wanted)).result
        async with alice.stream("events/stream", wanted) as (_, frames):
            await anext(frames)
            script.progress("charging the card", 1, 2)
            while "charging" not in (await anext(frames))["params"].get("data", {}).get("message", ""):
                pass
            script.succeed()
            while (await anext(frames))["params"].get("data", {}).get("status") != "completed":
                pass
        polled = (await alice.send("events/poll", {**wanted, "cursor": first["cursor"]})).result
        again = (await alice.send("events/poll", {**wanted, "cursor": polled["cursor"]})).result
    assert [event["data"]["status"] for event in polled["events"]] == ["completed"]
    assert again["events"] == []


async def test_progress_has_no_webhook(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, alice), endpoint() as receiver:
        task = (await alice.call("forever", {})).result
        refused = await alice.send("events/subscribe", wanted(receiver, "task.progress", taskId=task["taskId"]))
    assert (refused.code, refused.error["data"]) == (-32014, {"feature": "deliveryMode", "value": "webhook"})
    assert receiver.got == []
