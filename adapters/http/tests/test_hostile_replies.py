"""What a hostile API, or a job on it, may answer: no poll stops the server, raises, or shows a secret."""

from __future__ import annotations

import time
from typing import Any

import pytest
from mcp_workflows_http.describe import _without_stack_traces  # pyright: ignore[reportPrivateUsage]  # only its time matters
from starlette.responses import JSONResponse, Response

from adapters.http.tests.jobs_api import DEFINITION
from adapters.http.tests.scripted import order, scene
from adapters.http.tests.test_bad_replies import answering, here
from mcp_workflows.adapter import Execution, Status
from mcp_workflows.errors import EngineRefused

pytestmark = pytest.mark.anyio


async def seen(reply: Any, **describe: Any) -> Execution:
    """What is told of an execution that the API answers so about."""
    async with here(describe={**DEFINITION["describe"], **describe}) as found:
        handle = await found.start()
        found.api.next_replies.append(answering(JSONResponse(reply)))
        return await found.describe(handle)


def test_a_line_of_a_log_takes_no_time_however_it_is_made() -> None:
    began = time.process_time()
    for line in (" " * 60_000 + "x", 'File "' * 10_000, "\tat " * 15_000):
        _without_stack_traces([line])
    assert time.process_time() - began < 1  # 12 s for spaces alone, once


@pytest.mark.parametrize("value", ["nan", "1e999", "-inf", True, None])
async def test_progress_that_is_no_number_is_left_out(value: Any) -> None:
    steps = {"each": "{{reply.body.steps}}", "name": "{{item}}", "status": "{{item}}", "now": "{{reply.body.steps}}"}
    progress = {"value": "{{reply.body.progress}}"}
    running = await seen({"state": "active", "progress": value, "steps": ["a"]}, progress=progress, steps=steps)
    assert (running.status, running.progress, len(running.steps)) == (Status.RUNNING, None, 1)


async def test_many_steps_are_not_all_read() -> None:
    steps = {"each": "{{reply.body.steps}}", "name": "{{to_string(item)}}", "status": "{{'active'}}"}
    running = await seen({"state": "active", "steps": list(range(20_000))}, steps=steps)
    assert [step.name for step in running.steps] == [str(number) for number in range(19_900, 20_000)]


async def test_a_request_that_cannot_be_made_was_not_sent() -> None:
    request = {"method": "POST", "path": "/jobs/{{arguments.a}}"}
    async with here(start={**DEFINITION["start"], "request": request}) as found:
        with pytest.raises(EngineRefused, match="its request cannot be made") as raised:
            await found.start(arguments={"a": "a" * 70_000})
        assert raised.value.final
        assert not found.api.calls


async def test_a_definite_no_stays_one_though_an_expression_does_not_work_on_it() -> None:
    async with here(throttled={"status": [403], "when": "{{contains(reply.body.error, 'rate')}}"}) as found:
        found.api.next_replies.append(answering(JSONResponse(None, status_code=403)))
        with pytest.raises(EngineRefused, match="it answered 403"):
            await found.start()


async def test_further_requests_for_items_are_bounded() -> None:
    more = {"each": {"each": "{{reply.body.items}}", "request": "/jobs/{{item}}"}}
    async with here(describe={**DEFINITION["describe"], "more": more}) as found:
        handle = await found.start()
        found.api.next_replies.append(answering(JSONResponse({"state": "active", "items": list(range(1, 1000))})))
        await found.describe(handle)
        assert found.api.calls["describe"] == 101


async def test_cookies_are_not_kept() -> None:
    async with scene("respond-async", "reports") as found:
        reply = JSONResponse({}, status_code=202, headers={"location": "/jobs/1", "set-cookie": "sess=1; Path=/"})
        found.vendor.replies["POST /reports"] = reply
        found.vendor.replies["GET /jobs/1"] = Response(status_code=202)
        await found.describe(await found.start(order("reports")))
        assert "cookie" not in found.vendor.last("GET").headers


async def test_a_relative_location_is_one_beside_the_request() -> None:
    async with scene("respond-async", "big", start={"request": "POST /exports/{{workflow}}"}) as found:
        reply = JSONResponse({}, status_code=202, headers={"location": "42"})
        found.vendor.replies["POST /exports/big"] = reply
        found.vendor.replies["GET /exports/42"] = Response(status_code=202)
        found.vendor.replies["GET /42"] = JSONResponse({"status": "failed"})
        assert (await found.describe(await found.start(order("big")))).status is Status.RUNNING
