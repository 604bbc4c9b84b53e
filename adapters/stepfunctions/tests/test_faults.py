"""What a client sees when an engine is in trouble: replies lost, frozen, gone. Nothing fails, nothing starts twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.stepfunctions.tests import machines
from adapters.stepfunctions.tests.configured import (
    PACE,
    YES,
    asked,
    called,
    client_of,
    configured,
)
from adapters.stepfunctions.tests.injecting import error, injecting
from adapters.stepfunctions.tests.stubbed import MACHINE, execution, play
from tests.support.served import told
from tests.support.stepfunctions_engine import StepFunctions

pytestmark = pytest.mark.anyio


async def test_an_engine_that_freezes_and_then_is_gone_ends_no_task(
    own_stepfunctions: StepFunctions, tmp_path: Path
) -> None:
    machine = own_stepfunctions.machine(machines.ASKS)
    config = configured(tmp_path, own_stepfunctions.url, {"it": {"workflow": machine}}, timeout_seconds=1)
    async with client_of(config) as client:
        first, second = [await called(client) for _ in range(2)]
        (one, _), (other, _) = [await asked(client, task_id) for task_id in (first, second)]
        own_stepfunctions.freeze()
        seen = await told(client, first, "no answer", within=30)
        assert (seen["status"], list(seen["inputRequests"])) == ("input_required", [one])
        assert "did not take the answer" in (await client.answer(first, **{one: YES})).error["message"]
        own_stepfunctions.thaw()
        assert (await client.answer(first, **{one: YES})).result["resultType"] == "complete"
        done = await client.until(first)
        assert done["status"] == "completed"
        own_stepfunctions.kill()
        seen = await told(client, second, "cannot connect", within=30)
        assert (seen["status"], list(seen["inputRequests"])) == ("input_required", [other])
        assert {**await client.get(first), **PACE} == {**done, **PACE}
        refused = (await client.call("it")).result
        assert refused["isError"]
        assert "nothing was started" in refused["content"][0]["text"]


async def test_an_execution_that_does_not_show_yet_is_a_task_that_works(tmp_path: Path) -> None:
    with injecting() as server:
        play(server)
        server.tell("DescribeExecution", error("ExecutionDoesNotExist"))
        async with client_of(configured(tmp_path, server.url, {"it": {"workflow": MACHINE}})) as client:
            task_id = await called(client)
            assert (await told(client, task_id, "does not show the execution yet", within=30))["status"] == "working"
            server.tell("DescribeExecution", execution("SUCCEEDED", output="{}"))
            assert (await client.until(task_id))["status"] == "completed"
