"""What the operator of a job API sees in the metrics: throttling, unknown starts and statuses, webhooks, the quota."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp_workflows_http import HttpAdapter, HttpSettings
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount

from adapters.http.tests.jobs_api import DEFINITION, JobsApi, jobs_api
from adapters.http.tests.test_bad_replies import answering
from adapters.http.tests.test_webhook import BODY, SECRET, hub
from mcp_workflows import Tool, Workflows
from tests.support.served import Peer, peer, serving, site
from tests.test_telemetry import Lab, labels

pytestmark = pytest.mark.anyio

ENGINE = labels(engine="jobs")


@asynccontextmanager
async def observed(tmp_path: Path, **more: Any) -> AsyncGenerator[tuple[JobsApi, Workflows, Peer, Lab]]:
    """The API, a client of a server that has it as an engine, and the metrics of that server."""
    lab = Lab()
    async with jobs_api() as (api, url):
        adapter = HttpAdapter(HttpSettings.model_validate({**DEFINITION, "url": url, **more}))
        tools = [Tool(name=name, engine="jobs", workflow=name) for name in ("odd", "forever")]
        store = f"sqlite:///{tmp_path}/tasks.db"
        async with (
            site(store=store, tools=tools, adapters={"jobs": adapter}, telemetry=lab.telemetry) as served,
            peer(served.url) as client,
        ):
            yield api, served.workflows, client, lab


async def test_looks_that_see_an_unmapped_status_are_counted_and_the_log_names_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with observed(tmp_path) as (_, _, client, lab):
        assert lab.points("mcp_workflows.unmapped_statuses") == {ENGINE: 0}, "an alert sees the first one rise"
        task = (await client.call("odd")).result["taskId"]
        assert (await client.get(task))["status"] == "working"
        assert lab.points("mcp_workflows.unmapped_statuses")[ENGINE] >= 1
    line = "engine 'jobs': the engine says 'sleeping', which the map of statuses does not name"
    assert line in [record.getMessage() for record in caplog.records]


async def test_a_start_whose_outcome_stays_unknown_is_counted(tmp_path: Path) -> None:
    async with observed(tmp_path, starts="once") as (api, _, client, lab):
        assert lab.points("mcp_workflows.start_unknown") == {ENGINE: 0}
        api.after.append(answering(JSONResponse({"error": "down"}, status_code=503)))
        task = (await client.call("forever")).result["taskId"]
        assert "outcome unknown" in str(await client.get(task))
        await client.get(task)
        assert lab.points("mcp_workflows.start_unknown") == {ENGINE: 1}


async def test_an_api_that_throttles_us_is_seen(tmp_path: Path) -> None:
    async with observed(tmp_path) as (api, _, client, lab):
        task = (await client.call("forever")).result["taskId"]
        api.next_replies.append(answering(Response(status_code=429, headers={"retry-after": "60"})))
        await client.get(task)
        calls = lab.points("mcp_workflows.engine_calls")
        assert calls[labels(engine="jobs", api="describe", outcome="throttled")] >= 1


@pytest.mark.parametrize(("rate", "engines"), [({"calls": 60, "per": "1m"}, [ENGINE]), (None, [])])
async def test_the_use_of_a_rate_limit_is_told_where_there_is_one(
    tmp_path: Path, rate: Mapping[str, Any] | None, engines: Sequence[Any]
) -> None:
    async with observed(tmp_path, rate=rate) as (_, here, client, lab):
        await client.get((await client.call("forever")).result["taskId"])
        await here.count()
        used = lab.points("mcp_workflows.quota_used_ratio")
    assert list(used) == engines
    assert all(0 < each < 1 for each in used.values())


async def test_webhooks_that_were_taken_and_refused_are_counted(tmp_path: Path) -> None:
    webhook = {"webhook_secret": SECRET, "webhook": {"signature": "hub", "handle": "{{event.run}}"}}
    async with (
        observed(tmp_path, **webhook) as (_, here, _, lab),
        serving(Starlette(routes=[Mount("/engines", here.inbound)])) as url,
        httpx2.AsyncClient(headers={"content-type": "application/json"}) as http,
    ):
        place = url.removesuffix("/mcp") + "/engines"
        assert (await http.post(f"{place}/jobs/webhook", content=BODY, headers=hub())).status_code == 200
        assert (await http.post(f"{place}/jobs/webhook", content=BODY, headers=hub("another"))).status_code == 401
        assert (await http.post(f"{place}/job/webhook", content=BODY, headers=hub())).status_code == 401
        wrong = hub(body=b"{")
        assert (await http.post(f"{place}/jobs/webhook", content=b"{", headers=wrong)).status_code == 400
        calls = lab.points("mcp_workflows.engine_calls")
    assert calls == {
        labels(engine="jobs", api="receive", outcome="ok"): 1,
        labels(engine="jobs", api="receive", outcome="refused"): 2,
        labels(engine="", api="receive", outcome="refused"): 1,
    }
