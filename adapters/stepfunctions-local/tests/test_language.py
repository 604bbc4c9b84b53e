"""JSONata and variables on the local engine, which runs them without Java."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.local_machines import QUESTION
from tests.support.stepfunctions_engine import StepFunctions

AWKWARD = 'a "quoted" \\ line\nand {braces}'


def run(engine: StepFunctions, definition: dict[str, Any], given: Any) -> Any:
    execution = engine.client().start_execution(stateMachineArn=engine.machine(definition), input=json.dumps(given))
    return engine.ended(execution["executionArn"])


@pytest.mark.parametrize("language", ["JSONata", "JSONPath"])
def test_variables_keep_any_text(stepfunctions: StepFunctions, language: str) -> None:
    assign, output = (
        ({"said": "{% $states.input.text %}"}, {"Output": {"said": "{% $said %}"}})
        if language == "JSONata"
        else ({"said.$": "$.text"}, {"Parameters": {"said.$": "$said"}})
    )
    states = {"A": {"Type": "Pass", "Assign": assign, "Next": "B"}, "B": {"Type": "Pass", **output, "End": True}}
    ended = run(stepfunctions, {"QueryLanguage": language, "StartAt": "A", "States": states}, {"text": AWKWARD})
    assert json.loads(ended["output"]) == {"said": AWKWARD}


def test_expressions_choose_and_count(stepfunctions: StepFunctions) -> None:
    choice = {"Condition": "{% $sum($states.input.items.price) > 10 %}", "Next": "Much"}
    much = {"Type": "Pass", "Output": "{% $states.input.items[price > 5].name %}", "End": True}
    states = {
        "Choose": {"Type": "Choice", "Choices": [choice], "Default": "Little"},
        "Much": much,
        "Little": {"Type": "Succeed"},
    }
    given = {"items": [{"name": "a", "price": 9}, {"name": "b", "price": 2}, {"name": "c", "price": 8}]}
    ended = run(stepfunctions, {"QueryLanguage": "JSONata", "StartAt": "Choose", "States": states}, given)
    assert json.loads(ended["output"]) == ["a", "c"]


def test_an_expression_that_cannot_be_evaluated_fails_the_execution(stepfunctions: StepFunctions) -> None:
    states = {"A": {"Type": "Pass", "Output": "{% $number('x') %}", "End": True}}
    ended = run(stepfunctions, {"QueryLanguage": "JSONata", "StartAt": "A", "States": states}, {})
    assert ended["status"] == "FAILED"


def test_a_token_is_there_in_jsonata(stepfunctions: StepFunctions) -> None:
    entry = {"Source": "t", "DetailType": "q", "Detail": {"taskToken": "{% $states.context.Task.Token %}"}}
    ask = {"Type": "Task", "Resource": QUESTION, "Arguments": {"Entries": [entry]}, "TimeoutSeconds": 60}
    states = {"Ask": {**ask, "Output": "{% $states.result.ok %}", "End": True}}
    arn = stepfunctions.machine({"QueryLanguage": "JSONata", "StartAt": "Ask", "States": states})
    client = stepfunctions.client()
    execution = client.start_execution(stateMachineArn=arn)["executionArn"]
    stepfunctions.event(execution, "TaskSubmitted")
    scheduled = stepfunctions.event(execution, "TaskScheduled")["taskScheduledEventDetails"]
    token = json.loads(scheduled["parameters"])["Entries"][0]["Detail"]["taskToken"]
    client.send_task_success(taskToken=token, output='{"ok": true}')
    assert stepfunctions.ended(execution)["output"] == "true"
