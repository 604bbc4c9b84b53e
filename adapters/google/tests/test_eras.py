"""The same workflow for a client of 2025-11-25, and for one without tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from adapters.google.tests import flows
from adapters.google.tests.configured import YES, client_of, configured, executions
from adapters.google.tests.scene import environment
from tests.support.child_processes import free_port
from tests.support.client_2025 import session
from tests.support.google_engine import GoogleEngine

pytestmark = pytest.mark.anyio

PLAIN: Final[Any] = {}  # the capabilities of a client without tasks
ADA: Final = {"action": "accept", "content": {"answer": "Ada"}, "timed_out": False}  # whom the session answers by
ANSWERED: Final = {**YES, "timed_out": False}


async def test_a_client_of_2025_11_25_is_asked_gets_its_result_and_cancels(
    google_engine: GoogleEngine, tmp_path: Path
) -> None:
    port = free_port()
    tools = {
        "it": {"workflow": google_engine.deploy("asks", flows.ASKS, env=environment(port))},
        "fail": {"workflow": google_engine.deploy("declines", flows.DECLINES)},
        "forever": {"workflow": google_engine.deploy("forever", flows.FOREVER)},
    }
    async with (
        client_of(configured(tmp_path, google_engine.address, tools), port=port) as served,
        session(served.url) as old,
    ):

        async def created(tool: str) -> Any:
            asked = {"name": tool, "arguments": {"order_id": "A1"}, "task": {}}
            return {"taskId": (await old.request("tools/call", asked)).result["task"]["taskId"]}  # type: ignore[index]

        it, fail, forever = [await created(tool) for tool in tools]
        assert (await old.request("tasks/result", it)).result["structuredContent"] == ADA
        assert (await old.request("tasks/get", it)).result["status"] == "completed"
        failed = (await old.request("tasks/result", fail)).result
        assert (failed["isError"], (await old.request("tasks/get", fail)).result["status"]) == (True, "failed")
        assert (await old.request("tasks/cancel", forever)).result["status"] == "cancelled"
        assert "error" in (await old.request("tasks/cancel", it)).body
    [execution] = executions(google_engine, str(tools["forever"]["workflow"]))
    assert google_engine.ended(execution).state.name == "CANCELLED"


async def test_a_client_without_tasks_gets_the_result_or_a_handle_to_answer_by(
    google_engine: GoogleEngine, tmp_path: Path
) -> None:
    port = free_port()
    tools = {
        "echo": {"workflow": google_engine.deploy("echo", flows.ECHO)},
        "it": {"workflow": google_engine.deploy("asks", flows.ASKS, env=environment(port)), "wait": "100ms"},
    }
    async with client_of(configured(tmp_path, google_engine.address, tools), port=port) as client:
        client.capabilities = PLAIN
        assert (await client.call("echo", {"a": 1})).result["structuredContent"] == {"a": 1}
        handed = (await client.call("it")).result["structuredContent"]
        task = {"taskId": handed["taskId"]}
        waiting = (await client.call("task_wait", task)).result["structuredContent"]
        assert waiting["status"] == "input_required"
        assert "Ship it?" in str(waiting)
        await client.call("task_answer", {**task, "content": YES["content"]})
        done = (await client.call("task_wait", task)).result
    assert done["structuredContent"]["result"] == ANSWERED
