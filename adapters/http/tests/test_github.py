"""The preset github-actions, against a server that is held to GitHub's OpenAPI description (github.openapi.json)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from adapters.http.tests.described import Description
from adapters.http.tests.scripted import Scene, order, scene
from mcp_workflows.adapter import Ref, Status
from mcp_workflows.errors import EngineRefused, EngineUnavailable
from tests.support.served import serving

pytestmark = pytest.mark.anyio

GITHUB = Description("github")
HERE: dict[str, Any] = {"vars": {"owner": "acme", "repo": "shop"}, "description": GITHUB}
REPO = "/repos/acme/shop/actions"
DISPATCH = f"POST {REPO}/workflows/deploy.yml/dispatches"
LISTED = f"GET {REPO}/workflows/deploy.yml/runs"
RUN = f"{REPO}/runs/42"
DESCRIBED = "/repos/{owner}/{repo}/actions"


def run(**changed: Any) -> Any:
    """GitHub's example of a run."""
    fields = {"id": 42, "conclusion": None, "html_url": "https://github.com/r/42", "run_attempt": 1, **changed}
    return GITHUB.example(f"GET {DESCRIBED}/runs/{{run_id}}", **fields)


def jobs(*changed: dict[str, Any]) -> Any:
    """A list of GitHub's example of a job, which lacks a field that is required."""
    [job] = GITHUB.example(f"GET {DESCRIBED}/runs/{{run_id}}/jobs")["jobs"]
    whole: dict[str, Any] = {
        **job,
        "created_at": "2026-03-10T17:40:00Z",
        "status": "completed",
        "conclusion": "success",
    }
    return {"total_count": len(changed), "jobs": [{**whole, **each} for each in changed]}


def pending(*, approvable: bool = True) -> Any:
    """GitHub's example of a deployment that waits, without the team, which lacks a field that is required."""
    [deployment] = GITHUB.example(f"GET {DESCRIBED}/runs/{{run_id}}/pending_deployments")
    environment = {**deployment["environment"], "id": 7, "name": "production"}
    changed = {"environment": environment, "reviewers": deployment["reviewers"][:1]}
    return [{**deployment, **changed, "current_user_can_approve": approvable}]


@asynccontextmanager
async def serving_log(text: str) -> AsyncGenerator[tuple[str, str]]:
    """Another host, which has the log: its address, and its name."""

    async def serve(_: Request) -> Response:
        return PlainTextResponse(text)

    async with serving(Starlette(routes=[Route("/log", serve)])) as url:
        yield url.replace("/mcp", "/log"), urlsplit(url).netloc


async def started(found: Scene) -> str:
    found.vendor.replies[DISPATCH] = GITHUB.example(
        f"POST {DESCRIBED}/workflows/{{workflow_id}}/dispatches", workflow_run_id=42
    )
    return await found.start(order("deploy.yml", {"version": "1.2"}, ref="release"))


async def test_a_run_from_dispatch_to_approval_and_end() -> None:
    async with (
        serving_log("compile: no such file\n") as (logs, host),
        scene("github-actions", "deploy.yml", describe={"log": {"follow": [host]}}, **HERE) as found,
    ):
        replies = found.vendor.replies
        handle = await started(found)
        assert found.vendor.last("POST").body == {"ref": "release", "inputs": {"version": "1.2"}}
        assert found.vendor.last("POST").headers["x-github-api-version"] == "2026-03-10"
        replies[f"GET {RUN}"] = run(status="in_progress")
        running = {"name": "build", "status": "in_progress", "conclusion": None, "completed_at": None}
        replies[f"GET {RUN}/jobs"] = jobs({"name": "test"}, running)
        seen = await found.describe(handle)
        assert (seen.status, seen.message) == (Status.RUNNING, "stage 2 of 2: build")
        assert [(step.name, step.status) for step in seen.steps] == [
            ("test", Status.SUCCEEDED),
            ("build", Status.RUNNING),
        ]
        assert seen.progress is not None
        assert (seen.progress.value, seen.progress.total) == (1, 2)
        replies[f"GET {RUN}"] = run(status="waiting")
        replies[f"GET {RUN}/pending_deployments"] = pending()
        seen = await found.describe(handle)
        [(key, question)] = seen.requests.items()
        assert key == "approve.7.1"
        assert question.params["message"] == "Deploy to production?"
        assert (question.params["mode"], question.params["url"]) == ("url", "https://github.com/r/42")
        replies[f"GET {RUN}"] = run(status="completed", conclusion="failure")
        step = {"name": "compile", "status": "completed", "conclusion": "failure", "number": 1}
        replies[f"GET {RUN}/jobs"] = jobs({"id": 5, "name": "build", "conclusion": "failure", "steps": [step]})
        replies[f"GET {REPO}/jobs/5/logs"] = RedirectResponse(logs, status_code=302)
        seen = await found.describe(handle)
        assert seen.failure is not None
        assert seen.failure.text == "build: compile\ncompile: no such file"


