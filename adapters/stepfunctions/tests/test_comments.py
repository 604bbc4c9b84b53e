"""What the `Comment` of a definition says about a tool."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp_workflows_stepfunctions.tooling.discover import ToolComment, read_comment

SCHEMA = {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}


def said(comment: Any) -> ToolComment:
    return read_comment(json.dumps({"Comment": comment, "StartAt": "A", "States": {}}))


def test_plain_text_is_the_description() -> None:
    assert said(" Fulfils an order. ") == ToolComment(description="Fulfils an order.")


def test_json_says_more() -> None:
    comment = {"description": "Fulfils", "title": "Order", "name": "fulfil", "inputSchema": SCHEMA, "owner": "team"}
    assert said(json.dumps(comment)) == ToolComment(description="Fulfils", title="Order", name="fulfil", input=SCHEMA)


def test_json_under_mcp_wins_over_what_is_beside_it() -> None:
    comment = {"description": "for people", "mcp": {"description": "for models", "inputSchema": SCHEMA}}
    assert said(json.dumps(comment)) == ToolComment(description="for models", input=SCHEMA)


@pytest.mark.parametrize(
    "definition", ["", "no JSON", "[]", "{}", '{"Comment": 7}', '{"Comment": " "}', None, "[" * 9999]
)
def test_without_a_comment_any_object_is_taken(definition: Any) -> None:
    assert read_comment(definition) == ToolComment(input={"type": "object"})


@pytest.mark.parametrize("comment", ["{not JSON}", "{", "[1]", "see {docs}"])
def test_what_only_looks_like_json_is_text(comment: str) -> None:
    assert said(comment).description == comment


@pytest.mark.parametrize(
    ("comment", "problem"),
    [
        ({"inputSchema": "string"}, "inputSchema is no JSON Schema of an object"),
        ({"mcp": {"inputSchema": [SCHEMA]}}, "inputSchema is no JSON Schema of an object"),
        ({"description": ["a"]}, "description is no text"),
        ({"name": 7}, "name is no text"),
    ],
)
def test_what_cannot_be_meant_so_is_a_problem(comment: Any, problem: str) -> None:
    assert said(json.dumps(comment)) == ToolComment(problems=(problem,))


@pytest.mark.parametrize("comment", ["x" * 10_001, json.dumps({"description": "x" * 10_001})])
def test_a_text_that_every_list_of_tools_would_drag_along_is_none(comment: str) -> None:
    assert said(comment).problems == ("description is longer than 10000 characters",)
