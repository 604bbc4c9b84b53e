"""What is exposed: durations, schemas, questions and arguments, as truth tables."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator as Other
from pydantic import TypeAdapter, ValidationError

from mcp_workflows.tools.json_schema import violations
from mcp_workflows.tools.questions import GateQuestion, Question, example_of, find_key, is_called, short_key
from mcp_workflows.tools.tool import UNCHECKED, Tool
from mcp_workflows.units import MAX_TTL, Duration

DURATION: TypeAdapter[timedelta] = TypeAdapter(Duration)

DURATIONS = {
    "500ms": timedelta(milliseconds=500),
    "30s": timedelta(seconds=30),
    "15m": timedelta(minutes=15),
    "12h": timedelta(hours=12),
    "7d": timedelta(days=7),
    "2w": timedelta(weeks=2),
    "1.5h": timedelta(minutes=90),
    " 7 d ": timedelta(days=7),
    "3650d": MAX_TTL,
}
NO_DURATIONS: list[Any] = [  # Any: whatever YAML can say
    *[
        "",
        "7",
        "d",
        "7D",
        "7 days",
        "-1s",
        "+1s",
        "1e3s",
        "P7D",
        "1h30m",
        "0s",
        "0.0000001ms",
        "3651d",
        "9" * 400 + "s",
    ],
    *[30, 30.5, 0, True, None, [], {}, timedelta(0), timedelta(seconds=-1), MAX_TTL + timedelta(seconds=1)],
]


@pytest.mark.parametrize(("text", "duration"), DURATIONS.items())
def test_a_duration_is_a_number_and_a_unit(text: str, duration: timedelta) -> None:
    assert DURATION.validate_python(text) == duration
    assert DURATION.validate_python(duration) == duration


@pytest.mark.parametrize("value", NO_DURATIONS, ids=[repr(value)[:20] for value in NO_DURATIONS])
def test_what_is_no_sensible_duration_is_refused(value: Any) -> None:  # Any: whatever YAML can say
    with pytest.raises(ValidationError):
        DURATION.validate_python(value)


def make_tool(**fields: Any) -> Tool:  # Any: any field of Tool
    needed: dict[str, Any] = {"name": "fulfil", "engine": "orders", "workflow": "FulfilOrder"}  # Any: the same
    return Tool(**{**needed, **fields})


BAD_FIELDS: list[dict[str, Any]] = [  # Any: any field of Tool
    *[{"name": name} for name in ("", "a b", "é", "a\n", "a/b", "x" * 65)],
    *[{"tasks": "maybe"}, {"ttl": "0s"}, {"ttl": 7}, {"max_result": 0}, {"timeout": 5}],
    *[
        {"args": "{{"},
        {"args": ["{{a b}}"]},
        {"annotations": {"readonlyHint": True}},
    ],
    {"questions": {"why": {"message": "Why {{", "schema": {"type": "string"}}}},
    {"questions": {"why": {"message": "Why?", "schema": {}}}},
    {"questions": {"why": {"message": "Why?", "schema": {"type": "null"}}}},
    {"questions": {"why": {"message": "Why?", "schema": {"type": "string", "minLength": -1}}}},
]


@pytest.mark.parametrize("fields", BAD_FIELDS, ids=[str(fields)[:50] for fields in BAD_FIELDS])
def test_a_wrong_field_is_refused(fields: dict[str, Any]) -> None:  # Any: any field of Tool
    with pytest.raises(ValidationError):
        make_tool(**fields)


SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "deep": {"type": "object", "properties": {"n": {"type": "integer"}}},
        "list": {"type": "array", "items": {"type": "integer"}},
        "reason": {"type": "string"},
    },
    "required": ["id", "reason"],
    "additionalProperties": False,
}


def test_what_a_question_will_bring_may_still_be_missing() -> None:
    tool, asked = make_tool(input=SCHEMA), frozenset({"reason"})
    assert tool.complaints({"id": "o-1"}, to_be_asked=asked) == []
    assert tool.complaints({}, to_be_asked=asked) == ["'id' is a required property"]
    assert tool.complaints({"id": "o-1", "reason": 5}, to_be_asked=asked) == ['reason: 5 is not of type "string"']


MAPPED: list[tuple[Any, dict[str, Any], Any]] = [  # Any: any JSON value
    (None, {"a": 1}, [{"a": 1}]),
    (None, {}, []),
    (["{{a}}", "{{b}}"], {"a": 1, "b": 2}, [1, 2]),
    (["{{a}}", "{{b}}"], {"a": 1}, [1]),
    ({"Order": "{{a}}"}, {"a": 1}, {"Order": 1}),
    ("{{args}}", {"a": 1}, {"a": 1}),
]


@pytest.mark.parametrize(("args", "arguments", "mapped"), MAPPED)
def test_arguments_reach_the_workflow_as_mapped(args: Any, arguments: dict[str, Any], mapped: Any) -> None:  # Any: JSON
    assert make_tool(args=args).map({"args": arguments}) == mapped


_NO_ARGUMENTS: list[tuple[dict[str, Any], Any]] = [  # Any: JSON
    ({"properties": {"a": {"type": "string"}}}, [{}]),
    ({"additionalProperties": {"type": "string"}}, [{}]),
    ({"allOf": [{"properties": {"a": {"type": "string"}}}]}, [{}]),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}}, [{}]),
    ({}, []),
    ({"properties": {}, "additionalProperties": False}, []),
    ({"additionalProperties": True}, []),
]


@pytest.mark.parametrize(("schema", "mapped"), _NO_ARGUMENTS)
def test_no_arguments_are_an_empty_object_where_the_input_declares_some(schema: dict[str, Any], mapped: Any) -> None:
    assert make_tool(input={"type": "object", **schema}).map({"args": {}}) == mapped


NAMED = {"type": "object", "properties": {"n": {"type": "integer"}}}
STAND_IN = {UNCHECKED: '{"n":"x"}'}


@pytest.mark.parametrize(
    "output",
    [
        {**NAMED, "required": ["n"], "additionalProperties": False, "minProperties": 1, "maxProperties": 1},
        {**NAMED, "required": ["n"], "unevaluatedProperties": False},
        {"type": "object", "$ref": "#/$defs/n", "$defs": {"n": {**NAMED, "required": ["n"]}}},
        {"type": "object", "allOf": [{**NAMED, "required": ["n"]}]},
        {"type": "object", "oneOf": [{**NAMED, "required": ["n"]}, {"required": ["m"]}]},
        {"type": "object", "additionalProperties": {"type": "integer"}},
    ],
)
def test_a_listed_output_schema_allows_the_stand_in_and_otherwise_only_what_it_did(output: dict[str, Any]) -> None:
    promised = make_tool(output=output).promised_output
    assert promised is not None
    assert promised["type"] == "object"
    assert not violations(promised, STAND_IN)
    assert Other(promised).is_valid(STAND_IN)  # pyright: ignore[reportUnknownMemberType]  # as SDK clients check it
    for value in ({"n": 1}, {"n": "x"}, {}, {"m": 1}, {"n": 1, "m": 2}):
        assert bool(violations(promised, value)) is bool(violations(output, value)), value


@pytest.mark.parametrize("output", [None, NAMED, {"type": "object", "additionalProperties": {"type": "string"}}])
def test_an_output_schema_that_allows_the_stand_in_is_listed_as_it_is(output: Any) -> None:
    assert make_tool(output=output).promised_output == output


TEXT = {"type": "string"}
TWO = {"type": "object", "properties": {"x": TEXT, "y": TEXT}}
ONE_OF_TWO = {**TWO, "required": ["x"]}

FORMS: list[tuple[dict[str, Any], dict[str, Any]]] = [  # Any: schemas
    (TEXT, {"type": "object", "properties": {"why": TEXT}, "required": ["why"]}),
    ({"type": "boolean"}, {"type": "object", "properties": {"why": {"type": "boolean"}}, "required": ["why"]}),
    (TWO, TWO),
    (ONE_OF_TWO, ONE_OF_TWO),
]


@pytest.mark.parametrize(("schema", "form"), FORMS)
def test_a_question_is_shown_as_a_form(schema: dict[str, Any], form: dict[str, Any]) -> None:  # Any: schemas
    ask = Question(message="Why?", schema=schema)
    assert ask.form("why") == form
    assert ask.answers("why") == set(form["properties"])


DUE: list[tuple[dict[str, Any], bool, dict[str, Any], bool]] = [  # Any: schema and arguments
    (TEXT, False, {}, True),
    (TEXT, False, {"why": "x"}, True),
    (TEXT, True, {}, True),
    (TEXT, True, {"other": "x"}, True),
    (TEXT, True, {"why": None}, False),
    (TWO, True, {"x": 1}, True),
    (TWO, True, {"x": 1, "y": 1}, False),
    (ONE_OF_TWO, True, {"y": 1}, True),
    (ONE_OF_TWO, True, {"x": 1}, False),
]


@pytest.mark.parametrize(("schema", "when_missing", "arguments", "due"), DUE)
def test_when_a_question_is_due(
    schema: dict[str, Any], when_missing: bool, arguments: dict[str, Any], due: bool
) -> None:  # Any: schema and arguments
    assert Question(message="Why?", schema=schema, when_missing=when_missing).due("why", arguments) is due


def test_a_question_is_asked_with_what_is_known() -> None:
    tool = make_tool(questions={"why": {"message": "Why ship {{id}}?", "schema": TEXT}})
    assert tool.ask["why"].params("why", {"args": {"id": "o-1"}}) == {
        "mode": "form",
        "message": "Why ship «o-1»?",
        "requestedSchema": {"type": "object", "properties": {"why": TEXT}, "required": ["why"]},
        "_meta": {"mcp-workflows/question": "why"},
    }


Field = Mapping[str, Any]  # Any: JSON Schema


def whole_numbers(low: int, more: int) -> Field:
    return {"type": "integer", "minimum": low, "maximum": low + more}


def numbers_between(low: int) -> Field:
    return {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": low + 1}


def numbers_below(high: int) -> Field:
    return {"type": "integer", "exclusiveMaximum": high}


def texts(least: int, more: int) -> Field:
    return {"type": "string", "minLength": least, "maxLength": least + more}


def formatted(name: str) -> Field:
    return {"type": "string", "format": name}


def chosen(names: list[str]) -> Field:
    return {"type": "string", "enum": names}


def several(least: int) -> Field:
    return {"type": "array", "minItems": least, "items": {"type": "string", "enum": ["a", "b", "c"]}}


TITLED = [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}]
BOUNDS, COUNTS = st.integers(-1000, 1000), st.integers(0, 99)
FIELDS: st.SearchStrategy[Field] = st.one_of(
    st.builds(whole_numbers, BOUNDS, COUNTS),
    st.builds(numbers_between, BOUNDS),
    st.builds(numbers_below, BOUNDS),
    st.builds(texts, COUNTS, COUNTS),
    st.builds(formatted, st.sampled_from(["email", "uri", "date", "date-time"])),
    st.builds(chosen, st.lists(st.text(), min_size=1, unique=True)),
    st.builds(several, st.integers(0, 3)),
    st.sampled_from(
        [
            {"type": "boolean"},
            {"type": "string", "oneOf": TITLED},
            {"type": "array", "minItems": 1, "items": {"anyOf": TITLED}},
            {"type": "number", "default": 12},
        ]
    ),
)


@given(st.dictionaries(st.text(), FIELDS, min_size=1, max_size=4), st.data())
def test_the_example_of_an_answer_fits_its_form(fields: Mapping[str, Any], data: st.DataObject) -> None:
    required = data.draw(st.lists(st.sampled_from(sorted(fields)), unique=True))
    form = {"type": "object", "properties": fields, "required": required}
    example = example_of(form)
    assert example is not None
    assert violations(form, example) == []
    assert example.keys() == set(required or list(fields)[:1]), "what must be there, and at least one field to fill in"


def lists(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(values, max_size=3)


KEYS = ["5", "approve.7", "b7e23ec2-9e2c-4f8e-9d2e-0123456789ab", "approve/cb-" + "0123456789abcdef" * 3]


@pytest.mark.parametrize("name", ["approve", None])
@pytest.mark.parametrize("key", KEYS)
def test_a_question_is_found_by_its_key_and_by_a_short_one_that_is_no_other_questions(
    key: str, name: str | None
) -> None:
    params = {"message": "Sure?", **({"_meta": {"mcp-workflows/question": name}} if name else {})}
    short = short_key(key, params)
    assert len(short) <= 24
    assert short == key or len(key) > 24
    others = {f"{key}{number}": params for number in range(100)}
    assert find_key({**others, key: params}, short) == find_key({**others, key: params}, key) == key
    assert find_key(others, short) is None
    assert (find_key({key: params}, "approve"), is_called("approve", key, params)) == (
        None,
        name is not None or key == "approve.7",
    )


NESTED: Mapping[str, Any] = {"properties": {"x": {"type": "object"}}, "required": ["x"]}
NO_FIELD: Mapping[str, Any] = {"properties": {"x": False}, "required": ["x"]}


@pytest.mark.parametrize("schema", [None, [], "object", True, 1, NESTED, NO_FIELD])
def test_what_is_no_form_has_no_example(schema: Any) -> None:  # Any: what a workflow asks for
    assert example_of(schema) is None


def test_a_question_of_a_gate_without_a_schema_is_answered_by_agreeing() -> None:
    question = GateQuestion(message="Go?", schema=None, when={}, send={})
    assert question.form("go") == {"type": "object", "properties": {}}
