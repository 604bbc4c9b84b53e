"""Express tools as clients see them: within the call, never a task, never started twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import anyio
import httpx2
import pytest

from adapters.stepfunctions.tests import machines
from adapters.stepfunctions.tests.configured import KEY, client_of, configured
from adapters.stepfunctions.tests.injecting import HANG, LOST, Answer, injecting, wait_for
from adapters.stepfunctions.tests.stubbed import EXECUTION, MACHINE, play
from tests.support.served import peer
from tests.support.sidecars import sidecar
from tests.support.stepfunctions_engine import StepFunctions

pytestmark = pytest.mark.anyio

EXPRESS: Final = {"express": True}  # which implies tasks: forbidden


async def test_an_express_tool_answers_with_its_result_and_makes_no_task(
    stepfunctions: StepFunctions, tmp_path: Path
) -> None:
    tools = {
        "echo": {"workflow": stepfunctions.machine(machines.ECHO, "EXPRESS"), **EXPRESS},
        "fail": {"workflow": stepfunctions.machine(machines.DECLINES, "EXPRESS"), **EXPRESS},
    }
    async with client_of(configured(tmp_path, stepfunctions.url, tools)) as client:
        done = (await client.call("echo", {"a": 1})).result
        assert (done["resultType"], done["structuredContent"]) == ("complete", {"a": 1})
        failed = (await client.call("fail")).result
    assert (failed["isError"], failed["content"][0]["text"]) == (True, "CardDeclined: the card was declined")


async def test_an_express_call_whose_reply_is_lost_is_not_made_again_whoever_asks(tmp_path: Path) -> None:
    with injecting() as server:
        play(server, "EXPRESS")
        server.tell("StartSyncExecution", LOST)
        async with client_of(configured(tmp_path, server.url, {"it": {"workflow": MACHINE, **EXPRESS}})) as client:
            for _ in range(2):
                result = (await client.call("it", meta=KEY)).result
                assert result["isError"]
                assert "its outcome is not known, and it is not started again" in result["content"][0]["text"]
        assert server.counts["StartSyncExecution"] == 1


@pytest.mark.slow
async def test_an_express_call_of_a_sidecar_that_was_killed_is_never_made_again(tmp_path: Path) -> None:
    with injecting() as server:
        play(server, "EXPRESS")
        server.tell("StartSyncExecution", HANG, Answer(body={"executionArn": EXECUTION, "status": "SUCCEEDED"}))
        config = configured(tmp_path, server.url, {"it": {"workflow": MACHINE, **EXPRESS, "timeout": "5s"}})
        with sidecar(config) as dying:
            async with peer(dying.url) as client, anyio.create_task_group() as group:

                async def call() -> None:
                    with pytest.raises(httpx2.TransportError):
                        await client.call("it", meta=KEY)

                group.start_soon(call)
                await anyio.to_thread.run_sync(wait_for, server, "StartSyncExecution", 1, 20.0)
                dying.process.kill()
        with sidecar(config) as fresh:
            async with peer(fresh.url) as client:
                said: list[str] = []
                with anyio.fail_after(120):
                    while "its outcome is not known" not in "".join(said[-1:]):
                        said.append(json.dumps((await client.call("it", meta=KEY)).body))
        assert server.counts["StartSyncExecution"] == 1
        assert all("isError" in text or "error" in text for text in said)
