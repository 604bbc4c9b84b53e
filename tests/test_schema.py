"""Values checked by a JSON Schema that a stranger wrote: in time, and with a complaint instead of a failure."""

from __future__ import annotations

import time
from typing import Any

import pytest

from mcp_workflows.schema import violations


def complaints(word: dict[str, Any], value: Any) -> list[str]:
    schema = {"type": "object", "properties": {"it": word}}
    return [error.message for error in violations(schema, {"it": value})]


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", r"^(\w+\s?)*$"])
def test_a_pattern_takes_no_longer_than_the_text_is(pattern: str) -> None:
    began = time.perf_counter()
    assert complaints({"type": "string", "pattern": pattern}, "a" * 28 + "!")
    assert time.perf_counter() - began < 1  # where each letter doubles it, this takes a minute


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [("b", "abc", "ac"), ("^(?=a)", "ab", "b"), (r"^(.)\1$", "aa", "ab"), (r"^\d{4}-\d\d$", "2026-07", "26-07")],
)
def test_a_pattern_is_looked_for_in_the_text_whatever_it_is_made_of(pattern: str, good: str, bad: str) -> None:
    word = {"type": "string", "pattern": pattern}
    assert not complaints(word, good)
    assert complaints(word, bad) == [f"{bad!r} does not match {pattern!r}"]
    assert complaints({"pattern": pattern}, 1) == []


def test_a_number_that_is_too_large_to_be_checked_is_a_complaint() -> None:
    assert complaints({"type": "number", "multipleOf": 0.5}, 10**400) == [
        "has a number that is too large to be checked"
    ]
