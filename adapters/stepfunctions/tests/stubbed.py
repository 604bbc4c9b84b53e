"""A whole AWS that answers as it is told: one state machine with one execution, for a sidecar in front of it."""

from __future__ import annotations

import json
from typing import Any, Final

from adapters.stepfunctions.tests.injecting import Answer, Injecting
from tests.support.stepfunctions_engine import ACCOUNT, REGION

MACHINE: Final = f"arn:aws:states:{REGION}:{ACCOUNT}:stateMachine:orders"
EXECUTION: Final = f"arn:aws:states:{REGION}:{ACCOUNT}:execution:orders:o-1"


def execution(status: str = "RUNNING", **more: Any) -> Answer:
    """What DescribeExecution answers."""
    found = {"executionArn": EXECUTION, "stateMachineArn": MACHINE, "startDate": 1.0, "status": status}
    return Answer(body={**found, **more})


def question(token: str, name: str = "taskToken") -> Answer:
    """What GetExecutionHistory answers while a state asks: the newest event first; `name` is that of the token."""
    detail = {name: token, "mcpInput": {"message": "Ship it?"}}
    scheduled = {
        "resourceType": "events",
        "resource": "putEvents.waitForTaskToken",
        "region": REGION,
        "parameters": json.dumps({"Entries": [{"Detail": detail}]}),
    }
    begun = {"id": 1, "previousEventId": 0, "type": "ExecutionStarted"}
    entered = {"id": 2, "previousEventId": 1, "type": "TaskStateEntered", "stateEnteredEventDetails": {"name": "Ask"}}
    asked = {"id": 3, "previousEventId": 2, "type": "TaskScheduled", "taskScheduledEventDetails": scheduled}
    return Answer(body={"events": [{**event, "timestamp": 1.0} for event in (asked, entered, begun)]})


def play(server: Injecting, kind: str = "STANDARD") -> None:
    """From now on there is a machine of this type, and what it starts runs for ever."""
    server.tell("ListStateMachines", Answer(body={"stateMachines": []}))
    server.tell("DescribeStateMachine", Answer(body={"stateMachineArn": MACHINE, "name": "orders", "type": kind}))
    server.tell("StartExecution", Answer(body={"executionArn": EXECUTION, "startDate": 1.0}))
    server.tell("DescribeExecution", execution())
    server.tell("GetExecutionHistory", Answer(body={"events": []}))
    server.tell("StopExecution", Answer(body={"stopDate": 1.0}))
