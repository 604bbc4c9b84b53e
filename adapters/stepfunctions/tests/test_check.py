"""What `check`, `tasks why` and adopting say of a state machine and its executions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from mcp_workflows_stepfunctions import StepFunctionsAdapter

from adapters.stepfunctions.tests import cloud
from adapters.stepfunctions.tests.cloud import a_start, until, until_asked
from mcp_workflows.adapter import Ref
from tests.support.child_processes import free_port
from tests.support.stepfunctions_engine import StepFunctions

pytestmark = pytest.mark.anyio


async def test_the_engine_is_there_or_what_to_check_is_said(
    adapter: StepFunctionsAdapter, stepfunctions: StepFunctions
) -> None:
    assert (await adapter.tooling.check_engine()).text == "Step Functions answers in us-east-1"
    async with cloud.adapter(stepfunctions, endpoint_url=f"http://127.0.0.1:{free_port()}") as nowhere:
        found = await nowhere.tooling.check_engine()
    assert not found.ok
    assert "endpoint_url" in (found.hint or "")


async def test_a_queue_that_cannot_be_read_is_told_and_no_message_is_taken_from_one_that_can(
    stepfunctions: StepFunctions,
) -> None:
    queue = cloud.new_queue(stepfunctions)
    cloud.send(stepfunctions, queue, "a message")
    async with cloud.adapter(stepfunctions, events={"queue_url": queue}) as adapter:
        assert (await adapter.tooling.check_engine()).text == "Step Functions answers in us-east-1"
    assert "Messages" in stepfunctions.client("sqs").receive_message(QueueUrl=queue)
    async with cloud.adapter(stepfunctions, events={"queue_url": f"{queue}-not"}) as adapter:
        found = await adapter.tooling.check_engine()
    assert found.ok
    assert f"but events cannot be read: SQS at {stepfunctions.url}: there is no queue {queue}-not" in found.text


async def test_a_machine_its_versions_aliases_and_type_are_looked_for(
    adapter: StepFunctionsAdapter, stepfunctions: StepFunctions
) -> None:
    arn, client = stepfunctions.machine(cloud.ECHO), stepfunctions.client()
    version = client.publish_state_machine_version(stateMachineArn=arn)["stateMachineVersionArn"]
    routing = [{"stateMachineVersionArn": version, "weight": 100}]
    client.create_state_machine_alias(name="PROD", routingConfiguration=routing)
    for there in (arn, version, f"{arn}:PROD"):
        assert (await adapter.tooling.check(there, {})).ok
    for missing, said in {
        f"{arn}:9": "has no version 9",
        f"{arn}:TEST": "has no alias TEST",
        "nobody": "nobody",
        "arn:aws:states:us-east-1:123:stateMachine:x": "no state machine ARN",
    }.items():
        found = await adapter.tooling.check(missing, {})
        assert not found.ok
        assert said in found.text
    express = stepfunctions.machine(cloud.ECHO, "EXPRESS")
    assert (await adapter.tooling.check(express, {"express": True})).ok
    assert "set express: true" in (await adapter.tooling.check(express, {})).text
    assert "express" in (await adapter.tooling.check(express, {"express": "sometimes"})).text


GATED = cloud.one_state("Approve", {**cloud.asking("?"), "TimeoutSeconds": 60})


@pytest.mark.parametrize(
    ("when", "options", "said"),
    [
        ({"state": "Approve"}, {}, None),
        ({"state": "Aprove"}, {}, "there is no state 'Aprove'"),
        ({"state": "Wrap"}, {}, "does not wait for a task token"),
        ({"state": "Approve"}, {"history": False}, "nobody sees the questions"),
    ],
)
async def test_the_states_of_gates_are_looked_for_however_deep_they_are(
    adapter: StepFunctionsAdapter,
    stepfunctions: StepFunctions,
    when: Mapping[str, str],
    options: Mapping[str, Any],
    said: str | None,
) -> None:
    wrap = {"Type": "Map", "ItemProcessor": GATED, "ItemsPath": "$.items", "End": True}
    arn = stepfunctions.machine(cloud.one_state("Wrap", wrap))
    found = await adapter.tooling.verify(arn, options, {"approval": {"when": when, "send": {"output": {}}}})
    wrong = [finding.text for finding in found if finding.ok is False]
    assert len(wrong) == (said is not None)
    assert all(str(said) in text for text in wrong)
    gate: Mapping[str, Any] = {"when": when, "send": {"output": {}}}
    twice = [each.text for each in await adapter.tooling.verify(arn, options, {"first": gate, "second": gate})]
    if said is None:
        assert twice == ["questions.second.when: state 'Approve' already belongs to gate first"]


@pytest.mark.parametrize(("error", "meant"), [("Rejected", None), ("Rejectd", "Rejected"), ("TooExpensive", None)])
async def test_an_error_of_a_gate_that_the_state_hardly_catches_is_told(
    adapter: StepFunctionsAdapter, stepfunctions: StepFunctions, error: str, meant: str | None
) -> None:
    catch = [{"ErrorEquals": ["Rejected"], "Next": "Keep"}]
    states = {"Approve": {**cloud.asking("?"), "Catch": catch}, "Keep": {"Type": "Pass", "End": True}}
    arn = stepfunctions.machine({"StartAt": "Approve", "States": states})
    gate: Mapping[str, Any] = {"when": "Approve", "send": {"output": {}}, "decline": {"error": error}}
    found = await adapter.tooling.verify(arn, {}, {"approval": gate})
    said = f"state 'Approve' catches no error {error!r}; did you mean {meant!r}?"
    assert [each.text for each in found] == ([] if meant is None else [f"questions.approval.decline.error: {said}"])


ILLEGIBLE = "is in an expression that it cannot be read back from"
SENT = {"QueueUrl": "q", "MessageBody": {"o.$": "$.o", "cb": {"id.$": "$$.Task.Token"}}}
FOR_JSONATA = {"QueryLanguage": "JSONata", "Arguments": {"Message": "{% $base64encode($states.context.Task.Token) %}"}}


@pytest.mark.parametrize(
    ("sends", "when", "said", "advice"),
    [
        ({"Parameters": SENT}, "Approve", None, ""),
        ({"Parameters": SENT}, {"state": "Approve", "token": "MessageBody.cb.id"}, None, ""),
        (
            {"Parameters": SENT},
            {"state": "Approve", "token": "MessageBody.id"},
            "questions.approval.when.token: MessageBody.id is not where state 'Approve' has its task token",
            "write token: MessageBody.cb.id, or remove it",
        ),
        (
            {"Parameters": {"QueueUrl": "q", "MessageBody": {"token.$": "$.token"}}},
            "Approve",
            "questions.approval.when: state 'Approve' sends its task token to nobody",
            'of what the state sends: "taskToken.$": "$$.Task.Token"',
        ),
        (
            FOR_JSONATA,
            "Approve",
            f"questions.approval.when: the task token of state 'Approve' {ILLEGIBLE}",
            '"taskToken": "{% $states.context.Task.Token %}"',
        ),
        (FOR_JSONATA, {"state": "Approve", "token": "Message"}, None, ""),  # nobody can tell
    ],
)
async def test_a_task_token_that_cannot_be_found_is_told_with_what_to_write(
    adapter: StepFunctionsAdapter,
    stepfunctions: StepFunctions,
    sends: Mapping[str, Any],
    when: Any,
    said: str | None,
    advice: str,
) -> None:
    state = {**{key: value for key, value in cloud.asking("?").items() if key != "Parameters"}, **sends}
    arn = stepfunctions.machine(cloud.one_state("Approve", state))
    found = await adapter.tooling.verify(arn, {}, {"approval": {"when": when, "send": {"output": {}}}})
    assert [finding.text for finding in found if finding.ok is False] == ([] if said is None else [said])
    assert all(advice in (finding.hint or "") for finding in found)


async def test_a_question_without_a_task_token_or_a_time_limit_is_told(
    adapter: StepFunctionsAdapter, stepfunctions: StepFunctions
) -> None:
    async def found(state: Mapping[str, Any], **more: Any) -> list[tuple[bool | None, str]]:
        arn = stepfunctions.machine({**cloud.one_state("Ask", state), **more})
        return [(each.ok, each.text) for each in await adapter.tooling.verify(arn, {}, {})]

    detail = {"cb.$": "$$.Task.Token", "mcpInput": {"message": "Ship it?"}}
    unanswerable = {**cloud.asking("Ship it?"), "Parameters": {"Entries": [{"Detail": detail}]}}
    text = "state 'Ask' asks with mcpInput, but has no taskToken beside it: nobody can answer"
    assert await found(unanswerable) == [(False, text)]
    endless = cloud.without(cloud.asking("Ship it?"), "TimeoutSeconds")
    [(ok, said)] = await found(endless)
    assert (ok, "Ask has no TimeoutSeconds" in said) == (True, True)
    assert await found(endless, TimeoutSeconds=60) == []


async def test_the_states_are_those_of_the_version_that_is_started(
    adapter: StepFunctionsAdapter, stepfunctions: StepFunctions
) -> None:
    arn, client = stepfunctions.machine(GATED), stepfunctions.client()
    version = client.publish_state_machine_version(stateMachineArn=arn)["stateMachineVersionArn"]
    routing = [{"stateMachineVersionArn": version, "weight": 100}]
    client.create_state_machine_alias(name="PROD", routingConfiguration=routing)
    client.update_state_machine(stateMachineArn=arn, definition=json.dumps(cloud.ECHO))
    gates: Mapping[str, Any] = {"approval": {"when": "Approve", "send": {"output": {}}}}
    for resource in (version, f"{arn}:PROD"):
        assert await adapter.tooling.verify(resource, {}, gates) == []
    (found,) = await adapter.tooling.verify(arn, {}, gates)
    assert "there is no state 'Approve'" in found.text
    (unknown,) = await adapter.tooling.verify(f"{arn}:TEST", {}, gates)
    assert unknown.ok is None
    assert "could not be verified" in unknown.text


async def test_why_it_waits_is_told(adapter: StepFunctionsAdapter, stepfunctions: StepFunctions) -> None:
    start = a_start(stepfunctions.machine(cloud.ASKS), [])
    ref = Ref(workflow=start.workflow, handle=await adapter.start(start))
    await until_asked(adapter, ref)
    asked = await adapter.tooling.explain(ref)
    assert "waits for an answer in state Ask" in asked.reason
    assert "mcp-workflows tasks answer" in str(asked.advice)
    await adapter.cancel(ref)
    await until(adapter, ref, lambda seen: seen.terminal)
    assert "it has ended: cancelled" in (await adapter.tooling.explain(ref)).reason
    start = a_start(stepfunctions.machine(cloud.FOREVER), [])
    ref = Ref(workflow=start.workflow, handle=await adapter.start(start))
    await until(adapter, ref, lambda seen: seen.message == "Sleep")
    told = await adapter.tooling.explain(ref)
    await adapter.terminate(ref, "enough")
    assert told.reason == "state Sleep waits for its time"
    assert told.facts["state"].startswith("Sleep, for ")


async def test_an_activity_that_nobody_polls_is_told(
    adapter: StepFunctionsAdapter, stepfunctions: StepFunctions
) -> None:
    activity = stepfunctions.client().create_activity(name="nobody-polls-this")["activityArn"]
    start = a_start(
        stepfunctions.machine(cloud.one_state("Work", {"Type": "Task", "Resource": activity, "End": True})), []
    )
    ref = Ref(workflow=start.workflow, handle=await adapter.start(start))
    with anyio.fail_after(60):
        while "no worker has taken" not in (told := await adapter.tooling.explain(ref)).reason:
            await anyio.sleep(0.02)
    await adapter.cancel(ref)
    assert told.advice == f"start a worker that polls {activity}"
