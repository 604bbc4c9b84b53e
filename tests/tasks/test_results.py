"""What a workflow returned, as an MCP result: a truth table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcp_workflows.adapter import Execution, Failure, Status
from mcp_workflows.tasks.results import (
    MISMATCH,
    Large,
    checked,
    error_in,
    failure_result,
    fitted,
    keepable,
    part_at,
    tool_error,
    tool_result,
    uri_of,
)
from mcp_workflows.tools.json_schema import violations
from mcp_workflows.tools.tool import UNCHECKED, Tool
from mcp_workflows.wire.commands import Part

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


NOTHING = _text("The workflow has ended and returned nothing.")


@pytest.mark.parametrize(
    ("output", "content", "structured"),
    [
        (None, [NOTHING], None),
        ("done", [_text("done")], None),
        ("", [NOTHING], None),
        (" \n", [NOTHING], None),
        ({"n": 1, "ä": [None]}, [_text('{"n":1,"ä":[null]}')], {"n": 1, "ä": [None]}),
        ({}, [_text("{}")], {}),
        ([1, 2], [_text("[1,2]")], {"result": [1, 2]}),
        (7, [_text("7")], {"result": 7}),
        (False, [_text("false")], {"result": False}),
        ({"content": "a word"}, [_text('{"content":"a word"}')], {"content": "a word"}),
        ({"content": [1]}, [_text('{"content":[1]}')], {"content": [1]}),
        (
            {"content": [{"type": "bogus"}]},
            [_text('{"content":[{"type":"bogus"}]}')],
            {"content": [{"type": "bogus"}]},
        ),
        (
            {"content": [], "isError": "maybe"},
            [_text('{"content":[],"isError":"maybe"}')],
            {"content": [], "isError": "maybe"},
        ),
        ({"content": [], "_meta": 5}, [_text('{"content":[],"_meta":5}')], {"content": [], "_meta": 5}),
        (
            {"content": [_text("x")], "more": 1},
            [_text('{"content":[{"type":"text","text":"x"}],"more":1}')],
            {"content": [_text("x")], "more": 1},
        ),
    ],
)
def test_any_json_is_a_result(output: Any, content: list[dict[str, str]], structured: Any) -> None:
    result = tool_result(output)
    assert result["content"] == content
    assert result.get("structuredContent") == structured
    assert result["isError"] is False


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (Failure(text="declined"), "declined"),
        (Failure(text=""), "The workflow failed and gave no reason."),
        (None, "The workflow failed and gave no reason."),
    ],
)
def test_a_failure_is_a_text_for_the_model(failure: Failure | None, text: str) -> None:
    assert failure_result(failure) == {"content": [_text(text)], "isError": True}


def test_what_is_known_of_a_failure_is_structured_content() -> None:
    failure = Failure(text="declined", kind="CardDeclined", details=[{"card": "c-1"}], retryable=False, step="charge")
    error = {
        "message": "declined",
        "type": "CardDeclined",
        "details": [{"card": "c-1"}],
        "retryable": False,
        "step": "charge",
    }
    found = failure_result(failure)
    assert found == {"content": [_text("declined")], "structuredContent": {"error": error}, "isError": True}
    assert error_in(found) == error


def test_the_error_of_a_tool_with_a_schema_fits_what_the_tool_promises() -> None:
    """The TypeScript SDK 1.x validates the structured content of errors."""
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    promised = Tool(name="pay", engine="here", workflow="pay", output=schema).promised_output
    assert promised is not None
    found = failure_result(Failure(text="declined", kind="CardDeclined"), schema)
    assert violations(promised, found["structuredContent"]) == []
    assert violations(promised, {"error": {}}) != []
    assert error_in(found) == {"message": "declined", "type": "CardDeclined"}


def test_details_that_are_too_large_to_be_kept_stay_in_the_engine() -> None:
    failed = Execution(status=Status.FAILED, failure=Failure(text="no", details="x" * 500))
    kept = keepable(failed, 400).failure
    assert kept is not None
    assert kept.details is None
    assert keepable(failed, 4000) is failed


def test_a_result_that_does_not_match_its_schema_is_delivered_with_a_mark() -> None:
    assert checked(tool_result({"n": 1}), SCHEMA) == tool_result({"n": 1})
    marked = checked(tool_result({"n": "x"}), SCHEMA)
    assert marked["isError"] is False
    assert "output schema" in marked["content"][0]["text"]
    assert marked["content"][1] == _text('{"n":"x"}')
    assert marked["structuredContent"] == {UNCHECKED: '{"n":"x"}'}
    assert marked["_meta"] == {MISMATCH: 'n: it is not of type "integer"'}


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ("done", "done"),
        ([1], '{"result":[1]}'),
        ({"content": [_text("a"), _text("b")], "_meta": {"own": 1}}, "a\nb"),
        ({"content": [], "structuredContent": {"n": None}, "_meta": None}, '{"n":null}'),
    ],
)
def test_a_result_of_any_form_is_marked_and_a_failure_is_not(output: Any, told: str) -> None:
    marked = checked(tool_result(output), SCHEMA)
    assert (marked["isError"], marked["structuredContent"]) == (False, {UNCHECKED: told})
    assert marked["_meta"].keys() >= {MISMATCH}
    failure = tool_error("no")
    assert checked(failure, SCHEMA) is failure


def test_a_large_result_that_does_not_match_its_schema_is_a_link_with_the_mark() -> None:
    marked = checked(tool_result({"n": "x" * 1000}), SCHEMA)
    short = fitted(marked, Large(uri="u", limit=500, name="n"), SCHEMA)
    assert (short["isError"], short["_meta"]) == (False, marked["_meta"])
    assert short["structuredContent"].keys() == {UNCHECKED}
    assert len(json.dumps(short)) < 700


def test_a_result_up_to_the_limit_is_whole_and_one_byte_more_is_a_link() -> None:
    whole = tool_result({"text": "ä" * 10})
    size = len(json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode())
    assert fitted(whole, Large(uri="u", limit=size, name="n"), None) is whole
    short = fitted(whole, Large(uri="u", limit=size - 1, name="n"), None)
    link = {"type": "resource_link", "uri": "u", "name": "n", "mimeType": "application/json", "size": size}
    assert short["content"][1] == link
    assert "structuredContent" not in short


@pytest.mark.parametrize(
    ("uri", "address"),
    [
        (uri_of("abc"), ("abc", Part.RESULT)),
        ("mcp-workflows://tasks/abc/log", ("abc", Part.LOG)),
        ("mcp-workflows://tasks//result", None),
        ("mcp-workflows://tasks/abc/question", None),
        ("mcp-workflows://tasks/abc", None),
        ("file:///tasks/abc/result", None),
    ],
)
def test_only_our_addresses_name_a_part_of_a_task(uri: str, address: tuple[str, Part] | None) -> None:
    assert part_at(uri) == address
