"""The reply of a tool: its data for expressions, and the text for people.

Regular expressions find parts of a plain text, in bounded time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Self

import mcp_types as types
import regex

from mcp_workflows.adapter import JSON, Failure
from mcp_workflows.adapter.display_text import cleaned
from mcp_workflows.adapter.redaction import KNOWN
from mcp_workflows.errors import EngineUnavailable
from mcp_workflows.kit.expressions import Scope, as_list, as_object
from mcp_workflows.kit.http_errors import reason_in

_WRAPPED: Final = "x-fastmcp-wrap-result"  # FastMCP: the schema of a wrapped result, which is itself not an object
_BEGINNING: Final = 200  # characters of a text that is not JSON
_LONGEST: Final = 500  # characters of an error
_LARGEST: Final = 8 * 2**20  # characters of the text of a reply
_DEEPEST: Final = 100  # nested lists and objects
_LONGEST_SEARCHED: Final = 100_000  # characters of a text in which parts are searched
_SEARCH_SECONDS: Final = 0.1  # for one part


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The result of one call."""

    data: JSON  # structured content, else the JSON or the named parts of the text
    text: str
    is_error: bool
    code: int | None = None  # JSON-RPC error
    error_data: JSON = None  # JSON-RPC error
    whole: Mapping[str, JSON] | None = None  # the unchanged result, if it has more than texts and structured content

    @classmethod
    def of_error(cls, code: int, message: str, data: JSON = None) -> Self:
        """Read a JSON-RPC error: some servers report all errors in tools as one."""
        text = KNOWN.mask(message)
        return cls(data={"text": text}, text=text, is_error=True, code=code, error_data=data)

    @classmethod
    def of(cls, result: types.CallToolResult, schema: Mapping[str, JSON] | None, patterns: Mapping[str, str]) -> Self:
        """Read a result; `schema` is the tool's output schema, `patterns` find named parts of the text.

        Raises:
            EngineUnavailable: the reply is too large, or a search for a part takes too long.
        """
        texts = [item.text for item in result.content if isinstance(item, types.TextContent)]
        if sum(map(len, texts)) > _LARGEST:
            raise EngineUnavailable(f"its tool answered with more than {_LARGEST:,} characters", silent=False)
        text = "\n".join(texts)
        data = _data(result, text, schema or {})
        if _is_deep(data):
            raise EngineUnavailable(f"its reply is nested more than {_DEEPEST} deep", silent=False)
        if patterns:
            data = {**(as_object(data) or {}), **_parts_of(text, patterns), "text": text}
        whole: dict[str, JSON] | None = None
        if len(texts) < len(result.content):
            whole = result.model_dump(by_alias=True, mode="json", exclude_none=True)
            if patterns:
                whole["structuredContent"] = data
        return cls(data=data, text=KNOWN.mask(text), is_error=bool(result.is_error), whole=whole)

    @property
    def names(self) -> Mapping[str, JSON]:
        """The names that expressions use for it."""
        return {"reply": self.data, "error": self.text if self.is_error else None}

    def within(self, scope: Scope) -> Scope:
        """Return a scope with this reply."""
        return scope | self.names

    @property
    def is_prose(self) -> bool:
        """True if it is only a text that is not JSON."""
        return self.whole is None and self.data == {"text": self.text}

    @property
    def prose(self) -> str:
        """A text for people about a reply that is not JSON, with its beginning."""
        beginning = cleaned(self.text, _BEGINNING)
        return f"its tool answered with a text that is no JSON: {' '.join(beginning.split())!r}"

    @property
    def reason(self) -> str:
        """The text on one line, without stack traces and HTML pages."""
        return reason_in(self.text[: 4 * _LONGEST].encode("utf-8", "replace")) or cleaned("an error without a text")


def _data(result: types.CallToolResult, text: str, schema: Mapping[str, JSON]) -> JSON:
    structured: JSON = result.structured_content
    if structured is not None:
        wraps = schema.get(_WRAPPED) and as_object(structured) is not None and set(structured) == {"result"}
        return _parsed(structured["result"]) if wraps else structured
    for item in result.content:
        if isinstance(item, types.TextContent) and not isinstance(found := _parsed(item.text), str):
            return found
    return {"text": text}


def _is_deep(data: JSON) -> bool:
    """True if a value is nested too deeply; checked level by level."""
    level: list[JSON] = [data]
    for _ in range(_DEEPEST):
        level = [inner for each in level for inner in _inner(each) if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def _inner(value: JSON) -> Iterable[JSON]:
    parts = as_object(value)
    return as_list(value) or () if parts is None else parts.values()


def _parsed(value: JSON) -> JSON:
    """Return the JSON in a text; any other value is unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def failure_of(result: Mapping[str, JSON]) -> Failure:
    """Return the failure that the result of a tool with `isError` describes."""
    contents = (as_object(item) or {} for item in as_list(result.get("content")) or ())
    text = "\n".join(str(item.get("text", "")) for item in contents if item.get("type") == "text")
    text = text or "its tool answered with an error without a text"
    return Failure(text=text, details=as_object(result.get("structuredContent")))


def checked_pattern(pattern: str) -> str:
    """Check that a pattern is valid, and has one group."""
    try:
        groups = _compiled(pattern).groups
    except regex.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    if groups != 1:
        raise ValueError(f"{pattern!r} has {groups} groups; write one, ( ), around the part")
    return pattern


def _parts_of(text: str, patterns: Mapping[str, str]) -> Mapping[str, str]:
    """Return the parts that are found, by name; the first match of each.

    Raises:
        EngineUnavailable: a search takes too long.
    """
    found = {name: _searched(text[:_LONGEST_SEARCHED], pattern) for name, pattern in patterns.items()}
    return {name: part for name, part in found.items() if part is not None}


def _searched(text: str, pattern: str) -> str | None:
    try:
        match = _compiled(pattern).search(text, timeout=_SEARCH_SECONDS)
    except TimeoutError:
        raise EngineUnavailable(f"its text takes too long to search for {pattern!r}", silent=False) from None
    return None if match is None else match[1]


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> regex.Pattern[str]:
    return regex.compile(pattern, regex.MULTILINE)
