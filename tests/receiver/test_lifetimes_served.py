"""What the wire says of lifetimes, in both eras: a task that has expired, and one that is to be terminated."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_workflows import Tool
from tests.receiver.v2025_11_25.test_tasks import session
from tests.support.served import Site, peer, site

pytestmark = pytest.mark.anyio


@pytest.fixture
async def served(tmp_path: Path) -> AsyncGenerator[Site]:
    stubborn = {"engine": "memory", "workflow": "stubborn"}
    tools = [
        Tool.model_validate({"name": "brief", **stubborn, "ttl": "200ms"}),
        Tool.model_validate({"name": "graceful", **stubborn, "cancel": {"grace": "300ms", "then": "terminate"}}),
    ]
    async with site(store=f"sqlite:///{tmp_path}/tasks.db", tools=tools, authenticated=True) as found:
        yield found


async def test_who_listens_hears_that_it_will_be_terminated_and_that_it_was(served: Site) -> None:
    async with peer(served.url, token="ada") as client, session(served.url) as old:
        task_id = (await client.call("graceful", {"seconds": 60})).result["taskId"]
        heard: list[Mapping[str, Any]] = []
        params = {"notifications": {"taskIds": [task_id]}}
        with anyio.fail_after(60):
            async with client.stream("subscriptions/listen", params) as (_, frames):
                async for frame in frames:
                    if frame.get("method") != "notifications/tasks":
                        continue
                    heard.append(frame["params"])
                    if len(heard) == 1:
                        await client.send("tasks/cancel", {"taskId": task_id})
                    if heard[-1]["status"] == "cancelled":
                        break
        messages: list[str] = [each.get("statusMessage", "") for each in heard]
        assert any(message.startswith("asked to cancel; will be terminated at ") for message in messages)
        assert messages[-1] == "terminated: it did not end within 0.3 s of the request to cancel"
        assert len(messages) <= 6  # no change each second
        seen = (await old.request("tasks/get", {"taskId": task_id})).result
        assert (seen["status"], seen["statusMessage"]) == ("cancelled", messages[-1])


async def test_2025_11_25_is_told_at_once_that_it_is_cancelled_and_the_other_era_when_it_is(served: Site) -> None:
    async with peer(served.url, token="ada") as client, session(served.url) as old:
        task_id = (await client.call("graceful", {"seconds": 60})).result["taskId"]
        assert (await old.request("tasks/cancel", {"taskId": task_id})).result["status"] == "cancelled"
        result = (await old.request("tasks/result", {"taskId": task_id})).result
        assert result["isError"] is True
        assert result["content"][0]["text"] == f"Task {task_id} was cancelled by request"
        assert (await client.get(task_id))["status"] == "working"
        assert (await client.until(task_id))["status"] == "cancelled"
