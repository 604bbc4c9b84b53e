"""What strangers may leave in the memo of an execution, and what counts of it."""

from __future__ import annotations

from typing import Any

import pytest
from mcp_workflows_temporal.questions import read_questions

FIELDS = {"a": {"type": "string"}, "b": {"type": "string"}, "c": {"type": "string"}}


@pytest.mark.parametrize(
    ("order", "shown"),
    [
        (["c", "a", "b"], ["c", "a", "b"]),
        (["c"], ["c", "a", "b"]),
        (["c", "x", "c", 1, None, ["a"]], ["c", "a", "b"]),
        (None, ["a", "b", "c"]),
        ("cab", ["a", "b", "c"]),
        ({"c": 1}, ["a", "b", "c"]),
    ],
)
def test_the_fields_of_a_form_come_in_the_order_it_says_and_none_is_lost(order: Any, shown: list[str]) -> None:
    schema = {"type": "object", "properties": FIELDS, "required": ["a"]}
    asked = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": schema}, "order": order}
    request = read_questions({"requests": {"k": asked}})["k"]
    assert request.params == asked["params"]
    assert list(request.params["requestedSchema"]["properties"]) == shown


@pytest.mark.parametrize("schema", [None, "?", {}, {"properties": []}, {"properties": {}}])
def test_a_form_of_another_shape_stays_what_it_is(schema: Any) -> None:
    asked = {"method": "elicitation/create", "params": {"requestedSchema": schema}, "order": ["a"]}
    assert read_questions({"requests": {"k": asked}})["k"].params == {"requestedSchema": schema}
