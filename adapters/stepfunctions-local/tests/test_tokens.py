"""Task tokens and activities on the local engine: one per try, answered once, and never after the state is left."""

from __future__ import annotations

import json
import uuid
from typing import Any

from tests.support.local_machines import ASK, asked, asking, only, refused, token_of
from tests.support.stepfunctions_engine import StepFunctions


def test_a_second_answer_is_too_late(stepfunctions: StepFunctions) -> None:
    client = stepfunctions.client()
    execution, token = asked(stepfunctions, ASK)
    client.send_task_success(taskToken=token, output="1")
    assert refused(client.send_task_success, taskToken=token, output="2") == "TaskTimedOut"
    assert stepfunctions.ended(execution)["output"] == "1"
    assert refused(client.send_task_failure, taskToken=token) == "TaskTimedOut"


def test_an_answer_that_is_not_json_is_refused_and_the_state_still_waits(stepfunctions: StepFunctions) -> None:
    client = stepfunctions.client()
    execution, token = asked(stepfunctions, ASK)
    assert refused(client.send_task_success, taskToken=token, output="{") == "InvalidOutput"
    client.send_task_success(taskToken=token, output="1")
    assert stepfunctions.ended(execution)["status"] == "SUCCEEDED"


def test_each_try_has_a_token_of_its_own(stepfunctions: StepFunctions) -> None:
    retry = {"ErrorEquals": ["Again"], "IntervalSeconds": 1, "MaxAttempts": 1}
    execution, first = asked(stepfunctions, only(asking(Retry=[retry])))
    client = stepfunctions.client()
    client.send_task_failure(taskToken=first, error="Again")
    second = token_of(stepfunctions.event(execution, "TaskScheduled", nth=2))
    stepfunctions.event(execution, "TaskSubmitted", nth=2)
    assert refused(client.send_task_success, taskToken=first, output="1") == "TaskTimedOut"
    client.send_task_success(taskToken=second, output="2")
    assert stepfunctions.ended(execution)["output"] == "2"


def test_an_answer_after_the_state_timed_out_is_too_late(stepfunctions: StepFunctions) -> None:
    late = asking(TimeoutSeconds=1, Catch=[{"ErrorEquals": ["States.Timeout"], "Next": "Late"}])
    more = {"Only": {**late, "End": True}, "Late": {"Type": "Wait", "Seconds": 60, "End": True}}
    execution, token = asked(stepfunctions, {"StartAt": "Only", "States": more})
    stepfunctions.event(execution, "WaitStateEntered")
    client = stepfunctions.client()
    assert refused(client.send_task_success, taskToken=token, output="1") == "TaskTimedOut"
    client.stop_execution(executionArn=execution)


def activity(engine: StepFunctions, **more: Any) -> tuple[str, str]:
    """An execution that waits for a worker, and the activity."""
    arn = engine.client().create_activity(name=f"a-{uuid.uuid4().hex[:8]}")["activityArn"]
    machine = engine.machine(only({"Type": "Task", "Resource": arn, **more}))
    return engine.client().start_execution(stateMachineArn=machine, input='{"n": 1}')["executionArn"], arn


def test_an_activity_that_missed_its_heartbeat_is_answered_too_late(stepfunctions: StepFunctions) -> None:
    execution, arn = activity(stepfunctions, HeartbeatSeconds=1, TimeoutSeconds=60)
    client = stepfunctions.client()
    task = client.get_activity_task(activityArn=arn)
    assert stepfunctions.ended(execution)["error"] == "States.Timeout"
    assert refused(client.send_task_success, taskToken=task["taskToken"], output="1") == "TaskTimedOut"


def test_an_activity_of_a_stopped_execution_reaches_no_worker(stepfunctions: StepFunctions) -> None:
    stopped, arn = activity(stepfunctions)
    client = stepfunctions.client()
    stepfunctions.event(stopped, "ActivityScheduled")
    client.stop_execution(executionArn=stopped)
    machine = stepfunctions.machine(only({"Type": "Task", "Resource": arn}))
    execution = client.start_execution(stateMachineArn=machine, input='{"n": 2}')["executionArn"]
    task = client.get_activity_task(activityArn=arn)
    assert json.loads(task["input"]) == {"n": 2}
    client.stop_execution(executionArn=execution)


def test_an_activity_that_nobody_knows_is_refused(stepfunctions: StepFunctions) -> None:
    call = stepfunctions.client().get_activity_task
    unknown = "arn:aws:states:us-east-1:123456789012:activity:unknown"
    assert refused(call, activityArn=unknown) == "ActivityDoesNotExist"
