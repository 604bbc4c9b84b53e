"""JSON Schema 2020-12: whether a schema is right, and what is wrong with a value by it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, cast

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend  # pyright: ignore[reportUnknownVariableType]  # its stub leaves it so
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from mcp_workflows.patterns import PatternError, bounded, is_pattern, is_short_pattern, matches
from mcp_workflows.unevaluated import unevaluated_properties

MAX_SIZE = 65_536  # characters of a schema that a stranger wrote, as JSON
MAX_DEPTH = 40  # objects and lists in each other, and references one after the other
MAX_STEPS = 1_000  # subschemas that one value may have to meet
MAX_COMPLAINTS = 5  # about one value; a client needs no more to see what is wrong
_LONGEST = 200  # characters of one part of a complaint

Schema = dict[str, Any]  # a JSON Schema 2020-12 object

_SCALARS = frozenset({"string", "number", "integer", "boolean"})
PRIMITIVES = _SCALARS | {"array"}

_NOTHING_OUTSIDE: Registry[Any] = Registry()  # Any: contents of schemas we do not have


def _pattern(_: object, pattern: str, value: object, __: object) -> Iterator[ValidationError]:
    """The word `pattern`; as jsonschema has it, a text of 30 letters may keep a process busy for hours."""
    if isinstance(value, str) and not matches(pattern, value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _unique_items(_: object, unique: object, value: object, __: object) -> Iterator[ValidationError]:
    """The word `uniqueItems`; as jsonschema has it, each item is compared with each other: hours for a megabyte."""
    if unique is True and isinstance(value, list):
        items = [json.dumps(item, sort_keys=True) for item in _same(value)]
        if len(set(items)) < len(items):
            yield ValidationError("has items that are the same")


def _same(value: Any) -> Any:  # any JSON value
    """A value in which what JSON Schema takes for equal is written alike: 1 and 1.0."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _same(item) for key, item in cast("Schema", value).items()}
    return [_same(item) for item in cast("Sequence[Any]", value)] if isinstance(value, list) else value


def _pattern_properties(validator: Any, patterns: object, value: object, _: object) -> Iterator[ValidationError]:
    """The word `patternProperties`, with the patterns of above."""
    if isinstance(value, dict) and isinstance(patterns, dict):
        for pattern, schema in cast("Schema", patterns).items():
            for name, item in cast("Schema", value).items():
                if matches(pattern, name):
                    yield from validator.descend(item, schema, path=name, schema_path=pattern)


def _additional(validator: Any, wanted: object, value: object, schema: Schema) -> Iterator[ValidationError]:
    """The word `additionalProperties`, which jsonschema has right but for the patterns beside it."""
    if isinstance(value, dict) and (patterns := schema.get("patternProperties")):
        items = cast("Schema", value).items()
        value = {name: item for name, item in items if not any(matches(each, name) for each in patterns)}
        schema = {word: said for word, said in schema.items() if word != "patternProperties"}
    yield from _theirs(validator, wanted, value, schema) or ()


_theirs = cast("Callable[..., Any]", Draft202012Validator.VALIDATORS["additionalProperties"])
_extended = cast("Callable[..., Any]", extend)  # Any: its stub leaves it so
_OURS = {
    "additionalProperties": _additional,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "unevaluatedProperties": unevaluated_properties,
    "uniqueItems": _unique_items,
}
_Validator = _extended(Draft202012Validator, _OURS)


def _formats(regex: Callable[[object], bool]) -> FormatChecker:
    """Those of jsonschema, which fails on some texts that are no patterns."""
    known = FormatChecker()
    known.checkers.update(Draft202012Validator.FORMAT_CHECKER.checkers)
    known.checks("regex")(regex)
    return known


_IN_SCHEMAS, _IN_VALUES = _formats(is_pattern), _formats(is_short_pattern)


