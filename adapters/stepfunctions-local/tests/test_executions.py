"""The local engine runs, stops, lists and redrives executions as AWS does, where moto does not."""

from __future__ import annotations

import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.support.local_machines import ASK, PASS, SLEEP, asked, asking, code, only, refused, token_of
from tests.support.stepfunctions_engine import StepFunctions


def start(engine: StepFunctions, arn: str, name: str | None = None, given: str = "{}") -> str:
    named = {} if name is None else {"name": name}
    return str(engine.client().start_execution(stateMachineArn=arn, input=given, **named)["executionArn"])


def test_starting_twice_at_once_with_one_name_is_one_execution(stepfunctions: StepFunctions) -> None:
    arn = stepfunctions.machine(SLEEP)
    with ThreadPoolExecutor(10) as threads:
        started = [threads.submit(start, stepfunctions, arn, "one") for _ in range(20)]
    [execution] = {one.result() for one in started}
    assert len(stepfunctions.client().list_executions(stateMachineArn=arn)["executions"]) == 1
    stepfunctions.client().stop_execution(executionArn=execution)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("a b", "{}", "InvalidName"),
        ("ok", "{", "InvalidExecutionInput"),
        ("ok", json.dumps("é" * 140_000, ensure_ascii=False), "ValidationException"),
    ],
)
def test_a_start_that_cannot_be_is_refused(stepfunctions: StepFunctions, name: str, given: str, expected: str) -> None:
    with pytest.raises(ClientError) as error:
        start(stepfunctions, stepfunctions.machine(PASS), name, given)
    assert code(error.value) == expected


def test_stopping_ends_it_at_once_and_for_good_wherever_it_waits(stepfunctions: StepFunctions) -> None:
    client, both = stepfunctions.client(), only({"Type": "Parallel", "Branches": [ASK, SLEEP]})
    execution = start(stepfunctions, stepfunctions.machine(both))
    stepfunctions.event(execution, "TaskSubmitted")
    stepfunctions.event(execution, "WaitStateEntered")
    stopped = client.stop_execution(executionArn=execution, error="Me", cause="no need")
    found = client.describe_execution(executionArn=execution)
    assert (found["status"], found["error"], found["cause"]) == ("ABORTED", "Me", "no need")
    assert found["stopDate"] == stopped["stopDate"]
    events = client.get_execution_history(executionArn=execution)["events"]
    assert [event["type"] for event in events].count("ExecutionAborted") == 1
    assert events[-1]["executionAbortedEventDetails"] == {"error": "Me", "cause": "no need"}


def test_a_machine_that_takes_too_long_times_out(stepfunctions: StepFunctions) -> None:
    execution = start(stepfunctions, stepfunctions.machine({**ASK, "TimeoutSeconds": 1}))
    assert stepfunctions.ended(execution)["status"] == "TIMED_OUT"


def test_executions_are_listed_newest_first_in_pages_and_by_status(stepfunctions: StepFunctions) -> None:
    client, arn = stepfunctions.client(), stepfunctions.machine(SLEEP)
    started = [start(stepfunctions, arn) for _ in range(5)]
    pages = client.get_paginator("list_executions").paginate(
        stateMachineArn=arn, statusFilter="RUNNING", PaginationConfig={"PageSize": 2}
    )
    listed = [[execution["executionArn"] for execution in page["executions"]] for page in pages]
    assert listed == [started[4:2:-1], started[2:0:-1], started[:1]]
    for execution in started:
        client.stop_execution(executionArn=execution)
    assert client.list_executions(stateMachineArn=arn, statusFilter="RUNNING")["executions"] == []


def test_history_comes_in_order_and_in_pages(stepfunctions: StepFunctions) -> None:
    steps = {f"S{n}": {"Type": "Pass", "Next": f"S{n + 1}"} for n in range(4)}
    arn = stepfunctions.machine({"StartAt": "S0", "States": {**steps, "S4": {"Type": "Pass", "End": True}}})
    execution = start(stepfunctions, arn)
    stepfunctions.ended(execution)
    paginator = stepfunctions.client().get_paginator("get_execution_history")
    forward = paginator.paginate(executionArn=execution, PaginationConfig={"PageSize": 5}).search("events[].id")
    backward = paginator.paginate(executionArn=execution, reverseOrder=True, maxResults=7).search("events[].id")
    assert (list(forward), list(backward)) == (list(range(1, 13)), list(range(12, 0, -1)))


@pytest.mark.parametrize(
    ("resource", "kind", "output"),
    [
        ("states:startExecution.sync:2", "STANDARD", {"a": 1}),
        ("aws-sdk:sfn:startSyncExecution", "EXPRESS", '{"a":1}'),
    ],
)
def test_an_execution_can_start_another_and_wait_for_it(
    stepfunctions: StepFunctions, resource: str, kind: str, output: object
) -> None:
    task = {
        "Type": "Task",
        "Resource": f"arn:aws:states:::{resource}",
        "Parameters": {"StateMachineArn": stepfunctions.machine(PASS, type=kind), "Input": {"a": 1}},
        "OutputPath": "$.Output",
    }
    ended = stepfunctions.ended(start(stepfunctions, stepfunctions.machine(only(task))))
    assert (ended["status"], json.loads(ended["output"])) == ("SUCCEEDED", output)


