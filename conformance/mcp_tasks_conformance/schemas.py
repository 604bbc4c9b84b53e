"""The part of JSON Schema that the checks of Events need: the form of a schema, and values that do not fit one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from mcp_tasks_conformance.check import JSON
from mcp_tasks_conformance.traffic import as_list, as_object, format_json

TYPES: Final[Mapping[str, Callable[[JSON], bool]]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
}
_SAMPLES: Final[tuple[JSON, ...]] = ({}, [], "conformance", True, 7.5)


def schema_problem(schema: JSON) -> str:
    """Return a text that says why a value is no JSON Schema, or an empty one."""
    if isinstance(schema, bool):
        return ""
    given = as_object(schema)
    if schema != given:
        return f"{format_json(schema)} is no schema"
    names: JSON = given.get("type", "object")
    if not all(name in TYPES for name in (as_list(names) or [names])):
        return f"type is {format_json(names)}"
    if not isinstance(given.get("properties", {}), dict):
        return f"properties is {format_json(given['properties'])}"
    required: JSON = given.get("required", [])
    if required != as_list(required) or not all(isinstance(name, str) for name in as_list(required)):
        return f"required is {format_json(required)}"
    if not isinstance(given.get("enum", []), list):
        return f"enum is {format_json(given['enum'])}"
    inner = [*as_object(given.get("properties")).values(), *(given[name] for name in ("items", "not") if name in given)]
    return next((problem for each in inner if (problem := schema_problem(each))), "")


def misfit(value: JSON, schema: JSON, name: str = "data") -> str:
    """Return a text that says why a value does not fit a schema, or an empty one; rarer keywords are not looked at."""
    given = as_object(schema)
    names = given.get("type", [])
    wanted = [names] if isinstance(names, str) else as_list(names)
    if wanted and not any(TYPES[each](value) for each in wanted if each in TYPES):
        return f"{name} is {format_json(value)}, not of the type {format_json(names)}"
    if "enum" in given and value not in given["enum"]:
        return f"{name} is {format_json(value)}, not one of {format_json(given['enum'])}"
    members = as_object(value)
    missing = [each for each in as_list(given.get("required")) if each not in members]
    if missing:
        return f"{name} has no {missing[0]}"
    properties = as_object(given.get("properties"))
    found = (misfit(members[each], properties[each], f"{name}.{each}") for each in properties if each in members)
    return next((problem for problem in found if problem), "")


def wrong_arguments(schema: JSON, arguments: Mapping[str, JSON]) -> Iterator[JSON]:
    """Yield arguments that do not fit a schema, each made from good ones by one change."""
    yield ["no object"]
    given = as_object(schema)
    if given.get("additionalProperties") is False:
        yield {**arguments, "conformance_no_such_argument": 1}
    for name, found in as_object(given.get("properties")).items():
        wrong = next((value for value in _SAMPLES if misfit(value, found)), None)
        if wrong is not None:
            yield {**arguments, name: wrong}
    for name in as_list(given.get("required")):
        yield {key: value for key, value in arguments.items() if key != name}
