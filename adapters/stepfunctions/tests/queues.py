"""Queues of the local engine, and what EventBridge would send to them."""

from __future__ import annotations

import json
import uuid

from tests.support.stepfunctions_engine import StepFunctions


def new_queue(engine: StepFunctions) -> str:
    return str(engine.client("sqs").create_queue(QueueName=f"q-{uuid.uuid4().hex}")["QueueUrl"])


def send(engine: StepFunctions, queue: str, *bodies: str) -> None:
    for body in bodies:
        engine.client("sqs").send_message(QueueUrl=queue, MessageBody=body)


def left_in(engine: StepFunctions, queue: str) -> int:
    """Messages that are there, or that somebody has and has not deleted."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = engine.client("sqs").get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
    return sum(int(found[name]) for name in names)


def arn(engine: StepFunctions, name: str, *, region: str | None = None) -> str:
    return f"arn:aws:states:{region or engine.region}:{engine.account}:execution:orders:{name}"


def event(execution: str) -> str:
    return json.dumps({"source": "aws.states", "detail": {"executionArn": execution, "status": "SUCCEEDED"}})