async def test_a_job_that_waits_beside_others_is_a_question_although_the_run_goes_on() -> None:
    async with scene("github-actions", "deploy.yml", **HERE) as found:
        handle = await started(found)
        found.vendor.replies[f"GET {RUN}"] = run(status="in_progress")
        waiting = {"name": "deploy", "status": "waiting", "conclusion": None, "completed_at": None}
        found.vendor.replies[f"GET {RUN}/jobs"] = jobs({"name": "test", "status": "in_progress"}, waiting)
        found.vendor.replies[f"GET {RUN}/pending_deployments"] = pending()
        assert list((await found.describe(handle)).requests) == ["approve.7.1"]
        found.vendor.replies[f"GET {RUN}/pending_deployments"] = pending(approvable=False)
        assert (await found.describe(handle)).status is Status.RUNNING


async def test_an_approval_can_be_given_on_our_page_as_the_tokens_user() -> None:
    async with scene("github-actions", "deploy.yml", asks={"approve": {"answer_in": "page"}}, **HERE) as found:
        handle = await started(found)
        found.vendor.replies[f"GET {RUN}"], found.vendor.replies[f"GET {RUN}/jobs"] = run(status="waiting"), jobs()
        found.vendor.replies[f"GET {RUN}/pending_deployments"] = pending()
        [question] = (await found.describe(handle)).requests.values()
    assert (question.params["mode"], question.on_page, question.declinable) == ("form", True, True)


@pytest.mark.parametrize(
    ("where", "url"),
    [
        ("engine", "https://github.com/r/42"),
        ({"engine": "{{reply.body.html_url}}/review"}, "https://github.com/r/42/review"),
    ],
)
async def test_the_page_of_the_engine_is_that_of_the_run_or_another(where: object, url: str) -> None:
    async with scene("github-actions", "deploy.yml", asks={"approve": {"answer_in": where}}, **HERE) as found:
        handle = await started(found)
        reply = run(status="waiting", html_url="https://github.com/r/42")
        found.vendor.replies[f"GET {RUN}"], found.vendor.replies[f"GET {RUN}/jobs"] = reply, jobs()
        found.vendor.replies[f"GET {RUN}/pending_deployments"] = pending()
        [question] = (await found.describe(handle)).requests.values()
    assert (question.params["mode"], question.params["url"], question.on_page) == ("url", url, False)


@pytest.mark.parametrize(("action", "state"), [("accept", "approved"), ("decline", "rejected")])
async def test_approvals_can_be_sent_as_the_tokens_user(action: str, state: str) -> None:
    async with scene("github-actions", "deploy.yml", asks={"approve": {"answer_in": "chat"}}, **HERE) as found:
        handle = await started(found)
        replies = found.vendor.replies
        replies[f"GET {RUN}"], replies[f"GET {RUN}/jobs"] = run(status="waiting", run_attempt=2), jobs()
        replies[f"GET {RUN}/pending_deployments"] = pending()
        replies[f"POST {RUN}/pending_deployments"] = GITHUB.example(
            f"POST {DESCRIBED}/runs/{{run_id}}/pending_deployments"
        )
        answer = {"action": action, "content": {"comment": "go"}}
        await found.adapter.answer(Ref(workflow="deploy.yml", handle=handle), {"approve.7.2": answer, "other": answer})
        comment = "go" if action == "accept" else ""
        assert found.vendor.last("POST").body == {"environment_ids": [7], "state": state, "comment": comment}


async def test_a_reply_without_an_id_leaves_the_start_unknown() -> None:
    """Enterprise Server before 3.21 answers 204, which this description does not have any more."""
    async with scene("github-actions", "deploy.yml", **{**HERE, "description": None}) as found:
        found.vendor.replies[DISPATCH] = Response(status_code=204)
        with pytest.raises(EngineUnavailable, match="it may have been started"):
            await found.start(order("deploy.yml"))


async def test_a_403_is_a_refusal_or_a_limit_as_its_headers_say() -> None:
    async with scene("github-actions", "deploy.yml", **HERE) as found:
        found.vendor.replies[DISPATCH] = JSONResponse({"message": "Resource not accessible"}, status_code=403)
        with pytest.raises(EngineRefused, match="credentials"):
            await found.start(order("deploy.yml"))
        limited = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(datetime.now(UTC).timestamp()) + 100)}
        found.vendor.replies[DISPATCH] = JSONResponse({"message": "limit"}, status_code=403, headers=limited)
        with pytest.raises(EngineUnavailable) as raised:
            await found.start(order("deploy.yml"))
        assert (raised.value.throttled, raised.value.sent) == (True, False)
        with pytest.raises(EngineUnavailable, match=r"held back: it throttles us for \d+ s more"):
            await found.start(order("deploy.yml"))


