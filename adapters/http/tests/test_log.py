"""The end of a log, also where the API redirects to another host for it, which gets no credentials."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
from mcp_workflows_http.client import may_follow
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from adapters.http.tests.scripted import scene
from mcp_workflows.adapter import Start, Status
from tests.support.served import serving

TOKEN = "s3cret"
RUNS = "/repos/acme/shop/actions/runs"
LOG = "first\nnpm ERR! the token is s3cret\nlast"


class Elsewhere:
    """A host that serves logs, and notes who asked."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.reply: Response = PlainTextResponse(LOG)

    async def serve(self, request: Request) -> Response:
        self.asked.append(request)
        return self.reply


@asynccontextmanager
async def elsewhere() -> AsyncGenerator[tuple[Elsewhere, str]]:
    host = Elsewhere()
    async with serving(Starlette(routes=[Route("/{path:path}", host.serve)])) as url:
        yield host, url.removesuffix("/mcp")


async def failure(redirect: str | Response, follow: list[str]) -> str:
    """What is told of a run that has failed."""
    more: dict[str, Any] = {"vars": {"owner": "acme", "repo": "shop"}, "auth": {"bearer": TOKEN}}
    async with scene("github-actions", "deploy.yml", describe={"log": {"follow": follow}}, **more) as found:
        replies = found.vendor.replies
        replies["POST /repos/acme/shop/actions/workflows/deploy.yml/dispatches"] = {"workflow_run_id": 42}
        replies[f"GET {RUNS}/42"] = {"status": "completed", "conclusion": "failure"}
        jobs: list[Any] = [{"id": 7, "name": "test", "status": "completed", "conclusion": "failure", "steps": []}]
        replies[f"GET {RUNS}/42/jobs"] = {"jobs": jobs}
        is_url = isinstance(redirect, str)
        replies["GET /repos/acme/shop/actions/jobs/7/logs"] = RedirectResponse(redirect) if is_url else redirect
        order = Start(workflow="deploy.yml", arguments={}, key="k", created=datetime.now(UTC))
        seen = await found.describe(await found.start(order))
    assert seen.status is Status.FAILED
    assert seen.failure is not None
    return seen.failure.text


async def test_a_named_host_gets_the_request_without_credentials() -> None:
    async with elsewhere() as (host, url):
        text = await failure(f"{url}/log?sig=1", [url.removeprefix("http://")])
    assert text.splitlines()[1:] == ["first", "npm ERR! the token is ***", "last"]
    [asked] = host.asked
    assert not {"authorization", "cookie", "x-github-api-version"} & set(asked.headers)
    assert TOKEN not in str(asked.headers)


async def test_another_host_gets_nothing_and_the_failure_is_told_all_the_same() -> None:
    async with elsewhere() as (host, url):
        text = await failure(f"{url}/log", ["logs.example.com"])
    assert text.startswith("test")
    assert host.asked == []


@pytest.mark.parametrize("location", ["http://[", ""])
async def test_a_redirect_to_no_url_leaves_the_log_out(location: str) -> None:
    assert (await failure(Response(status_code=302, headers={"location": location}), ["*.example.com"])).startswith(
        "test"
    )


async def test_only_one_redirect_is_followed() -> None:
    async with elsewhere() as (host, url):
        host.reply = RedirectResponse(f"{url}/again")
        text = await failure(f"{url}/log", [url.removeprefix("http://")])
    assert text.startswith("test")
    assert len(host.asked) == 1


async def test_the_end_of_a_log_of_any_length_is_kept() -> None:
    async def lines() -> AsyncGenerator[str]:
        for first in range(0, 100_000, 1000):
            yield "".join(f"line {number} {'x' * 100}\n" for number in range(first, first + 1000))

    text = await failure(StreamingResponse(lines()), [])
    assert text.splitlines()[-1].startswith("line 99999 ")
    assert len(text) < 5000


@pytest.mark.parametrize(
    ("url", "addresses", "follows"),
    [
        ("https://a.blob.example.com/x", ["8.8.8.8"], True),
        ("https://a.blob.example.com/x", ["8.8.8.8", "10.0.0.1"], False),
        ("https://a.blob.example.com/x", ["169.254.169.254"], False),
        ("https://a.blob.example.com/x", ["::1"], False),
        ("https://a.blob.example.com/x", [], False),
        ("http://a.blob.example.com/x", ["8.8.8.8"], False),
        ("https://blob.example.com.evil.com/x", ["8.8.8.8"], False),
        ("https://evilblob.example.com/x", ["8.8.8.8"], False),
        ("file://a.blob.example.com/etc/passwd", ["8.8.8.8"], False),
        ("https://logs.internal/x", ["10.0.0.1"], True),  # named as it is: the operator's own
        ("ftp://logs.internal/x", ["10.0.0.1"], False),
    ],
)
async def test_a_host_behind_an_asterisk_is_no_private_one(
    url: str, addresses: list[str], follows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def getaddrinfo(host: str, port: int) -> list[Any]:
        if not addresses:
            raise OSError("no such host")
        return [(0, 0, 0, "", (address, port)) for address in addresses]

    monkeypatch.setattr(anyio, "getaddrinfo", getaddrinfo)
    assert await may_follow(url, ["*.blob.example.com", "logs.internal"]) is follows


async def test_the_text_is_read_of_a_log_whose_lines_are_json() -> None:
    line = "{{item.level != 'debug' && item.event || ''}}"
    async with scene("airflow", "release", describe={"log": {"line": line}}) as found:
        replies, runs = found.vendor.replies, "/api/v2/dags/release/dagRuns"
        run: dict[str, Any] = {"dag_run_id": "mcp-k", "dag_id": "release", "conf": {}, "state": "failed", "note": None}
        replies[f"POST {runs}"] = replies[f"GET {runs}/mcp-k"] = run
        task = {"task_id": "test", "task_display_name": "tests", "state": "failed", "try_number": 2, "map_index": -1}
        replies[f"GET {runs}/mcp-k/taskInstances"] = {"task_instances": [task], "total_entries": 1}
        lines = [
            'cut off"}',
            '{"event": "first\\nsecond"}',
            '{"event": "noise", "level": "debug"}',
            '{"event": 5}',
            "[]",
        ]
        replies[f"GET {runs}/mcp-k/taskInstances/test/logs/2"] = "\n".join(lines)
        order = Start(workflow="release", arguments={}, key="k", created=datetime.now(UTC))
        seen = await found.describe(await found.start(order))
    assert seen.failure is not None
    assert seen.failure.text == "tests\nfirst\nsecond\n5"
    assert found.vendor.last("GET").headers["accept"] == "application/x-ndjson"
