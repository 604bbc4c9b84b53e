"""What `mcp_elicit` posts: questions that can be shown, and what is wrong with the others."""

from __future__ import annotations

import json
import math
from datetime import timedelta
from typing import Any

import pytest
from mcp_workflows_google.forms import MalformedFormError, read_form
from mcp_workflows_google.names import Place
from mcp_workflows_google.questions import PostedClaim, PostedQuestion, read_question

from adapters.google.tests.tell import FORM, NAME, NOW, posted, url
from mcp_workflows.errors import EngineRefused

PLACE = Place(project="other-1", location="us-east1")
EMPTY: Any = {"type": "object", "properties": {}}


def test_a_question_is_read_noted_and_read_again() -> None:
    asked = PostedQuestion.read(posted())
    assert asked.execution_name(PLACE).name == NAME
    question = read_question(json.loads(json.dumps(asked.question(NOW))))
    assert question is not None
    assert question.request.method == "elicitation/create"
    assert question.request.params == {"mode": "form", "message": "Refund 40 EUR?", "requestedSchema": FORM}
    assert (question.url, question.answered, question.expires) == (url(), False, NOW + timedelta(hours=1))
    assert asked.until(NOW) > question.expires


def test_only_what_must_be_there_must_be_there() -> None:
    body = {name: value for name, value in posted().items() if name not in {"key", "requested_schema", "timeout"}}
    del body["project"], body["project_number"]
    asked = PostedQuestion.read({**body, "of another version": 1})
    assert asked.execution_name(PLACE).workflow.place == Place(project="other-1", location="europe-west1")
    assert asked.question(NOW)["requested_schema"] == EMPTY
    assert asked.question(NOW)["expires"] == (NOW + timedelta(hours=12)).isoformat()


def test_a_claim_says_which_execution_it_is() -> None:
    assert PostedClaim.read(posted()).execution_name(PLACE).name == NAME


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"execution": None}, "execution"),
        ({"execution": "e/../f"}, "is no execution"),
        ({"workflow": "a/b"}, "is no execution"),
        ({"location": "europe west"}, "is no execution"),
        ({"project": "p?x"}, "is no execution"),
        ({"project": "p" * 200}, "project"),
        ({"message": ""}, "message"),
        ({"message": " \n"}, "message: a question needs a text"),
        ({"message": 7}, "message"),
        ({"message": "x" * 20_000}, "message"),
        ({"key": "x" * 300}, "key"),
        ({"key": {}}, "key"),
        ({"callback_url": None}, "callback_url"),
        ({"callback_url": ""}, "callback_url"),
        ({"callback_url": "x" * 3000}, "callback_url"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": "soon"}, "timeout"),
        ({"timeout": 1e12}, "timeout"),
        ({"timeout": math.inf}, "timeout"),
        ({"timeout": math.nan}, "timeout"),
        ({"requested_schema": "s"}, "requested_schema: it is not the schema of an object"),
        ({"requested_schema": {"properties": {"a": {"type": "object"}}}}, "property 'a' must have one type of"),
    ],
)
def test_what_is_wrong_with_a_question_is_said(change: Any, wrong: str) -> None:
    with pytest.raises(EngineRefused, match=wrong):
        PostedQuestion.read(posted(**change)).execution_name(PLACE)


@pytest.mark.parametrize("body", [None, [], "text", 7])
def test_a_body_that_is_no_object_is_refused(body: Any) -> None:
    with pytest.raises(EngineRefused, match="JSON object"):
        PostedQuestion.read(body)


@pytest.mark.parametrize("change", [{"timeout": "s3cret"}, {"message": ["s3cret"]}, {"project": {"a": "s3cret"}}])
def test_a_refusal_repeats_nothing_of_what_was_sent(change: Any) -> None:
    with pytest.raises(EngineRefused) as refused:
        PostedQuestion.read(posted(**change))
    assert "s3cret" not in str(refused.value)


def test_the_url_of_the_callback_is_in_no_text_that_a_client_gets() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "description": f"or POST to {url()}"}}}
    note = PostedQuestion.read(posted(message=f"Answer at {url()} please", requested_schema=schema)).question(NOW)
    question = read_question(note)
    assert question is not None
    assert "googleapis" not in json.dumps(question.request.params)
    assert "googleapis" not in repr(question)
    assert question.request.params["message"] == "Answer at [callback URL] please"
    assert "googleapis" not in repr(PostedQuestion.read(posted()))


NO_NOTES: list[Any] = [
    None,
    [],
    "x",
    {},
    {"message": "m"},
    {"expires": "soon", "message": "m", "requested_schema": {}, "callback_url": "u"},
    {"expires": "2026-01-01T00:00:00", "message": "m", "requested_schema": {}, "callback_url": "u"},
]


