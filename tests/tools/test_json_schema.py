"""Checks of values by JSON Schemas, both perhaps by strangers: right, in bounded time, and with a clear complaint."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator as Other

from mcp_workflows.tools.json_schema import (
    ENDLESS,
    LIMIT,
    LONGEST,
    MAX_STEPS,
    Checker,
    check_schema,
    cost_of,
    count_values,
    excess,
    is_object,
    is_quick,
    violations,
)

SLOW_MACHINE = 3  # seconds on top of what it should take: for machines that do several things at once


def complaints(word: Any, value: Any) -> Sequence[str]:
    schema = {"type": "object", "properties": {"it": word}}
    return [text.removeprefix("it: ") for text in violations(schema, {"it": value})]


# --- what is wrong


@pytest.mark.parametrize(
    ("word", "value", "wrong"),
    [
        ({"type": "integer"}, "a", ['"a" is not of type "integer"']),
        ({"type": "integer"}, "a" * 100, ['it is not of type "integer"']),
        (
            {"items": {"type": "string"}},
            ["a", 1, 2],
            ['it[1]: 1 is not of type "string"', 'it[2]: 2 is not of type "string"'],
        ),
        (
            {"prefixItems": [{}, {"const": 1}], "items": False},
            [0, 0, 0],
            ["it[1]: 1 was expected", "it[2]: is not allowed here"],
        ),
        ({"required": ["a", "b"]}, {}, ["'a' is a required property", "'b' is a required property"]),
        (
            {"additionalProperties": False, "properties": {"a": {}}},
            {"b": 1},
            ["additional properties are not allowed, such as 'b'"],
        ),
        ({"additionalProperties": {"type": "null"}}, {"b": 1}, ['it.b: 1 is not of type "null"']),
        ({"patternProperties": {"^a": {"minimum": 2}}}, {"ab": 1, "b": 1}, ["it.ab: 1 is less than the minimum of 2"]),
        (
            {"allOf": [{"minLength": 2}, {"pattern": "b"}]},
            "a",
            ['"a" is shorter than 2 characters', '"a" does not match "b"'],
        ),
        (
            {"anyOf": [{"type": "null"}, {"properties": {"n": {"type": "integer"}}, "type": "object"}]},
            {"n": "1"},
            ['it.n: "1" is not of type "integer"'],
        ),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 5, ["matches none of the alternatives (anyOf)"]),
        ({"oneOf": [{"minimum": 1}, {"maximum": 5}]}, 3, ["does not match exactly one of the alternatives (oneOf)"]),
        ({"not": {"const": 1}}, 1, ["is what its schema excludes (not)"]),
        ({"contains": {"const": 1}}, [0], ["has too few or too many items of a kind (contains)"]),
        ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, {"a": 1}, ["does not match its schema"]),
        ({"dependentSchemas": {"a": {"required": ["b"]}}}, {"a": 1}, ["'b' is a required property"]),
        ({"uniqueItems": True}, [1, 1.0], ["it has non-unique elements"]),
        (
            {"properties": {"a/b ~%\u00e9": {"type": "null"}}},
            {"a/b ~%\u00e9": 1},
            ['it.a/b ~%\u00e9: 1 is not of type "null"'],
        ),
        ({"format": "date"}, "tomorrow", ['"tomorrow" is not a "date"']),
        ({"format": "date-time"}, "2026-02-30T00:00:00", ['"2026-02-30T00:00:00" is not a "date-time"']),
        ({"format": "time"}, "25:00:00", ['"25:00:00" is not a "time"']),
        (False, 1, ["is not allowed here"]),
    ],
)
def test_a_complaint_says_where_and_what(word: Any, value: Any, wrong: Sequence[str]) -> None:
    assert complaints(word, value) == wrong
    assert not _others(word, formats=True)(value)


def test_of_alternatives_told_apart_by_a_name_the_one_that_was_meant_is_explained() -> None:
    card = {"type": "object", "properties": {"kind": {"const": "card"}, "number": {"pattern": "^[0-9]{4}$"}}}
    cash = {"type": "object", "properties": {"kind": {"const": "cash"}, "amount": {"type": "integer"}}}
    for word in ("oneOf", "anyOf"):
        wrong = complaints({word: [card, cash, {"type": "null"}]}, {"kind": "card", "number": "12"})
        assert wrong == ['it.number: "12" does not match "^[0-9]{4}$"']


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("duration", each) for each in ("P1D", "PT0.5S", "-PT5S", "P1DT2H3.5S")),
        ("hostname", "redis_1"),
        ("date-time", "2026-01-02T03:04:05.5+01:00"),
        *(("date-time", each) for each in ("2026-01-02T03:04:05", "2026-01-02T03:04:05.123456")),
        *(("time", each) for each in ("03:04:05", "03:04:05.5", "03:04:05Z")),
        ("email", "a@example.com"),
        ("uri", "mailto:a@example.com"),
    ],
)
def test_what_programs_write_in_a_format_is_taken(name: str, value: str) -> None:
    assert not complaints({"type": "string", "format": name}, value)


def test_a_reference_is_followed_to_what_is_wrong() -> None:
    schema = {
        "$id": "https://example.com/order",
        "type": "object",
        "properties": {"lines": {"items": {"$ref": "#/$defs/line"}}},
        "$defs": {"line": {"properties": {"count": {"type": "integer"}, "more": {"$ref": "#"}}}},
    }
    assert not violations(schema, {"lines": [{"count": 1}]})
    wrong = violations(schema, {"lines": [{"count": 1}, {"count": "x", "more": {"lines": [{"count": "y"}]}}]})
    assert wrong == [
        'lines[1].count: "x" is not of type "integer"',
        'lines[1].more.lines[0].count: "y" is not of type "integer"',
    ]


_WORDS = st.sampled_from(["a", "b", "c"])
_LEAVES = st.sampled_from(
    [
        *({"type": name} for name in ("string", "integer", "null", "object", "array")),
        *(
            {"const": 1},
            {"enum": ["a", 1, None]},
            {"minimum": 1},
            {"minLength": 2},
            {"required": ["a"]},
            {"maxItems": 1},
        ),
        *(
            {"pattern": "a"},
            {"uniqueItems": True},
            {"minProperties": 1},
            {"$ref": "#/$defs/leaf"},
            {"$ref": "#"},
            {},
            True,
            False,
        ),
    ]
)
_SEVERAL = st.sampled_from(["allOf", "anyOf", "oneOf"])
_ONE = st.sampled_from(["not", "items", "contains", "additionalProperties", "unevaluatedProperties", "if"])


def _under(word: str, found: Any) -> dict[str, Any]:
    return {word: found}


def _both(one: Any, other: Any) -> Any:
    return {**one, **other} if is_object(one) and is_object(other) else one


def _either(condition: Any, one: Any, other: Any) -> dict[str, Any]:
    return {"if": condition, "then": one, "else": other}


def _around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(_under, st.just("properties"), st.dictionaries(_WORDS, inner, max_size=2)),
        st.builds(_under, _SEVERAL, st.lists(inner, min_size=1, max_size=2)),
        st.builds(_under, _ONE, inner),
        st.builds(_both, inner, inner),
        st.builds(_either, inner, inner, inner),
    )


def _others(schema: Any, *, formats: bool = False) -> Callable[[Any], bool]:
    """Whether a value is valid to an implementation that is not ours."""
    checker = Other.FORMAT_CHECKER if formats else None
    return cast("Callable[[Any], bool]", Other(schema, format_checker=checker).is_valid)  # pyright: ignore[reportUnknownMemberType]


_SCHEMAS: st.SearchStrategy[Any] = st.recursive(_LEAVES, _around, max_leaves=6)
_DATA = st.recursive(
    st.sampled_from([None, True, 0, 1, 2.5, "", "a", "abc"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(_SCHEMAS, _DATA)
def test_a_value_is_right_exactly_when_another_implementation_says_so(word: Any, value: Any) -> None:
    schema = {"allOf": [word], "$defs": {"leaf": {"type": "string"}}}
    assume(cost_of(schema) < ENDLESS)  # `check_schema` refuses the others, which refer to themselves without end
    try:
        expected = _others(schema)(value)
    except RecursionError:  # it follows references in a circle, where the cost is bounded all the same
        reject()
    assert (not Checker(schema).violations(value)) is expected


# --- in bounded time and memory: what a request of a megabyte can hold

_TEXT_OR_TEXTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
_TREE = {
    "$ref": "#/$defs/tree",
    "$defs": {"tree": {"anyOf": [{"type": "string"}, {"items": {"$ref": "#/$defs/tree"}, "type": "array"}]}},
}
_KINDS = {"items": {"oneOf": [{"type": "object", "required": [each]} for each in "ab"] + [{"type": "null"}]}}


def _escaped(times: int) -> str:
    text = "[]"
    for _ in range(times):
        text = json.dumps([text])
    return text


_ESCAPED = _escaped(16)


def _deep(depth: int, inner: Any) -> Any:
    for _ in range(depth):
        inner = [inner]
    return inner


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (_TEXT_OR_TEXTS, lambda: [1] * 450_000),
        (_TREE, lambda: _deep(95, [1] * 400_000)),
        (_KINDS, lambda: [None] * 95_000 + [1]),
        ({"uniqueItems": True}, lambda: [{"a": i} for i in range(90_000)] + [{"a": 7.0}]),
        ({"items": {"anyOf": [{"const": i} for i in range(1000)]}}, lambda: [999] * 240_000),
        (
            {"additionalProperties": False, "patternProperties": {"^(a+)+$": {}}},
            lambda: {f"{'a' * 9}{i}": 1 for i in range(60_000)},
        ),
    ],
    ids=["any of", "deep", "one wrong", "unique", "consts", "names"],
)
def test_a_large_value_is_checked_in_little_time_and_memory(word: dict[str, Any], value: Callable[[], Any]) -> None:
    defs = {"$defs": word.get("$defs", {})}
    checker = Checker({"type": "object", "properties": {"it": word}, **defs})
    large = {"it": value()}
    began = time.thread_time()
    checker.violations(large)
    assert time.thread_time() - began < 0.25 + SLOW_MACHINE
    tracemalloc.start()
    checker.violations(large)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40_000_000


def test_what_a_check_costs_is_known_before_it_is_made() -> None:
    assert count_values({"a": [1, {"b": 2}], "c": "d"}) == 6
    assert count_values(1) == 1
    schema = {"type": "object", "properties": {"it": {"items": {"anyOf": [{"const": i} for i in range(1000)]}}}}
    [wrong] = violations(schema, {"it": [1] * 100_000})
    assert wrong.startswith("has 100002 values, and at most ")
    assert not violations(schema, {"it": [1] * 300})


_CHAIN = {f"d{n}": {"items": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2}} for n in range(30)}


@pytest.mark.parametrize(
    ("schema", "dear"),
    [
        ({"properties": {f"p{n}": {"type": "string"} for n in range(2000)}}, False),
        ({"anyOf": [{"required": [f"p{n}"]} for n in range(2000)]}, True),
        ({"$defs": {**_CHAIN, "d30": {}}, "$ref": "#/$defs/d0"}, True),  # each level of a value doubles it
        ({"$defs": {"n": {"properties": {"next": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"}, False),
        ({"$ref": "#"}, True),
        ({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"not": {"$ref": "#/allOf/0"}}}}, True),
        ({"$ref": "https://example.com/"}, True),
    ],
    ids=["properties", "alternatives", "chain", "list", "itself", "in turn", "elsewhere"],
)
def test_schemas_that_cost_too_much_are_told_from_others(schema: dict[str, Any], dear: bool) -> None:
    assert (cost_of(schema) > MAX_STEPS) is dear
    assert (excess(schema) is not None) is dear


def test_a_schema_with_many_long_patterns_is_too_much_from_a_stranger() -> None:
    schema = {"properties": {f"p{n}": {"pattern": "[a-z]" * 20} for n in range(11)}}
    assert excess(schema) == "its patterns are 1100 characters together, and at most 1000 are accepted"


# --- values as hosts send them

_ITEM: dict[str, Any] = {
    "type": "object",
    "properties": {"sku": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["sku"],
    "additionalProperties": False,
}
_A = {"type": "object", "properties": {"kind": {"const": "a"}, "item": _ITEM}, "required": ["kind", "item"]}
_B = {"type": "object", "properties": {"kind": {"const": "b"}, "ns": {"items": {"type": "integer"}}}}
_P = {"type": "object", "properties": {"p": {"type": "integer"}}, "required": ["p"]}
_Q = {"type": "object", "properties": {"q": {"type": "array"}}, "required": ["q"]}
_I: dict[str, Any] = {"$ref": "#/$defs/item"}


def normalized(word: Any, value: Any) -> Any:
    schema = {"type": "object", "properties": {"it": word}, "$defs": {"item": _ITEM}}
    return Checker(schema).normalize({"it": value}).get("it", "absent")


_TEXTS: list[tuple[Any, Any, Any]] = [  # Any: JSON
    ({"items": _I, "type": "array"}, '[{"sku": "a"}]', [{"sku": "a"}]),
    ({"items": _I, "type": "array"}, ['{"sku": "a"}', {"sku": "b"}], [{"sku": "a"}, {"sku": "b"}]),
    ({"prefixItems": [_I, {"type": "array"}], "type": "array"}, ['{"sku": "a"}', "[]"], [{"sku": "a"}, []]),
    (_I, ' {"sku": "a", "count": null} ', {"sku": "a"}),
    ({"anyOf": [_I, {"type": "null"}]}, '{"sku": "a"}', {"sku": "a"}),
    ({"allOf": [{"type": "object"}, _I]}, '{"sku": "a"}', {"sku": "a"}),
    ({"type": ["array", "null"]}, "[1]", [1]),
    ({"type": "object", "additionalProperties": _I}, {"x": '{"sku": "a"}'}, {"x": {"sku": "a"}}),
    ({"type": "object", "patternProperties": {"^x": _I}}, {"x": '{"sku": "a"}'}, {"x": {"sku": "a"}}),
    ({"oneOf": [_A, _B]}, {"kind": "a", "item": '{"sku": "a"}'}, {"kind": "a", "item": {"sku": "a"}}),
    ({"anyOf": [_P, _Q]}, {"q": "[]"}, {"q": []}),
    ({"anyOf": [_P, _Q]}, '{"q": "[1]"}', {"q": [1]}),
    ({"type": "integer"}, "5", 5),
    ({"type": "boolean"}, "true", True),
    ({"enum": [1, 2]}, "2", 2),
    ({"type": "array", "items": _I}, '[{"sku": 1}]', [{"sku": 1}]),  # whose error says more
]


@pytest.mark.parametrize(("word", "text", "value"), _TEXTS)
def test_a_text_is_read_as_json_where_no_text_is_accepted(word: Any, text: Any, value: Any) -> None:
    assert normalized(word, text) == value


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ({"type": "string"}, "[1]"),
        ({"type": ["string", "array"]}, "[1]"),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, "[1]"),
        ({"enum": ["[1]", 1]}, "[1]"),
        ({}, "[1]"),
        ({"type": "array"}, "not json"),
        ({"type": "array"}, "a,b"),
        ({"type": "array"}, '{"a": 1}'),
        ({"type": "array"}, "5"),
        ({"type": "integer"}, "5.5"),
        ({"type": "integer"}, "five"),
        ({"type": "integer"}, "null"),
        ({"type": "object"}, '{"a": 1, "a": 2}'),
        ({"type": "number"}, "NaN"),
        ({"type": "array"}, "[Infinity]"),
        ({"type": "array"}, "[1e999]"),
        ({"type": "array"}, '["\\ud800"]'),
        ({"type": "array"}, "[" * 81 + "]" * 81),
        ({"type": "array"}, "[" * 200_000),
        ({"type": "integer"}, "1" * 5000),
        ({"type": "array"}, "\u202e[1]"),
    ],
)
def test_any_other_text_stays_a_text(word: Any, text: str) -> None:
    assert normalized(word, text) == text


def test_null_is_dropped_only_for_an_optional_property_that_does_not_accept_it() -> None:
    assert normalized({"type": "integer"}, None) == "absent"
    assert normalized({"anyOf": [{"type": "integer"}, {"type": "string"}]}, None) == "absent"
    assert normalized({"type": ["integer", "null"]}, None) is None
    assert normalized(_I, {"sku": None, "count": None}) == {"sku": None}
    assert normalized({"items": _I}, [{"sku": "a", "count": None}]) == [{"sku": "a"}]
    assert normalized({"type": "object", "additionalProperties": {"type": "string"}}, {"x": None}) == {"x": None}
    assert normalized({"items": {"type": "string"}}, [None]) == [None]


HOSTS = {"toolCallId": "call_1", "sessionId": "s", "action": "sendMessage", "chatInput": "hi"}


def test_members_that_hosts_add_are_dropped_where_the_schema_refuses_them() -> None:
    assert Checker(_ITEM).normalize({"sku": "a", **HOSTS}) == {"sku": "a"}
    assert Checker({"type": "object", "allOf": [_ITEM]}).normalize({"sku": "a", **HOSTS}) == {"sku": "a"}
    numbers = {"type": "object", "additionalProperties": {"type": "integer"}}
    assert Checker(numbers).normalize({"action": 1, "toolCallId": "x"}) == {"action": 1}
    closed = Checker({"type": "object", "additionalProperties": False})
    assert closed.normalize({"action": "cancel"}) == {"action": "cancel"}, "no host added it"
    declared = {**_ITEM, "properties": {**_ITEM["properties"], "action": {"enum": ["accept"]}}}
    assert Checker(declared).normalize({"sku": "a", **HOSTS}) == {"sku": "a", "action": "sendMessage"}
    open_schemas: list[dict[str, Any]] = [{"type": "object"}, {"type": "object", "patternProperties": {"": {}}}]
    for open_schema in open_schemas:
        assert Checker(open_schema).normalize(HOSTS) == HOSTS
    for strange in ({"sku": "a", "toolcallid": 1}, {"sku": "a", "tool": 1}):
        assert Checker(_ITEM).normalize(strange) == strange
    assert normalized(_ITEM, {"sku": "a", "action": 1}) == {"sku": "a", "action": 1}, "hosts add them at the top"


@settings(max_examples=100, deadline=None)
@given(_SCHEMAS, _DATA)
def test_a_valid_value_is_not_touched_and_a_normalized_one_not_again(word: Any, value: Any) -> None:
    schema = {"allOf": [word], "$defs": {"leaf": {"type": "string"}}}
    assume(cost_of(schema) < ENDLESS)
    checker = Checker(schema)
    found = checker.normalize(value)
    assert found is value or checker.violations(value)
    if not checker.violations(found):
        assert checker.normalize(found) is found


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ({"type": "array", "items": {"type": "string"}}, lambda: f"[{'1,' * 400_000}1]"),
        ({"type": "array", "items": {"type": "array"}}, lambda: ["["] * 60_000),
        ({"type": "array", "items": _ITEM}, lambda: [{"sku": "a", "count": None}] * 20_000),
        ({"type": "array"}, lambda: f"[{_ESCAPED}]"),
    ],
    ids=["1 MB", "no JSON", "nulls", "texts in texts"],
)
def test_a_large_value_is_normalized_in_little_time(word: dict[str, Any], value: Callable[[], Any]) -> None:
    checker = Checker({"type": "object", "properties": {"it": word}, "$defs": word.get("$defs", {})})
    large = {"it": value()}
    began = time.thread_time()
    checker.normalize(large)
    assert time.thread_time() - began < 0.5 + SLOW_MACHINE


# --- patterns


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", r"^(\w+\s?)*$"])
def test_a_pattern_takes_no_longer_than_the_text_is(pattern: str) -> None:
    began = time.thread_time()
    assert complaints({"type": "string", "pattern": pattern}, "a" * 900_000 + "!")
    assert time.thread_time() - began < SLOW_MACHINE  # where each letter doubles it, nobody lives to see it


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("b", "abc", "ac"),
        ("^(?=a)", "ab", "b"),
        (r"^(.)\1$", "aa", "ab"),
        (r"^\d{4}-\d\d$", "2026-07", "26-07"),
        (r"^\p{L}{1,50}$", "\u00e9", "1"),
        (r"^(?!.*\.\.)[a-z.]+$", "a.b", "a..b"),
        (r"(?<!\d)\d{2}(?!\d)", "a12b", "a123"),
        (r"^(\w)\w*\1$", "abca", "abcd"),
        (r"^(?=a{2,3}$)", "aa", "aaaa"),
    ],
)
def test_a_pattern_is_looked_for_in_the_text_whatever_it_is_made_of(pattern: str, good: str, bad: str) -> None:
    word = {"type": "string", "pattern": pattern}
    assert not complaints(word, good)
    [wrong] = complaints(word, bad)
    assert "does not match" in wrong
    assert complaints({"pattern": pattern}, 1) == []


_ENDLESS = r"^(\w+\s?)*\1$"  # each letter doubles it
_LETTERS = "ab " * 30 + "!"
_FOR_EVER: Sequence[tuple[dict[str, Any], Any]] = [
    ({"pattern": _ENDLESS}, _LETTERS),
    ({"not": {"pattern": _ENDLESS}}, _LETTERS),
    ({"anyOf": [{"items": {"pattern": _ENDLESS}}, {"maxItems": 1}]}, [_LETTERS] * 1000),
    ({"propertyNames": {"pattern": _ENDLESS}}, {_LETTERS: 1}),
    ({"pattern": _ENDLESS}, "a" * (LONGEST + 1)),
]


@pytest.mark.parametrize(("word", "value"), _FOR_EVER, ids=["text", "not", "any of", "all names", "long"])
def test_a_slow_pattern_is_given_up_and_told(word: dict[str, Any], value: Any) -> None:
    began = time.thread_time()
    [complaint] = complaints(word, value)
    assert complaint.startswith(r"takes too long to check against the pattern '^(\\w")
    assert time.thread_time() - began < LIMIT + SLOW_MACHINE
    assert complaints({"pattern": _ENDLESS}, "aa") == []  # what was given up does not count for the next value


def test_names_cannot_be_checked_by_slow_patterns() -> None:
    assert not is_quick(_ENDLESS)
    with pytest.raises(ValueError, match=r"patternProperties: .* in bounded time"):
        check_schema({"type": "object", "patternProperties": {_ENDLESS: {}}})


@pytest.mark.parametrize(
    "pattern", ["(", "a{99999999999999999999}", "(" * 5000 + ")" * 5000], ids=["open", "large", "deep"]
)
def test_what_is_no_pattern_is_a_complaint_wherever_it_is(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"not a JSON Schema: properties\.it\.pattern: "):
        check_schema({"type": "object", "properties": {"it": {"pattern": pattern}}})
    assert complaints({"pattern": pattern}, "a")[0].startswith("cannot be checked, as its schema is wrong: ")


# --- schemas


@pytest.mark.parametrize(
    ("schema", "wrong"),
    [
        ({"properties": {"a": {"type": "strin"}}}, "not a JSON Schema: properties.a.type: "),
        ({"$ref": "#/$defs/x"}, "a $ref is not in this schema: inline its target in $defs"),
        ({"$ref": "http://127.0.0.1:1/x.json"}, "a $ref is not in this schema"),
        ({"$ref": "file:///etc/passwd"}, "a $ref is not in this schema"),
        ({"allOf": [{"$ref": "#"}]}, "a $ref in it loops"),
        ({"title": "\ud800"}, "not a JSON Schema: "),
        ({"type": "array"}, "must be a JSON Schema of an object"),
    ],
)
def test_a_wrong_schema_is_told(schema: Mapping[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011  # its text is looked at
        check_schema({"type": "object", **schema})
    assert str(raised.value).startswith(wrong)
