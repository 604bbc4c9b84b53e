"""Schemas of inputs that were seen (the names and types, and nothing of a value), and of types in code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import ConfigDict, TypeAdapter, with_config
from typing_extensions import TypedDict

from mcp_workflows.adapter import JSON
from mcp_workflows.kit.tooling import ArgumentSchema, infer_schema

COMMON: Sequence[tuple[Sequence[JSON], Mapping[str, JSON]]] = [
    ([], {}),
    ([None], {}),
    ([1, 2.5], {"type": "number"}),
    (["a", None], {"type": ["string", "null"]}),
    ([[1], ["a", 2]], {"type": "array", "items": {"type": ["integer", "string"]}}),
    ([True], {"type": "boolean"}),
    ([{}], {"type": "object", "additionalProperties": {}}),
    (
        [{"id": "a", "note": None}, {"id": "b", "note": "x"}, {"id": "c"}],
        {
            "type": "object",
            "properties": {"id": {"type": "string"}, "note": {"type": ["null", "string"]}},
            "required": ["id"],
        },
    ),
    (
        [{"order": {"id": 1}}],
        {"type": "object", "properties": {"order": {"type": "object"}}},
    ),
]


@pytest.mark.parametrize(("samples", "schema"), COMMON)
def test_a_schema_has_what_the_samples_have_in_common(samples: Sequence[JSON], schema: Mapping[str, JSON]) -> None:
    assert infer_schema(samples) == schema


INTEGERS: JSON = {"type": "object", "additionalProperties": {"type": "integer"}}


@pytest.mark.parametrize(
    "samples",
    [
        [{"ada@example.com": 1}],
        [{"cus_20261128": 1, "total": 2}],
        [{"a1b2c3d4-0000-4000-8000-000000000000": 1}],
        [{"ada": 1}, {"grace": 2}],
        [{"ada": 1, "id": 2}, {"grace": 1, "id": 2}],
        [{"ada": 1}, {"grace": 2}, {"edsger": 3}],
        [{f"key_{number}": 1 for number in range(51)}],
    ],
)
def test_keys_that_may_be_data_are_in_no_schema(samples: Sequence[JSON]) -> None:
    assert infer_schema(samples) == INTEGERS


def test_the_keys_of_an_object_in_another_are_names_if_two_that_differ_have_them() -> None:
    def nested(*stocks: JSON) -> JSON:
        return infer_schema([{"id": number, "stock": stock} for number, stock in enumerate(stocks)], depth=2)

    assert nested({"ada": 1})["properties"]["stock"] == INTEGERS
    assert nested({"ada": 1}, {"ada": 1})["properties"]["stock"] == INTEGERS
    assert nested({"ada": 1}, {"ada": 2})["properties"]["stock"]["properties"] == {"ada": {"type": "integer"}}


def test_one_execution_shows_no_argument_to_be_required() -> None:
    assert "required" not in infer_schema([{"id": 1}])
    assert "required" not in infer_schema([{"id": 1}, {"id": 1}])
    assert infer_schema([{"id": 1}, {"id": 2}])["required"] == ["id"]


def test_no_value_is_in_a_schema() -> None:
    secret = "hunter-secret"
    samples: Sequence[JSON] = [{"user": secret, "tags": [secret], "map": {secret: secret}, "deep": [{secret: 1}]}]
    assert secret not in json.dumps(infer_schema(samples, depth=3))


class Order(TypedDict):
    """What a workflow may take."""

    order_id: str


@with_config(ConfigDict(extra="allow"))
class OpenOrder(TypedDict):
    """The same, and any other field."""

    order_id: str


@dataclass
class Parcel:
    """With a record inside."""

    order: Order


@pytest.mark.parametrize(("kind", "closed"), [(Order, True), (OpenOrder, False), (Parcel, True)])
def test_a_record_takes_no_field_that_its_class_would_drop(kind: type, closed: bool) -> None:
    schema = TypeAdapter[Any](kind).json_schema(schema_generator=ArgumentSchema)
    assert [schema, *schema.get("$defs", {}).values()] == [
        each | {"additionalProperties": not closed} for each in (schema, *schema.get("$defs", {}).values())
    ]
