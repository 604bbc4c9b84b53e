"""JSON Schema 2020-12: checks of schemas, and of values by a schema, in bounded time and memory.

Anybody may have sent the value, and strangers may have written the schema. jsonschema-rs tells quickly if a value is
valid, but it collects the errors of all alternatives before it returns the first, which takes seconds and gigabytes. So
whole values are only tested with `is_valid`, and the errors of an invalid one are searched from the outside in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, Final, NamedTuple, TypeAlias, cast
from urllib.parse import quote

from jsonschema_rs import Draft202012Validator, Registry, ValidationError, ValidationErrorKind

from mcp_workflows.adapter.display_text import closest
from mcp_workflows.tools.regex import QUICK, SLOW, SlowPattern, bounded, is_quick, matches
from mcp_workflows.tools.schema_cost import (
    ENDLESS,
    cost_of,
    count_values,
    is_deeper,
    is_list,
    is_object,
    patterns_in,
    target_of,
)
from mcp_workflows.tools.schema_cost import Schema as Schema  # re-exported: callers name the type beside the check

MAX_CHECKS: Final = 5_000_000  # subschemas that all parts of a value may have to meet together: about 0.1 s
MAX_COMPLAINTS: Final = 5  # about one value; a client needs no more
_DEEPEST: Final = 20  # levels down to which errors are reported one by one
_LONGEST: Final = 200  # characters of one part of a complaint
_SHOWN: Final = 60  # characters of a value that is repeated in a complaint
_ROOT: Final = "urn:mcp-workflows:schema"
_SLOW: Final = {"pattern": SlowPattern}
_MOST_SENT: Final = 1_000_000  # values in one message; by a schema that can check so many, values are not counted
_MOST_WORK: Final = 1_000_000  # values that one normalization visits at most, however many alternatives there are
_TEXT_COST: Final = 5  # characters of JSON text that take as long to parse as one value to visit
_PLACE_COST: Final = 100  # values that take as long to visit as one that is invalid to normalize: about 30 us
_DEEPEST_TEXT: Final = 80  # levels in JSON text; with `_DEEPEST` around it, as many as a request may have
_ADDED_BY_HOSTS: Final = frozenset({"toolCallId", "sessionId", "action", "chatInput"})
"""The members that n8n adds to arguments (source: n8n-io/n8n, issues 21500 and 22787)."""
_MARK_OF_HOST: Final = "toolCallId"  # it adds this one always; without it the others are a caller's own


def added_by_host(value: Mapping[str, Any]) -> Set[str]:  # any JSON values
    """Return the names of the members that a host has added to these arguments, or to this answer."""
    return _ADDED_BY_HOSTS if _MARK_OF_HOST in value else frozenset()


def _passes(_: str) -> bool:
    return True


def _with_or_without_zone(name: str) -> Callable[[str], bool]:
    strict = Draft202012Validator({"format": name}, validate_formats=True)
    return lambda text: strict.is_valid(text) or strict.is_valid(f"{text}Z")


_FORMATS: Final = {
    **dict.fromkeys(("duration", "hostname"), _passes),
    **{name: _with_or_without_zone(name) for name in ("date-time", "time")},
}
"""Formats that are checked less strictly than RFC 3339 and DNS say: pydantic writes `PT0.5S`, and `date-time` for any
`datetime`, with a zone or without; names of hosts have `_`.
"""

_SCALARS = frozenset({"string", "number", "integer", "boolean"})
PRIMITIVES = _SCALARS | {"array"}

_TYPES: Final[Mapping[type, frozenset[str]]] = {
    type(None): frozenset({"null"}),
    bool: frozenset({"boolean"}),
    int: frozenset({"integer", "number"}),
    float: frozenset({"number", "integer"}),
    str: frozenset({"string"}),
    list: frozenset({"array"}),
    dict: frozenset({"object"}),
}
"""The JSON Schema types of each Python type."""

_LEFT_TO_PARTS: Final = frozenset(
    {"$ref", "allOf", "properties", "patternProperties", "items", "prefixItems", "if", "then", "else"}
    | {"required", "additionalProperties", "dependentSchemas", "$defs", "definitions", "$id", "$schema", "$anchor"}
)
_AS_A_WHOLE: Final[Mapping[str, str]] = {
    "anyOf": "fits none of the alternatives (anyOf)",
    "oneOf": "does not fit exactly one of the alternatives (oneOf)",
    "not": "is what its schema excludes (not)",
    "contains": "has too few or too many items of a kind (contains)",
    "propertyNames": "has a property whose name is not allowed (propertyNames)",
    "unevaluatedProperties": "has properties that are not allowed (unevaluatedProperties)",
    "unevaluatedItems": "has items that are not allowed (unevaluatedItems)",
    "$dynamicRef": "does not fit its schema ($dynamicRef)",
}
"""Keywords with subschemas whose errors are reported as a whole."""


_VALUES: Final = frozenset({"const", "enum", "default", "examples"})
"""Keywords with values, in which nothing is a subschema."""
_BY_NAME: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords with subschemas by names, which may be those of keywords."""


