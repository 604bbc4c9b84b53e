"""Forms: the flat schemas that MCP clients can show to people, and the validation of the returned content.

Create forms at the top of your module (`APPROVAL = form(Approval)`): then a form that no client can show is refused
when the worker imports the module. The validation is small, as it runs inside the workflow sandbox. It accepts whatever
JSON Schema accepts: the core validated the answer in full before sending it.
Source: MCP 2026-07-28, elicitation, "Requested Schema".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from mcp_workflows_temporal_worker.flat_forms import read_form as form

__all__ = ["LIMITS", "TYPES", "content_error", "form"]


def content_error(schema: Mapping[str, Any], content: object) -> str | None:
    """Return the first error in the content of a form, in a sentence; None if the content is valid."""
    if not isinstance(content, dict):
        return "content must be an object"
    filled = cast("dict[str, Any]", content)
    missing = [name for name in schema.get("required", []) if name not in filled]
    if missing:
        return f"property {missing[0]!r} is missing"
    properties = schema.get("properties", {})
    errors = (
        f"property {name!r} {text}"
        for name in properties
        if name in filled
        for text in _value_errors(properties[name], filled[name])
    )
    return next(errors, None)


def _value_errors(rules: Mapping[str, Any], value: object) -> list[str]:
    kind = rules["type"]
    if not TYPES[kind](value):
        return [f"must be of type {kind}"]
    if "enum" in rules and value not in rules["enum"]:
        return [f"must be one of {rules['enum']}"]
    words = (
        word for word in LIMITS if word in rules and kind in _BOUND[word]
    )  # a limit of another type has no effect, as in JSON Schema
    return [LIMITS[word] for word in words if not _CHECKS[word](value, rules[word])]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


TYPES: Mapping[str, Callable[[object], bool]] = {
    "string": lambda value: isinstance(value, str),
    "number": _is_number,
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or cast("float", value).is_integer()),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
}

LIMITS: Mapping[str, str] = {
    "minimum": "is too small",
    "maximum": "is too large",
    "minLength": "is too short",
    "maxLength": "is too long",
    "minItems": "has too few items",
    "maxItems": "has too many items",
}

_NUMBERS = frozenset({"number", "integer"})
_BOUND: Mapping[str, frozenset[str]] = {  # the types that a limit applies to
    "minimum": _NUMBERS,
    "maximum": _NUMBERS,
    "minLength": frozenset({"string"}),
    "maxLength": frozenset({"string"}),
    "minItems": frozenset({"array"}),
    "maxItems": frozenset({"array"}),
}

_CHECKS: Mapping[str, Callable[[Any, Any], bool]] = {  # Any: the type of the value is checked before
    "minimum": lambda value, limit: value >= limit,
    "maximum": lambda value, limit: value <= limit,
    "minLength": lambda value, limit: len(value) >= limit,
    "maxLength": lambda value, limit: len(value) <= limit,
    "minItems": lambda value, limit: len(value) >= limit,
    "maxItems": lambda value, limit: len(value) <= limit,
}
