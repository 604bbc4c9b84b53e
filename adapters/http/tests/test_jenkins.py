"""The preset jenkins, against a server that answers in the shapes that mcp-jenkins 3.6.0 reads.

HTTP statuses are those of Jenkins' own code: hudson.model.Queue.doCancelItem and hudson.model.Executor.doStop.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.responses import JSONResponse, RedirectResponse, Response

from adapters.http.tests.scripted import Scene, order, scene
from mcp_workflows.adapter import Ref, Status
from mcp_workflows.errors import EngineUnavailable, ExecutionNotFound

pytestmark = pytest.mark.anyio

JOB = "/job/release"
ITEM = "GET /queue/item/7/api/json"
BUILD = {"number": 13, "queueId": 7, "building": True, "result": None, "url": "https://jenkins/job/release/13/"}
OTHER = {"number": 12, "queueId": 77, "building": True, "result": None, "url": "https://jenkins/job/release/12/"}
WAITING = {"_class": "hudson.model.Queue$WaitingItem", "id": 7, "why": "Waiting for next available executor"}
CANCELLED = {"_class": "hudson.model.Queue$LeftItem", "id": 7, "why": None, "cancelled": True}


def builds(*listed: Any) -> Any:
    return {"_class": "hudson.model.FreeStyleProject", "builds": list(listed)}


async def started(found: Scene) -> str:
    location = {"location": f"{found.vendor.url}/queue/item/7/"}
    found.vendor.replies[f"POST {JOB}/buildWithParameters"] = Response(status_code=201, headers=location)
    found.vendor.replies[f"GET {JOB}/api/json"] = builds(OTHER)
    return await found.start(order("release", {"version": "1.2"}))


async def test_a_build_from_the_queue_to_its_input_step_and_its_failure() -> None:
    async with scene("jenkins", "release") as found:
        replies, handle = found.vendor.replies, await started(found)
        assert found.vendor.last("POST").body == "version=1.2&MCP_KEY=key-1"
        replies[ITEM] = WAITING
        seen = await found.describe(handle)
        assert (seen.status, seen.message) == (Status.RUNNING, "Waiting for next available executor")
        replies[f"GET {JOB}/api/json"] = builds(BUILD, OTHER)
        pending: Any = {"id": "Go", "proceedText": "Proceed", "message": "Ship it?", "inputs": []}
        replies[f"GET {JOB}/13/wfapi/pendingInputActions"] = [pending]
        [question] = (await found.describe(handle)).requests.values()
        assert question.params["message"] == "Ship it?"
        assert question.params["url"] == "https://jenkins/job/release/13/input/"
        replies[f"GET {JOB}/api/json"] = builds({**BUILD, "building": False, "result": "FAILURE"})
        replies[f"GET {JOB}/13/consoleText"] = "make: *** [all] Error 1\n"
        seen = await found.describe(handle)
        assert seen.failure is not None
        assert seen.failure.text == "build 13 failed\nmake: *** [all] Error 1"


async def test_a_build_is_followed_after_its_queue_item_has_vanished() -> None:
    async with scene("jenkins", "release") as found:
        handle = await started(found)
        found.vendor.replies[f"GET {JOB}/api/json"] = builds(BUILD, OTHER)
        assert (await found.describe(handle)).status is Status.RUNNING
        assert "/queue/item/7/api/json" not in {each.path for each in found.vendor.asked}


async def test_an_item_that_vanished_without_a_build_is_not_found_but_not_at_once() -> None:
    async with scene("jenkins", "release") as found:
        handle = await started(found)
        assert (await found.describe(handle)).message == "the API does not show it yet"
        with pytest.raises(ExecutionNotFound):
            await found.describe(json.dumps({**json.loads(handle), "at": 0}))


async def test_an_item_that_cannot_be_read_now_says_nothing_about_the_build() -> None:
    async with scene("jenkins", "release") as found:
        handle = await started(found)
        found.vendor.replies[ITEM] = JSONResponse({}, status_code=502)
        with pytest.raises(EngineUnavailable, match="502"):
            await found.describe(json.dumps({**json.loads(handle), "at": 0}))


async def test_an_item_that_was_cancelled_in_the_queue_has_ended() -> None:
    async with scene("jenkins", "release") as found:
        handle = await started(found)
        found.vendor.replies[ITEM] = CANCELLED
        assert (await found.describe(handle)).status is Status.CANCELLED


async def test_a_build_is_stopped_and_an_item_of_the_queue_is_cancelled() -> None:
    async with scene("jenkins", "release") as found:
        handle = await started(found)
        ref, replies = Ref(workflow="release", handle=handle), found.vendor.replies
        replies[ITEM], replies["POST /queue/cancelItem"] = WAITING, Response(status_code=204)
        await found.adapter.cancel(ref)
        assert found.vendor.last("POST").query == {"id": "7"}
        replies[f"GET {JOB}/api/json"] = builds(BUILD)
        replies[f"POST {JOB}/13/stop"] = RedirectResponse(".", status_code=302)
        await found.adapter.cancel(ref)
        assert found.vendor.last("POST").path == f"{JOB}/13/stop"
        replies[f"GET {JOB}/api/json"] = builds({**BUILD, "building": False, "result": "ABORTED"})
        assert (await found.describe(handle)).status is Status.CANCELLED


@pytest.mark.parametrize(
    ("workflow", "job"),
    [("team/release", "/job/team/job/release"), ("team/app/fix%2Fx", "/job/team/job/app/job/fix%2Fx")],
)
async def test_a_job_in_a_folder_is_started_watched_and_stopped(workflow: str, job: str) -> None:
    async with scene("jenkins", workflow) as found:
        replies = found.vendor.replies
        location = {"location": f"{found.vendor.url}/queue/item/7/"}
        replies[f"POST {job}/buildWithParameters"] = Response(status_code=201, headers=location)
        replies[f"GET {job}/api/json"] = builds(BUILD)
        replies[f"GET {job}/13/wfapi/pendingInputActions"] = []
        replies[f"POST {job}/13/stop"] = RedirectResponse(".", status_code=302)
        handle = await found.start(order(workflow))
        assert (await found.describe(handle)).status is Status.RUNNING
        await found.adapter.cancel(Ref(workflow=workflow, handle=handle))
        assert found.vendor.last("POST").path == f"{job}/13/stop"


async def test_an_input_that_is_declined_aborts_the_build() -> None:
    async with scene("jenkins", "release", asks={"input": {"answer_in": "chat"}}) as found:
        handle, replies = await started(found), found.vendor.replies
        replies[f"GET {JOB}/api/json"] = builds(BUILD)
        replies[f"GET {JOB}/13/wfapi/pendingInputActions"] = [{"id": "Go", "message": "Ship it?", "inputs": []}]
        replies[f"POST {JOB}/13/input/Go/abort"] = Response(status_code=200)
        [question] = (await found.describe(handle)).requests.values()
        assert question.declinable, "so a question that is only put aside stays open"
        ref, answer = Ref(workflow="release", handle=handle), {"input.Go": {"action": "decline"}}
        await found.adapter.answer(ref, answer)
        replies[f"POST {JOB}/13/input/Go/abort"] = Response("This input has been already given", status_code=400)
        await found.adapter.answer(ref, answer)
        assert len([each for each in found.vendor.asked if each.path.endswith("/abort")]) == 2
        replies[f"GET {JOB}/api/json"] = builds({**BUILD, "building": False, "result": "ABORTED"})
        assert (await found.describe(handle)).status is Status.CANCELLED


async def test_a_build_is_found_by_its_key_and_followed_by_the_number_of_its_item() -> None:
    async with scene("jenkins", "release", starts="findable") as found:
        key = {"actions": [{}, {"parameters": [{"name": "MCP_KEY", "value": "key-1"}]}]}
        found.vendor.replies[f"GET {JOB}/api/json"] = builds({**BUILD, **key}, OTHER)
        handle = await found.adapter.find(order("release"))
        assert handle is not None
        assert (await found.describe(handle)).execution_id == "queue/item/7/"
        assert (await found.describe(handle)).url == "https://jenkins/job/release/13/"
