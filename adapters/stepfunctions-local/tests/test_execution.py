"""The local engine starts, describes, stops and lists executions as AWS does, where moto does not."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from botocore.exceptions import ClientError

from tests.support.local_machines import ASK, PASS, SLEEP, code, only
from tests.support.stepfunctions_engine import StepFunctions


def start(engine: StepFunctions, arn: str, name: str | None = None, given: str = "{}") -> str:
    named = {} if name is None else {"name": name}
    return str(engine.client().start_execution(stateMachineArn=arn, input=given, **named)["executionArn"])


def test_starting_twice_at_once_with_one_name_is_one_execution(stepfunctions: StepFunctions) -> None:
    arn = stepfunctions.machine(SLEEP)
    with ThreadPoolExecutor(10) as threads:
        started = [threads.submit(start, stepfunctions, arn, "one") for _ in range(20)]
    arns = {one.result() for one in started}
    assert len(arns) == 1
    assert len(stepfunctions.client().list_executions(stateMachineArn=arn)["executions"]) == 1
    stepfunctions.client().stop_execution(executionArn=arns.pop())


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("a b", "{}", "InvalidName"),
        ("a" * 81, "{}", "InvalidName"),
        ("ok", "{", "InvalidExecutionInput"),
        ("ok", json.dumps("é" * 140_000, ensure_ascii=False), "ValidationException"),
    ],
)
def test_a_start_that_cannot_be_is_refused(stepfunctions: StepFunctions, name: str, given: str, expected: str) -> None:
    with pytest.raises(ClientError) as refused:
        start(stepfunctions, stepfunctions.machine(PASS), name, given)
    assert code(refused.value) == expected


@pytest.mark.parametrize(
    "definition",
    [
        SLEEP,
        ASK,
        only({"Type": "Parallel", "Branches": [ASK, SLEEP]}),
        only({"Type": "Map", "ItemsPath": "$.items", "ItemProcessor": SLEEP}),
    ],
    ids=["in a Wait", "on a token", "in a Parallel", "in a Map"],
)
def test_stopping_ends_it_at_once_and_for_good(stepfunctions: StepFunctions, definition: dict[str, object]) -> None:
    client = stepfunctions.client()
    execution = start(stepfunctions, stepfunctions.machine(definition), given='{"items": [1, 2]}')
    inner = "TaskSubmitted" if definition is ASK else "WaitStateEntered"
    stepfunctions.event(execution, inner)
    stopped = client.stop_execution(executionArn=execution, error="Me", cause="no need")
    found = client.describe_execution(executionArn=execution)
    assert (found["status"], found["error"], found["cause"]) == ("ABORTED", "Me", "no need")
    assert found["stopDate"] == stopped["stopDate"]
    events = client.get_execution_history(executionArn=execution)["events"]
    assert [event["type"] for event in events].count("ExecutionAborted") == 1
    assert events[-1]["executionAbortedEventDetails"] == {"error": "Me", "cause": "no need"}


def test_a_machine_that_takes_too_long_times_out(stepfunctions: StepFunctions) -> None:
    execution = start(stepfunctions, stepfunctions.machine({**ASK, "TimeoutSeconds": 1}))
    ended = stepfunctions.ended(execution)
    events = stepfunctions.client().get_execution_history(executionArn=execution)["events"]
    assert (ended["status"], "stopDate" in ended, events[-1]["type"]) == ("TIMED_OUT", True, "ExecutionTimedOut")


def test_executions_are_listed_newest_first_in_pages_and_by_status(stepfunctions: StepFunctions) -> None:
    client, arn = stepfunctions.client(), stepfunctions.machine(SLEEP)
    started = [start(stepfunctions, arn) for _ in range(5)]
    pages = list(
        client.get_paginator("list_executions").paginate(
            stateMachineArn=arn, statusFilter="RUNNING", PaginationConfig={"PageSize": 2}
        )
    )
    listed = [[execution["executionArn"] for execution in page["executions"]] for page in pages]
    assert listed == [started[4:2:-1], started[2:0:-1], started[:1]]
    client.stop_execution(executionArn=started[0])
    stopped = client.list_executions(stateMachineArn=arn, statusFilter="ABORTED")["executions"]
    assert [(found["executionArn"], "stopDate" in found) for found in stopped] == [(started[0], True)]
    for execution in started[1:]:
        client.stop_execution(executionArn=execution)


def test_a_page_token_of_nobody_is_refused(stepfunctions: StepFunctions) -> None:
    client, arn = stepfunctions.client(), stepfunctions.machine(PASS)
    with pytest.raises(client.exceptions.InvalidToken):
        client.list_executions(stateMachineArn=arn, nextToken="nonsense")


def test_the_executions_of_a_map_run_are_refused_in_words(stepfunctions: StepFunctions) -> None:
    client = stepfunctions.client()
    with pytest.raises(ClientError, match="does not list the executions of a Map Run"):
        client.list_executions(mapRunArn="arn:aws:states:us-east-1:123456789012:mapRun:a/b:c")


def test_history_comes_in_order_and_in_pages(stepfunctions: StepFunctions) -> None:
    client = stepfunctions.client()
    steps = {f"S{n}": {"Type": "Pass", "Next": f"S{n + 1}"} for n in range(4)}
    arn = stepfunctions.machine({"StartAt": "S0", "States": {**steps, "S4": {"Type": "Pass", "End": True}}})
    execution = start(stepfunctions, arn)
    stepfunctions.ended(execution)
    paginator = client.get_paginator("get_execution_history")
    forward = paginator.paginate(executionArn=execution, PaginationConfig={"PageSize": 5}).search("events[].id")
    backward = paginator.paginate(executionArn=execution, reverseOrder=True, maxResults=7).search("events[].id")
    assert list(forward) == list(range(1, 13))
    assert list(backward) == list(range(12, 0, -1))


def test_history_without_data_has_none(stepfunctions: StepFunctions) -> None:
    execution = start(stepfunctions, stepfunctions.machine(PASS), given='{"secret": 1}')
    stepfunctions.ended(execution)
    bare = stepfunctions.client().get_execution_history(executionArn=execution, includeExecutionData=False)
    assert "secret" not in str(bare["events"])
    assert bare["events"][1]["stateEnteredEventDetails"]["name"] == "Only"


@pytest.mark.parametrize(
    ("resource", "kind", "output"),
    [
        ("states:startExecution.sync:2", "STANDARD", {"a": 1}),
        ("states:startExecution.sync", "STANDARD", '{"a":1}'),
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
