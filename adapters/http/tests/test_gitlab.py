"""The preset gitlab-ci, against a server that is held to GitLab's OpenAPI description (gitlab.openapi.json)."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.responses import JSONResponse

from adapters.http.tests.described import Description
from adapters.http.tests.scripted import Scene, order, scene
from mcp_workflows.adapter import Ref, Status
from mcp_workflows.errors import EngineRefused

pytestmark = pytest.mark.anyio

GITLAB = Description("gitlab")
HERE: dict[str, Any] = {"vars": {"project": "5"}, "description": GITLAB}
PROJECT = "/api/v4/projects/5"
PIPELINE = f"{PROJECT}/pipelines/46"
DESCRIBED = "/api/v4/projects/{id}"
ANSWER = {"action": "accept", "content": {"comment": "go"}}


def pipeline(status: str, **changed: Any) -> Any:
    return GITLAB.example(f"GET {DESCRIBED}/pipelines/{{pipeline_id}}", status=status, **changed)


def job(**changed: Any) -> Any:
    return {**GITLAB.example(f"GET {DESCRIBED}/pipelines/{{pipeline_id}}/jobs")[0], **changed}


def deployment(**changed: Any) -> Any:
    return GITLAB.example(f"GET {DESCRIBED}/deployments/{{deployment_id}}", **changed)


async def started(found: Scene) -> str:
    found.vendor.replies[f"POST {PROJECT}/pipeline"] = JSONResponse(pipeline("created"), status_code=201)
    return await found.start(order("main", {"version": "1.2"}))


async def blocked(found: Scene, *deployments: Any) -> str:
    """A pipeline that waits for a manual job; these deployments of the project are blocked."""
    handle, replies = await started(found), found.vendor.replies
    replies[f"GET {PIPELINE}"], replies[f"GET {PIPELINE}/jobs"] = pipeline("manual"), [job()]
    replies[f"GET {PROJECT}/deployments"] = [
        {name: value for name, value in each.items() if name not in {"pending_approval_count", "approvals"}}
        for each in deployments
    ]
    replies.update({f"GET {PROJECT}/deployments/{each['id']}": each for each in deployments})
    return handle


async def test_a_pipeline_from_start_to_manual_job_and_failure() -> None:
    async with scene("gitlab-ci", "main", **HERE) as found:
        replies, handle = found.vendor.replies, await blocked(found)
        assert found.vendor.last("POST").body == {
            "ref": "main",
            "variables": [{"key": "MCP_KEY", "value": "key-1"}],
            "inputs": {"version": "1.2"},
        }
        replies[f"GET {PIPELINE}/jobs"] = [job(), job(id=8, name="tidy up", allow_failure=True)]
        [(key, question)] = (await found.describe(handle)).requests.items()
        assert (key, question.params["message"]) == ("play.7", "Start deploy?"), "only this one blocks the pipeline"
        assert question.params["url"] == "https://gitlab.example.com/acme/shop/-/jobs/7"
        replies[f"GET {PIPELINE}"] = pipeline("failed")
        replies[f"GET {PIPELINE}/jobs"] = [job(status="failed", failure_reason="script_failure")]
        replies[f"GET {PROJECT}/jobs/7/trace"] = "$ deploy\npassword=hunter2222\nERROR: no route\n"
        seen = await found.describe(handle)
        assert seen.failure is not None
        assert seen.failure.text == "deploy: script_failure\n$ deploy\npassword=***\nERROR: no route"


async def test_a_blocked_deployment_is_a_question_until_it_has_its_approvals_and_then_its_job_is() -> None:
    async with scene("gitlab-ci", "main", **HERE) as found:
        elsewhere = deployment(id=43, deployable=job(id=9, pipeline={**job()["pipeline"], "id": 45}))
        handle = await blocked(found, elsewhere, deployment(pending_approval_count=2))
        [(key, question)] = (await found.describe(handle)).requests.items()
        assert (key, question.params["message"]) == ("approve.42.2", "Approve the deployment to production?")
        assert (question.params["mode"], question.params["url"]) == (
            "url",
            "https://gitlab.example.com/acme/shop/-/jobs/7",
        )
        found.vendor.replies[f"GET {PROJECT}/deployments/42"] = deployment(pending_approval_count=1)
        assert list((await found.describe(handle)).requests) == ["approve.42.1"]
        found.vendor.replies[f"GET {PROJECT}/deployments/42"] = deployment(pending_approval_count=0)
        assert list((await found.describe(handle)).requests) == ["play.7"]
        assert all(each.path != f"{PROJECT}/deployments/43" for each in found.vendor.asked)


async def test_a_deployment_without_approvals_on_the_free_tier_is_a_manual_job() -> None:
    async with scene("gitlab-ci", "main", **HERE) as found:
        free = {name: value for name, value in deployment().items() if name != "pending_approval_count"}
        handle = await blocked(found, free)
        assert list((await found.describe(handle)).requests) == ["play.7"]


@pytest.mark.parametrize(
    ("answer", "sent"),
    [(ANSWER, {"status": "approved", "comment": "go"}), ({"action": "decline"}, {"status": "rejected", "comment": ""})],
)
async def test_a_deployment_is_approved_or_rejected_as_the_tokens_user(answer: Any, sent: Any) -> None:
    async with scene("gitlab-ci", "main", asks={"approve": {"answer_in": "chat"}}, **HERE) as found:
        handle = await blocked(found, deployment())
        approval = GITLAB.example(f"POST {DESCRIBED}/deployments/{{deployment_id}}/approval", status=sent["status"])
        found.vendor.replies[f"POST {PROJECT}/deployments/42/approval"] = JSONResponse(approval, status_code=201)
        await found.adapter.answer(Ref(workflow="main", handle=handle), {"approve.42.1": answer})
        assert found.vendor.last("POST").body == sent


async def test_an_approval_of_ones_own_deployment_is_refused_with_gitlabs_reason() -> None:
    async with scene("gitlab-ci", "main", asks={"approve": {"answer_in": "chat"}}, **HERE) as found:
        handle = await blocked(found, deployment())
        reason = {"message": "You cannot approve your own deployment."}
        found.vendor.replies[f"POST {PROJECT}/deployments/42/approval"] = JSONResponse(reason, status_code=400)
        with pytest.raises(EngineRefused, match="You cannot approve your own deployment"):
            await found.adapter.answer(Ref(workflow="main", handle=handle), {"approve.42.1": ANSWER})


async def test_a_manual_job_is_started_as_the_tokens_user() -> None:
    async with scene("gitlab-ci", "main", asks={"play": {"answer_in": "chat"}}, **HERE) as found:
        handle = await blocked(found)
        found.vendor.replies[f"POST {PROJECT}/jobs/7/play"] = job(status="pending")
        await found.adapter.answer(Ref(workflow="main", handle=handle), {"play.7": {"action": "accept", "content": {}}})
        assert found.vendor.last("POST").path == f"{PROJECT}/jobs/7/play"


async def test_a_cancellation_is_sent_while_it_runs() -> None:
    async with scene("gitlab-ci", "main", **HERE) as found:
        handle = await started(found)
        found.vendor.replies[f"GET {PIPELINE}"], found.vendor.replies[f"GET {PIPELINE}/jobs"] = pipeline("running"), []
        found.vendor.replies[f"POST {PIPELINE}/cancel"] = pipeline("canceling")
        await found.adapter.cancel(Ref(workflow="main", handle=handle))
        assert found.vendor.last("POST").path == f"{PIPELINE}/cancel"
        found.vendor.replies[f"GET {PIPELINE}"] = pipeline("canceling")
        assert (await found.describe(handle)).status is Status.RUNNING
        found.vendor.replies[f"GET {PIPELINE}"] = pipeline("canceled")
        assert (await found.describe(handle)).status is Status.CANCELLED


async def test_pipelines_are_found_by_their_name() -> None:
    async with scene("gitlab-ci", "main", starts="findable", **HERE) as found:
        found.vendor.replies[f"GET {PROJECT}/pipelines"] = [pipeline("running", name="key-2", id=47)]
        assert await found.adapter.find(order("main", key="key-3")) is None
        assert '"run":"47"' in str(await found.adapter.find(order("main", key="key-2")))


async def test_a_sweep_asks_for_each_status_and_a_pipeline_that_may_ask_differs() -> None:
    async with scene("gitlab-ci", "main", **HERE) as found:
        running = (await started(found)).replace('"run":"46"', '"run":"47"')
        asking = running.replace('"run":"47"', '"run":"48"')
        found.vendor.replies[f"GET {PROJECT}/pipelines"] = [pipeline("running", id=47), pipeline("manual", id=48)]
        refs = [Ref(workflow="main", handle=handle) for handle in (running, asking)]
        seen = await found.adapter.describe_many(refs)
        assert [seen[handle].status for handle in (running, asking)] == [Status.RUNNING, Status.INPUT_REQUIRED]
        asked = {each.query["status"] for each in found.vendor.asked if each.path == f"{PROJECT}/pipelines"}
        assert asked == {"created", "waiting_for_resource", "pending", "running", "scheduled", "manual"}