class Checker:
    """A JSON Schema to check values by; to make one takes longer than to check a small value."""

    def __init__(self, schema: Mapping[str, Any], *, quotes: bool = True) -> None:
        """Compile the schema; references outside of it are never fetched. `quotes`: complaints repeat short values."""
        self._schema = cast("Schema", schema)
        self._quotes = quotes
        self._compiled: dict[str, Draft202012Validator] = {}
        self._wrong: str | None = None
        try:
            self._most = MAX_CHECKS // cost_of(self._schema)
            self._slow = not all(is_quick(pattern) for _, pattern in patterns_in(self._schema))
            self._keywords = _SLOW if self._slow else {}
            self._registry = Registry([(_ROOT, self._schema)])
            if self._slow:
                self._compile(self._schema, {})  # `SlowPattern` takes any pattern
            self._part("")
        except ValueError as error:
            self._wrong = f"cannot be checked, as its schema is wrong: {_short(str(error))}"

    def violations(self, value: Any) -> Sequence[str]:  # any JSON value
        """Return the first few errors of a value, a line each: where, and what."""
        if self._wrong:
            return [self._wrong]
        if self._most < _MOST_SENT and (count := count_values(value)) > max(self._most, 1):
            return [
                f"has {count} values, and at most {self._most} can be checked by this schema: send less, or simplify it"
            ]
        if not self._slow and self._is_valid("", value):
            return []
        with bounded() as searches:
            found: Sequence[str] = []
            if not (self._slow and self._is_valid("", value)):
                found = list(islice(self._explained(_Place(schema=self._schema, value=value)), MAX_COMPLAINTS))
        return [searches.given_up] if searches.given_up else found

    def normalize(self, value: Any) -> Any:  # any JSON values
        """Return a value in the form of the schema, where hosts send another form; a valid value stays as it is.

        - A text is read as JSON where the schema accepts no text. A result that still does not fit is kept only if its
          errors say more than those of the text.
        - Null is dropped for an optional property that does not accept null.
        - Members that hosts add are dropped at the top, where `additionalProperties` refuses them.
        """
        if self._wrong or (self._most < _MOST_SENT and count_values(value) > self._most):
            return value
        if not self._slow and self._is_valid("", value):
            return value
        with bounded():
            left = min(_TEXT_COST * self._most, _MOST_WORK)
            return self._normalized(_Place(schema=self._schema, value=value), _Work(left=left))

    def _normalized(self, place: _Place, work: _Work) -> Any:  # any JSON value
        schema, value, pointer = place.schema, place.value, place.pointer
        work.left -= _PLACE_COST + count_values(value)
        if work.left < 0 or place.level == _DEEPEST or not is_object(schema) or self._is_valid(pointer, value):
            return value
        if isinstance(value, str):
            work.left -= len(value) // _TEXT_COST
            if work.left < 0 or _may_fit(schema, value, self._schema) or (read := _from_text(value)) is value:
                return value
            found = self._normalized(replace(place, value=read, level=place.level + 1), work)
            explains = (is_object(found) or is_list(found)) and _may_fit(schema, found, self._schema)
            return found if work.left >= 0 and (explains or self._is_valid(pointer, found)) else value
        if is_object(value):
            dropped = {name for name in value if self._is_dropped(place, name)}
            value = {name: each for name, each in value.items() if name not in dropped} if dropped else value
        for word, each in _alongside(schema, value, self._schema):
            value = self._normalized(place.part(word, each, value), work)
        for word in ("anyOf", "oneOf"):
            parts = [place.part(f"{word}/{i}", each, value) for i, each in enumerate(schema.get(word, ()))]
            if not any(self._is_valid(part.pointer, value) for part in parts):
                fitting = ((part, self._normalized(part, work)) for part in parts)
                value = next((found for part, found in fitting if self._is_valid(part.pointer, found)), value)
        changed: dict[str | int, Any] = {
            path[-1]: found
            for word, inner, values in _members(schema, value)
            for path, each in values
            if work.left >= 0 and isinstance(each, str | list | dict) and not self._is_valid(f"{pointer}/{word}", each)
            if (found := self._normalized(place.part(word, inner, each, path), work)) is not each
        }
        if is_list(value):
            return [changed.get(i, each) for i, each in enumerate(value)] if changed else value
        return {**value, **changed} if is_object(value) and changed else value

    def _is_dropped(self, place: _Place, name: str) -> bool:
        """True if a member only says that an optional property is unset, or comes from the host."""
        schema, value = place.schema, place.value[name]
        if name in schema.get("properties", {}):
            is_unset = value is None and name not in schema.get("required", ())
            return is_unset and not self._is_valid(f"{place.pointer}/properties/{_token(name)}", None)
        if place.path or name not in added_by_host(place.value) or name not in _rest(schema, {name: value}):
            return False
        return "additionalProperties" in schema and not self._is_valid(f"{place.pointer}/additionalProperties", value)

    def _is_valid(self, pointer: str, value: Any) -> bool:  # any JSON value
        try:
            return self._part(pointer).is_valid(value)
        except ValueError:  # half a surrogate pair in a name
            return False

    def _part(self, pointer: str) -> Draft202012Validator:
        """Return the validator of the subschema at this JSON Pointer."""
        found = self._compiled.get(pointer)
        if found is None:
            found = self._compiled[pointer] = self._compile({"$ref": f"{_ROOT}#{pointer}"}, self._keywords)
        return found

    def _compile(self, schema: Schema, keywords: Any, mask: str | None = None) -> Draft202012Validator:
        # keywords is Any, as the stubs of jsonschema-rs want the parameters of its classes named as there
        return Draft202012Validator(
            schema,
            registry=self._registry,
            pattern_options=SLOW if self._slow else QUICK,
            keywords=keywords,
            validate_formats=True,
            formats=_FORMATS,
            offline=True,
            mask=mask,
        )

    def _explained(self, place: _Place) -> Iterator[str]:
        """Yield the errors at a place whose value is invalid: there, or else in its parts."""
        schema, told = place.schema, False
        if not is_object(schema):
            yield place.says("is not allowed here")
            return
        for complaint in chain(self._asserted(schema, place), self._of_parts(schema, place)):
            told = True
            yield complaint
        if not told:
            words = [text for word, text in _AS_A_WHOLE.items() if word in schema]
            yield place.says(" or ".join(words) or "does not fit its schema")

    def _asserted(self, schema: Schema, place: _Place) -> Iterator[str]:
        """Yield the errors of the keywords without subschemas."""
        value = place.value
        if is_object(value):
            yield from map(place.says, _of_names(schema, value))
        words = {word: said for word, said in schema.items() if word not in _LEFT_TO_PARTS and word not in _AS_A_WHOLE}
        mask = None if self._quotes and _is_short(value) else "it"
        try:
            self._compile(words, self._keywords, mask).validate(value)
        except ValidationError as error:
            yield place.says(error.message)
        except ValueError as error:
            yield place.says(f"cannot be checked: {error}")

    def _of_parts(self, schema: Schema, place: _Place) -> Iterator[str]:
        """Yield the errors in the parts of a value, or of the value by a subschema."""
        if place.level == _DEEPEST:
            return
        same = ((word, each, [((), place.value)]) for word, each in _alongside(schema, place.value, self._schema))
        for word, each, values in chain(same, _members(schema, place.value)):
            for path, value in values:
                inside = place.part(word, each, value, path)
                if not self._is_valid(inside.pointer, value):
                    yield from self._explained(inside)


