"""Whether a text matches a pattern of a JSON Schema, in bounded time: strangers may have written both."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import regex
from pydantic_core import SchemaError, SchemaValidator, core_schema

LIMIT: Final = 0.1  # seconds of processor time that one check may take for all patterns that look around or back
_LONGEST: Final = 1_000  # characters of a pattern that came as a value
_NO_REPEAT: Final = re.compile(r"\\[NPp]\{[^}]*\}|\\.|\{(?!\d*,?\d*\})|\[:", re.DOTALL)


class PatternError(Exception):
    """Whether it matches cannot be told; the message says why to whoever sent the text."""


@dataclass(slots=True, kw_only=True)
class _Allowance:
    left: float = LIMIT  # seconds


_allowance: ContextVar[_Allowance] = ContextVar("mcp_workflows_patterns")


@contextmanager
def bounded() -> Generator[None]:
    """What is matched in here may take as long as the texts are, and `LIMIT` seconds on top of that, together."""
    token = _allowance.set(_Allowance())
    try:
        yield
    finally:
        _allowance.reset(token)


def is_pattern(text: object) -> bool:
    """Whether it is one; what is no text is somebody else's to judge."""
    if not isinstance(text, str):
        return True
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def is_short_pattern(text: object) -> bool:
    """The same of a text that anybody may have sent: to find out about a long one takes minutes."""
    return not isinstance(text, str) or (len(text) <= _LONGEST and is_pattern(text))


def matches(pattern: str, text: str) -> bool:
    """Whether the pattern is somewhere in the text.

    Raises:
        PatternError: it takes too long to tell, or it is no pattern.
    """
    return _matcher(pattern)(text)


@lru_cache(maxsize=64)
def _matcher(pattern: str) -> Callable[[str], bool]:
    """By an engine that takes as long as the text is; not so what looks around or back, which it does not know."""
    try:
        wanted = core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")
        return SchemaValidator(wanted).isinstance_python
    except SchemaError:
        pass
    try:
        known = regex.compile(_NO_REPEAT.sub(_literally, pattern), regex.VERSION0)
    except (regex.error, ValueError, OverflowError, RecursionError):
        raise PatternError(f"cannot be checked, as this is no pattern: {pattern!r}") from None
    return lambda text: _found(known, text, pattern)


def _literally(found: re.Match[str]) -> str:
    """What only this engine knows (`{e<=1}`, `[:alpha:]`) as Python's own `re` understands it."""
    return {"{": r"\{", "[:": r"[\:"}.get(found[0], found[0])


def _found(known: regex.Pattern[str], text: str, pattern: str) -> bool:
    allowance = _allowance.get(None) or _Allowance()
    began = time.thread_time()
    try:
        return known.search(text, timeout=allowance.left) is not None
    except TimeoutError:
        raise PatternError(f"takes too long to be checked by the pattern {pattern!r}") from None
    finally:
        allowance.left = max(0.0, allowance.left - (time.thread_time() - began))
