"""The values: null, booleans, 64-bit integers, doubles, strings, bytes, lists and maps; passed by value.

Source: https://cloud.google.com/workflows/docs/reference/syntax/datatypes
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, TypeGuard

from mcp_workflows_google_local import JSON

TEXT_LIMIT: Final = 256 * 1024  # bytes of UTF-8
MEMORY_LIMIT: Final = 512 * 1024  # bytes of all variables
SMALLEST: Final = -(2**63)
GREATEST: Final = 2**63 - 1
_WORD: Final = 8  # minimum bytes of a value

_NAMES: Mapping[type, str] = {
    bool: "boolean",
    bytes: "bytes",
    dict: "map",
    float: "double",
    int: "integer",
    list: "list",
    str: "string",
    type(None): "null",
}


def type_name(value: JSON) -> str:
    """Return the name of the type in the language."""
    return _NAMES[type(value)]


def is_map(value: JSON) -> TypeGuard[dict[str, JSON]]:
    """Return True for a map."""
    return isinstance(value, dict)


def is_list(value: JSON) -> TypeGuard[list[JSON]]:
    """Return True for a list."""
    return isinstance(value, list)


def is_int(value: JSON) -> TypeGuard[int]:
    """Return True for an integer; a boolean is not one."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: JSON) -> TypeGuard[int | float]:
    """Return True for an integer or a double."""
    return is_int(value) or isinstance(value, float)


def is_finite(value: JSON) -> bool:
    """Return True for a finite number of 64 bits, and for everything that is not a number."""
    return SMALLEST <= value <= GREATEST if is_int(value) else not isinstance(value, float) or math.isfinite(value)


def copied(value: JSON) -> JSON:
    """Return a copy that shares nothing mutable."""
    if is_map(value):
        return {key: copied(item) for key, item in value.items()}
    if is_list(value):
        return [copied(item) for item in value]
    return value


def size(value: JSON) -> int:
    """Return the bytes of a value by Google's count."""
    if isinstance(value, str):
        return _WORD + len(value.encode(errors="replace"))
    if isinstance(value, bytes):
        return _WORD + len(value)
    if is_map(value):
        return _WORD + sum(size(key) + size(item) for key, item in value.items())
    if is_list(value):
        return _WORD + sum(size(item) for item in value)
    return _WORD


def has_bytes(value: JSON) -> bool:
    """Return True if the value contains bytes, which JSON cannot express."""
    if is_map(value):
        return any(has_bytes(item) for item in value.values())
    return any(has_bytes(item) for item in value) if is_list(value) else isinstance(value, bytes)
