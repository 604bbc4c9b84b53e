"""What `mcp_elicit` posts: questions that can be shown, and what is wrong with the others."""

from __future__ import annotations

import json
import math
from datetime import timedelta
from typing import Any

import pytest
from mcp_workflows_google.questions import PostedClaim, PostedQuestion, read_question
from mcp_workflows_google.resources import Place

from adapters.google.tests.tell import FORM, NAME, NOW, posted, url
from mcp_workflows.errors import EngineRefused

PLACE = Place(project="other-1", location="us-east1")
EMPTY: Any = {"type": "object", "properties": {}}


def test_a_question_is_read_noted_and_read_again() -> None:
    asked = PostedQuestion.read(posted())
    assert asked.execution_name(PLACE).name == PostedClaim.read(posted()).execution_name(PLACE).name == NAME
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


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"execution": None}, "execution"),
        ({"execution": "e/../f"}, "is no execution"),
        ({"project": "p?x"}, "is no execution"),
        ({"project": "p" * 200}, "project"),
        ({"message": " \n"}, "message: a question needs a text"),
        ({"message": 7}, "message"),
        ({"message": "x" * 20_000}, "message"),
        ({"key": "x" * 300}, "key"),
        ({"callback_url": None}, "callback_url"),
        ({"callback_url": "x" * 3000}, "callback_url"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "soon"}, "timeout"),
        ({"timeout": math.nan}, "timeout"),
        ({"requested_schema": "s"}, "requested_schema: it is not the schema of an object"),
        ({"requested_schema": {"properties": {"a": {"type": "object"}}}}, "property 'a' of a question must have"),
    ],
)
def test_what_is_wrong_with_a_question_is_said(change: Any, wrong: str) -> None:
    with pytest.raises(EngineRefused, match=wrong):
        PostedQuestion.read(posted(**change)).execution_name(PLACE)
    with pytest.raises(EngineRefused, match="JSON object"):
        PostedQuestion.read([])


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
    {"message": "m"},
    {"expires": "soon", "message": "m", "requested_schema": {}, "callback_url": "u"},
    {"expires": "2026-01-01T00:00:00", "message": "m", "requested_schema": {}, "callback_url": "u"},
]


@pytest.mark.parametrize("note", NO_NOTES)
def test_a_note_of_another_kind_asks_nothing(note: Any) -> None:
    assert read_question(note) is None


def form_of(schema: Any) -> Any:
    """The form of a question with this schema."""
    return PostedQuestion.read(posted(requested_schema=schema)).requested_schema


@pytest.mark.parametrize(
    ("schema", "wrong"),
    [
        ({"type": "string"}, "not the schema of an object"),
        ({"required": ["a"]}, "required names 'a'"),
        ({"properties": {"a": {"$ref": "#"}}}, "property 'a' of a question"),
        ({"properties": {str(n): {"type": "boolean"} for n in range(101)}}, "101 fields"),
        ({"properties": {"a": {"type": "string", "title": "x" * 40_000}}}, "in 40\\d+ bytes"),
    ],
)
def test_schemas_that_are_no_form_are_refused(schema: Any, wrong: str) -> None:
    with pytest.raises(EngineRefused, match=f"requested_schema: .*{wrong}"):
        form_of(schema)


def test_a_schema_that_is_nested_without_end_is_refused() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(EngineRefused, match="nested too deeply"):
        form_of({"properties": {"a": {"type": "string", "default": deep}}})
