"""The Amazon States Language on the local engine: JSONata and variables without Java, and moto's mistakes."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tests.support.local_machines import only
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


GONE = {"Variable": "$.gone", "StringEquals": "b"}
TEXT = {"Variable": "$.text", "StringEquals": "b"}


@pytest.mark.parametrize(
    ("test", "by"),
    [
        (TEXT, "b"),
        ({"Variable": "$null", "IsNull": True}, "b"),
        ({"Variable": "$.gone", "IsPresent": False}, "b"),
        ({"Variable": "$gone", "IsPresent": True}, "default"),
        ({"And": [{"Variable": "$.gone", "IsPresent": True}, GONE]}, "default"),
        ({"Or": [TEXT, GONE]}, "b"),
        ({"Variable": "$.one", "NumericLessThanPath": "$two"}, "b"),
        ({"Variable": "$$.State.Name", "StringEqualsPath": "$$.State.Name"}, "b"),
        ({"Variable": "$$.Execution.Gone", "StringEquals": "b"}, "$$.Execution.Gone"),
        ({"Variable": "$.text", "StringEqualsPath": "$gone"}, "$gone"),
        ({"Not": GONE}, "$.gone"),
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
        ({"Condition": True, "Assign": {"by": 1}}, {"Output": "default", "Assign": {"by": 2}}, ["given", 1]),
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


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (r"States.Format('It\'s {}', $.text)", "It's {0} {}"),
        (r"States.Format('\{\} \\{} \\\{{}\}', 1, 2.5)", r"{} \1 \{2.5}"),
        (r"States.Format('{0.__class__} { } {{}', true)", "{0.__class__} { } {true"),
        ("States.Format('\"{}\"\t\u00e9\\n\N{GRINNING FACE}', $.none)", '"null"\t\u00e9\n\N{GRINNING FACE}'),
        ("States.Format($.template, States.Format('{}', $.text), $.text)", r"\{0} {}' {{0} {}}"),
        (r"States.Array('It\'s', '\{\}', 'a\\n', 'a\nb')", ["It's", "{}", r"a\n", "a\nb"]),
        ("States.Format('{} {}', 1)", None),
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


@pytest.mark.parametrize(
    ("text", "operator", "value", "is_match"),
    [
        ("2026-01-01T00:00:00.123Z", "IsTimestamp", True, True),
        ("2026-01-01t00:00:00Z", "IsTimestamp", False, True),
        ("2026-02-30T00:00:00Z", "IsTimestamp", False, True),
        (20260101, "IsTimestamp", False, True),
        ("2026-01-01T00:00:00Z", "TimestampEquals", "2026-01-01T02:00:00.000+02:00", True),
        ("2026-01-01T00:00:00.1Z", "TimestampGreaterThan", "2026-01-01T00:00:00Z", True),
        ("2026-01-01T01:00:00+02:00", "TimestampLessThan", "2026-01-01T00:00:00Z", True),
        ("2026-01-01T00:00:00Z", "TimestampGreaterThanEqualsPath", "$.text", True),
        ("2026-01-01T00:00:00.2Z", "TimestampLessThanEquals", "2026-01-01T00:00:00.1Z", False),
    ],
)
def test_timestamps_have_fractions_and_offsets(
    stepfunctions: StepFunctions, text: Any, operator: str, value: Any, is_match: bool
) -> None:
    states = {
        "Choose": {
            "Type": "Choice",
            "Choices": [{"Variable": "$.text", operator: value, "Next": "Match"}],
            "Default": "None",
        },
        "Match": {"Type": "Succeed"},
        "None": {"Type": "Fail"},
    }
    ended = run(stepfunctions, {"StartAt": "Choose", "States": states}, {"text": text})
    assert (ended["status"] == "SUCCEEDED") is is_match


def test_a_wait_ends_at_its_timestamp_in_any_zone(stepfunctions: StepFunctions) -> None:
    until = datetime.now(tz=timezone(timedelta(hours=5))) + timedelta(seconds=0.9)
    states = {
        "Past": {"Type": "Wait", "Timestamp": "2026-01-01T00:00:00.5+02:00", "Next": "Future"},
        "Future": {"Type": "Wait", "TimestampPath": "$.until", "End": True},
    }
    ended = run(stepfunctions, {"StartAt": "Past", "States": states}, {"until": until.isoformat()})
    assert ended["status"] == "SUCCEEDED"
    assert ended["stopDate"] >= until - timedelta(milliseconds=1)  # stopDate has milliseconds


HALF = {"MaxItemsPerBatch": 2}
EXCEEDED = "States.ExceedToleratedFailureThreshold"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"ToleratedFailureCount": 1}, EXCEEDED),
        ({"ToleratedFailureCountPath": "$.two"}, [None, None, 3, 4]),
        ({"ToleratedFailurePercentagePath": "$.fifty"}, [None, None, 3, 4]),
        ({"ItemBatcher": {"MaxItemsPerBatchPath": "$.two"}}, [{"Items": [1, 2]}, {"Items": [3, 4]}]),
        ({"ItemBatcher": {"MaxInputBytesPerBatch": 16}}, [{"Items": [1, 2]}, {"Items": [3, 4]}]),
        (
            {"ItemBatcher": HALF, "ItemSelector": {"i.$": "$$.Map.Item.Index", "x.$": "$.two"}},
            [{"Items": [{"i": 0, "x": 2}, {"i": 1, "x": 2}]}, {"Items": [{"i": 2, "x": 2}, {"i": 3, "x": 2}]}],
        ),
        ({"ItemBatcher": HALF, "ItemSelector": {"fails": True}, "ToleratedFailureCount": 3}, EXCEEDED),
    ],
    ids=str,
)
def test_a_distributed_map_makes_batches_and_tolerates_failures(
    stepfunctions: StepFunctions, fields: dict[str, Any], expected: Any
) -> None:
    small = {"Variable": "$", "NumericLessThan": 3, "Next": "Fail"}
    fails = {"Variable": "$.Items[0].fails", "IsPresent": True, "Next": "Fail"}
    children = {
        "ProcessorConfig": {"Mode": "DISTRIBUTED", "ExecutionType": "EXPRESS"},
        "StartAt": "Choose",
        "States": {
            "Choose": {"Type": "Choice", "Choices": [small, fails], "Default": "Pass"},
            "Pass": {"Type": "Pass", "End": True},
            "Fail": {"Type": "Fail", "Error": "Bad"},
        },
    }
    given = {"items": [1, 2, 3, 4], "two": 2, "fifty": 50}
    ended = run(
        stepfunctions, only({"Type": "Map", "ItemsPath": "$.items", "ItemProcessor": children, **fields}), given
    )
    assert (json.loads(ended["output"]) if "output" in ended else ended["error"]) == expected


def test_a_distributed_map_reads_its_limits_from_jsonata(stepfunctions: StepFunctions) -> None:
    children = {
        "ProcessorConfig": {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"},
        "StartAt": "Fail",
        "States": {"Fail": {"Type": "Fail"}},
    }
    fields = {
        "Items": "{% $states.input %}",
        "ItemBatcher": {"MaxItemsPerBatch": "{% $count($states.input) %}"},
        "ToleratedFailureCount": "{% $count($states.input) %}",
    }
    machine = only({"Type": "Map", "ItemProcessor": children, **fields}, QueryLanguage="JSONata")
    assert run(stepfunctions, machine, [1, 2, 3, 4])["output"] == "[null]"


def test_executions_that_start_together_do_not_read_each_others_query_language(stepfunctions: StepFunctions) -> None:
    """Definitions of forty states take long enough to parse to be interrupted."""

    def chain(state: dict[str, Any], **more: Any) -> str:
        states = {f"S{n}": {**state, "Next": f"S{n + 1}"} for n in range(40)}
        return stepfunctions.machine({"StartAt": "S0", "States": {**states, "S40": {"Type": "Succeed"}}, **more})

    path = chain({"Type": "Pass", "Parameters": {"who.$": "$.who"}})
    jsonata = chain({"Type": "Pass", "Output": {"who": "Ada"}}, QueryLanguage="JSONata")

    def start(number: int) -> str:
        arn = (path, jsonata)[number % 2]
        return str(stepfunctions.client().start_execution(stateMachineArn=arn, input='{"who": "Ada"}')["executionArn"])

    with ThreadPoolExecutor(12) as pool:
        executions = list(pool.map(start, range(12)))
    assert {stepfunctions.ended(execution)["status"] for execution in executions} == {"SUCCEEDED"}
