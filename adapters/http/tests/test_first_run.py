"""The first run of a user: an empty folder, a short file, a token, a host over stdio, no public URL."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from adapters.http.tests.buildbot_engine import Buildbot
from adapters.http.tests.jobs_api import TOKEN, jobs_api
from adapters.http.tests.test_page import written_by_hand
from mcp_workflows.client import TasksClient
from tests.support.commands import COMMAND
from tests.support.served import serving

pytestmark = [pytest.mark.anyio, pytest.mark.process]

OF_A_PRESET = """
engines:
  ci:
    adapter: http
    preset: buildbot
    url: "{url}"
    auth: {{bearer: "${{API_TOKEN}}"}}
    look: {{output: {{said: "{{{{more.builds.body.builds[-1].properties.text[0]}}}}"}}}}
tools:
  echo: {{engine: ci, workflow: echo}}
"""
OF_AN_API = """
engines:
  jobs:
    adapter: http
    url: "{url}"
    auth: {{bearer: "${{API_TOKEN}}"}}
    starts: keyed
    start:
      request:
        method: POST
        path: /jobs/{{{{workflow}}}}
        json: {{input: "{{{{arguments}}}}", label: "{{{{key}}}}"}}
      handle: "{{{{reply.body.id}}}}"
    look:
      request: /jobs/{{{{handle}}}}
      status: "{{{{reply.body.state}}}}"
      map: {{running: [queued, active], succeeded: done, failed: error, cancelled: stopped}}
      output: "{{{{reply.body.result}}}}"
      failure: "{{{{reply.body.error}}}}"
    cancel: {{request: "DELETE /jobs/{{{{handle}}}}"}}
tools:
  echo:
    engine: jobs
    workflow: echo
    input: {{type: object, properties: {{text: {{type: string}}}}, required: [text]}}
"""


@asynccontextmanager
async def behind_a_token(url: str) -> AsyncGenerator[str]:
    """The URL of a server that passes on only what has the token, as a company's gateway does."""
    async with httpx2.AsyncClient(base_url=url) as engine:

        async def passed_on(request: Request) -> Response:
            if request.headers.get("authorization") != f"Bearer {TOKEN}":
                return JSONResponse({"error": "no token"}, status_code=401)
            path = f"{request.url.path}?{request.url.query}"
            kind = {"content-type": request.headers.get("content-type", "")}
            reply = await engine.request(request.method, path, content=await request.body(), headers=kind)
            return Response(reply.content, reply.status_code, {"content-type": reply.headers["content-type"]})

        routes = [Route("/{path:path}", passed_on, methods=["GET", "POST"])]
        async with serving(Starlette(routes=routes)) as gateway:
            yield gateway.removesuffix("/mcp")


async def result(folder: Path, written: str) -> Any:
    """What the official client gets over stdio, with this file and a token in the environment alone."""
    (folder / "workflows.yaml").write_text(written)
    server = StdioServerParameters(command=COMMAND, args=["serve"], cwd=folder, env={"API_TOKEN": TOKEN})
    with anyio.fail_after(90):
        async with Client(stdio_client(server), extensions=[TasksClient()]) as client:
            return (await client.call_tool("echo", {"text": "hi"})).structured_content


async def test_eight_keys_lead_to_a_finished_build(tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    with Buildbot(tmp_path) as engine:
        async with behind_a_token(engine.url) as url:
            written = OF_A_PRESET.format(url=url)
            assert written_by_hand(written) <= 8
            assert await result(folder, written) == {"said": "hi"}


async def test_forty_keys_lead_to_a_finished_job_of_any_api(tmp_path: Path) -> None:
    async with jobs_api() as (_, url):
        written = OF_AN_API.format(url=url)
        assert written_by_hand(written) <= 40
        assert await result(tmp_path, written) == {"text": "hi"}
