"""The Amazon States Language on the local engine: JSONata and variables without Java, and moto's mistakes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.local_machines import QUESTION, only
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


GONE = {"Variable": "$.gone", "StringEquals": "b"}
TEXT = {"Variable": "$.text", "StringEquals": "b"}


@pytest.mark.parametrize(
    ("test", "by"),
    [
        (TEXT, "b"),
        ({"Variable": "$.text", "StringEquals": "c"}, "default"),
        ({"Variable": "$.null", "IsNull": True}, "b"),
        ({"Variable": "$null", "IsNull": True}, "b"),
        ({"Variable": "$.gone", "IsPresent": False}, "b"),
        ({"Variable": "$gone", "IsPresent": True}, "default"),
        ({"Variable": "$two.gone", "IsPresent": True}, "default"),
        ({"Variable": "$null", "IsPresent": True}, "b"),
        ({"And": [{"Variable": "$.gone", "IsPresent": True}, GONE]}, "default"),
        ({"Or": [TEXT, GONE]}, "b"),
        ({"Variable": "$.one", "NumericLessThanPath": "$two"}, "b"),
        ({"Variable": "$.one", "NumericGreaterThanPath": "$two"}, "default"),
        ({"Variable": "$$.State.Name", "StringEqualsPath": "$$.State.Name"}, "b"),
        (GONE, "$.gone"),
        ({"Variable": "$.gone", "IsNull": True}, "$.gone"),
        ({"Variable": "$.gone", "IsString": False}, "$.gone"),
        ({"Variable": "$gone", "NumericEquals": 2}, "$gone"),
        ({"Variable": "$$.Execution.Gone", "StringEquals": "b"}, "$$.Execution.Gone"),
        ({"Variable": "$.text", "StringEqualsPath": "$.gone"}, "$.gone"),
        ({"Variable": "$.text", "StringEqualsPath": "$gone"}, "$gone"),
        ({"Variable": "$.text", "StringEqualsPath": "$$.Gone"}, "$$.Gone"),
        ({"Not": GONE}, "$.gone"),
        ({"And": [TEXT, GONE]}, "$.gone"),
        ({"Or": [GONE, TEXT]}, "$.gone"),
    ],
    ids=str,
)
def test_a_comparison_with_a_missing_variable_fails_the_execution(
    stepfunctions: StepFunctions, test: dict[str, Any], by: str
) -> None:
    rule = {**test, "Assign": {"by.$": "$.text"}, "Next": "After"}
    states = {
        "Before": {"Type": "Pass", "Assign": {"two": 2, "null": None, "by": "default"}, "Next": "Choose"},
        "Choose": {"Type": "Choice", "Choices": [rule], "Default": "After"},
        "After": {"Type": "Pass", "Parameters": {"by.$": "$by"}, "End": True},
    }
    ended = run(stepfunctions, {"StartAt": "Before", "States": states}, {"text": "b", "one": 1, "null": None})
    if by.startswith("$"):
        assert ended["error"] == "States.Runtime"
        assert f"'{by}'" in ended["cause"]
    else:
        assert json.loads(ended["output"]) == {"by": by}


@pytest.mark.parametrize(
    ("rule", "state", "output"),
    [
        ({"Condition": True, "Output": "rule"}, {"Output": "default"}, ["rule", 0]),
        ({"Condition": True, "Assign": {"by": 1}}, {"Output": "default", "Assign": {"by": 2}}, ["given", 1]),
        ({"Condition": False, "Output": "rule", "Assign": {"by": 1}}, {}, ["given", 0]),
        ({"Condition": False, "Output": "rule"}, {"Output": "default", "Assign": {"by": 2}}, ["default", 2]),
    ],
)
def test_output_and_assign_of_a_choice_are_those_of_its_rule_or_else_of_the_default(
    stepfunctions: StepFunctions, rule: dict[str, Any], state: dict[str, Any], output: list[Any]
) -> None:
    states = {
        "Before": {"Type": "Pass", "Assign": {"by": 0}, "Next": "Choose"},
        "Choose": {"Type": "Choice", "Choices": [{**rule, "Next": "After"}], "Default": "After", **state},
        "After": {"Type": "Succeed", "Output": ["{% $states.input %}", "{% $by %}"]},
    }
    ended = run(stepfunctions, {"QueryLanguage": "JSONata", "StartAt": "Before", "States": states}, "given")
    assert json.loads(ended["output"]) == output


def test_a_choice_without_a_way_on_fails(stepfunctions: StepFunctions) -> None:
    states = {"Choose": {"Type": "Choice", "Choices": [{**TEXT, "Next": "Choose"}]}}
    assert (
        run(stepfunctions, {"StartAt": "Choose", "States": states}, {"text": "c"})["error"] == "States.NoChoiceMatched"
    )


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (r"States.Format('It\'s {}', $.text)", "It's {0} {}"),
        (r"States.Format('\{\} \\{} \\\{{}\}', 1, 2.5)", r"{} \1 \{2.5}"),
        (r"States.Format('{0.__class__} { } {{}', true)", "{0.__class__} { } {true"),
        ("States.Format('\"{}\"\t\u00e9\\n\N{GRINNING FACE}', $.none)", '"null"\t\u00e9\n\N{GRINNING FACE}'),
        ("States.Format($.template, States.Format('{}', $.text), $.text)", r"\{0} {}' {{0} {}}"),
        ("States.Format('none')", "none"),
        (r"States.Array('It\'s', '\{\}', 'a\\n', 'a\nb')", ["It's", "{}", r"a\n", "a\nb"]),
        ("States.Format('{} {}', 1)", None),
        ("States.Format('{}', 1, 2)", None),
    ],
)
def test_an_intrinsic_function_reads_texts_with_escapes(
    stepfunctions: StepFunctions, function: str, value: Any
) -> None:
    given = {"text": "{0} {}", "template": r"\{}' {{}}", "none": None}
    ended = run(stepfunctions, only({"Type": "Pass", "Parameters": {"value.$": function}}), given)
    if value is None:
        assert ended["error"] == "States.IntrinsicFailure"
    else:
        assert json.loads(ended["output"]) == {"value": value}


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
