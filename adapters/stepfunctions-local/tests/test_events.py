"""The local engine tells EventBridge of every change of status, and the tasks' own events reach a queue as well."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

from tests.support.local_machines import SLEEP
from tests.support.stepfunctions_engine import StepFunctions


def queue_of(engine: StepFunctions, pattern: dict[str, Any]) -> str:
    """A queue that gets the events of this pattern."""
    name, sqs, events = f"q-{uuid.uuid4().hex[:8]}", engine.client("sqs"), engine.client("events")
    url = str(sqs.create_queue(QueueName=name)["QueueUrl"])
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    events.put_rule(Name=name, EventPattern=json.dumps(pattern))
    events.put_targets(Rule=name, Targets=[{"Id": "1", "Arn": arn}])
    return url


def received(engine: StepFunctions, url: str, count: int) -> list[Any]:
    sqs, found, deadline = engine.client("sqs"), list[Any](), time.monotonic() + 10
    while len(found) < count and time.monotonic() < deadline:
        got = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1, MaxNumberOfMessages=10)
        found += [json.loads(message["Body"]) for message in got.get("Messages", [])]
    return found


def test_every_change_of_status_is_an_event(stepfunctions: StepFunctions) -> None:
    client, arn = stepfunctions.client(), stepfunctions.machine(SLEEP)
    url = queue_of(stepfunctions, {"source": ["aws.states"], "detail": {"stateMachineArn": [arn]}})
    execution = client.start_execution(stateMachineArn=arn)["executionArn"]
    client.stop_execution(executionArn=execution, error="Me")
    client.redrive_execution(executionArn=execution)
    client.stop_execution(executionArn=execution)
    told = received(stepfunctions, url, 4)
    details = [event["detail"] for event in told]
    assert [detail["status"] for detail in details] == ["RUNNING", "ABORTED", "RUNNING", "ABORTED"]
    assert [detail["error"] for detail in details] == [None, "Me", None, None]
    assert [detail["redriveCount"] for detail in details] == [0, 0, 1, 1]
    assert {event["detail-type"] for event in told} == {"Step Functions Execution Status Change"}
    assert [event["resources"] for event in told] == [[execution]] * 4
    assert details[0]["input"] == "{}"
    assert details[1]["stopDate"] >= details[1]["startDate"] > 1_600_000_000_000
