"""astro-airflow-mcp as it is: what the adapter reads of it, and how it fails."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client
from starlette.responses import JSONResponse

from adapters.mcp.tests.upstreams.airflow_upstream import DAG, Airflow, airflow
from adapters.mcp.tests.upstreams.upstream import error_of, reply_of, structured

pytestmark = [pytest.mark.anyio, pytest.mark.process]


@pytest.fixture
async def api(tmp_path: Path) -> AsyncGenerator[Airflow]:
    async with airflow(tmp_path) as found:
        yield found


async def called(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool, and return what the JSON in its reply is."""
    return json.loads(await reply_of(client, tool, **arguments))


async def started(client: Client, key: str = "key-1") -> str:
    run = await called(client, "trigger_dag", dag_id=DAG, conf={"mcp_key": key})
    assert (run["dag_id"], run["state"], run["conf"]) == (DAG, "queued", {"mcp_key": key})
    return run["dag_run_id"]


async def test_a_run_is_started_and_looked_at_until_it_has_ended(api: Airflow) -> None:
    async with Client(api.server().parameters) as client:
        run = await started(client)
        assert not api.is_paused
        assert (await called(client, "get_dag_run", dag_id=DAG, dag_run_id=run))["state"] == "queued"
        api.finish(run)
        ended = await called(client, "get_dag_run", dag_id=DAG, dag_run_id=run)
        assert (ended["state"], ended["duration"]) == ("success", 12.5)


async def test_a_run_is_found_by_the_key_in_its_configuration(api: Airflow) -> None:
    async with Client(api.server().parameters) as client:
        run = await started(client)
        await started(client, "key-2")
        listed = await called(client, "list_dag_runs", dag_id=DAG, order_by="-run_after")
        assert (listed["total_dag_runs"], listed["returned_count"]) == (2, 2)
        assert [each["dag_run_id"] for each in listed["dag_runs"] if each["conf"]["mcp_key"] == "key-1"] == [run]


async def test_structured_content_is_the_text_once_more_wrapped(api: Airflow) -> None:
    async with Client(api.server().parameters) as client:
        run = await started(client)
        wrapped = await structured(client, "get_dag_run", dag_id=DAG, dag_run_id=run)
        assert list(wrapped) == ["result"]
        assert json.loads(wrapped["result"])["dag_run_id"] == run


async def test_errors_are_successes_with_an_error_in_them(api: Airflow) -> None:
    async with Client(api.server().parameters) as client:
        unknown = await called(client, "get_dag_run", dag_id=DAG, dag_run_id="x")
        assert unknown["error"] == f"Endpoint not found: dags/{DAG}/dagRuns/x"
        assert (unknown["error_type"], unknown["retryable"]) == ("NotFoundError", True)

        api.answer("start", JSONResponse({"detail": "no"}, status_code=409))
        refused = await called(client, "trigger_dag", dag_id=DAG)
        assert (refused["error_type"], refused["retryable"]) == ("HTTPStatusError", False)
        assert refused["error"].startswith("Client error '409 Conflict' for url")

        assert (await error_of(client, "trigger_dag")).startswith("1 validation error for call[trigger_dag]\ndag_id\n")
        assert await error_of(client, "nothing") == "Unknown tool: 'nothing'"
    assert api.starts == 0


async def test_a_lost_reply_leaves_a_run_with_the_key(api: Airflow) -> None:
    api.cut("start")
    async with Client(api.server().parameters) as client:
        lost = await called(client, "trigger_dag", dag_id=DAG, conf={"mcp_key": "key-1"})
        assert (lost["error_type"], "dag_run_id" in lost) == ("RemoteProtocolError", False)
        listed = await called(client, "list_dag_runs", dag_id=DAG)
        assert [each["conf"] for each in listed["dag_runs"]] == [{"mcp_key": "key-1"}]


async def test_it_is_served_over_http_too(api: Airflow) -> None:
    with api.over_http() as upstream:
        async with Client(upstream.url) as client:
            run = await started(client)
        upstream.kill()
        upstream.start()
        async with Client(upstream.url) as client:
            assert (await called(client, "get_dag_run", dag_id=DAG, dag_run_id=run))["state"] == "queued"
