"""Gates on the local engine, through the adapter: machines that were not written for us."""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from mcp_workflows_stepfunctions import StepFunctionsAdapter, StepFunctionsSettings

from adapters.stepfunctions.tests.configured import asked, called, client_of, configured, operating
from adapters.stepfunctions.tests.injecting import Answer, error, injecting
from adapters.stepfunctions.tests.machines import Definition, asking, one_state
from adapters.stepfunctions.tests.stubbed import EXECUTION, MACHINE, play, question
from adapters.stepfunctions.tests.test_iam_used import watch
from mcp_workflows.adapter import Execution, Gate, InputRequest, Ref, Start, Status
from mcp_workflows.errors import EngineRefused
from tests.support.stepfunctions_engine import StepFunctions

pytestmark = pytest.mark.anyio

DEFINITION: Final = "states:DescribeStateMachineForExecution"
QUESTION: Final = InputRequest(method="elicitation/create", params={"mode": "form", "message": "Approve?"})


def foreign(**body: Any) -> Definition:
    """Somebody's approval: the token goes into a message, and a refusal is caught."""
    entry = {"Source": "shop", "DetailType": "Approval", "Detail": body}
    waits = {
        "Type": "Task",
        "Resource": "arn:aws:states:::events:putEvents.waitForTaskToken",
        "Parameters": {"Entries": [entry]},
        "TimeoutSeconds": 300,
        "Catch": [{"ErrorEquals": ["Rejected"], "Next": "Keep"}],
        "Next": "Ship",
    }
    ship, keep = {"Type": "Pass", "End": True}, {"Type": "Pass", "Result": "kept", "End": True}
    return {"StartAt": "WaitForApproval", "States": {"WaitForApproval": waits, "Ship": ship, "Keep": keep}}


def gates(when: Any = "WaitForApproval") -> Mapping[str, Gate]:
    send, decline = {"output": {"approved": "{{answer.ok}}"}}, {"error": "Rejected", "cause": "no"}
    return {"approval": Gate(when=when, request=QUESTION, send=send, decline=decline)}


class Watched:
    """One execution behind gates, as a task sees it."""

    def __init__(self, adapter: StepFunctionsAdapter, ref: Ref) -> None:
        self.adapter = adapter
        self.ref = ref

    async def until(self, wanted: Callable[[Execution], object]) -> Execution:
        with anyio.fail_after(15):
            while not wanted(seen := await self.adapter.describe(self.ref)):
                await anyio.sleep(0.01)
        return seen

    async def asked(self) -> str:
        [key] = (await self.until(lambda seen: seen.requests)).requests
        return key


async def begin(engine: StepFunctions, adapter: StepFunctionsAdapter, machine: Definition, when: Any = None) -> Watched:
    workflow = engine.machine(machine)
    start = Start(workflow=workflow, arguments=[{}], key=uuid.uuid4().hex, created=datetime.now(UTC))
    handle = await adapter.start(start)
    return Watched(adapter, Ref(workflow=workflow, handle=handle, gates=gates(when or "WaitForApproval")))


YES: Final[Mapping[str, Any]] = {"action": "accept", "content": {"ok": True}, "send": {"output": {"approved": True}}}
NO: Final[Mapping[str, Any]] = {"action": "decline", "send": {"error": "Rejected", "cause": "no"}}


@pytest.mark.parametrize(("response", "output"), [(YES, {"approved": True}), (NO, "kept")])
async def test_an_answer_at_a_gate_goes_to_its_state(
    stepfunctions: StepFunctions, adapter: StepFunctionsAdapter, response: Mapping[str, Any], output: Any
) -> None:
    it = await begin(stepfunctions, adapter, foreign(**{"order": "A1", "callback_token.$": "$$.Task.Token"}))
    key = await it.asked()
    seen = await it.adapter.describe(it.ref)
    assert (seen.status, seen.message) == (Status.INPUT_REQUIRED, "WaitForApproval")
    assert (seen.requests[key].gate, seen.requests[key].params) == ("approval", QUESTION.params)
    await adapter.answer(it.ref, {key: response})
    done = await it.until(lambda seen: seen.terminal)
    assert (done.status, done.output) == (Status.SUCCEEDED, output)
    await adapter.answer(it.ref, {key: YES})  # too late, and ignored


async def test_the_operator_answers_a_gate_by_its_name_though_its_key_is_a_number(
    stepfunctions: StepFunctions, tmp_path: Path
) -> None:
    form = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    approval = {
        "when": "WaitForApproval",
        "message": "Approve?",
        "schema": form,
        "send": {"output": {"approved": "{{answer.ok}}", "by": "{{principal.id}}"}},
    }
    workflow = stepfunctions.machine(foreign(**{"callback_token.$": "$$.Task.Token"}))
    tools = {"it": {"workflow": workflow, "questions": {"approval": approval}}}
    async with client_of(configured(tmp_path, stepfunctions.url, tools)) as client:
        task_id = await called(client)
        key, _ = await asked(client, task_id)
        assert key.isdecimal()
        await operating(tmp_path, "answer", task_id, "approval.ok=true")
        done = (await client.until(task_id))["result"]["structuredContent"]
    assert done == {"approved": True, "by": "operator"}


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
        (error("KmsAccessDeniedException"), "is encrypted"),
        (error("ServiceUnavailable", status=503), "cannot be read now"),
    ],
    ids=["denied", "encrypted", "unavailable"],
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


