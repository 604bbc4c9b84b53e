"""What DBOS stores for us is JSON: types come back, and a row cannot make anything else run."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp_workflows_dbos import TypedJsonSerializer
from mcp_workflows_dbos.serializer import binary_places, numbers_beyond_json, plain
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    RootModel,
    SecretBytes,
    SecretStr,
    computed_field,
    field_validator,
)
from pydantic.alias_generators import to_camel

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
        datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
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


@pytest.mark.parametrize(
    "value",
    [
        "\ud800",
        {"\ud800": 1},
        reduce(lambda inner, _: [inner], range(5000), []),
        [10**5000],
        {1: object()},
        lambda: None,
    ],
)
def test_a_value_that_no_database_takes_or_that_cannot_come_back_is_refused(value: object) -> None:
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
    looks_like_a_type = {"a": {"$type": "os:system", "value": "id"}}
    assert plain(json.loads(SERIALIZER.serialize(looks_like_a_type))) == looks_like_a_type


class Level(IntEnum):
    LOW = 1


class Pair(Enum):
    ONE = (1, "one")


class Point(NamedTuple):
    x: int
    y: Any


class Fragile(Line):
    """A subclass, in fields of its base class."""

    packed: tuple[Point, ...] = ()


class Order(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="allow")
    order_id: int
    first_line: Line
    secret_note: str = Field(default="", exclude=True)
    shelf: int = Field(default=0, validation_alias=AliasChoices("rack", "shelf_no"), serialization_alias="shelfOut")
    any_value: Any = None
    where: Path = Path("a")
    by_number: dict[int, list[Path]] = Field(default_factory=dict[int, list[Path]])
    _seen: int = PrivateAttr(default=0)


SEEN = "_seen"  # a private attribute


class Doubled(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    number: int
    where: Path = Path("b")

    @computed_field
    @property
    def double(self) -> int:
        return 2 * self.number


T = TypeVar("T")


class Box(BaseModel, Generic[T]):
    content: T


class Orders(RootModel[list[Order]]):
    pass


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    age: int | str | float


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    age: int | str | float


class Owner(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


@dataclass(kw_only=True, slots=True, frozen=True)
class Weighed:
    weight: float
    tags: frozenset[str] = frozenset()
    parcel: Parcel | None = None


@dataclass
class Heavy(Parcel):
    by: dict[Size, int]
    total: int = field(init=False)

    def __post_init__(self) -> None:
        self.total = sum(self.by.values())


LINE = Line(name="a", at=NOW)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
ZONES = st.sampled_from([None, UTC, timezone(timedelta(hours=-3, minutes=-30)), ZoneInfo("Europe/Berlin")])
TIMES = st.datetimes(timezones=ZONES).map(lambda at: at.replace(fold=0))  # `==` ignores the fold
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    TEXT,
    st.binary(),
    st.decimals(),
    st.uuids(),
    st.dates(),
    TIMES,
    st.times(),
    st.timedeltas(),
    st.sampled_from([*Size, *Level, *Pair]),
)
LINES = st.one_of(st.builds(Line, name=TEXT, at=TIMES), st.builds(Fragile, name=TEXT, at=st.just(NOW)))
KEYS = st.one_of(TEXT, st.integers(), st.uuids(), st.sampled_from([*Size, *Level]), st.tuples(st.integers(), TEXT))


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Values of pydantic and dataclass types around other values."""
    lines = st.lists(LINES, max_size=2)
    orders = st.fixed_dictionaries(
        {
            "orderId": st.integers(),
            "firstLine": LINES,
            "anyValue": inner,
            "secretNote": TEXT,
            "more": inner,
            "byNumber": st.dictionaries(st.integers(), st.just([Path("c")]), max_size=2),
        }
    ).map(Order.model_validate)
    return st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(KEYS, inner, max_size=3),
        st.sets(st.one_of(st.integers(), TEXT), max_size=3),
        st.builds(Point, x=st.integers(), y=inner),
        orders,
        st.builds(Orders, st.lists(orders, max_size=2)),
        st.builds(Doubled, number=st.integers()),
        st.builds(Box[int], content=st.integers()),
        st.builds(Box[Line], content=LINES),
        st.builds(Owner, pet=st.builds(Cat, age=st.one_of(st.integers(), st.floats(), TEXT))),
        st.builds(Weighed, weight=st.floats(), tags=st.frozensets(TEXT), parcel=st.builds(Parcel, lines=lines)),
        st.builds(Heavy, lines=lines, by=st.dictionaries(st.sampled_from(Size), st.integers())),
    )


@settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.recursive(LEAVES, containers, max_leaves=8))
def test_what_is_stored_comes_back_equal(value: Any) -> None:
    back = SERIALIZER.deserialize(SERIALIZER.serialize(value))
    assert type(back) is type(value)
    assert repr_of_sorted_sets(back) == repr_of_sorted_sets(value)


