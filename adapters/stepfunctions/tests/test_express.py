"""Express executions: within the call, started once, told truthfully."""

from __future__ import annotations

import pytest
from mcp_workflows_stepfunctions import StepFunctionsAdapter
from mcp_workflows_stepfunctions.settings import StepFunctionsOptions
from pydantic import ValidationError

from adapters.stepfunctions.tests import machines, scene
from adapters.stepfunctions.tests.looks import until_ended
from adapters.stepfunctions.tests.test_start import a_start
from mcp_workflows.adapter import Ref, Status
from mcp_workflows.errors import EngineRefused, EngineUnavailable
from tests.support.stepfunctions_engine import StepFunctions

pytestmark = pytest.mark.anyio

EXPRESS = {"express": True}


async def test_an_express_execution_runs_and_its_output_is_kept_for_who_waits(
    adapter: StepFunctionsAdapter, stepfunctions: StepFunctions
) -> None:
    start = a_start(stepfunctions.machine(machines.ECHO, "EXPRESS"), [{"a": 1}], options=EXPRESS)
    ref = Ref(workflow=start.workflow, handle=await adapter.start(start), options=EXPRESS)
    seen = await until_ended(adapter, ref)
    assert (seen.status, seen.output) == (Status.SUCCEEDED, {"a": 1})
    assert await adapter.describe(ref) == seen
    assert ":express:" in (seen.execution_id or "")


async def test_an_express_execution_that_fails_says_why(
    adapter: StepFunctionsAdapter, stepfunctions: StepFunctions
) -> None:
    start = a_start(stepfunctions.machine(machines.DECLINES, "EXPRESS"), [], options=EXPRESS)
    seen = await until_ended(adapter, Ref(workflow=start.workflow, handle=await adapter.start(start)))
    assert seen.status is Status.FAILED
    assert seen.failure is not None
    assert (seen.failure.kind, seen.failure.text) == ("CardDeclined", "CardDeclined: the card was declined")


async def test_an_express_execution_is_waited_for_as_long_as_its_tool_says(
    adapter: StepFunctionsAdapter, stepfunctions: StepFunctions
) -> None:
    slow = machines.one_state("Slow", {"Type": "Wait", "Seconds": 2, "End": True})
    options = {"express": True, "timeout": "200ms"}
    start = a_start(stepfunctions.machine(slow, "EXPRESS"), [], options=options)
    seen = await until_ended(adapter, Ref(workflow=start.workflow, handle=await adapter.start(start), options=options))
    assert seen.failure is not None
    assert "did not end within 0.2 s" in seen.failure.text


async def test_another_process_does_not_know_how_an_express_execution_ends_and_says_so_when_it_must_have(
    adapter: StepFunctionsAdapter, stepfunctions: StepFunctions
) -> None:
    start = a_start(stepfunctions.machine(machines.ECHO, "EXPRESS"), [], options=EXPRESS)
    ref = Ref(workflow=start.workflow, handle=await adapter.start(start), options=EXPRESS)
    await until_ended(adapter, ref)
    long_ago = Ref(workflow=start.workflow, handle="express:1700000000:name", options=EXPRESS)
    async with scene.adapter(stepfunctions) as other:
        for call in (other.describe, other.cancel):
            with pytest.raises(EngineUnavailable, match="only the process that started") as untold:
                await call(ref)
            assert not untold.value.silent, "Step Functions answers for all others"
        lost = await other.describe(long_ago)
        assert (lost.status, lost.failure and lost.failure.kind) == (Status.FAILED, "OutcomeUnknown")
        await other.cancel(long_ago)  # and nothing is done
    with pytest.raises(EngineRefused, match="cannot be stopped"):
        await adapter.terminate(ref, "enough")


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"timeout": "30s"}, "only with express"),
        ({"express": True, "timeout": "6m"}, "within 5m"),
        ({"express": True, "history": False}, "leave it out"),
        ({"expres": True}, "Extra inputs"),
    ],
)
def test_options_that_do_not_count_are_refused(options: dict[str, object], wrong: str) -> None:
    with pytest.raises(ValidationError, match=wrong):
        StepFunctionsOptions.model_validate(options)
    with pytest.raises(EngineRefused, match=wrong):
        StepFunctionsOptions.read(options)
