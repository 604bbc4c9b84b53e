"""Clients of Events that nobody here wrote, and one like ChatGPT, against the sidecar: a task that ends reports back.

Each delivery is verified with `standardwebhooks`, another implementation of the signatures.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from tests.clients.client_matrix import LEGACY, MODERN
from tests.clients.clients import DOCUMENT, PATIENCE, PROGRAMS
from tests.clients.like_chatgpt import host
from tests.support.child_processes import free_port
from tests.support.endpoint import endpoint
from tests.support.environments import NODE, ROOT
from tests.support.stack import Plan, Stack

FOR_TEST_ALL = pytest.mark.slow
TOOL = "slow_compute_handed_over"
"""It takes longer than its `wait`, so a client that knows no tasks is handed one."""


@pytest.fixture(
    scope="module",
    params=["dbos", *(pytest.param(each, marks=FOR_TEST_ALL) for each in ("temporal", "stepfunctions", "google"))],
)
def url(processes: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The conformance sample on an engine, for one caller, who is known."""
    state: Path = tmp_path_factory.mktemp(f"events-{request.param}")
    plan = Plan(engine=request.param, sample="conformance", port=free_port(), state=state, single_user=True)
    with Stack(plan) as stack:
        yield stack.url


@pytest.mark.parametrize("era", [pytest.param(LEGACY, marks=FOR_TEST_ALL), MODERN])
def test_the_ai_sdk_is_told_of_the_end_of_a_task_that_it_was_handed(url: str, era: str) -> None:
    plan = {"url": url, "era": era, "tool": TOOL, "arguments": {"seconds": 3, "label": "x"}}
    program = [str(NODE), str(PROGRAMS / "ai_sdk_events.mjs"), json.dumps(plan)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["version"] == era
    assert {"task.ended", "task.input_required"} <= set(seen["listed"])
    [event] = seen["events"]
    assert (event["data"]["taskId"], event["data"]["status"]) == (seen["taskId"], "completed")
    assert "computed x in 3 s" in json.dumps(event["data"]["result"])
    assert seen["refreshed"]["id"] == seen["subscribed"]["id"]
    assert seen["left"] == 0
    bodies = [
        Webhook(seen["secret"]).verify(base64.b64decode(each["body"]), each["headers"]) for each in seen["deliveries"]
    ]
    assert [body.get("type", "event") for body in bodies] == ["verification", "event"]
    assert [each["answered"] for each in seen["deliveries"]] == [200, 204]


@pytest.mark.parametrize("era", [LEGACY, pytest.param(MODERN, marks=FOR_TEST_ALL)])
async def test_a_host_like_chatgpt_is_told_of_the_end_of_a_task_that_it_was_handed(url: str, era: str) -> None:
    async with host(url, era) as chatgpt, endpoint() as receiver:
        assert await chatgpt.offered() == ["task.ended", "task.input_required"]
        handed = await chatgpt.call(TOOL, seconds=3, label="y")
        task_id = handed["structuredContent"]["taskId"]
        subscribed = await chatgpt.watch(receiver, "task.ended", taskId=task_id)
        await receiver.until(lambda: bool(receiver.events()))
        refreshed = await chatgpt.watch(receiver, "task.ended", taskId=task_id)
        await chatgpt.forget(receiver, "task.ended", taskId=task_id)
        asked_for = (await chatgpt.call("task_status", taskId=task_id))["structuredContent"]
    assert receiver.forged == []
    assert [each.body.get("type", "event") for each in receiver.got] == ["verification", "event"]
    [event] = receiver.events()
    assert (event["data"]["taskId"], event["data"]["status"]) == (task_id, "completed")
    assert asked_for["status"] == "completed"  # a model that is woken without the data is told to ask
    assert refreshed["id"] == subscribed["id"]
    assert {each.headers["x-mcp-subscription-id"] for each in receiver.got} == {subscribed["id"]}
    assert receiver.got[1].headers["webhook-id"] == event["eventId"]


@FOR_TEST_ALL
@pytest.mark.parametrize("era", [LEGACY, MODERN])
async def test_a_host_like_chatgpt_that_answers_410_is_told_no_more(url: str, era: str) -> None:
    async with host(url, era) as chatgpt, endpoint(status=410) as gone, endpoint() as other:
        for receiver in (gone, other):
            await chatgpt.watch(receiver, "task.ended", tool="slow_compute")
        await chatgpt.call("slow_compute", seconds=0, label="z")
        await gone.until(lambda: bool(gone.events(410)))
        await chatgpt.call("slow_compute", seconds=0, label="z")
        await other.until(lambda: len(other.events()) == 2)
    assert len(gone.events(410)) == 1
    assert gone.forged == other.forged == []


def test_the_page_names_the_version_of_the_ai_sdk_that_is_installed() -> None:
    pins = json.loads((ROOT / "package.json").read_text())["devDependencies"]
    assert f"`@ai-sdk/mcp@{pins['@ai-sdk/mcp']}`" in DOCUMENT.read_text()