class Checker:
    """A JSON Schema to check values by; to make one takes longer than to check a small value."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """References outside the schema are never fetched."""
        self._validator: Any = _Validator(schema, registry=_NOTHING_OUTSIDE, format_checker=_IN_VALUES)

    def violations(
        self,
        value: Any,  # any JSON value
        counts: Callable[[ValidationError], bool] = lambda _: True,
    ) -> Sequence[ValidationError]:
        """What is wrong with a value, the first few."""
        try:
            errors: Iterable[ValidationError] = self._validator.iter_errors(value)
            with bounded():
                return list(islice(filter(counts, errors), MAX_COMPLAINTS))
        except PatternError as error:
            return [ValidationError(str(error))]
        except OverflowError:  # `multipleOf: 0.5` of an integer that no float can be
            return [ValidationError("has a number that is too large to be checked")]
        except RecursionError:
            return [ValidationError("is nested too deeply, or its schema refers to itself without end")]


def violations(
    schema: Mapping[str, Any],
    value: Any,  # any JSON value
) -> Sequence[ValidationError]:
    """What is wrong with a value by a JSON Schema: see `Checker`."""
    return Checker(schema).violations(value)


def complain(error: ValidationError | SchemaError) -> str:
    """One schema violation in a line: where, and what was wrong (never the whole value)."""
    where = _short(error.json_path.removeprefix("$").lstrip("."))
    text = _short(error.message)
    return f"{where}: {text}" if where else text


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def check_schema(schema: Schema) -> Schema:
    """The schema itself, if it is JSON Schema 2020-12 for an object.

    Raises:
        ValueError: it is not, with what is wrong in it.
    """
    try:
        Draft202012Validator.check_schema(schema, format_checker=_IN_SCHEMAS)
    except SchemaError as error:
        raise ValueError(f"not a JSON Schema: {complain(error)}") from None
    if schema.get("type") != "object":
        raise ValueError("a JSON Schema of an object is needed here: {type: object, properties: {...}}")
    _check_references(schema)
    if any("without end" in error.message for error in violations(schema, {})):
        raise ValueError("a $ref in it refers to itself without end")
    return schema


def _check_references(schema: Schema) -> None:
    resolver = _NOTHING_OUTSIDE.with_resource("", DRAFT202012.create_resource(schema)).resolver()
    for reference in _references(schema):
        try:
            resolver.lookup(reference)
        except (Unresolvable, ValueError):
            raise ValueError(f"$ref {reference!r} is not in this schema: inline what it points to, in $defs") from None


def excess(schema: Schema) -> str | None:
    """What is too much in a schema that a stranger wrote: to check values by it could take for ever. None: nothing.

    Patterns are not judged: they take as long as the values that callers send are, or are given up (`patterns`).
    """
    if not all(_nodes(schema)):
        return f"it is nested more than {MAX_DEPTH} deep"
    if (size := len(json.dumps(schema))) > MAX_SIZE:
        return f"it is {size} characters, and at most {MAX_SIZE} are taken"
    steps: dict[int, int] = {}
    if any(_steps(node, schema, steps) > MAX_STEPS for node in _nodes(schema) if isinstance(node, dict)):
        return "its references multiply, or refer to themselves or to somewhere else: write #/$defs/NAME"
    return None


def _nodes(schema: Schema) -> Iterator[Any]:  # any JSON value
    """All objects and lists in it; None for what is nested too deeply, which is not gone into."""
    left: list[tuple[Any, int]] = [(schema, 1)]
    while left:
        node, depth = left.pop()
        yield node if depth <= MAX_DEPTH else None
        inner = cast("Iterable[Any]", node.values() if isinstance(node, dict) else node)
        if depth <= MAX_DEPTH:
            left += [(item, depth + 1) for item in inner if item and isinstance(item, dict | list)]


def _steps(schema: Any, root: Schema, known: dict[int, int], depth: int = 0) -> int:  # any JSON value
    """How many subschemas a value that has to meet this one has to meet, itself not taken apart."""
    if not isinstance(schema, dict):
        return 0
    if depth > MAX_DEPTH:
        return MAX_STEPS + 1
    key = id(cast("object", schema))
    if key not in known:
        inner = list(_alongside(cast("Schema", schema), root))
        known[key] = MAX_STEPS + 1  # if it comes back to itself
        known[key] = min(MAX_STEPS + 1, 1 + sum(_steps(each, root, known, depth + 1) for each in inner))
    return known[key]


def _alongside(schema: Schema, root: Schema) -> Iterator[Any]:  # any JSON value
    """The subschemas that the same value has to meet."""
    for word in ("$ref", "$dynamicRef"):
        if isinstance(reference := schema.get(word), str):
            yield _meant(reference, root)
    for word in ("allOf", "anyOf", "oneOf"):
        if isinstance(several := schema.get(word), list):
            yield from several
    yield from (schema.get(word) for word in ("not", "if", "then", "else"))
    if isinstance(dependent := schema.get("dependentSchemas"), dict):
        yield from cast("Schema", dependent).values()


def _meant(reference: str, root: Schema) -> Any:  # any JSON value
    """What a reference into the schema means; what leads out of it is as good as one to itself."""
    found: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        found = cast("Schema", found).get(name) if isinstance(found, dict) else None
    inside = reference == "#" or reference.startswith("#/")
    return found if inside and found is not None else {"$ref": reference}


def _references(value: Any) -> Iterable[str]:  # any JSON value
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[str, Any]", value).items():
            if key == "$ref" and isinstance(item, str):
                yield item
            yield from _references(item)
    elif isinstance(value, list):
        for item in cast("Sequence[Any]", value):
            yield from _references(item)


def check_form(form: Schema) -> None:
    """Raise `ValueError` unless it is flat (source: MCP 2026-07-28, elicitation, `requestedSchema`)."""
    properties: Schema = form.get("properties", {})
    if not properties:
        raise ValueError("asks for nothing: an object schema needs properties")
    for key, schema in properties.items():
        check_field(repr(key), schema)


def check_field(name: str, schema: object) -> None:
    """Raise `ValueError`, naming it, unless a form can show it as a field."""
    if not _fits_a_form(schema):
        raise ValueError(f"{name} does not fit a form: only text, numbers, yes/no and choices do")


def _fits_a_form(schema: object) -> bool:
    if not isinstance(schema, dict):
        return False
    typed = cast("Schema", schema)
    items = typed.get("items")
    choices: Schema = cast("Schema", items) if isinstance(items, dict) else {}
    several = typed.get("type") == "array" and bool(choices.keys() & {"enum", "anyOf"})
    return several or typed.get("type") in _SCALARS
