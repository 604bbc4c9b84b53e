"""Validation of form schemas from workflows: only schemas that MCP permits a client to show.

Source: MCP 2026-07-28, elicitation, `requestedSchema`: flat, of text, numbers, yes or no, and choices.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from pydantic_core import SchemaError, SchemaValidator, core_schema

from mcp_workflows.adapter import JSON

MAX_SCHEMA: Final = 32_768  # bytes of it as JSON
MAX_FIELDS: Final = 100
_LONGEST_PATTERN: Final = 1_000  # characters
_MOST_REPEATED: Final = 1_000  # `[0-9]{1000}`, or (a{10}){100}: each is a copy
_COUNT: Final = re.compile(r"\{[0-9]+,?[0-9]*\}")

_Object = Mapping[str, Any]  # Any: JSON


class MalformedFormError(ValueError):
    """A form schema is invalid; the message is for the author of the workflow."""


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in cast("list[object]", value))


def _is_choice(value: object) -> bool:
    return _is_texts(value) and bool(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_yes_or_no(value: object) -> bool:
    return isinstance(value, bool)


def _is_pattern(value: object) -> bool:
    """Return whether the value is a short regular expression that is matched in linear time."""
    if not isinstance(value, str) or len(value) > _LONGEST_PATTERN:
        return False
    if math.prod(max(1, *map(int, re.findall("[0-9]+", each))) for each in _COUNT.findall(value)) > _MOST_REPEATED:
        return False
    try:
        SchemaValidator(core_schema.str_schema(pattern=value, regex_engine="rust-regex"))
    except SchemaError:
        return False
    return True


def _is_titled(value: object) -> bool:
    """Return whether the value is a list of choices with titles: `[{const: a, title: A}]`."""
    several = cast("list[object]", value) if isinstance(value, list) else []
    objects = [cast("_Object", each) for each in several if isinstance(each, dict)]
    return 0 < len(several) == len(objects) and all(
        each.keys() <= {"const", "title"} and all(map(_is_text, each.values())) and "const" in each for each in objects
    )


def _is_items(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    found = cast("_Object", value)
    if set(found) == {"anyOf"}:
        return _is_titled(found["anyOf"])
    return set(found) == {"type", "enum"} and found["type"] == "string" and _is_choice(found["enum"])


_Check = Callable[[object], bool]
_WORDS: Final[Mapping[str, _Check]] = {"type": _is_text, "title": _is_text, "description": _is_text}
_RANGE: Final[Mapping[str, _Check]] = {
    **_WORDS,
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    "multipleOf": lambda value: _is_number(value) and cast("float", value) > 0,
    "default": _is_number,
}
_FIELDS: Final[Mapping[str, Mapping[str, _Check]]] = {
    "string": {
        **_WORDS,
        "minLength": _is_count,
        "maxLength": _is_count,
        "pattern": _is_pattern,
        "format": {"email", "uri", "date", "date-time"}.__contains__,
        "enum": _is_choice,
        "enumNames": _is_texts,
        "oneOf": _is_titled,
        "default": _is_text,
    },
    "number": _RANGE,
    "integer": _RANGE,
    "boolean": {**_WORDS, "default": _is_yes_or_no},
    "array": {**_WORDS, "minItems": _is_count, "maxItems": _is_count, "items": _is_items, "default": _is_texts},
}
_FORM: Final[Mapping[str, _Check]] = {
    **_WORDS,
    "$schema": _is_text,
    "required": _is_texts,
    "properties": lambda value: isinstance(value, dict),
    "additionalProperties": _is_yes_or_no,
}


def read_form(schema: JSON) -> _Object:
    """Return the schema of a form; without one, a form without fields, to accept or decline.

    Raises:
        MalformedFormError: no client could show it.
    """
    if schema is None:
        return {"type": "object", "properties": {}}
    if not isinstance(schema, dict) or cast("_Object", schema).get("type", "object") != "object":
        raise MalformedFormError("it is not the schema of an object: {type: object, properties: {...}}")
    form: _Object = {"type": "object", "properties": {}, **cast("_Object", schema)}
    _check(form, _FORM, "it")
    fields = cast("_Object", form["properties"])
    _check_size(form, fields)
    for name, field in fields.items():
        _check_field(name, field)
    if missing := sorted(set(cast("Sequence[str]", form.get("required", ()))) - fields.keys()):
        raise MalformedFormError(f"required names {missing[0]!r}, which is none of its properties")
    return form


def _check_size(form: _Object, fields: _Object) -> None:
    try:
        size = len(json.dumps(form, ensure_ascii=False).encode("utf-8", "replace"))
    except RecursionError:
        raise MalformedFormError("it is nested too deeply") from None
    if size > MAX_SCHEMA or len(fields) > MAX_FIELDS:
        raise MalformedFormError(
            f"it has {len(fields)} fields in {size} bytes; at most {MAX_FIELDS} in {MAX_SCHEMA} are taken"
        )


def _check_field(name: str, field: object) -> None:
    where = f"property {_short(name)!r}"
    found: _Object = cast("_Object", field) if isinstance(field, dict) else {}
    kind: JSON = found.get("type")
    known = _FIELDS.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise MalformedFormError(f"{where} must have one type of {', '.join(_FIELDS)}")
    _check(found, known, where)
    if kind == "array" and "items" not in found:
        raise MalformedFormError(f"{where} must say in items what can be chosen: {{type: string, enum: [...]}}")


def _check(found: _Object, known: Mapping[str, _Check], where: str) -> None:
    for word, value in found.items():
        if word not in known:
            raise MalformedFormError(f"{where} has {_short(word)!r}, which a form cannot show")
        if not _fits(known[word], value):
            raise MalformedFormError(f"{word} of {where} is not what MCP wants there")


def _fits(check: _Check, value: object) -> bool:
    try:
        return check(value)
    except TypeError:
        return False  # the value is not hashable


def _short(name: str) -> str:
    return name if len(name) <= 80 else f"{name[:80]}..."  # for messages
