"""The size of JSON: bytes, and numbers of values, of texts that anybody may have sent."""

from __future__ import annotations

import json
from typing import Final

from pydantic_core import PydanticSerializationError, to_json

from mcp_workflows.adapter import JSON
from mcp_workflows.errors import LimitReached

_MARKS: Final = (b",", b"[", b"{")  # each stands before a value


def size_of(value: JSON) -> int:
    """Return the size of a value in bytes of JSON."""
    return len(_dump(value))


def check_size(what: str, value: JSON, most: int | None, most_values: int | None = None) -> None:
    """Check that a value has at most `most` bytes of JSON and `most_values` JSON values.

    Raises:
        LimitReached: it is too large; a later try cannot help.
    """
    if most is None and most_values is None:
        return
    text = _dump(value)
    if most is not None and len(text) > most:
        raise LimitReached(
            f"{what}: {len(text)} bytes of JSON, and at most {most} are taken: send less, or a link to it"
        )
    if most_values is not None and has_more_values(text, most_values):
        raise LimitReached(
            f"{what}: more than {most_values} JSON values (limits.max_json_values): send less, or a link to it"
        )


def has_more_values(text: bytes, most: int) -> bool:
    """Return True if the JSON text holds more than `most` values; the text is not parsed.

    Each list and object that is not empty has one value more than commas. Commas and brackets in strings do not count.
    """
    if _count_marks(text) < most:
        return False
    if b"\0" in text:  # UTF-16 or UTF-32, which MCP does not use: texts cannot be told from the rest
        return True
    plain = text.replace(rb"\\", b"").replace(rb"\"", b"")
    if plain.count(b'"') > 4 * most:  # two for each text and each name
        return True
    outside = b"0".join(plain.split(b'"')[::2]).translate(None, b" \t\r\n")
    return _count_marks(outside) - outside.count(b"[]") - outside.count(b"{}") >= most


def _dump(value: JSON) -> bytes:
    try:
        return to_json(value, inf_nan_mode="constants")  # five times as fast as `json` with a large value
    except PydanticSerializationError:  # half a surrogate pair, in the output of an engine
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _count_marks(text: bytes) -> int:
    return sum(text.count(mark) for mark in _MARKS)
