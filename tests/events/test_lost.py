"""Subscriptions that are lost: why is kept for a while, and told to clients that do not listen."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_workflows.access import Principal
from mcp_workflows.events import delivery
from mcp_workflows.events.subscriptions import owner_key, trouble
from mcp_workflows.store.protocol import EVENTS_KEPT, open_store
from mcp_workflows.wire import events as wire
from tests.events.test_webhooks import served, wanted
from tests.support.delivering import Replica, delivering
from tests.support.endpoint import Endpoint, endpoint
from tests.support.waiting import TIMEOUT, until

pytestmark = pytest.mark.anyio

CAROL = Principal(id="carol", subject="carol", claims={"team": "blue"})


async def ended_by_410(replica: Replica, receiver: Endpoint) -> None:
    """Have the endpoint of a subscription of Carol's end it."""
    await replica.subscribe(receiver, by=CAROL)
    receiver.status = 410
    await replica.ended(1, owner="carol")
    await until(lambda: "terminated" in replica.outcomes())
    while await replica.events.subscriptions.under():
        await anyio.sleep(0.01)


async def test_why_a_subscription_ended_is_kept_without_its_secrets(tmp_path: Path) -> None:
    async with (
        delivering(open_store(f"sqlite:///{tmp_path}/tasks.db")) as replica,
        endpoint(clock=replica.clock) as receiver,
    ):
        await ended_by_410(replica, receiver)
        [(kept, state)] = await replica.events.subscriptions.states(owner_key("carol"))
        why = trouble(kept, state, replica.clock())
        assert why is not None
        assert why.endswith("UTC, as the endpoint answered 410 Gone")
        assert (kept.secret, kept.former_secrets, kept.principal.claims, kept.principal.subject) == (
            "",
            [],
            {},
            None,
        )
        assert kept.until - replica.clock() < timedelta()
        replica.clock.advance(days=EVENTS_KEPT.days + 1)
        await replica.store.delete_expired(replica.clock(), replica.clock())
        assert await replica.events.subscriptions.states() == []


async def test_an_ended_subscription_begins_anew_when_its_client_subscribes_again(tmp_path: Path) -> None:
    async with (
        delivering(open_store(f"sqlite:///{tmp_path}/tasks.db")) as replica,
        endpoint(clock=replica.clock) as receiver,
    ):
        await ended_by_410(replica, receiver)
        missed = await replica.ended(2, owner="carol")
        receiver.status = 200
        assert (await replica.subscribe(receiver, by=CAROL)).status is None
        [taken] = await replica.ended(1, owner="carol")
        await receiver.until(lambda: bool(receiver.events()))
        [(kept, state)] = await replica.events.subscriptions.states()
    assert [event["data"]["taskId"] for event in receiver.events()] == [taken]
    assert missed
    assert trouble(kept, state, replica.clock()) is None


async def test_an_ended_subscription_is_forgotten_when_its_client_unsubscribes(tmp_path: Path) -> None:
    async with (
        delivering(open_store(f"sqlite:///{tmp_path}/tasks.db")) as replica,
        endpoint(clock=replica.clock) as receiver,
    ):
        await ended_by_410(replica, receiver)
        task_ended = wire.Wanted(name="task.ended", arguments={})
        await replica.events.unsubscribe(task_ended, wire.Webhook(url=receiver.url), CAROL)
        assert await replica.events.subscriptions.states() == []


@pytest.mark.parametrize(
    ("status", "why"), [(410, "the endpoint answered 410 Gone"), (500, "its endpoint accepts no events (http_5xx)")]
)
async def test_my_tasks_shows_lost_subscriptions_to_their_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, why: str
) -> None:
    monkeypatch.setattr(delivery, "PAUSES", ())
    found: Any = {}
    async with served(tmp_path) as (_, alice), endpoint() as receiver:
        await alice.send("events/subscribe", wanted(receiver, "task.ended", tool="echo"))
        before = (await alice.call("my_tasks")).result
        assert "lostSubscriptions" not in before["structuredContent"]
        receiver.status = status
        await alice.call("echo", {"text": "hi"})
        with anyio.fail_after(TIMEOUT):
            while "lostSubscriptions" not in (found := (await alice.call("my_tasks")).result)["structuredContent"]:
                await anyio.sleep(0.05)
        [lost] = found["structuredContent"]["lostSubscriptions"]
        assert lost.startswith('The subscription to task.ended {"tool": "echo"} is lost: ')
        assert f"UTC, as {why}. Tell the user" in lost
        assert lost in found["content"][0]["text"]
        alice.token = "bob"
        others = (await alice.call("my_tasks")).result
        assert "lost" not in str(others)
        alice.token, receiver.status = "alice", 200
        await alice.send("events/subscribe", wanted(receiver, "task.ended", tool="echo"))
        with anyio.fail_after(TIMEOUT):
            while "lostSubscriptions" in (await alice.call("my_tasks")).result["structuredContent"]:
                await anyio.sleep(0.05)
