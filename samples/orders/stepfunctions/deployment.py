"""What the order sample needs in an AWS account, created or brought up to date with boto3.

You would write this in CDK, SAM or Terraform. The files `*.asl.json` are what SAM calls definitions with substitutions:
`${reserve}` becomes the ARN of the activity `orders-reserve`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

FOLDER = Path(__file__).parent
ROLE = os.environ.get("STATES_ROLE_ARN", "arn:aws:iam::123456789012:role/orders")  # may put events
STOPPED = "orders-stopped"  # the queue, and the rule that fills it


def client(service: str) -> Any:
    """A client of boto3, as it finds Region, credentials and endpoint; long polls take up to 60 s."""
    patient = Config(read_timeout=75, max_pool_connections=30)
    return boto3.client(service, config=patient)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def activities(states: Any, steps: Mapping[str, object]) -> Mapping[str, str]:
    """The ARNs of the activities, by step."""
    there = states.get_paginator("list_activities").paginate().build_full_result()["activities"]
    for name in {f"orders-{step}" for step in steps} - {activity["name"] for activity in there}:
        there.append({"name": name, **states.create_activity(name=name)})
    arns = {activity["name"]: activity["activityArn"] for activity in there}
    return {step: arns[f"orders-{step}"] for step in steps}


def queue_of_stopped(events: Any, queues: Any, machine: str) -> str:
    """The URL of a queue that hears of executions of this machine that were stopped or took too long.

    Step Functions stops at once, and what it stopped compensates nothing: somebody has to hear of it.
    """
    url: str = queues.create_queue(QueueName=STOPPED)["QueueUrl"]
    arn: str = queues.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    rule: str = events.put_rule(Name=STOPPED, EventPattern=json.dumps(_stopped(machine)))["RuleArn"]
    queues.set_queue_attributes(QueueUrl=url, Attributes={"Policy": json.dumps(_may_send(rule, arn))})
    events.put_targets(Rule=STOPPED, Targets=[{"Id": "queue", "Arn": arn}])
    return url


def _stopped(machine: str) -> Mapping[str, Any]:
    return {
        "source": ["aws.states"],
        "detail-type": ["Step Functions Execution Status Change"],
        "detail": {"stateMachineArn": [machine], "status": ["ABORTED", "TIMED_OUT"]},
    }


def _may_send(rule: str, queue: str) -> Mapping[str, Any]:
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": "events.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": queue,
        "Condition": {"ArnEquals": {"aws:SourceArn": rule}},
    }
    return {"Version": "2012-10-17", "Statement": [statement]}


def machine_arn(activity: str, name: str) -> str:
    """The ARN of a state machine beside an activity."""
    return f"{activity.rpartition(':activity:')[0]}:stateMachine:{name}"


def machines(states: Any, activity_arns: Mapping[str, str]) -> None:
    """Every state machine of this folder; running executions go on as they began."""
    there = states.get_paginator("list_state_machines").paginate().build_full_result()["stateMachines"]
    arns = {machine["name"]: machine["stateMachineArn"] for machine in there}
    for file in sorted(FOLDER.glob("*.asl.json")):
        name = file.name.removesuffix(".asl.json")
        what = {"definition": _substituted(file.read_text(), activity_arns), "roleArn": ROLE}
        if name in arns:
            states.update_state_machine(stateMachineArn=arns[name], **what)
        else:
            states.create_state_machine(name=name, **what)


def _substituted(definition: str, arns: Mapping[str, str]) -> str:
    for step, arn in arns.items():
        definition = definition.replace(f"${{{step}}}", arn)
    return definition