async def test_an_answer_given_elsewhere_closes_the_gate(
    stepfunctions: StepFunctions, adapter: StepFunctionsAdapter
) -> None:
    it = await begin(stepfunctions, adapter, foreign(**{"token.$": "$$.Task.Token"}))
    key = await it.asked()
    scheduled = stepfunctions.event(it.ref.handle, "TaskScheduled")["taskScheduledEventDetails"]["parameters"]
    detail = json.loads(scheduled)["Entries"][0]["Detail"]
    token = (json.loads(detail) if isinstance(detail, str) else detail)["token"]
    stepfunctions.client().send_task_success(taskToken=token, output='"by mail"')
    await adapter.answer(it.ref, {key: NO})
    done = await it.until(lambda seen: seen.terminal)
    assert (done.status, done.output) == (Status.SUCCEEDED, "by mail")


async def test_a_token_that_is_not_found_is_told_and_not_asked(
    stepfunctions: StepFunctions, adapter: StepFunctionsAdapter
) -> None:
    it = await begin(stepfunctions, adapter, foreign(**{"id.$": "States.Base64Encode($$.Task.Token)"}))
    seen = await it.until(lambda seen: seen.message and "task token" in seen.message)
    assert (seen.status, seen.requests) == (Status.RUNNING, {})
    assert seen.message == (
        "WaitForApproval; gate approval: the parameters of state WaitForApproval were read, and nothing in them is "
        "named like a task token, and the definition puts it into no field of its own; say where it is in when.token"
    )
    await adapter.cancel(it.ref)


async def test_what_is_not_the_token_of_the_state_is_refused(
    stepfunctions: StepFunctions, adapter: StepFunctionsAdapter
) -> None:
    when = {"state": "WaitForApproval", "token": "Entries[0].Detail.order"}
    it = await begin(stepfunctions, adapter, foreign(**{"order": "A1", "token.$": "$$.Task.Token"}), when)
    key = await it.asked()
    with pytest.raises(EngineRefused, match=r"does not know the task token .* state WaitForApproval: .* when\.token"):
        await adapter.answer(it.ref, {key: YES})
    assert list((await adapter.describe(it.ref)).requests) == [key]
    await adapter.cancel(it.ref)


async def test_a_token_is_in_no_log_and_in_no_look(
    stepfunctions: StepFunctions, adapter: StepFunctionsAdapter, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        it = await begin(stepfunctions, adapter, one_state("WaitForApproval", asking("Ship it?")))
        key = await it.asked()
        seen = await adapter.describe(it.ref)
        await adapter.answer(it.ref, {key: YES})
        await it.until(lambda seen: seen.terminal)
    scheduled = stepfunctions.event(it.ref.handle, "TaskScheduled")["taskScheduledEventDetails"]["parameters"]
    detail = json.loads(scheduled)["Entries"][0]["Detail"]
    token = (json.loads(detail) if isinstance(detail, str) else detail)["taskToken"]
    assert token not in repr(seen)
    assert token not in caplog.text


NAP: Final[Mapping[str, Any]] = {"Type": "Wait", "Seconds": 3600, "End": True}


def napping(*, before: bool) -> Definition:
    """The approval, and a long nap before it or after it."""
    states = foreign(**{"token.$": "$$.Task.Token"})["States"]
    if before:
        nap = {"Type": "Wait", "Seconds": 3600, "Next": "WaitForApproval"}
        return {"StartAt": "Nap", "States": {"Nap": nap, **states}}
    return {"StartAt": "WaitForApproval", "States": {**states, "Ship": NAP, "Keep": NAP}}


async def until_told(it: Watched, said: str) -> None:
    """Explained again and again until it is said of the gate."""
    found = ""
    try:
        with anyio.fail_after(15):
            while not re.fullmatch(said, found):
                gate = (await it.adapter.tooling.explain(it.ref)).gates["approval"]
                found = f"{gate.state}: {gate.why}"
    except TimeoutError:
        raise AssertionError(found) from None


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
    await until_told(it, f"closed: {said}")
    await adapter.cancel(it.ref)


@pytest.mark.parametrize(("response", "how"), [(YES, "answered already"), (NO, "answered already by an error")])
async def test_that_a_gate_is_open_and_that_it_was_answered_is_told(
    stepfunctions: StepFunctions, adapter: StepFunctionsAdapter, response: Mapping[str, Any], how: str
) -> None:
    it = await begin(stepfunctions, adapter, napping(before=False))
    key = await it.asked()
    await until_told(it, rf"open: it asks: Approve\? \({key}\)")
    unseen = Watched(adapter, replace(it.ref, options={"history": False}))
    await until_told(unseen, "closed: the tool has history: false, so its questions are not looked for")
    await adapter.answer(it.ref, {key: response})
    await until_told(it, rf"closed: {how}: state WaitForApproval was left \d s ago \(event \d+\)")
    await adapter.cancel(it.ref)