@pytest.mark.parametrize("note", NO_NOTES)
def test_a_note_of_another_kind_asks_nothing(note: Any) -> None:
    assert read_question(note) is None


FIELDS: list[Any] = [
    {"type": "string"},
    {"type": "string", "title": "T", "description": "D", "minLength": 1, "maxLength": 9, "default": "a"},
    {"type": "string", "format": "email"},
    {"type": "string", "pattern": "^[a-z]+$"},
    {"type": "string", "enum": ["a", "b"], "enumNames": ["A", "B"]},
    {"type": "string", "oneOf": [{"const": "a", "title": "A"}]},
    {"type": "number", "minimum": 0.5, "maximum": 9, "default": 1},
    {"type": "integer", "minimum": 0, "exclusiveMaximum": 9, "multipleOf": 2},
    {"type": "boolean", "default": True},
    {"type": "array", "items": {"type": "string", "enum": ["a"]}, "minItems": 1, "maxItems": 2, "default": ["a"]},
    {"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}]}},
]


@pytest.mark.parametrize("field", FIELDS)
def test_fields_that_mcp_knows_are_taken(field: Any) -> None:
    form = {"type": "object", "properties": {"a": field}, "required": ["a"]}
    assert read_form(form) == form
    assert read_form({"properties": {"a": field}}) == {"type": "object", "properties": {"a": field}}


NO_FIELDS: list[Any] = [
    None,
    1,
    "string",
    [],
    {},
    {"type": ["string", "null"]},
    {"type": "null"},
    {"type": "object", "properties": {}},
    {"type": {}},
    {"type": "string", "$ref": "#"},
    {"type": "string", "minLength": "1"},
    {"$ref": "#"},
    {"type": "string", "minLength": -1},
    {"type": "string", "pattern": "["},
    {"type": "string", "pattern": 1},
    {"type": "string", "pattern": "(?=a)b"},  # how long that takes, nobody can say
    {"type": "string", "pattern": r"(a)\1"},
    {"type": "string", "pattern": "(a{100,}){1000}"},
    {"type": "string", "pattern": "a" * 1001},
    {"type": "string", "format": "hostname"},
    {"type": "string", "format": []},
    {"type": "string", "enum": []},
    {"type": "string", "enum": [1]},
    {"type": "string", "enum": "a"},
    {"type": "string", "oneOf": []},
    {"type": "string", "oneOf": [{"title": "A"}]},
    {"type": "string", "oneOf": [{"const": 1}]},
    {"type": "string", "anyOf": [{}]},
    {"type": "string", "default": 1},
    {"type": "string", "title": {}},
    {"type": "number", "minimum": "0"},
    {"type": "number", "minimum": True},
    {"type": "number", "multipleOf": 0},
    {"type": "integer", "maximum": math.inf},
    {"type": "boolean", "default": "yes"},
    {"type": "boolean", "enum": []},
    {"type": "array"},
    {"type": "array", "items": {"type": "string"}},
    {"type": "array", "items": []},
    {"type": "array", "items": {"type": "object"}},
    {"type": "array", "items": {"enum": ["a"], "type": "number"}},
]


@pytest.mark.parametrize("field", NO_FIELDS)
def test_fields_that_a_form_cannot_show_are_refused(field: Any) -> None:
    with pytest.raises(MalformedFormError, match=r"property 'a'|of property"):
        read_form({"type": "object", "properties": {"a": field}})


NO_FORMS: list[Any] = [
    ([], "not the schema of an object"),
    (True, "not the schema of an object"),
    ({"type": "string"}, "not the schema of an object"),
    ({"properties": []}, "properties of it"),
    ({"required": "a"}, "required of it"),
    ({"required": ["a"]}, "required names 'a'"),
    ({"allOf": []}, "it has 'allOf'"),
    ({"$defs": {}}, "it has '\\$defs'"),
    ({"additionalProperties": {}}, "additionalProperties of it"),
    ({"properties": {str(n): {"type": "boolean"} for n in range(101)}}, "101 fields"),
    ({"properties": {"a": {"type": "string", "title": "x" * 40_000}}}, "in 40\\d+ bytes"),
]


@pytest.mark.parametrize(("schema", "wrong"), NO_FORMS)
def test_schemas_that_are_no_form_are_refused(schema: Any, wrong: str) -> None:
    with pytest.raises(MalformedFormError, match=wrong):
        read_form(schema)


@pytest.mark.parametrize("schema", [None, {}, {"type": "object"}, EMPTY])
def test_without_fields_people_only_accept_or_decline(schema: Any) -> None:
    assert read_form(schema) == EMPTY


def test_a_schema_that_is_nested_without_end_is_refused() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(MalformedFormError):
        read_form({"properties": {"a": {"type": "string", "default": deep}}})