_Path: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class _Place:
    """A part of a value, and the subschema that it has to meet."""

    schema: Any  # any JSON value
    value: Any  # likewise
    pointer: str = ""  # to the subschema
    path: _Path = ()  # to the part
    level: int = 0  # how many subschemas led here

    def part(self, word: str, schema: Any, value: Any, path: _Path = ()) -> _Place:  # any JSON values
        """Return a part of it; `word` is the JSON Pointer from its schema to that of the part, or a reference."""
        pointer = word[1:] if word.startswith("#") else f"{self.pointer}/{word}"
        return _Place(schema, value, pointer, (*self.path, *path), self.level + 1)

    def says(self, text: str) -> str:
        """Return a complaint about it in one line, never with the whole value."""
        where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path).removeprefix(".")
        return f"{_short(where)}: {_short(text)}" if where else _short(text)


class _Part(NamedTuple):
    """A subschema, and the parts of a value that have to meet it."""

    word: str  # the JSON Pointer from the schema around it
    schema: Any  # any JSON value
    values: Iterable[tuple[_Path, Any]]  # likewise


@dataclass(slots=True, kw_only=True)
class _Work:
    """The work that one normalization may still do."""

    left: int  # values to visit


def _from_text(text: str) -> Any:  # any JSON value
    """Return the value in a JSON text, or the text itself if it holds none that every parser reads alike.

    Source: RFC 8259, sections 4 (a name twice), 6 (numbers), 8.2 (half surrogate pairs) and 9 (limits of nesting).
    """
    try:
        found = json.loads(text, object_pairs_hook=_with_unique_names)
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return text
    return text if is_deeper([found], _DEEPEST_TEXT) else found


