"""What DBOS stores for us is JSON: types come back, and a row cannot make anything else run."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from functools import reduce
from typing import Any
from uuid import UUID

import pytest
from mcp_workflows_dbos import TypedJsonSerializer
from mcp_workflows_dbos.serializer import numbers_beyond_json, plain
from pydantic import BaseModel

SERIALIZER = TypedJsonSerializer()


class Size(StrEnum):
    SMALL = "small"


class Line(BaseModel):
    name: str
    at: datetime


@dataclass
class Parcel:
    lines: list[Line]
    size: Size


class DeclinedError(Exception):
    pass


class OddError(Exception):
    def __init__(self, one: object, *, other: int) -> None:
        super().__init__(one)
        self.other = other


NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"a": [1, 2.5, "x", True, None]},
        (1, (2, 3)),
        {1, 2},
        NOW,
        timedelta(seconds=90),
        Decimal("1.10"),
        UUID(int=7),
        b"bytes",
        Size.SMALL,
        Line(name="a", at=NOW),
        Parcel(lines=[Line(name="a", at=NOW)], size=Size.SMALL),
        {"args": (Line(name="a", at=NOW),), "kwargs": {"size": Size.SMALL}},
        {"$type": "builtins:dict", "value": {"$type": 1}},
    ],
)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    back = SERIALIZER.deserialize(SERIALIZER.serialize(value))
    assert back == value
    assert type(back) is type(value)


def test_an_error_comes_back_as_its_class_if_that_is_loaded() -> None:
    back = SERIALIZER.deserialize(SERIALIZER.serialize(DeclinedError("no", 3)))
    assert (type(back), back.args) == (DeclinedError, ("no", 3))
    text = SERIALIZER.serialize(DeclinedError("no")).replace("DeclinedError", "RenamedError")
    assert str(SERIALIZER.deserialize(text)) == "no"
    assert str(SERIALIZER.deserialize(SERIALIZER.serialize(OddError("no", other=1)))) == "no"
    assert str(SERIALIZER.deserialize(SERIALIZER.serialize(OddError(object(), other=1)))).startswith("<object")


@pytest.mark.parametrize("value", [object(), {1: 2}, lambda: None, [object()]])
def test_what_cannot_come_back_is_refused_when_it_is_stored(value: object) -> None:
    with pytest.raises(TypeError, match="cannot be stored"):
        SERIALIZER.serialize(value)


@pytest.mark.parametrize(
    "row",
    [
        {"$type": "os:system", "value": "id"},
        {"$type": "subprocess:Popen", "value": ["id"]},
        {"$type": "builtins:eval", "value": "1"},
        {"$type": "antigravity:anything", "value": 1},
        {"$type": "pathlib:Path", "value": "/"},
        {"$type": "builtins:BaseException", "name": "subprocess:Popen", "message": "m", "args": [["id"]]},
        {"$type": "builtins:BaseException", "name": "builtins:SystemExit", "message": "m", "args": [3]},
    ],
)
def test_a_row_makes_nothing_but_values_and_errors(row: dict[str, Any]) -> None:
    if row["$type"] == "builtins:BaseException":
        assert type(SERIALIZER.deserialize(json.dumps(row))).__name__ == "RecordedError"
    else:
        with pytest.raises(TypeError, match="is not loaded, or is no type"):
            SERIALIZER.deserialize(json.dumps(row))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_number_that_json_lacks_is_stored_as_its_name(value: float) -> None:
    text = SERIALIZER.serialize({"value": value})
    assert plain(json.loads(text)) == {"value": str(value)}
    back = SERIALIZER.deserialize(text)["value"]
    assert back == value or (math.isnan(back) and math.isnan(value))


def test_a_value_that_looks_like_a_type_is_seen_as_it_is() -> None:
    value = {"a": {"$type": "os:system", "value": "id"}}
    assert plain(json.loads(SERIALIZER.serialize(value))) == value


@pytest.mark.parametrize(
    "value", ["\ud800", {"\ud800": 1}, reduce(lambda inner, _: [inner], range(5000), []), [10**5000]]
)
def test_a_value_that_no_database_takes_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="cannot be stored"):
        SERIALIZER.serialize(value)


def test_a_number_that_json_lacks_is_found_with_its_place_in_any_format() -> None:
    text = SERIALIZER.serialize({"a": [1.5, ({"b": math.nan},)]})
    lacks = "which JSON does not have: use None or a text"
    assert [*numbers_beyond_json(json.loads(text))] == [f"a[1][0].b is NaN, {lacks}"]
    assert [*numbers_beyond_json(json.loads('[1, -Infinity, "nan"]'))] == [f"[1] is an infinite number, {lacks}"]
    assert [*numbers_beyond_json(json.loads('{"$type": "builtins:float", "value": "no number"}'))] == []


def test_callers_see_values_without_the_names_of_types() -> None:
    stored = json.loads(SERIALIZER.serialize({"parcel": Parcel(lines=[], size=Size.SMALL), "when": (NOW,)}))
    assert plain(stored) == {"parcel": {"lines": [], "size": "small"}, "when": ["2026-01-02T03:04:05Z"]}
