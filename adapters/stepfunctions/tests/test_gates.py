"""Gates on the local engine, through the adapter: machines that were not written for us."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pytest
from mcp_workflows_stepfunctions import StepFunctionsAdapter, StepFunctionsSettings

from adapters.stepfunctions.tests.cloud import Definition, StepFunctionsCloud, foreign
from adapters.stepfunctions.tests.injecting import EXECUTION, MACHINE, Answer, error, injecting, play, question
from adapters.stepfunctions.tests.test_iam import watch
from mcp_workflows.adapter import Gate, Ref
from tests.support import cloud_suites as suites
from tests.support.cloud_suites import APPROVE, Watched
from tests.support.stepfunctions_engine import StepFunctions

pytestmark = pytest.mark.anyio

DEFINITION: Final = "states:DescribeStateMachineForExecution"


def gates(when: Any = None) -> Mapping[str, Gate]:
    sends = {"send": StepFunctionsCloud.gate["send"], "decline": StepFunctionsCloud.gate["decline"]}
    return {"approval": Gate(when=when or "WaitForApproval", request=APPROVE, **sends)}


async def begin(engine: StepFunctions, adapter: StepFunctionsAdapter, machine: Definition, when: Any = None) -> Watched:
    return await suites.begin(adapter, engine.machine(machine), gates(when))


YES: Final[Mapping[str, Any]] = {"action": "accept", "content": {"ok": True}, "send": {"output": {"approved": True}}}
NO: Final[Mapping[str, Any]] = {"action": "decline", "send": {"error": "Rejected", "cause": "no"}}


async def test_a_token_is_found_by_the_definition_of_its_execution_which_is_read_once(
    stepfunctions: StepFunctions, adapter: StepFunctionsAdapter
) -> None:
    it = await begin(stepfunctions, adapter, foreign(cb={"id.$": "$$.Task.Token"}))
    changed = json.dumps(foreign(**{"id.$": "$$.Task.Token"}))
    stepfunctions.client().update_state_machine(stateMachineArn=it.ref.workflow, definition=changed)
    calls: set[str] = set()
    watch(adapter, calls)
    key = await it.asked()
    assert DEFINITION in calls
    calls.clear()
    await adapter.describe(it.ref)
    await adapter.answer(it.ref, {key: YES})
    assert (await it.until(lambda seen: seen.terminal)).output == {"approved": True}
    assert DEFINITION not in calls


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (error("AccessDeniedException"), "may not be read (states:DescribeStateMachineForExecution)"),
        (error("ServiceUnavailable", status=503), "cannot be read now"),
    ],
    ids=["denied", "unavailable"],
)
async def test_a_definition_that_cannot_be_read_is_told_and_not_asked_for_with_each_look(
    answer: Answer, reason: str
) -> None:
    with injecting() as server:
        play(server)
        server.tell("GetExecutionHistory", question("t", "cb"))
        server.tell("DescribeStateMachineForExecution", answer)
        given = StepFunctionsSettings(region="us-east-1", endpoint_url=server.url)
        async with StepFunctionsAdapter(given) as adapter:
            looks = [await adapter.describe(Ref(workflow=MACHINE, handle=EXECUTION, gates=gates("Ask"))) for _ in "12"]
        calls = server.counts["DescribeStateMachineForExecution"]
    assert [look.requests for look in looks] == [{}, {}]
    assert f"and its definition {reason}; say where it is in when.token" in (looks[1].message or "")
    assert calls == (3 if answer.status == 503 else 1)  # botocore's own attempts


NAP: Final[Mapping[str, Any]] = {"Type": "Wait", "Seconds": 3600, "End": True}


def napping(*, before: bool) -> Definition:
    """The approval, and a long nap before it or after it."""
    states = foreign(**{"token.$": "$$.Task.Token"})["States"]
    if before:
        nap = {"Type": "Wait", "Seconds": 3600, "Next": "WaitForApproval"}
        return {"StartAt": "Nap", "States": {"Nap": nap, **states}}
    return {"StartAt": "WaitForApproval", "States": {**states, "Ship": NAP, "Keep": NAP}}


@pytest.mark.parametrize(
    ("machine", "when", "said"),
    [
        (napping(before=True), "WaitForApproval", "state WaitForApproval has not been entered; entered so far: Nap"),
        (
            napping(before=True),
            "WaitForAproval",
            r"the state machine has no state 'WaitForAproval'; did you mean 'WaitForApproval'\?",
        ),
        (napping(before=True), "Nap", "the execution is in state Nap, and that does not wait for a task token"),
        (
            foreign(**{"id.$": "States.Base64Encode($$.Task.Token)"}),
            "WaitForApproval",
            "the parameters of state WaitForApproval .*",
        ),
    ],
)
async def test_why_a_gate_is_closed_is_told(
    stepfunctions: StepFunctions, adapter: StepFunctionsAdapter, machine: Definition, when: str, said: str
) -> None:
    it = await begin(stepfunctions, adapter, machine, when)
    await it.until_explained(f"closed: {said}")
    assert not (await adapter.describe(it.ref)).requests
    await adapter.cancel(it.ref)


@pytest.mark.parametrize(("response", "how"), [(YES, "answered already"), (NO, "answered already by an error")])
async def test_that_a_gate_is_open_and_that_it_was_answered_is_told(
    stepfunctions: StepFunctions, adapter: StepFunctionsAdapter, response: Mapping[str, Any], how: str
) -> None:
    it = await begin(stepfunctions, adapter, napping(before=False))
    key = await it.asked()
    await it.until_explained(rf"open: it asks: Approve\? \({key}\)")
    unseen = Watched(adapter, replace(it.ref, options={"history": False}))
    await unseen.until_explained("closed: the tool has history: false, so its questions are not read")
    await adapter.answer(it.ref, {key: response})
    await it.until_explained(rf"closed: {how}: state WaitForApproval was left \d s ago \(event \d+\)")
    await adapter.cancel(it.ref)
