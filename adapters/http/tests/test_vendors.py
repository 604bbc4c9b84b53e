"""Presets of vendors, against a server that answers as their documentation says.

Sources: Airflow 3.3 (REST API v2) and Prefect 3.8, as they were run; google.longrunning; Azure's guidelines.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
from starlette.responses import JSONResponse, Response

from adapters.http.tests.scripted import order, scene
from mcp_workflows.adapter import Ref, Status
from mcp_workflows.errors import EngineRefused, StartConflict

pytestmark = pytest.mark.anyio


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
        task = {"task_id": "ask", "state": "awaiting_input", "map_index": -1, "try_number": 1}
        detail: dict[str, Any] = {"task_instance": task, "subject": "Ship?", "options": ["Approve", "Reject"]}
        reason = {"value": "none", "description": "Why", "schema": {"type": "string", "maxLength": 9}}
        detail = {**detail, "params": {"reason": reason, "count": {"value": 1, "description": None, "schema": {}}}}
        asked_now = {**detail, "created_at": datetime.now(UTC).isoformat()}
        replies[f"GET {runs}/mcp-key-1/hitlDetails"] = {"hitl_details": [asked_now]}
        assert not (await found.describe(handle)).requests, "an answer at once would fail the task"
        replies[f"GET {runs}/mcp-key-1/hitlDetails"] = {
            "hitl_details": [{**detail, "created_at": "2026-01-02T06:12:02.575250Z"}]
        }
        seen = await found.describe(handle)
        [(key, question)] = seen.requests.items()
        assert question.params["requestedSchema"]["properties"] == {
            "option": {"title": "Answer", "type": "string", "enum": ["Approve", "Reject"]},
            "reason": {"type": "string", "maxLength": 9, "description": "Why", "default": "none"},
            "count": {"type": "number", "default": 1},
        }
        replies[f"PATCH {runs}/mcp-key-1/taskInstances/ask/-1/hitlDetails"] = {}
        answer = {"action": "accept", "content": {"option": "Approve", "count": 2}}
        await found.adapter.answer(Ref(workflow="release", handle=handle), {key: answer})
        params = {"reason": "none", "count": 2}
        assert found.vendor.last("PATCH").body == {"chosen_options": ["Approve"], "params_input": params}
        replies[f"PATCH {runs}/mcp-key-1"] = {}
        await found.adapter.cancel(Ref(workflow="release", handle=handle))
        replies[f"GET {runs}/mcp-key-1"] = {**run, "state": "failed", "note": "cancelled by mcp-workflows"}
        assert (await found.describe(handle)).status is Status.CANCELLED


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
        assert not (await found.describe(handle)).requests, "it has not saved its schema yet"
        replies["GET /api/flow_runs/r-1/input/paused-1-schema"] = JSONResponse(schema)
        [(key, question)] = (await found.describe(handle)).requests.items()
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
        seen = await found.describe(await found.start(order("reports")))
        assert (seen.status, seen.output) == (Status.SUCCEEDED, {"total": 3})
        replies["POST /reports"] = Response(status_code=202, headers={"location": "/monitor/1"})
        handle = await found.start(order("reports"))
        replies["GET /monitor/1"] = Response(status_code=202, headers={"retry-after": "1"})
        assert (await found.describe(handle)).status is Status.RUNNING
        asked = len(found.vendor.asked)
        assert (await found.describe(handle)).status is Status.RUNNING
        assert len(found.vendor.asked) == asked, "it wants to be asked in a second"
        await anyio.sleep(1.05)
        replies["GET /monitor/1"] = {"status": "Failed", "error": {"message": "no data"}}
        seen = await found.describe(handle)
        assert seen.failure is not None
        assert seen.failure.text == "no data"


async def test_operations_of_google_and_azure() -> None:
    async with scene("aip-151", "v1/projects/p/jobs:run") as found:
        replies = found.vendor.replies
        replies["POST /v1/projects/p/jobs:run"] = {"name": "operations/9"}
        handle = await found.start(order("v1/projects/p/jobs:run", {"a": 1}))
        replies["GET /v1/operations/9"] = {"name": "operations/9", "metadata": {"progressPercent": 40}}
        seen = await found.describe(handle)
        assert seen.progress is not None
        assert (seen.status, seen.progress.value) == (Status.RUNNING, 40)
        replies["POST /v1/operations/9:cancel"] = {}
        await found.adapter.cancel(Ref(workflow="v1/projects/p/jobs:run", handle=handle))
        replies["GET /v1/operations/9"] = {"done": True, "error": {"code": 1, "message": "cancelled"}}
        assert (await found.describe(handle)).status is Status.CANCELLED
    async with scene("azure-lro", "deployments", vars={"api_version": "2024-01-01"}) as found:
        replies = found.vendor.replies
        there = {"operation-location": f"{found.vendor.url}/operations/3?api-version=2024-01-01"}
        replies["POST /deployments"] = JSONResponse({}, status_code=202, headers=there)
        handle = await found.start(order("deployments"))
        assert found.vendor.last("POST").query == {"api-version": "2024-01-01"}
        replies["GET /operations/3"] = {"status": "Running", "percentComplete": 10}
        assert (await found.describe(handle)).status is Status.RUNNING
        replies["GET /operations/3"] = {"status": "Succeeded", "result": {"id": 1}}
        assert (await found.describe(handle)).output == {"id": 1}
        assert found.vendor.last("GET").query == {"api-version": "2024-01-01"}