def _with_unique_names(pairs: list[tuple[str, Any]]) -> Schema:  # any JSON values
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name twice")
    return found


def _members(schema: Schema, value: Any) -> Iterator[_Part]:  # any JSON value
    """Yield the subschemas that the members of a value have to meet."""
    if is_object(value):
        yield from _properties(schema, value)
    if is_list(value):
        first: list[Any] = schema.get("prefixItems", [])
        yield from (_Part(f"prefixItems/{i}", each, [((i,), value[i])]) for i, each in enumerate(first[: len(value)]))
        if "items" in schema:
            yield _Part("items", schema["items"], (((i,), value[i]) for i in range(len(first), len(value))))


def _alongside(schema: Schema, value: Any, root: Schema) -> Iterator[tuple[str, Any]]:  # any JSON values
    """Yield the subschemas that the same value has to meet, each with its keyword."""
    if isinstance(reference := schema.get("$ref"), str) and (target := target_of(reference, root)) is not None:
        yield reference, target
    yield from ((f"allOf/{i}", each) for i, each in enumerate(schema.get("allOf", ())))
    for word in ("anyOf", "oneOf"):
        found = [(f"{word}/{i}", each) for i, each in enumerate(schema.get(word, ())) if _may_fit(each, value, root)]
        yield from found if len(found) == 1 else ()  # as with a value that may also be null
    if is_object(value):
        dependent: Schema = schema.get("dependentSchemas", {})
        yield from ((f"dependentSchemas/{_token(name)}", each) for name, each in dependent.items() if name in value)


def _may_fit(schema: Any, value: Any, root: Schema, level: int = 0) -> bool:  # any JSON values
    """True if a schema is for values of this type, and with the same constant names as this value."""
    if not is_object(schema) or level == _DEEPEST:
        return schema is not False
    kinds, types = _TYPES[value.__class__], schema.get("type", ())
    named = [schema["const"]] if "const" in schema else schema.get("enum", ())
    all_of = [[each] for each in schema.get("allOf", ())]
    if isinstance(reference := schema.get("$ref"), str):
        all_of.append([target_of(reference, root)])
    return (
        (not types or not kinds.isdisjoint([types] if isinstance(types, str) else types))
        and (not named or any(kinds & _TYPES[each.__class__] for each in named))
        and not (is_object(value) and _is_of_other_kind(schema, value))
        and all(
            any(_may_fit(each, value, root, level + 1) for each in several)
            for several in (*all_of, *(schema[word] for word in ("anyOf", "oneOf") if word in schema))
        )
    )


def _is_of_other_kind(schema: Schema, value: Schema) -> bool:
    """True if a property has another text than its `const`, which tells alternatives apart."""
    wanted: dict[str, object] = {
        name: each["const"]
        for name, each in schema.get("properties", {}).items()
        if is_object(each) and "const" in each
    }
    return any(isinstance(const, str) and name in value and value[name] != const for name, const in wanted.items())


