"""Values checked by a JSON Schema that a stranger wrote: in time, and with a complaint instead of a failure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from mcp_workflows.patterns import LIMIT
from mcp_workflows.schema import check_schema, violations


def complaints(word: dict[str, Any], value: Any) -> list[str]:
    schema = {"type": "object", "properties": {"it": word}}
    return [error.message for error in violations(schema, {"it": value})]


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", r"^(\w+\s?)*$"])
def test_a_pattern_takes_no_longer_than_the_text_is(pattern: str) -> None:
    began = time.process_time()
    assert complaints({"type": "string", "pattern": pattern}, "a" * 28 + "!")
    assert time.process_time() - began < 5  # where each letter doubles it, this takes a minute


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [("b", "abc", "ac"), ("^(?=a)", "ab", "b"), (r"^(.)\1$", "aa", "ab"), (r"^\d{4}-\d\d$", "2026-07", "26-07")],
)
def test_a_pattern_is_looked_for_in_the_text_whatever_it_is_made_of(pattern: str, good: str, bad: str) -> None:
    word = {"type": "string", "pattern": pattern}
    assert not complaints(word, good)
    assert complaints(word, bad) == [f"{bad!r} does not match {pattern!r}"]
    assert complaints({"pattern": pattern}, 1) == []


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"^(?!.*\.\.)[a-z.]+$", "a.b", "a..b"),
        (r"(?<!\d)\d{2}(?!\d)", "a12b", "a123"),
        (r"^(\w)\w*\1$", "abca", "abcd"),
        (r"^(?=a{e})", "a{e}", "ae"),  # no words of the engine's own
        (r"^(?=[[:alpha:]])", ":]", "x"),
        (r"^(?=a{2,3}$)", "aa", "aaaa"),
    ],
)
def test_a_pattern_that_looks_around_means_what_it_says(pattern: str, good: str, bad: str) -> None:
    assert not complaints({"pattern": pattern}, good)
    assert complaints({"pattern": pattern}, bad) == [f"{bad!r} does not match {pattern!r}"]


_ENDLESS = "^(?=(a|a)*$)"  # each letter doubles it
_LETTERS = "a" * 60 + "!"


_FOR_EVER: Sequence[tuple[dict[str, Any], Any]] = [
    ({"pattern": _ENDLESS}, _LETTERS),
    ({"not": {"pattern": _ENDLESS}}, _LETTERS),
    ({"anyOf": [{"items": {"pattern": _ENDLESS}}, {"maxItems": 1}]}, [_LETTERS] * 100),
    ({"patternProperties": {_ENDLESS: {}}}, {_LETTERS: 1}),
    ({"additionalProperties": False, "patternProperties": {_ENDLESS: {}}}, {_LETTERS: 1}),
    ({"propertyNames": {"pattern": _ENDLESS}}, {_LETTERS: 1}),
    ({"unevaluatedProperties": False, "allOf": [{"patternProperties": {_ENDLESS: {}}}]}, {_LETTERS: 1}),
]


@pytest.mark.parametrize(
    ("word", "value"),
    _FOR_EVER,
    ids=["text", "not", "any of", "names", "other names", "all names", "names left over"],
)
def test_a_pattern_that_looks_around_for_ever_is_given_up_and_told(word: dict[str, Any], value: Any) -> None:
    began = time.thread_time()
    [complaint] = complaints(word, value)
    assert complaint.startswith("takes too long to be checked by the pattern '^(")
    assert time.thread_time() - began < LIMIT + 1  # the rest is for slow machines; given up once, not for each text


_LEFT_OVER: Mapping[str, Any] = {
    "properties": {"a": {"type": "integer"}},
    "allOf": [{"patternProperties": {"^(x+)+$": {}}}, {"$ref": "#/$defs/more"}],
    "anyOf": [{"required": ["b"], "properties": {"b": {}}}, {"properties": {"c": {}}}],
    "if": {"required": ["d"]},
    "then": {"properties": {"d": {}}},
    "else": {"properties": {"e": {}}},
    "dependentSchemas": {"a": {"properties": {"f": {}}}},
    "unevaluatedProperties": False,
    "$defs": {"more": {"properties": {"g": {}}}},
}


@pytest.mark.parametrize(
    ("names", "left"),
    [
        ("", ""),
        ("a c e f g xxx", ""),
        ("b c d", ""),
        ("d e", "e"),
        ("f g", "f"),
        ("a h i", "h i"),
        ("x" * 60 + "!", "x" * 60 + "!"),
    ],
)
def test_names_that_no_schema_has_looked_at_are_found_in_time(names: str, left: str) -> None:
    wrong = [error.message for error in violations(_LEFT_OVER, dict.fromkeys(names.split(), 1))]
    told = ", ".join(map(repr, left.split()))
    assert wrong == ([f"Unevaluated properties are not allowed: {told}"] if left else [])


def test_what_took_too_long_does_not_count_for_the_next_value() -> None:
    assert complaints({"pattern": _ENDLESS}, _LETTERS)
    assert complaints({"pattern": _ENDLESS}, "aaa") == []


@pytest.mark.parametrize(
    "pattern", ["(", "a{99999999999999999999}", "(" * 5000 + ")" * 5000], ids=["open", "large", "deep"]
)
def test_what_is_no_pattern_is_a_complaint_wherever_it_is(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"not a JSON Schema: properties\.it\.pattern: "):
        check_schema({"type": "object", "properties": {"it": {"pattern": pattern}}})
    assert complaints({"format": "regex"}, pattern) == [f"{pattern!r} is not a 'regex'"]
    assert complaints({"pattern": pattern}, "a") == [f"cannot be checked, as this is no pattern: {pattern!r}"]


def test_a_text_that_is_too_long_for_a_pattern_is_not_tried_as_one() -> None:
    began = time.thread_time()
    [complaint] = complaints({"format": "regex"}, "(?i)" + "[a-\uffff]" * 10_000)
    assert complaint.endswith("is not a 'regex'")
    assert time.thread_time() - began < 5  # to try it takes more than a minute


def test_a_number_that_is_too_large_to_be_checked_is_a_complaint() -> None:
    assert complaints({"type": "number", "multipleOf": 0.5}, 10**400) == [
        "has a number that is too large to be checked"
    ]
