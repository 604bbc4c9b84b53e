"""Redrive on the local engine: an execution that ended badly runs again, from where it stopped."""

from __future__ import annotations

import json

import pytest

from tests.support.local_machines import ASK, PASS, asked, asking, refused, token_of
from tests.support.stepfunctions_engine import StepFunctions

LAST = {"first.$": "$.first", "answer.$": "$.answer", "kept.$": "$kept"}
TWO_STEPS = {
    "StartAt": "First",
    "States": {
        "First": {"Type": "Pass", "Result": "seen", "ResultPath": "$.first", "Assign": {"kept": "yes"}, "Next": "Ask"},
        "Ask": {**asking(), "ResultPath": "$.answer", "Next": "Last"},
        "Last": {
            "Type": "Pass",
            "Parameters": LAST,
            "End": True,
        },
    },
}


def test_a_redriven_execution_goes_on_at_the_state_that_failed(stepfunctions: StepFunctions) -> None:
    client = stepfunctions.client()
    execution, token = asked(stepfunctions, TWO_STEPS)
    client.send_task_failure(taskToken=token, error="No")
    assert stepfunctions.ended(execution)["redriveStatus"] == "REDRIVABLE"

    assert "redriveDate" in client.redrive_execution(executionArn=execution)
    running = client.describe_execution(executionArn=execution)
    assert (running["status"], running["redriveCount"], "stopDate" in running) == ("RUNNING", 1, False)
    again = token_of(stepfunctions.event(execution, "TaskScheduled", nth=2))
    stepfunctions.event(execution, "TaskSubmitted", nth=2)
    assert refused(client.send_task_success, taskToken=token, output="0") == "TaskTimedOut"
    client.send_task_success(taskToken=again, output="2")

    ended = stepfunctions.ended(execution)
    assert json.loads(ended["output"]) == {"first": "seen", "answer": 2, "kept": "yes"}
    events = client.get_execution_history(executionArn=execution, maxResults=1000)["events"]
    assert [event["id"] for event in events] == list(range(1, len(events) + 1))
    entered = [event["stateEnteredEventDetails"]["name"] for event in events if "stateEnteredEventDetails" in event]
    assert entered == ["First", "Ask", "Ask", "Last"]
    redriven = next(event for event in events if event["type"] == "ExecutionRedriven")
    assert redriven["executionRedrivenEventDetails"] == {"redriveCount": 1}


def test_what_runs_or_succeeded_is_not_redriven(stepfunctions: StepFunctions) -> None:
    client = stepfunctions.client()
    done = client.start_execution(stateMachineArn=stepfunctions.machine(PASS))["executionArn"]
    stepfunctions.ended(done)
    running, _ = asked(stepfunctions, ASK)
    for execution in (done, running):
        with pytest.raises(client.exceptions.ExecutionNotRedrivable):
            client.redrive_execution(executionArn=execution)
    client.stop_execution(executionArn=running)
