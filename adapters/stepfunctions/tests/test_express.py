"""Express executions: within the call, never a task, started once, told truthfully."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest
from mcp_workflows_stepfunctions import StepFunctionsAdapter

from adapters.stepfunctions.tests import cloud
from adapters.stepfunctions.tests.cloud import a_start, configured, until_ended
from adapters.stepfunctions.tests.injecting import LOST, MACHINE, injecting, play
from mcp_workflows.adapter import Ref, Status
from mcp_workflows.errors import EngineRefused, EngineUnavailable
from tests.support.configured import KEY, client_of
from tests.support.stepfunctions_engine import StepFunctions

pytestmark = pytest.mark.anyio

EXPRESS: Final = {"express": True}  # which implies tasks: forbidden


async def test_an_express_execution_runs_and_its_output_is_kept_for_who_waits(
    adapter: StepFunctionsAdapter, stepfunctions: StepFunctions
) -> None:
    start = a_start(stepfunctions.machine(cloud.ECHO, "EXPRESS"), [{"a": 1}], options=EXPRESS)
    ref = Ref(workflow=start.workflow, handle=await adapter.start(start), options=EXPRESS)
    seen = await until_ended(adapter, ref)
    assert (seen.status, seen.output) == (Status.SUCCEEDED, {"a": 1})
    assert await adapter.describe(ref) == seen
    assert ":express:" in (seen.execution_id or "")


async def test_another_process_does_not_know_how_an_express_execution_ends_and_says_so_when_it_must_have(
    adapter: StepFunctionsAdapter, stepfunctions: StepFunctions
) -> None:
    start = a_start(stepfunctions.machine(cloud.ECHO, "EXPRESS"), [], options=EXPRESS)
    ref = Ref(workflow=start.workflow, handle=await adapter.start(start), options=EXPRESS)
    await until_ended(adapter, ref)
    long_ago = Ref(workflow=start.workflow, handle="express:1700000000:name", options=EXPRESS)
    async with cloud.adapter(stepfunctions) as other:
        for call in (other.describe, other.cancel):
            with pytest.raises(EngineUnavailable, match="only the process that started") as untold:
                await call(ref)
            assert not untold.value.silent, "Step Functions answers for all others"
        lost = await other.describe(long_ago)
        assert (lost.status, lost.failure and lost.failure.kind) == (Status.FAILED, "OutcomeUnknown")
        await other.cancel(long_ago)  # and nothing is done
    with pytest.raises(EngineRefused, match="cannot be stopped"):
        await adapter.terminate(ref, "enough")


async def test_an_express_tool_answers_with_its_result_and_makes_no_task(
    stepfunctions: StepFunctions, tmp_path: Path
) -> None:
    cause = json.dumps({"message": "the card was declined", "card": "c-1", "stackTrace": ["  File a"]})
    fails = cloud.one_state("Decline", {"Type": "Fail", "Error": "CardDeclined", "Cause": cause})
    tools = {
        "echo": {"workflow": stepfunctions.machine(cloud.ECHO, "EXPRESS"), **EXPRESS},
        "fail": {"workflow": stepfunctions.machine(fails, "EXPRESS"), **EXPRESS},
    }
    async with client_of(configured(tmp_path, stepfunctions.url, tools)) as client:
        done = (await client.call("echo", {"a": 1})).result
        assert (done["resultType"], done["structuredContent"]) == ("complete", {"a": 1})
        failed = (await client.call("fail")).result
    assert (failed["isError"], failed["content"][0]["text"]) == (True, "CardDeclined: the card was declined")
    assert failed["structuredContent"]["error"] == {
        "message": "CardDeclined: the card was declined",
        "type": "CardDeclined",
        "details": {"message": "the card was declined", "card": "c-1"},
    }


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
