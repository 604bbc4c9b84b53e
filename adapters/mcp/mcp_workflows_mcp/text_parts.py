"""Parts of plain texts, found by regular expressions in bounded time."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import regex

from mcp_workflows.errors import EngineUnavailable

_LONGEST: Final = 100_000  # characters of a text in which is searched
_SECONDS: Final = 0.1  # for one search


def checked_pattern(pattern: str) -> str:
    """Check that a pattern is one, and has one group."""
    try:
        groups = _compiled(pattern).groups
    except regex.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    if groups != 1:
        raise ValueError(f"{pattern!r} has {groups} groups; write one, ( ), around the part")
    return pattern


def parts_of(text: str, patterns: Mapping[str, str]) -> Mapping[str, str]:
    """Return the parts that are found, by name; of several, the first one.

    Raises:
        EngineUnavailable: a search takes too long.
    """
    found = {name: _searched(text[:_LONGEST], pattern) for name, pattern in patterns.items()}
    return {name: part for name, part in found.items() if part is not None}


def _searched(text: str, pattern: str) -> str | None:
    try:
        match = _compiled(pattern).search(text, timeout=_SECONDS)
    except TimeoutError:
        raise EngineUnavailable(f"its text takes too long to search for {pattern!r}", silent=False) from None
    return None if match is None else match[1]


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> regex.Pattern[str]:
    return regex.compile(pattern, regex.MULTILINE)
