"""Forms from Python types and from schemas that anybody wrote."""

from __future__ import annotations

import enum
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import SecretStr, create_model

from mcp_workflows.adapter import InputRequest, forms
from mcp_workflows.adapter.forms import flat_form, read_form


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (Colour, {"type": "string", "enum": ["red", "blue"]}),
        (Level, {"type": "integer", "minimum": 1, "maximum": 2}),
        (Literal[1, 1_000_000_000_000], {"type": "integer", "enum": [1, 1_000_000_000_000]}),  # in no time and memory
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Decimal, {"type": "number"}),
        (str | None, {"type": "string"}),
        (list[Colour], {"type": "array", "items": {"type": "string", "enum": ["red", "blue"]}}),
    ],
)
def test_a_python_type_becomes_a_field_of_a_form(kind: Any, field: Any) -> None:  # Any: a type; JSON
    form = read_form(create_model("Form", c=(kind, ...)))
    assert form.keys() <= {"type", "properties", "required"}
    assert {key: value for key, value in form["properties"]["c"].items() if key != "title"} == field
    assert ("c" in form.get("required", ())) == (kind != str | None)
    assert flat_form(form) == form


@pytest.mark.parametrize("kind", [dict[str, int], list[int], SecretStr, int | str])
def test_a_type_that_no_client_can_show_is_refused(kind: Any) -> None:  # Any: a type
    with pytest.raises(ValueError, match="property 'c' of a question"):
        read_form(create_model("Form", c=(kind, ...)))


def test_an_input_request_keeps_only_the_words_of_a_form_at_the_top() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {}}  # Any: JSON
    schema |= {"title": "X", "description": "Y", "additionalProperties": False}
    request = InputRequest(method="elicitation/create", params={"message": "?", "requestedSchema": schema})
    assert request.params["requestedSchema"] == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    "rules",
    [
        {"oneOf": []},
        {"anyOf": [{"type": "null"}]},
        {"anyOf": [{"enum": 5}, {"enum": ["a"]}]},
        {"type": "string", "format": []},
    ],
)
def test_an_odd_schema_of_a_workflow_breaks_nothing(rules: Any) -> None:  # Any: JSON
    form = flat_form({"type": "object", "properties": {"c": rules}})
    assert flat_form(form) == form


def test_the_worker_has_the_same_rules() -> None:
    ours = Path(forms.__file__)
    worker = ours.parents[2] / "adapters/temporal-worker/mcp_workflows_temporal_worker/flat_forms.py"
    assert worker.read_text() == ours.read_text()