async def test_a_secondary_limit_is_a_403_with_retry_after() -> None:
    async with scene("github-actions", "deploy.yml", **HERE) as found:
        handle = await started(found)
        secondary = {"retry-after": "60", "x-ratelimit-remaining": "4711"}
        found.vendor.replies[f"GET {RUN}"] = JSONResponse({"message": "slow"}, status_code=403, headers=secondary)
        with pytest.raises(EngineUnavailable, match="throttles"):
            await found.describe(handle)
        with pytest.raises(EngineUnavailable, match=r"for [1-6]?\d s more"):
            await found.describe(handle)


async def test_runs_are_found_by_their_name() -> None:
    async with scene("github-actions", "deploy.yml", starts="findable", **HERE) as found:
        runs = [run(id=9, display_title="Deploy [key-11]"), run(id=8, display_title="Deploy [key-2]")]
        found.vendor.replies[LISTED] = {"total_count": 2, "workflow_runs": runs}
        assert await found.adapter.find(order("deploy.yml", key="key-3")) is None
        assert '"run":"8"' in str(await found.adapter.find(order("deploy.yml", key="key-2")))
        assert found.vendor.last("GET").query["created"].startswith(">=20")


async def test_a_cancellation_is_asked_for_and_one_that_comes_too_late_is_none() -> None:
    async with scene("github-actions", "deploy.yml", **HERE) as found:
        handle = await started(found)
        ref = Ref(workflow="deploy.yml", handle=handle)
        found.vendor.replies[f"GET {RUN}"], found.vendor.replies[f"GET {RUN}/jobs"] = run(status="in_progress"), jobs()
        for reply in (
            JSONResponse({}, status_code=202),
            JSONResponse({"message": "Cannot cancel a workflow run that is completed."}, status_code=409),
        ):
            found.vendor.replies[f"POST {RUN}/cancel"] = reply
            await found.adapter.cancel(ref)
        assert len([each for each in found.vendor.asked if each.path == f"{RUN}/cancel"]) == 2


async def test_a_sweep_asks_for_each_status_and_a_run_that_waits_differs_from_one_that_runs() -> None:
    async with scene("github-actions", "deploy.yml", **HERE) as found:
        running, waiting, ended = [
            found_handle.replace('"run":"42"', f'"run":"{number}"')
            for number, found_handle in zip((8, 9, 10), [await started(found)] * 3, strict=True)
        ]
        listed = [run(id=8, status="in_progress"), run(id=9, status="waiting", updated_at="2026-03-10T17:45:00Z")]
        found.vendor.replies[LISTED] = {"total_count": 2, "workflow_runs": listed}
        refs = [Ref(workflow="deploy.yml", handle=handle) for handle in (running, waiting, ended)]
        seen = await found.adapter.describe_many(refs)
        assert {handle: (each.status, each.message) for handle, each in seen.items()} == {
            running: (Status.RUNNING, None),
            waiting: (Status.INPUT_REQUIRED, "2026-03-10T17:45:00Z"),
        }
        asked = [each.query["status"] for each in found.vendor.asked if each.path == LISTED.removeprefix("GET ")]
        assert asked == ["requested", "pending", "queued", "in_progress", "waiting"]


async def test_lists_come_as_often_as_their_calls_fit_their_share_of_the_limit() -> None:
    async with scene("github-actions", "deploy.yml", **HERE) as found:
        assert found.adapter.allowance.batch_every == 5
        found.vendor.replies[LISTED] = {"total_count": 0, "workflow_runs": []}
        await found.adapter.describe_many([Ref(workflow="deploy.yml", handle=await started(found))])
        a_second = 5000 * 0.5 * 5 / 6 / 3600  # half of GitHub's limit, a sixth of which may come at once
        assert found.adapter.allowance.batch_every == pytest.approx(5 / (a_second * 0.4 * 0.8))


async def test_a_workflow_that_cannot_be_listed_does_not_hide_those_of_another() -> None:
    async with scene("github-actions", "deploy.yml", **HERE) as found:
        running = (await started(found)).replace('"run":"42"', '"run":"8"')
        found.vendor.replies[LISTED] = {"total_count": 1, "workflow_runs": [run(id=8, status="in_progress")]}
        elsewhere = running.replace("deploy.yml", "gone.yml")
        refs = [Ref(workflow="", handle=handle) for handle in (elsewhere, running)]
        assert list(await found.adapter.describe_many(refs)) == [running]


async def test_a_run_that_a_list_lacks_and_a_look_saw_is_not_missed_until_the_next_list() -> None:
    async with scene("github-actions", "deploy.yml", **HERE) as found:
        handle = (await started(found)).replace('"run":"42"', '"run":"8"')
        found.vendor.replies[LISTED] = {"total_count": 0, "workflow_runs": []}
        refs = [Ref(workflow="deploy.yml", handle=handle)]
        assert await found.adapter.describe_many(refs) == {}
        found.vendor.replies[f"GET {REPO}/runs/8"] = run(id=8, status="queued")
        found.vendor.replies[f"GET {REPO}/runs/8/jobs"] = jobs()
        await found.describe(handle)
        assert list(await found.adapter.describe_many(refs)) == [handle]
