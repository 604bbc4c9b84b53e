"""The clock of an API differs from ours: nothing is started twice for it, and pauses are as long as told."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from mcp_workflows_http import HttpAdapter

from adapters.http.tests.real import adapter_of
from adapters.http.tests.scripted import scene
from adapters.http.tests.test_connections import DEFINITION, listening
from mcp_workflows.adapter import Ref, Start
from mcp_workflows.errors import EngineUnavailable

pytestmark = pytest.mark.anyio

HOUR = 3600
HANDLE = json.dumps({"v": 1, "run": "7", "workflow": "w", "at": 0.0, "vars": {}, "definition": "x"})


def dated(seconds: float) -> str:
    """A date of HTTP."""
    return format_datetime(datetime.fromtimestamp(seconds, UTC), usegmt=True)


@asynccontextmanager
async def throttling(**headers: str) -> AsyncGenerator[HttpAdapter]:
    """An API that throttles us once, with these headers and no others."""
    left = [b"429 Too Many Requests"]
    lines = "".join(f"{name.replace('_', '-')}: {text}\r\n" for name, text in headers.items())

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            status = left.pop() if left else b"200 OK"
            writer.write(b"HTTP/1.1 %s\r\n%scontent-length: 11\r\n\r\n" % (status, lines.encode()) + b'{"id": "7"}')

    settings: dict[str, Any] = {**DEFINITION, "throttled": {"status": [429], "until": "x-ratelimit-reset"}}
    async with listening(serve) as port, adapter_of(url=f"http://127.0.0.1:{port}", **settings) as adapter:
        yield adapter


async def pause_of(adapter: HttpAdapter) -> int:
    """Seconds until the API is asked again."""
    with pytest.raises(EngineUnavailable, match="it throttles us"):
        await adapter.describe(Ref(workflow="w", handle=HANDLE))
    try:
        await adapter.describe(Ref(workflow="w", handle=HANDLE))
    except EngineUnavailable as error:
        return int(str(error).removeprefix("held back: it throttles us for ").removesuffix(" s more"))
    return 0


@pytest.mark.parametrize("ahead", [-2 * HOUR, 2 * HOUR])
async def test_a_date_of_retry_after_is_read_by_the_clock_of_the_api(ahead: int) -> None:
    now = time.time() + ahead
    async with throttling(date=dated(now), retry_after=dated(now + 60)) as adapter:
        assert await pause_of(adapter) in range(45, 61)


@pytest.mark.parametrize(("ahead", "left"), [(2 * HOUR, 60), (2 * HOUR, -60)])
async def test_the_end_of_a_rate_limit_is_read_by_the_clock_of_the_api(ahead: int, left: int) -> None:
    now = int(time.time()) + ahead
    async with throttling(date=dated(now), x_ratelimit_reset=str(now + left)) as adapter:
        assert await pause_of(adapter) in (range(45, 62) if left > 0 else {0})


async def test_without_a_date_our_clock_counts() -> None:
    async with throttling(retry_after=dated(time.time() + 60)) as adapter:
        assert await pause_of(adapter) in range(45, 61)


@pytest.mark.parametrize("written", ["soon", "Wed, 99 Nov 2026 99:00:00 GMT", "", "-5", dated(0)])
async def test_a_retry_after_that_tells_nothing_makes_no_pause(written: str) -> None:
    async with throttling(retry_after=written) as adapter:
        assert await pause_of(adapter) == 0


async def test_no_pause_is_longer_than_an_hour() -> None:
    for headers in ({"retry_after": "9" * 400}, {"x_ratelimit_reset": "1e300"}, {"retry_after": dated(2**37)}):
        async with throttling(**headers) as adapter:
            assert await pause_of(adapter) in range(3585, 3601)


async def test_a_search_since_the_call_finds_what_a_clock_that_is_behind_has_dated() -> None:
    """Of GitHub's runs those are listed that were made since the call, by GitHub's clock."""
    order = Start(workflow="deploy.yml", arguments=[{}], key="k", created=datetime.now(UTC))
    async with scene("github-actions", "deploy.yml", starts="findable", vars={"owner": "a", "repo": "b"}) as found:
        found.vendor.replies["GET /repos/a/b/actions/workflows/deploy.yml/runs"] = {"workflow_runs": []}
        assert await found.adapter.find(order) is None
        since = datetime.fromisoformat(found.vendor.last("GET").query["created"].removeprefix(">="))
    assert timedelta(minutes=5) < order.created - since < timedelta(minutes=10)


@pytest.mark.parametrize(("ahead", "text"), [(HOUR, r"its clock is 3[56]\d\d s ahead of ours"), (-HOUR, "behind ours")])
async def test_check_finds_a_clock_that_differs_by_far(ahead: int, text: str) -> None:
    async with throttling(date=dated(time.time() + ahead)) as adapter:
        await pause_of(adapter)
        finding = await adapter.tooling.check_engine()
    assert not finding.ok
    assert re.search(text, finding.text)
