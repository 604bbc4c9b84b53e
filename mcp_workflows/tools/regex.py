"""Regular expressions of JSON Schemas, searched in bounded time: anybody may have sent the text."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from time import thread_time
from typing import Any, Final

from jsonschema_rs import Draft202012Validator, FancyRegexOptions, RegexOptions, ValidationError, ValidationErrorKind

LIMIT: Final = 0.1  # seconds of processor time that one check may take for all slow patterns together
LONGEST: Final = 2_000  # characters of a text in which a slow pattern is searched
QUICK: Final = RegexOptions(size_limit=10_000)  # bytes of a compiled pattern that takes a long text in milliseconds
SLOW: Final = FancyRegexOptions(backtrack_limit=100_000)  # it gives up after about 5 ms


@dataclass(slots=True, kw_only=True)
class Searches:
    """The time that the slow patterns of one check have left, and the reason why one was given up."""

    left: float = LIMIT  # seconds
    given_up: str | None = None


_searches: ContextVar[Searches] = ContextVar("mcp_workflows_searches")


@contextmanager
def bounded() -> Generator[Searches]:
    """Bound all searches in here together; `given_up` then has the reason for one without a result."""
    searches = Searches()
    token = _searches.set(searches)
    try:
        yield searches
    finally:
        _searches.reset(token)


@lru_cache(maxsize=256)
def is_quick(pattern: str) -> bool:
    r"""True if a search takes little time, in proportion to the text.

    Most patterns are so, but not those that look around or back, and those that compile to more than 10 kB, such as
    `\p{L}{1,50}`.
    """
    try:
        Draft202012Validator({"pattern": pattern}, pattern_options=QUICK)
    except ValidationError:
        return False
    return True


def matches(pattern: str, text: str) -> bool:
    """True if the pattern is somewhere in the text; False, with a note in `bounded`, if that takes too long to tell."""
    quick = is_quick(pattern)
    searches = _searches.get(None) or Searches()
    if not quick and (len(text) > LONGEST or searches.left <= 0):
        searches.given_up = _too_long(pattern)
        return False
    began = thread_time()
    try:
        _compiled(pattern).validate(text)
    except ValidationError as error:
        if not isinstance(error.kind, ValidationErrorKind.Pattern):
            searches.given_up = _too_long(pattern)
        return False
    finally:
        searches.left -= 0 if quick else thread_time() - began
    return True


def _too_long(pattern: str) -> str:
    return f"takes too long to be checked by the pattern {pattern!r}"


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> Draft202012Validator:
    return Draft202012Validator({"pattern": pattern}, pattern_options=QUICK if is_quick(pattern) else SLOW)


class SlowPattern:
    """The keyword `pattern`, for schemas in which not all patterns are quick."""

    def __init__(self, parent_schema: object, value: Any, schema_path: object) -> None:  # value: any JSON value
        """Take the pattern of one subschema."""
        self._pattern = str(value)

    def validate(self, instance: Any) -> None:  # any JSON value
        """Raise `ValueError` unless the pattern is in the text."""
        if isinstance(instance, str) and not matches(self._pattern, instance):
            raise ValueError(f"does not match {self._pattern!r}")