def repr_of_sorted_sets(value: Any) -> Any:
    """A value whose `==` tells 1 from 1.0 and knows NaN; sets have no order."""
    if isinstance(value, Weighed):
        return value.weight.hex(), sorted(value.tags), repr_of_sorted_sets(value.parcel)
    if isinstance(value, BaseModel):
        fields = {name: repr_of_sorted_sets(getattr(value, name)) for name in type(value).model_fields}
        return type(value), fields, repr_of_sorted_sets(value.model_extra), value.model_fields_set
    match value:
        case set() | frozenset():
            return sorted(repr(each) for each in iter_of(value))
        case datetime() | time():
            return value.replace(fold=0).isoformat(), value.utcoffset(), getattr(value.tzinfo, "key", None)
        case list() | tuple():
            return kind_of(value), [repr_of_sorted_sets(each) for each in iter_of(value)]
        case dict():
            return [repr_of_sorted_sets(each) for each in iter_of(value.items())]
        case _:
            return repr(value)


def kind_of(value: Any) -> type[Any]:
    return cast("type[Any]", value.__class__)


def iter_of(value: Any) -> list[Any]:
    return list(value)


def test_private_attributes_and_unset_fields_come_back() -> None:
    order = Order.model_validate({"orderId": 1, "firstLine": LINE})
    setattr(order, SEEN, 3)
    back = SERIALIZER.deserialize(SERIALIZER.serialize(order))
    assert (back, getattr(back, SEEN)) == (order, 3)
    assert back.model_dump(exclude_unset=True) == order.model_dump(exclude_unset=True)


def test_callers_see_models_by_the_names_of_their_schema() -> None:
    order = Order.model_validate(
        {"orderId": 1, "firstLine": Fragile(name="a", at=NOW), "secretNote": "hidden", "rack": 2}
    )
    shown = plain(json.loads(SERIALIZER.serialize([order, Doubled(number=2)])))
    assert shown[0] == order.model_dump(mode="json", by_alias=True)
    assert shown[0].keys() >= {"orderId", "firstLine", "shelfOut"}
    assert "secretNote" not in shown[0]
    assert shown[1] == {"number": 2, "where": "b", "double": 4}


class Account(BaseModel):
    password: SecretStr = SecretStr("p")
    key: SecretBytes = SecretBytes(b"k")


class Counted(BaseModel):
    number: int
    calls: ClassVar[int] = 0

    @field_validator("number")
    @classmethod
    def add_one(cls, value: int) -> int:
        return value + 1


class Words(BaseModel):
    words: list[str]

    @field_validator("words", mode="before")
    @classmethod
    def split(cls, value: Any) -> Any:
        return value.split(",")


@dataclass
class Seeded:
    number: int
    seed: InitVar[int]


@dataclass
class Hidden:
    value: Any
    secret: str = field(default="", repr=False)


@pytest.mark.parametrize(
    ("value", "places"),
    [
        (Account(), ["password"]),
        ({"a": [Hidden(Account())]}, ["a[0].value.password"]),
        ([Counted(number=1)], ["[0].number"]),
        ({"w": (1, Words(words="a,b"))}, ["w[1]"]),  # pyright: ignore[reportArgumentType]  # a validator takes it
        ({"s": Seeded(1, 2)}, ["s", "seed"]),
        ({"h": Hidden(object())}, ["h.value"]),
        ({"a": [Path("x")]}, ["a[0]"]),
        ([Box[list[int]](content=[1])], ["[0]", "Box"]),
        ([Line.model_construct(name=1, at=NOW)], ["[0]", "name"]),
        (Point(1, SecretStr("s")), ["[1]"]),
    ],
)
def test_what_would_come_back_different_is_refused_with_its_place(value: object, places: Sequence[str]) -> None:
    with pytest.raises(TypeError, match="cannot be stored") as refused:
        SERIALIZER.serialize(value)
    assert all(place in str(refused.value) for place in places)


class TouchyError(Exception):
    def __init__(self, value: object) -> None:
        if isinstance(value, str):
            raise ValueError("no text")  # a class as users write it
        super().__init__(str(value))


@pytest.mark.parametrize("error", [TouchyError(1), DeclinedError(Words(words="a,b"))])  # pyright: ignore[reportArgumentType]  # as above
def test_an_error_that_cannot_be_made_again_keeps_its_text(error: Exception) -> None:
    back = SERIALIZER.deserialize(SERIALIZER.serialize(error))
    assert type(back).__name__ == "RecordedError"
    assert str(back) == str(error)


def test_bytes_that_are_no_text_are_shown_as_base64_and_found_with_their_place() -> None:
    stored = json.loads(SERIALIZER.serialize({"a": [b"text", b"\xff"], 1: {"b": b"\xfe"}}))
    assert plain(stored) == {"a": ["text", "/w=="], "1": {"b": "/g=="}}
    assert [*binary_places(stored)] == ["a[1]", "[1].b"]


def test_rows_of_earlier_versions_are_read() -> None:
    row = {
        "$type": f"{__name__}:Parcel",
        "value": {"lines": [{"name": "a", "at": "2026-01-02T03:04:05Z"}], "size": "small"},
    }
    assert SERIALIZER.deserialize(json.dumps(row)) == Parcel(lines=[LINE], size=Size.SMALL)


def test_pydantic_checks_the_fields_of_a_row() -> None:
    row = {"$type": f"{__name__}:Line", "value": {"name": [1], "at": "now"}, "private": {"__class__": 1, "name": 2}}
    with pytest.raises(ValueError, match="2 validation errors"):
        SERIALIZER.deserialize(json.dumps(row))
