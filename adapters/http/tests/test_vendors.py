"""Presets of vendors, against a server that answers as their documentation says.

Sources: GitHub REST API 2026-03-10 (octokit openapi-types 29.0.1); GitLab doc/api/pipelines.md (17.10); Airflow 3.3
(REST API v2) and Prefect 3.8, as they were run; Jenkins as mcp-jenkins 3.6.0 reads it; google.longrunning; Azure's
guidelines.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
from mcp_workflows_http.adapter import FindingHttpAdapter
from starlette.responses import JSONResponse, Response

from adapters.http.tests.scripted import scene
from mcp_workflows.adapter import Ref, Start, Status
from mcp_workflows.errors import EngineRefused, EngineUnavailable, StartConflict

pytestmark = pytest.mark.anyio

RUNS = "/repos/acme/shop/actions/runs"
HERE = {"vars": {"owner": "acme", "repo": "shop"}}


def order(workflow: str, arguments: Any = None, key: str = "key-1", **options: Any) -> Start:
    return Start(
        workflow=workflow,
        arguments=[arguments or {}],
        key=key,
        created=datetime.now(UTC),
        options={"options": options},
    )


async def test_github_actions_from_dispatch_to_approval_and_end() -> None:
    async with scene("github-actions", "deploy.yml", **HERE) as found:
        replies = found.vendor.replies
        dispatch = "/repos/acme/shop/actions/workflows/deploy.yml/dispatches"
        replies[f"POST {dispatch}"] = {"workflow_run_id": 42}
        handle = await found.start(order("deploy.yml", {"version": "1.2"}, ref="release"))
        assert found.vendor.last("POST").body == {
            "ref": "release",
            "inputs": {"version": "1.2"},
            "return_run_details": True,
        }
        run = {"status": "in_progress", "conclusion": None, "html_url": "https://github.com/r/42", "run_attempt": 1}
        jobs = [
            {"name": "test", "status": "completed", "conclusion": "success"},
            {"name": "build", "status": "in_progress"},
        ]
        replies[f"GET {RUNS}/42"], replies[f"GET {RUNS}/42/jobs"] = run, {"jobs": jobs}
        seen = await found.look(handle)
        assert (seen.status, seen.message) == (Status.RUNNING, "stage 2 of 2: build")
        assert [(step.name, step.status) for step in seen.steps] == [
            ("test", Status.SUCCEEDED),
            ("build", Status.RUNNING),
        ]
        assert seen.progress is not None
        assert (seen.progress.value, seen.progress.total) == (1, 2)
        replies[f"GET {RUNS}/42"] = {**run, "status": "waiting"}
        environment = {"environment": {"id": 7, "name": "production"}, "current_user_can_approve": True}
        replies[f"GET {RUNS}/42/pending_deployments"] = [environment]
        seen = await found.look(handle)
        [(key, question)] = seen.requests.items()
        assert key == "approve.7.1"
        assert question.params["message"] == "Deploy to production?"
        assert (question.params["mode"], question.params["url"]) == ("url", "https://github.com/r/42")
        replies[f"GET {RUNS}/42"] = {**run, "status": "completed", "conclusion": "failure"}
        failed = {"name": "build", "conclusion": "failure", "steps": [{"name": "compile", "conclusion": "failure"}]}
        replies[f"GET {RUNS}/42/jobs"] = {"jobs": [failed]}
        seen = await found.look(handle)
        assert seen.failure is not None
        assert seen.failure.text == "build: compile"


async def test_github_approvals_can_be_sent_as_the_tokens_user() -> None:
    async with scene("github-actions", "deploy.yml", asks={"approve": {"at": "client"}}, **HERE) as found:
        replies = found.vendor.replies
        replies["POST /repos/acme/shop/actions/workflows/deploy.yml/dispatches"] = {"workflow_run_id": 42}
        handle = await found.start(order("deploy.yml"))
        replies[f"GET {RUNS}/42"] = {"status": "waiting", "conclusion": None, "run_attempt": 2}
        replies[f"GET {RUNS}/42/jobs"] = {"jobs": []}
        environment = {"environment": {"id": 7, "name": "production"}, "current_user_can_approve": True}
        replies[f"GET {RUNS}/42/pending_deployments"] = [environment]
        replies[f"POST {RUNS}/42/pending_deployments"] = []
        answer = {"action": "accept", "content": {"comment": "go"}}
        await found.adapter.answer(Ref(workflow="deploy.yml", handle=handle), {"approve.7.2": answer, "other": answer})
        assert found.vendor.last("POST").body == {"environment_ids": [7], "state": "approved", "comment": "go"}


async def test_github_without_an_id_in_the_reply_leaves_the_start_unknown_and_limits_are_heeded() -> None:
    """Enterprise Server before 3.21 answers 204; a 403 is a limit if the headers say so."""
    async with scene("github-actions", "deploy.yml", **HERE) as found:
        dispatch = "POST /repos/acme/shop/actions/workflows/deploy.yml/dispatches"
        found.vendor.replies[dispatch] = Response(status_code=204)
        with pytest.raises(EngineUnavailable, match="it may have been started"):
            await found.start(order("deploy.yml"))
        found.vendor.replies[dispatch] = JSONResponse({"message": "Resource not accessible"}, status_code=403)
        with pytest.raises(EngineRefused, match="credentials"):
            await found.start(order("deploy.yml"))
        limited = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(datetime.now(UTC).timestamp()) + 100)}
        found.vendor.replies[dispatch] = JSONResponse({"message": "limit"}, status_code=403, headers=limited)
        with pytest.raises(EngineUnavailable) as raised:
            await found.start(order("deploy.yml"))
        assert (raised.value.throttled, raised.value.sent) == (True, False)
        with pytest.raises(EngineUnavailable, match=r"held back: it throttles us for (99|100) s more"):
            await found.start(order("deploy.yml"))


async def test_github_runs_are_found_by_their_name() -> None:
    async with scene("github-actions", "deploy.yml", starts="findable", **HERE) as found:
        assert isinstance(found.adapter, FindingHttpAdapter)
        listed = "/repos/acme/shop/actions/workflows/deploy.yml/runs"
        runs = [{"id": 9, "display_title": "Deploy [key-11]"}, {"id": 8, "display_title": "Deploy [key-2]"}]
        found.vendor.replies[f"GET {listed}"] = {"workflow_runs": runs}
        assert await found.adapter.find(order("deploy.yml", key="key-3")) is None
        assert '"run":"8"' in str(await found.adapter.find(order("deploy.yml", key="key-2")))
        assert found.vendor.last("GET").query["created"].startswith(">=20")


async def test_gitlab_from_start_to_manual_job_and_failure() -> None:
    async with scene("gitlab-ci", "main", vars={"project": "5"}) as found:
        replies, pipeline = found.vendor.replies, "/api/v4/projects/5/pipelines/77"
        replies["POST /api/v4/projects/5/pipeline"] = JSONResponse({"id": 77, "status": "created"}, status_code=201)
        handle = await found.start(order("main", {"version": "1.2"}))
        sent = found.vendor.last("POST").body
        assert sent == {
            "ref": "main",
            "variables": [{"key": "MCP_KEY", "value": "key-1"}],
            "inputs": {"version": "1.2"},
        }
        replies[f"GET {pipeline}"] = {"status": "manual", "web_url": "https://gitlab/77"}
        job = {"id": 3, "name": "deploy", "status": "manual", "stage": "release", "web_url": "https://gitlab/jobs/3"}
        replies[f"GET {pipeline}/jobs"] = [job]
        seen = await found.look(handle)
        [question] = seen.requests.values()
        assert question.params["url"] == "https://gitlab/jobs/3"
        replies[f"GET {pipeline}"] = {"status": "failed", "web_url": "https://gitlab/77"}
        replies[f"GET {pipeline}/jobs"] = [{**job, "status": "failed", "failure_reason": "script_failure"}]
        replies["GET /api/v4/projects/5/jobs/3/trace"] = "$ deploy\npassword=hunter2222\nERROR: no route\n"
        seen = await found.look(handle)
        assert seen.failure is not None
        assert seen.failure.text == "deploy: script_failure\n$ deploy\npassword=***\nERROR: no route"


async def test_jenkins_from_the_queue_to_a_build_and_its_input_step() -> None:
    async with scene("jenkins", "release") as found:
        replies, job = found.vendor.replies, "/job/release"
        location = {"location": f"{found.vendor.url}/queue/item/7/"}
        replies[f"POST {job}/buildWithParameters"] = Response(status_code=201, headers=location)
        handle = await found.start(order("release", {"version": "1.2"}))
        assert found.vendor.last("POST").body == "version=1.2&MCP_KEY=key-1"
        replies[f"GET {job}/api/json"] = {"builds": [{"number": 12, "queueId": 77, "building": True}]}
        replies["GET /queue/item/7/api/json"] = {"why": "Waiting for next available executor"}
        seen = await found.look(handle)
        assert (seen.status, seen.message) == (Status.RUNNING, "Waiting for next available executor")
        build = {"number": 13, "queueId": 7, "building": True, "url": "https://jenkins/13"}
        replies[f"GET {job}/api/json"] = {"builds": [build, {"number": 12, "queueId": 77, "building": True}]}
        replies[f"GET {job}/13/wfapi/pendingInputActions"] = [{"id": "Go", "message": "Ship it?"}]
        [question] = (await found.look(handle)).requests.values()
        assert question.params["message"] == "Ship it?"
        replies[f"GET {job}/api/json"] = {"builds": [{**build, "building": False, "result": "FAILURE"}]}
        replies[f"GET {job}/13/consoleText"] = "make: *** [all] Error 1\n"
        seen = await found.look(handle)
        assert seen.failure is not None
        assert seen.failure.text == "build 13 failed\nmake: *** [all] Error 1"


async def test_airflow_from_start_to_a_person_and_a_cancellation() -> None:
    async with scene("airflow", "release") as found:
        replies, runs = found.vendor.replies, "/api/v2/dags/release/dagRuns"
        run = {"dag_run_id": "mcp-key-1", "dag_id": "release", "conf": {"a": 1}, "state": "running", "note": None}
        replies[f"POST {runs}"] = run
        replies[f"GET {runs}/mcp-key-1"] = run
        replies[f"GET {runs}/mcp-key-1/taskInstances"] = {"task_instances": []}
        handle = await found.start(order("release", {"a": 1}))
        replies[f"POST {runs}"] = JSONResponse({"detail": "Unique constraint violation"}, status_code=409)
        assert await found.start(order("release", {"a": 1})) != ""
        with pytest.raises(StartConflict):
            await found.start(order("release", {"a": 2}))
        replies[f"GET {runs}/mcp-key-1/taskInstances"] = {
            "task_instances": [{"task_id": "ask", "state": "awaiting_input"}]
        }
        detail = {"task_instance": {"task_id": "ask", "map_index": -1, "try_number": 1}, "subject": "Ship?"}
        replies[f"GET {runs}/mcp-key-1/hitlDetails"] = {"hitl_details": [{**detail, "options": ["Approve", "Reject"]}]}
        seen = await found.look(handle)
        [(key, question)] = seen.requests.items()
        assert question.params["requestedSchema"]["properties"]["option"]["enum"] == ["Approve", "Reject"]
        replies[f"PATCH {runs}/mcp-key-1/taskInstances/ask/-1/hitlDetails"] = {}
        answer = {"action": "accept", "content": {"option": "Approve"}}
        await found.adapter.answer(Ref(workflow="release", handle=handle), {key: answer})
        assert found.vendor.last("PATCH").body == {"chosen_options": ["Approve"], "params_input": {}}
        replies[f"PATCH {runs}/mcp-key-1"] = {}
        await found.adapter.cancel(Ref(workflow="release", handle=handle))
        replies[f"GET {runs}/mcp-key-1"] = {**run, "state": "failed", "note": "cancelled by mcp-workflows"}
        assert (await found.look(handle)).status is Status.CANCELLED


async def test_prefect_from_a_known_key_to_a_pause() -> None:
    async with scene("prefect", "d-1") as found:
        replies = found.vendor.replies
        run = {"id": "r-1", "name": "wise-owl", "deployment_id": "d-1", "parameters": {"a": 1, "b": "the default"}}
        replies["POST /api/deployments/d-1/create_flow_run"] = JSONResponse(run, status_code=201)
        handle = await found.start(order("d-1", {"a": 1}))
        run["labels"] = found.vendor.last("POST").body["labels"]
        replies["POST /api/deployments/d-1/create_flow_run"] = run
        state = {"type": "PAUSED", "name": "Paused", "id": "s-1"}
        keys = {"state_details": {"run_input_keyset": {"schema": "paused-1-schema"}}}
        replies["GET /api/flow_runs/r-1"] = {**run, "state": {**state, **keys}}
        schema = '{"type": "object", "properties": {"ok": {"type": "boolean"}}}'
        with pytest.raises(StartConflict):
            await found.start(order("d-1", {"a": 2}))
        assert await found.start(order("d-1", {"a": 1})) != ""
        assert not (await found.look(handle)).requests, "it has not saved its schema yet"
        replies["GET /api/flow_runs/r-1/input/paused-1-schema"] = JSONResponse(schema)
        [(key, question)] = (await found.look(handle)).requests.items()
        assert question.params["requestedSchema"]["properties"] == {"ok": {"type": "boolean"}}
        replies["POST /api/flow_runs/r-1/resume"] = {"status": "REJECT", "details": {"reason": "not ok"}}
        with pytest.raises(EngineRefused, match="the API refused the answer: not ok"):
            await found.adapter.answer(
                Ref(workflow="d-1", handle=handle), {key: {"action": "accept", "content": {"ok": True}}}
            )
        assert found.vendor.last("POST").body == {"run_input": {"ok": True}}


async def test_respond_async_at_once_and_later() -> None:
    async with scene("respond-async", "reports") as found:
        replies = found.vendor.replies
        replies["POST /reports"] = JSONResponse({"result": {"total": 3}})
        seen = await found.look(await found.start(order("reports")))
        assert (seen.status, seen.output) == (Status.SUCCEEDED, {"total": 3})
        replies["POST /reports"] = Response(status_code=202, headers={"location": "/monitor/1"})
        handle = await found.start(order("reports"))
        replies["GET /monitor/1"] = Response(status_code=202, headers={"retry-after": "1"})
        assert (await found.look(handle)).status is Status.RUNNING
        asked = len(found.vendor.asked)
        assert (await found.look(handle)).status is Status.RUNNING
        assert len(found.vendor.asked) == asked, "it wants to be asked in a second"
        await anyio.sleep(1.05)
        replies["GET /monitor/1"] = {"status": "Failed", "error": {"message": "no data"}}
        seen = await found.look(handle)
        assert seen.failure is not None
        assert seen.failure.text == "no data"


async def test_operations_of_google_and_azure() -> None:
    async with scene("aip-151", "v1/projects/p/jobs:run") as found:
        replies = found.vendor.replies
        replies["POST /v1/projects/p/jobs:run"] = {"name": "operations/9"}
        handle = await found.start(order("v1/projects/p/jobs:run", {"a": 1}))
        replies["GET /v1/operations/9"] = {"name": "operations/9", "metadata": {"progressPercent": 40}}
        seen = await found.look(handle)
        assert seen.progress is not None
        assert (seen.status, seen.progress.value) == (Status.RUNNING, 40)
        replies["POST /v1/operations/9:cancel"] = {}
        await found.adapter.cancel(Ref(workflow="v1/projects/p/jobs:run", handle=handle))
        replies["GET /v1/operations/9"] = {"done": True, "error": {"code": 1, "message": "cancelled"}}
        assert (await found.look(handle)).status is Status.CANCELLED
    async with scene("azure-lro", "deployments", vars={"api_version": "2024-01-01"}) as found:
        replies = found.vendor.replies
        there = {"operation-location": f"{found.vendor.url}/operations/3?api-version=2024-01-01"}
        replies["POST /deployments"] = JSONResponse({}, status_code=202, headers=there)
        handle = await found.start(order("deployments"))
        assert found.vendor.last("POST").query == {"api-version": "2024-01-01"}
        replies["GET /operations/3"] = {"status": "Running", "percentComplete": 10}
        assert (await found.look(handle)).status is Status.RUNNING
        replies["GET /operations/3"] = {"status": "Succeeded", "result": {"id": 1}}
        assert (await found.look(handle)).output == {"id": 1}
        assert found.vendor.last("GET").query == {"api-version": "2024-01-01"}
