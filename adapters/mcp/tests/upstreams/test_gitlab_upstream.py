"""@zereight/mcp-gitlab as it is: what the adapter reads of it, and how it fails."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from starlette.responses import Response

from adapters.mcp.tests.upstreams.gitlab_upstream import CLIENT_TOKEN, PROJECT, GitLab, gitlab
from adapters.mcp.tests.upstreams.upstream import reply_of

pytestmark = [pytest.mark.anyio, pytest.mark.process]


@pytest.fixture
async def api() -> AsyncGenerator[GitLab]:
    async with gitlab() as found:
        yield found


async def called(client: Client, tool: str, **arguments: Any) -> Any:
    """Call a tool, and return what the JSON in its reply is."""
    return json.loads(await reply_of(client, tool, project_id=PROJECT, **arguments))


async def started(client: Client, url: str) -> str:
    reply = await reply_of(client, "create_pipeline", project_id=PROJECT, ref="main", inputs={"version": "1.2"})
    assert reply == f"Created pipeline #7 for main. Status: created\nWeb URL: {url}/{PROJECT}/-/pipelines/7"
    return "7"


async def refusal(client: Client, tool: str, **arguments: Any) -> tuple[int, str]:
    with pytest.raises(MCPError) as raised:
        await client.call_tool(tool, arguments)
    return raised.value.code, raised.value.message


async def test_a_pipeline_is_started_and_looked_at_until_it_has_ended(api: GitLab) -> None:
    async with Client(api.server().parameters) as client:
        pipeline = await started(client, api.url)
        assert api.pipelines[7].order == {"ref": "main", "inputs": {"version": "1.2"}}
        assert (await called(client, "get_pipeline", pipeline_id=pipeline))["status"] == "created"
        api.finish(7)
        ended = await called(client, "get_pipeline", pipeline_id=pipeline)
        assert (ended["id"], ended["project_id"], ended["status"]) == ("7", "3", "success")


async def test_no_list_tells_names_or_variables(api: GitLab) -> None:
    async with Client(api.server().parameters) as client:
        await started(client, api.url)
        [listed] = await called(client, "list_pipelines")
        assert listed["id"] == "7"
        assert not {"name", "variables"} & set(listed)


async def test_a_manual_job_is_run_once(api: GitLab) -> None:
    async with Client(api.server().parameters) as client:
        pipeline = await started(client, api.url)
        job = str(api.ask(7, "deploy"))
        assert (await called(client, "get_pipeline", pipeline_id=pipeline))["status"] == "manual"
        [asked] = await called(client, "list_pipeline_jobs", pipeline_id=pipeline, scope="manual")
        assert (asked["id"], asked["name"]) == (job, "deploy")
        played = await reply_of(client, "play_pipeline_job", project_id=PROJECT, job_id=job)
        assert played.startswith(f"Ran job #{job} (deploy). Status: pending\n")
        late = await refusal(client, "play_pipeline_job", project_id=PROJECT, job_id=job)
        assert late == (-32603, 'GitLab API error: 400 Bad Request\n{"message":"400 Bad request - Unplayable Job"}')


async def test_a_pipeline_is_cancelled_and_one_that_has_ended_stays_as_it_is(api: GitLab) -> None:
    async with Client(api.server().parameters) as client:
        pipeline = await started(client, api.url)
        cancelled = await reply_of(client, "cancel_pipeline", project_id=PROJECT, pipeline_id=pipeline)
        assert cancelled.startswith("Canceled pipeline #7. Status: canceled\n")
        api.finish(7)
        kept = await reply_of(client, "cancel_pipeline", project_id=PROJECT, pipeline_id=pipeline)
        assert kept.startswith("Canceled pipeline #7. Status: success\n")


async def test_all_errors_are_internal_errors_of_json_rpc(api: GitLab) -> None:
    async with Client(api.server().parameters) as client:
        unknown = await refusal(client, "get_pipeline", project_id=PROJECT, pipeline_id="99")
        assert unknown == (-32603, "Pipeline not found")
        refused = await refusal(client, "create_pipeline", project_id=PROJECT, ref="gone")
        assert refused == (-32603, 'GitLab API error: 400 Bad Request\n{"message":{"base":["Reference not found"]}}')
        wrong, message = await refusal(client, "create_pipeline")
        assert (wrong, message[:33]) == (-32603, "Invalid arguments: project_id: In")
        assert await refusal(client, "nothing") == (-32603, "Unknown tool: nothing")
        api.answer("start", Response("down", status_code=503))
        down = await refusal(client, "create_pipeline", project_id=PROJECT, ref="main")
        assert down == (-32603, "GitLab API error: 503 Service Unavailable\ndown")
    assert api.starts == 0


async def test_a_lost_reply_leaves_a_pipeline_that_nobody_knows(api: GitLab) -> None:
    api.cut("start")
    async with Client(api.server().parameters) as client:
        assert await refusal(client, "create_pipeline", project_id=PROJECT, ref="main") == (-32603, "terminated")
    assert api.starts == 1


async def test_it_is_served_over_http_to_who_has_its_token(api: GitLab, tmp_path: Path) -> None:
    with api.over_http(tmp_path) as server:
        async with httpx2.AsyncClient(headers={"authorization": f"Bearer {CLIENT_TOKEN}"}) as http:
            async with Client(streamable_http_client(server.url, http_client=http)) as client:
                pipeline = await started(client, api.url)
            server.kill()
            server.start()
            async with Client(streamable_http_client(server.url, http_client=http)) as client:
                assert (await called(client, "get_pipeline", pipeline_id=pipeline))["status"] == "created"
        async with httpx2.AsyncClient() as http:
            assert (await http.post(server.url, json={})).status_code == 401