def test_a_machine_is_created_twice_only_as_the_same_and_an_express_one_tells_nothing(
    stepfunctions: StepFunctions,
) -> None:
    name, client = f"m-{uuid.uuid4().hex[:8]}", stepfunctions.client()
    assert stepfunctions.machine(PASS, name=name) == stepfunctions.machine(PASS, name=name)
    with pytest.raises(client.exceptions.StateMachineAlreadyExists):
        stepfunctions.machine(SLEEP, name=name)
    express = stepfunctions.machine(PASS, type="EXPRESS")
    with pytest.raises(client.exceptions.InvalidArn):
        client.describe_execution(executionArn=start(stepfunctions, express))
    with pytest.raises(client.exceptions.StateMachineTypeNotSupported):
        client.list_executions(stateMachineArn=express)
    with pytest.raises(ClientError, match=r"does not support '\.waitForTaskToken'"):
        stepfunctions.machine(ASK, type="EXPRESS")


def test_an_execution_by_version_or_alias_runs_that_version(stepfunctions: StepFunctions) -> None:
    client, arn = stepfunctions.client(), stepfunctions.machine(PASS)
    version = client.publish_state_machine_version(stateMachineArn=arn)["stateMachineVersionArn"]
    other = only({"Type": "Pass", "Result": "other"})
    client.update_state_machine(stateMachineArn=arn, definition=json.dumps(other))
    route = [{"stateMachineVersionArn": version, "weight": 100}]
    alias = client.create_state_machine_alias(name="PROD", routingConfiguration=route)["stateMachineAliasArn"]
    found = [stepfunctions.ended(start(stepfunctions, wanted)) for wanted in (arn, version, alias)]
    assert [each["output"] for each in found] == ['"other"', "{}", "{}"]
    assert found[2]["stateMachineAliasArn"] == alias
    with pytest.raises(client.exceptions.ConflictException):
        client.delete_state_machine_version(stateMachineVersionArn=version)


# --- task tokens


def test_a_token_is_of_one_try_and_answered_once_in_json(stepfunctions: StepFunctions) -> None:
    retry = {"ErrorEquals": ["Again"], "IntervalSeconds": 1, "MaxAttempts": 1}
    execution, first = asked(stepfunctions, only(asking(Retry=[retry])))
    client = stepfunctions.client()
    assert refused(client.send_task_success, taskToken=first, output="{") == "InvalidOutput"
    client.send_task_failure(taskToken=first, error="Again")
    second = token_of(stepfunctions.event(execution, "TaskScheduled", nth=2))
    stepfunctions.event(execution, "TaskSubmitted", nth=2)
    assert refused(client.send_task_success, taskToken=first, output="1") == "TaskTimedOut"
    client.send_task_success(taskToken=second, output="2")
    assert refused(client.send_task_success, taskToken=second, output="3") == "TaskTimedOut"
    assert stepfunctions.ended(execution)["output"] == "2"


def test_an_activity_that_missed_its_heartbeat_is_answered_too_late(stepfunctions: StepFunctions) -> None:
    client = stepfunctions.client()
    arn = client.create_activity(name=f"a-{uuid.uuid4().hex[:8]}")["activityArn"]
    work = {"Type": "Task", "Resource": arn, "HeartbeatSeconds": 1, "TimeoutSeconds": 60}
    execution = start(stepfunctions, stepfunctions.machine(only(work)))
    task = client.get_activity_task(activityArn=arn)
    assert stepfunctions.ended(execution)["error"] == "States.Timeout"
    assert refused(client.send_task_success, taskToken=task["taskToken"], output="1") == "TaskTimedOut"


def test_a_redriven_execution_goes_on_at_the_state_that_failed(stepfunctions: StepFunctions) -> None:
    states = {
        "First": {"Type": "Pass", "Result": "seen", "ResultPath": "$.first", "Assign": {"kept": "yes"}, "Next": "Ask"},
        "Ask": {**asking(), "ResultPath": "$.answer", "Next": "Last"},
        "Last": {"Type": "Pass", "Parameters": {"a.$": "$.first", "b.$": "$.answer", "c.$": "$kept"}, "End": True},
    }
    execution, token = asked(stepfunctions, {"StartAt": "First", "States": states})
    client = stepfunctions.client()
    with pytest.raises(client.exceptions.ExecutionNotRedrivable):
        client.redrive_execution(executionArn=execution)
    client.send_task_failure(taskToken=token, error="No")
    stepfunctions.ended(execution)
    client.redrive_execution(executionArn=execution)
    again = token_of(stepfunctions.event(execution, "TaskScheduled", nth=2))
    stepfunctions.event(execution, "TaskSubmitted", nth=2)
    client.send_task_success(taskToken=again, output="2")
    assert json.loads(stepfunctions.ended(execution)["output"]) == {"a": "seen", "b": 2, "c": "yes"}
    events: list[Any] = client.get_execution_history(executionArn=execution, maxResults=1000)["events"]
    entered = [event["stateEnteredEventDetails"]["name"] for event in events if "stateEnteredEventDetails" in event]
    assert entered == ["First", "Ask", "Ask", "Last"]