def _properties(schema: Schema, value: Schema) -> Iterator[_Part]:
    named, patterns = _names(schema)
    for name, each in named.items():
        if name in value:
            yield _Part(f"properties/{_token(name)}", each, [((name,), value[name])])
    for pattern, each in patterns.items():
        found = (((name,), value[name]) for name in value if matches(pattern, name))
        yield _Part(f"patternProperties/{_token(pattern)}", each, found)
    if is_object(rest := schema.get("additionalProperties")):
        yield _Part("additionalProperties", rest, (((name,), value[name]) for name in _rest(schema, value)))


def _names(schema: Schema) -> tuple[Schema, Schema]:
    return schema.get("properties", {}), schema.get("patternProperties", {})


def _rest(schema: Schema, value: Schema) -> Iterator[str]:
    """Yield the names to which `additionalProperties` applies."""
    named, patterns = _names(schema)
    return (name for name in value if name not in named and not any(matches(each, name) for each in patterns))


def _of_names(schema: Schema, value: Schema) -> Iterator[str]:
    """Yield the errors in the names of an object."""
    required = (name for name in schema.get("required", ()) if isinstance(name, str) and name not in value)
    yield from (f"{name!r} is a required property" for name in required)
    if schema.get("additionalProperties") is False and (rest := list(islice(_rest(schema, value), MAX_COMPLAINTS))):
        meant = closest(rest[0][:_SHOWN], (name for name in _names(schema)[0] if name not in value))
        hint = f"; did you mean {meant!r}?" if meant else ""
        yield f"additional properties are not allowed, such as {', '.join(map(repr, rest))}{hint}"


def _token(name: str) -> str:
    """Return a name as a part of a JSON Pointer in a URI (RFC 6901, section 6)."""
    return quote(name.replace("~", "~0").replace("/", "~1"), safe="~")


def violations(schema: Mapping[str, Any], value: Any) -> Sequence[str]:  # any JSON value
    """Return the errors of a value by a JSON Schema: see `Checker`."""
    return Checker(schema).violations(value)


def _is_short(value: Any) -> bool:  # any JSON value
    """True if a complaint can repeat it."""
    if isinstance(value, int):
        return value.bit_length() <= _SHOWN
    return not isinstance(value, list | dict | str) or (isinstance(value, str) and len(value) <= _SHOWN)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def check_schema(schema: Schema) -> Schema:
    """Return the schema itself, if it is JSON Schema 2020-12 for an object.

    Raises:
        ValueError: it is not; the message says what is wrong.
    """
    try:
        Draft202012Validator(schema, pattern_options=SLOW, validate_formats=True, offline=True)
    except ValidationError as error:
        raise ValueError(_wrong_schema(error)) from None
    except ValueError as error:  # half a surrogate pair, or too many levels
        raise ValueError(f"not a JSON Schema: {_short(str(error))}") from None
    if schema.get("type") != "object":
        raise ValueError("a JSON Schema of an object is needed here: {type: object, properties: {...}}")
    if cost_of(schema) >= ENDLESS:
        raise ValueError(
            "a $ref in it never ends, leads out of it, or is nested more than 200 deep: write #/$defs/NAME"
        )
    for word, pattern in patterns_in(schema):
        if word == "patternProperties" and not is_quick(pattern):
            text = (
                "names cannot be checked by it in bounded time; leave out what looks around or back, and large repeats"
            )
            raise ValueError(f"patternProperties: {_short(repr(pattern))}: {text}")
    return schema


def without_formats(schema: Any) -> Any:  # any JSON values
    """Return a schema without `format`, which few programs write exactly as their schema says."""
    if is_list(schema):
        return [without_formats(each) for each in schema]
    if not is_object(schema):
        return schema
    found: dict[str, Any] = {}
    for word, said in schema.items():
        if word in _BY_NAME and is_object(said):
            found[word] = {name: without_formats(each) for name, each in said.items()}
        elif word != "format":
            found[word] = said if word in _VALUES else without_formats(said)
    return found


def _wrong_schema(error: ValidationError) -> str:
    if isinstance(error.kind, ValidationErrorKind.Referencing):
        return f"a $ref is not in this schema: inline what it points to, in $defs ({_short(error.message)})"
    return f"not a JSON Schema: {_Place(schema={}, value=None, path=tuple(error.instance_path)).says(error.message)}"


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
