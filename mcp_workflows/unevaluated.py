"""Which names in an object a JSON Schema has looked at, with our patterns: jsonschema's own search takes for ever."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from jsonschema.exceptions import ValidationError

from mcp_workflows.patterns import matches

_Object = Mapping[str, Any]  # any JSON values


def unevaluated_properties(
    validator: Any,  # that of jsonschema
    wanted: object,
    value: object,
    schema: _Object,
) -> Iterator[ValidationError]:
    """The word `unevaluatedProperties` (JSON Schema 2020-12, core, 11.3)."""
    if isinstance(value, dict):
        found = cast("dict[str, Any]", value)
        evaluated = set(_evaluated(validator, found, schema))
        if rest := [name for name in found if name not in evaluated]:
            why = "are not allowed" if wanted is False else "do not fit the schema for them"
            yield ValidationError(f"Unevaluated properties {why}: {', '.join(map(repr, sorted(rest)))}")


def _evaluated(validator: Any, value: dict[str, Any], schema: Any) -> Iterator[str]:
    """The names that this schema, and all that the same value has to meet with it, has looked at."""
    if isinstance(schema, dict):
        said = cast("dict[str, Any]", schema)
        yield from _by_name(validator, value, said)
        for other in _met(validator, value, said):
            yield from _evaluated(validator, value, other)
        for word in said.keys() & {"$ref", "$dynamicRef"}:
            meant = validator._resolver.lookup(said[word])  # noqa: SLF001  # where jsonschema's own words look
            inside = validator.evolve(schema=meant.contents, _resolver=meant.resolver)
            yield from _evaluated(inside, value, meant.contents)


def _by_name(validator: Any, value: dict[str, Any], schema: dict[str, Any]) -> Iterator[str]:
    yield from schema.get("properties", {}).keys() & value.keys()
    yield from (name for pattern in schema.get("patternProperties", ()) for name in value if matches(pattern, name))
    for word in schema.keys() & {"additionalProperties", "unevaluatedProperties"}:
        yield from (name for name, item in value.items() if _fits(validator, item, schema[word]))


def _met(validator: Any, value: dict[str, Any], schema: dict[str, Any]) -> Iterator[Any]:
    """The schemas in it that this value meets."""
    yield from (other for name, other in schema.get("dependentSchemas", {}).items() if name in value)
    several = (other for word in ("allOf", "oneOf", "anyOf") for other in schema.get(word, ()))
    yield from (other for other in several if _fits(validator, value, other))
    if "if" in schema:
        fits = _fits(validator, value, schema["if"])
        yield from (schema["if"], schema.get("then")) if fits else (schema.get("else"),)


def _fits(validator: Any, value: Any, schema: Any) -> bool:
    return next(iter(validator.descend(value, schema)), None) is None
