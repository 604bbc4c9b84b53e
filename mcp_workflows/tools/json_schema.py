"""JSON from untrusted sources: checks of sizes, of schemas (JSON Schema 2020-12), and of values, at a bounded cost.

Neither the value nor the schema is trusted. jsonschema-rs checks quickly if a value is valid, but it collects the
errors of all alternatives before it returns the first, which takes seconds and gigabytes. So the cost of a check (the
number of values times the subschemas each may meet) is computed first, whole values are only tested with `is_valid`,
and the errors of an invalid one are searched from the outside in. Patterns that may be slow share a time limit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, islice
from time import thread_time
from typing import Any, Final, TypeAlias, TypeGuard, cast
from urllib.parse import quote, unquote

from jsonschema_rs import (
    Draft202012Validator,
    FancyRegexOptions,
    RegexOptions,
    Registry,
    ValidationError,
    ValidationErrorKind,
)
from pydantic_core import PydanticSerializationError, to_json

from mcp_workflows.adapter import JSON
from mcp_workflows.adapter.display_text import closest
from mcp_workflows.errors import LimitReached

Schema: TypeAlias = dict[str, Any]  # a JSON Schema 2020-12 object

_MARKS: Final = (b",", b"[", b"{")  # each precedes a value


def size_of(value: JSON) -> int:
    """Return the size of a value in bytes of JSON."""
    return len(_dump(value))


def check_size(what: str, value: JSON, most: int | None, most_values: int | None = None) -> None:
    """Check that a value has at most `most` bytes of JSON and `most_values` JSON values.

    Raises:
        LimitReached: it is too large; a retry cannot help.
    """
    if most is None and most_values is None:
        return
    text = _dump(value)
    if most is not None and len(text) > most:
        raise LimitReached(f"{what}: {len(text)} bytes of JSON, and at most {most} are accepted: send less, or a link")
    if most_values is not None and has_more_values(text, most_values):
        raise LimitReached(f"{what}: more than {most_values} JSON values: send fewer, or a link")


def has_more_values(text: bytes, most: int) -> bool:
    """Return True if the JSON text holds more than `most` values; the text is not parsed.

    Each non-empty list or object has one more value than commas. Commas and brackets in strings do not count.
    """
    if _count_marks(text) < most:
        return False
    if b"\0" in text:  # UTF-16 or UTF-32, which MCP does not use: strings cannot be recognized
        return True
    plain = text.replace(rb"\\", b"").replace(rb"\"", b"")
    if plain.count(b'"') > 4 * most:  # two for each string and each name
        return True
    outside = b"0".join(plain.split(b'"')[::2]).translate(None, b" \t\r\n")
    return _count_marks(outside) - outside.count(b"[]") - outside.count(b"{}") >= most


def _dump(value: JSON) -> bytes:
    try:
        return to_json(value, inf_nan_mode="constants")  # five times as fast as `json` with a large value
    except PydanticSerializationError:  # an unpaired surrogate, in the output of an engine
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _count_marks(text: bytes) -> int:
    return sum(text.count(mark) for mark in _MARKS)


MAX_SIZE: Final = 65_536  # characters of a foreign schema, as JSON
MAX_DEPTH: Final = 40  # nested objects and lists in a foreign schema
MAX_PATTERNS: Final = 1_000  # characters of all patterns in a foreign schema: each takes time to compile
MAX_STEPS: Final = 1_000  # subschemas that one value may have to meet, in a foreign schema
ENDLESS: Final = 1_000_000_000  # the cost of a schema that refers to itself for the same value
_MAX_NESTING: Final = 200  # nested subschemas, references followed
_COMPARISON_COST: Final = 8  # subschemas: comparing a number or an object takes as long


def is_object(value: Any) -> TypeGuard[Schema]:  # any JSON value
    """Return True if it is a JSON object."""
    return isinstance(value, dict)


def is_list(value: Any) -> TypeGuard[list[Any]]:  # any JSON value
    """Return True if it is a JSON list."""
    return isinstance(value, list)


def count_values(value: Any) -> int:  # any JSON value
    """Return the number of values in a JSON value, including itself."""
    found = 1
    level: list[Any] = [value] if isinstance(value, dict | list) else []
    while level:  # level by level, because a function call for each of 100,000 values takes too long
        found += sum(map(len, level))
        level = [each for item in level for each in _inner(item) if isinstance(each, dict | list)]
    return found


def _inner(value: Any) -> Iterable[Any]:  # any JSON values
    return value.values() if is_object(value) else value


def excess(schema: Schema) -> str | None:
    """Return the limit that a foreign schema exceeds, or None. Checks with such a schema might never end."""
    if is_deeper(schema, MAX_DEPTH):
        return f"it is nested more than {MAX_DEPTH} deep"
    if (size := len(json.dumps(schema))) > MAX_SIZE:
        return f"it is {size} characters, and at most {MAX_SIZE} are accepted"
    if (length := sum(len(pattern) for _, pattern in patterns_in(schema))) > MAX_PATTERNS:
        return f"its patterns are {length} characters together, and at most {MAX_PATTERNS} are accepted"
    if cost_of(schema) > MAX_STEPS:
        return "its references multiply, form a loop or leave the schema: write #/$defs/NAME"
    return None


def patterns_in(schema: Schema) -> Iterator[tuple[str, str]]:
    """Yield the regular expressions in a schema, each with its keyword: `pattern` or `patternProperties`."""
    for node in _nodes(schema):
        if is_object(node):
            if isinstance(pattern := node.get("pattern"), str):
                yield "pattern", pattern
            yield from (("patternProperties", name) for name in object_at(node, "patternProperties"))


def is_deeper(value: Any, most: int) -> bool:  # any JSON value
    """Return True if non-empty objects and lists are nested more than `most` deep."""
    return not all(_nodes(value, most))


def _nodes(schema: Any, most: float = float("inf")) -> Iterator[Any]:  # any JSON value
    """Yield all non-empty objects and lists; None for one that is nested deeper than `most`."""
    left: list[tuple[Any, int]] = [(schema, 1)]
    while left:
        node, depth = left.pop()
        yield node if depth <= most else None
        inner = cast("Iterable[Any]", node.values() if isinstance(node, dict) else node)
        if depth <= most:
            left += [(item, depth + 1) for item in inner if item and isinstance(item, dict | list)]


def cost_of(schema: Schema) -> int:
    """Return the maximum number of subschemas that any part of a value may have to meet; `ENDLESS` if unlimited.

    A subschema that recurs for a part of the value costs nothing more there: jsonschema-rs checks it once per value.
    """
    known: dict[int, int | None] = {}  # None: begun

    def cost(part: Any, same: frozenset[int], depth: int) -> int:  # any JSON value
        """Return the cost for one value with all its parts; `same` are the subschemas that led here for that value."""
        key = id(part)
        if not is_object(part):
            return 1
        if key in same or depth > _MAX_NESTING:
            return ENDLESS
        if key in known:
            return known[key] or 1
        known[key] = None
        found = 1 + _comparing(part) + sum(cost(each, same | {key}, depth + 1) for each in _met_together(part, schema))
        any_name, each_name, any_item, each_item = (
            [cost(each, frozenset(), depth + 1) for each in group] for group in _groups(part)
        )
        found += max(max(any_name, default=0) + sum(each_name), max(any_item, default=0) + sum(each_item))
        known[key] = found = min(found, ENDLESS)
        return found

    return cost(schema, frozenset(), 0)


def _met_together(schema: Schema, root: Schema) -> Iterator[Any]:  # any JSON values
    """Yield the subschemas that one value may have to meet."""
    for word in ("$ref", "$dynamicRef"):
        if isinstance(reference := schema.get(word), str):
            target = target_of(reference, root)
            yield schema if target is None else target  # one that cannot be followed may be endless
    for word in ("allOf", "anyOf", "oneOf"):
        yield from list_at(schema, word)
    yield from (schema[word] for word in ("not", "if", "then", "else") if word in schema)
    yield from object_at(schema, "dependentSchemas").values()


def _groups(schema: Schema) -> Iterator[list[Any]]:  # any JSON values
    """Yield the subschemas for names: exclusive ones, then those that may all apply; then the same for items."""
    rest = [schema[word] for word in ("additionalProperties", "unevaluatedProperties") if word in schema]
    yield [*object_at(schema, "properties").values(), *rest]
    yield [*object_at(schema, "patternProperties").values(), *(schema[w] for w in ("propertyNames",) if w in schema)]
    yield [*list_at(schema, "prefixItems"), *(schema[w] for w in ("items", "unevaluatedItems") if w in schema)]
    yield [schema[word] for word in ("contains",) if word in schema]


def _comparing(schema: Schema) -> int:
    """Return the cost of comparing a value with the allowed ones; strings and numbers are looked up."""
    several = list_at(schema, "enum")
    kinds: set[object] = {type(each) for each in several}
    mixed = len(kinds) > 1 or any(isinstance(each, dict | list) for each in several)
    one = _COMPARISON_COST if "const" in schema and not isinstance(schema["const"], str) else 0
    return len(several) * mixed + one


def list_at(schema: Schema, word: str) -> list[Any]:
    """Return the list under this keyword, or an empty one."""
    found = schema.get(word)
    return found if is_list(found) else []


def object_at(schema: Schema, word: str) -> Schema:
    """Return the object under this keyword, or an empty one."""
    found = schema.get(word)
    return found if is_object(found) else {}


def target_of(reference: str, root: Schema) -> Any:  # any JSON value
    """Return the subschema of a reference; None if it leads out of the schema."""
    if reference != "#" and not reference.startswith("#/"):
        names = {"$id": reference}
        if reference.startswith("#"):
            names |= {"$anchor": reference[1:], "$dynamicAnchor": reference[1:]}
        nodes = (node for node in _nodes(root) if is_object(node))
        return next((node for node in nodes if any(node.get(word) == name for word, name in names.items())), None)
    found: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if is_list(found):
            found = found[int(name)] if name.isdecimal() and int(name) < len(found) else None
        else:
            found = found.get(name) if is_object(found) else None
    return found


LIMIT: Final = 0.1  # seconds of processor time that one check may take for all slow patterns together
LONGEST: Final = 2_000  # characters of a text that a slow pattern may search
_QUICK: Final = RegexOptions(size_limit=10_000)  # bytes of a compiled pattern that searches a long text in milliseconds
_SLOW: Final = FancyRegexOptions(backtrack_limit=100_000)  # gives up after about 5 ms


@dataclass(slots=True, kw_only=True)
class _Searches:
    """The time left for the slow patterns of one check, and why a search was given up."""

    left: float = LIMIT  # seconds
    given_up: str | None = None


_searches: ContextVar[_Searches] = ContextVar("mcp_workflows_searches")


@contextmanager
def _bounded() -> Generator[_Searches]:
    """Limit all searches in the body together; `given_up` is then the reason for one without a result."""
    searches = _Searches()
    token = _searches.set(searches)
    try:
        yield searches
    finally:
        _searches.reset(token)


@lru_cache(maxsize=256)
def is_quick(pattern: str) -> bool:
    r"""Return True if a search takes little time, in proportion to the text.

    Most patterns do, but not those with lookarounds or backreferences, and those that compile to more than 10 kB, such
    as `\p{L}{1,50}`.
    """
    try:
        Draft202012Validator({"pattern": pattern}, pattern_options=_QUICK)
    except ValidationError:
        return False
    return True


def _matches(pattern: str, text: str) -> bool:
    """Return True if the pattern is in the text; False, recorded in `_bounded`, if the search takes too long."""
    quick = is_quick(pattern)
    searches = _searches.get(None) or _Searches()
    if not quick and (len(text) > LONGEST or searches.left <= 0):
        searches.given_up = _too_long(pattern)
        return False
    began = thread_time()
    try:
        _compiled(pattern).validate(text)
    except ValidationError as error:
        if not isinstance(error.kind, ValidationErrorKind.Pattern):
            searches.given_up = _too_long(pattern)
        return False
    finally:
        searches.left -= 0 if quick else thread_time() - began
    return True


def _too_long(pattern: str) -> str:
    return f"takes too long to check against the pattern {pattern!r}"


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> Draft202012Validator:
    return Draft202012Validator({"pattern": pattern}, pattern_options=_QUICK if is_quick(pattern) else _SLOW)


class _SlowPattern:
    """The keyword `pattern`, for schemas in which not all patterns are quick."""

    def __init__(self, parent_schema: object, value: Any, schema_path: object) -> None:  # value: any JSON value
        """Keep the pattern of one subschema."""
        self._pattern = str(value)

    def validate(self, instance: Any) -> None:  # any JSON value
        """Raise `ValueError` unless the pattern is in the text."""
        if isinstance(instance, str) and not _matches(self._pattern, instance):
            raise ValueError(f"does not match {self._pattern!r}")


MAX_CHECKS: Final = 5_000_000  # subschemas that all parts of a value may have to meet together: about 0.1 s
MAX_COMPLAINTS: Final = 5  # per value; a client needs no more
_DEEPEST: Final = 20  # levels down to which errors are reported individually
_LONGEST: Final = 200  # characters of one part of a complaint
_SHOWN: Final = 60  # characters of a value repeated in a complaint
_ROOT: Final = "urn:mcp-workflows:schema"
_MOST_SENT: Final = 1_000_000  # values in one message; if a schema can check this many, values are not counted
_MOST_WORK: Final = 1_000_000  # maximum values visited by one normalization, however many alternatives there are
_TEXT_COST: Final = 5  # characters of JSON text whose parsing takes as long as visiting one value
_PLACE_COST: Final = 100  # values whose visit takes as long as normalizing an invalid one: about 30 us
_DEEPEST_TEXT: Final = 80  # levels in JSON text; with `_DEEPEST` around it, as many as a request may have
_ADDED_BY_HOSTS: Final = frozenset({"toolCallId", "sessionId", "action", "chatInput"})
"""The members that n8n adds to arguments (source: n8n-io/n8n, issues 21500 and 22787)."""
_MARK_OF_HOST: Final = "toolCallId"  # it always adds this one; without it the others are the caller's


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
"""Formats checked less strictly than RFC 3339 and DNS require: pydantic writes `PT0.5S`, and `date-time` for any
`datetime`, with or without a zone; host names may have `_`.
"""

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
    "anyOf": "matches none of the alternatives (anyOf)",
    "oneOf": "does not match exactly one of the alternatives (oneOf)",
    "not": "is what its schema excludes (not)",
    "contains": "has too few or too many items of a kind (contains)",
    "propertyNames": "has a property whose name is not allowed (propertyNames)",
    "unevaluatedProperties": "has properties that are not allowed (unevaluatedProperties)",
    "unevaluatedItems": "has items that are not allowed (unevaluatedItems)",
    "$dynamicRef": "does not match its schema ($dynamicRef)",
}
"""Keywords with subschemas whose errors are reported as a whole."""


_VALUES: Final = frozenset({"const", "enum", "default", "examples"})
"""Keywords with values, which contain no subschemas."""
_BY_NAME: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords with subschemas by name; a name may equal a keyword."""


class Checker:
    """A JSON Schema for checking values. Creating one takes longer than checking a small value."""

    def __init__(self, schema: Mapping[str, Any], *, quotes: bool = True) -> None:
        """Compile the schema; references outside it are never fetched. `quotes`: complaints repeat short values."""
        self._schema = cast("Schema", schema)
        self._quotes = quotes
        self._compiled: dict[str, Draft202012Validator] = {}
        self._wrong: str | None = None
        try:
            self._most = MAX_CHECKS // cost_of(self._schema)
            self._slow = not all(is_quick(pattern) for _, pattern in patterns_in(self._schema))
            self._keywords = {"pattern": _SlowPattern} if self._slow else {}
            self._registry = Registry([(_ROOT, self._schema)])
            if self._slow:
                self._compile(self._schema, {})  # `_SlowPattern` accepts any pattern
            self._part("")
        except ValueError as error:
            self._wrong = f"cannot be checked, as its schema is wrong: {_short(str(error))}"

    def violations(self, value: Any) -> Sequence[str]:  # any JSON value
        """Return the first few errors of a value with their places, one per line."""
        if self._wrong:
            return [self._wrong]
        if self._most < _MOST_SENT and (count := count_values(value)) > max(self._most, 1):
            return [
                f"has {count} values, and at most {self._most} can be checked by this schema: send less, or simplify it"
            ]
        if not self._slow and self._is_valid("", value):
            return []
        with _bounded() as searches:
            found: Sequence[str] = []
            if not (self._slow and self._is_valid("", value)):
                found = list(islice(self._explain(_Place(schema=self._schema, value=value)), MAX_COMPLAINTS))
        return [searches.given_up] if searches.given_up else found

    def normalize(self, value: Any) -> Any:  # any JSON values
        """Return a value in the form that the schema requires, if hosts send another one; a valid value is unchanged.

        - A string is parsed as JSON where the schema accepts no string. A result that still does not fit is kept only
          if its errors are more helpful than those of the string.
        - Null is dropped for an optional property that does not accept null.
        - Members added by hosts are dropped at the top level, where `additionalProperties` refuses them.
        """
        if self._wrong or (self._most < _MOST_SENT and count_values(value) > self._most):
            return value
        if not self._slow and self._is_valid("", value):
            return value
        with _bounded():
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
        """Return True if a member only marks an optional property as unset, or comes from the host."""
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
        except ValueError:  # an unpaired surrogate in a name
            return False

    def _part(self, pointer: str) -> Draft202012Validator:
        """Return the validator of the subschema at this JSON Pointer."""
        found = self._compiled.get(pointer)
        if found is None:
            found = self._compiled[pointer] = self._compile({"$ref": f"{_ROOT}#{pointer}"}, self._keywords)
        return found

    def _compile(self, schema: Schema, keywords: Any, mask: str | None = None) -> Draft202012Validator:
        # keywords is Any, because the stubs of jsonschema-rs require the same parameter names in its classes
        return Draft202012Validator(
            schema,
            registry=self._registry,
            pattern_options=_SLOW if self._slow else _QUICK,
            keywords=keywords,
            validate_formats=True,
            formats=_FORMATS,
            offline=True,
            mask=mask,
        )

    def _explain(self, place: _Place) -> Iterator[str]:
        """Yield the errors of an invalid value: first those of keywords without subschemas, then those in its parts."""
        schema, value, is_explained = place.schema, place.value, False
        if not is_object(schema):
            yield place.says("is not allowed here")
            return
        if is_object(value):
            for text in _of_names(schema, value):
                is_explained = True
                yield place.says(text)
        words = {word: said for word, said in schema.items() if word not in _LEFT_TO_PARTS and word not in _AS_A_WHOLE}
        try:
            self._compile(words, self._keywords, None if self._quotes and _is_short(value) else "it").validate(value)
        except ValueError as error:
            is_explained = True
            yield place.says(error.message if isinstance(error, ValidationError) else f"cannot be checked: {error}")
        if place.level < _DEEPEST:
            same = ((word, each, [((), value)]) for word, each in _alongside(schema, value, self._schema))
            for word, each, values in chain(same, _members(schema, value)):
                for path, part in values:
                    inside = place.part(word, each, part, path)
                    if not self._is_valid(inside.pointer, part):
                        for text in self._explain(inside):
                            is_explained = True
                            yield text
        if not is_explained:
            texts = [text for word, text in _AS_A_WHOLE.items() if word in schema]
            yield place.says(" or ".join(texts) or "does not match its schema")


_Path: TypeAlias = tuple[str | int, ...]
_Part: TypeAlias = tuple[str, Any, Iterable[tuple[_Path, Any]]]  # any JSON values


@dataclass(frozen=True, slots=True)
class _Place:
    """A part of a value, and the subschema that it must meet."""

    schema: Any  # any JSON value
    value: Any  # any JSON value
    pointer: str = ""  # to the subschema
    path: _Path = ()  # to the part
    level: int = 0  # number of subschemas that led here

    def part(self, word: str, schema: Any, value: Any, path: _Path = ()) -> _Place:  # any JSON values
        """Return a part of it; `word` is the JSON Pointer from its schema to the part's schema, or a reference."""
        pointer = word[1:] if word.startswith("#") else f"{self.pointer}/{word}"
        return _Place(schema, value, pointer, (*self.path, *path), self.level + 1)

    def says(self, text: str) -> str:
        """Return a complaint about it on one line, never with the whole value."""
        where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path).removeprefix(".")
        return f"{_short(where)}: {_short(text)}" if where else _short(text)


@dataclass(slots=True, kw_only=True)
class _Work:
    """The work that one normalization may still do."""

    left: int  # values to visit


def _from_text(text: str) -> Any:  # any JSON value
    """Return the value in a JSON text, or the text itself if parsers may read it differently.

    Source: RFC 8259, sections 4 (duplicate names), 6 (numbers), 8.2 (unpaired surrogates) and 9 (limits of nesting).
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
    """Yield the subschemas for the members of a value, each with its JSON Pointer and these members."""
    if is_object(value):
        for name, each in schema.get("properties", {}).items():
            if name in value:
                yield f"properties/{_token(name)}", each, [((name,), value[name])]
        for pattern, each in schema.get("patternProperties", {}).items():
            found = (((name,), value[name]) for name in value if _matches(pattern, name))
            yield f"patternProperties/{_token(pattern)}", each, found
        if is_object(rest := schema.get("additionalProperties")):
            yield "additionalProperties", rest, (((name,), value[name]) for name in _rest(schema, value))
    if is_list(value):
        first: list[Any] = schema.get("prefixItems", [])
        yield from ((f"prefixItems/{i}", each, [((i,), value[i])]) for i, each in enumerate(first[: len(value)]))
        if "items" in schema:
            yield "items", schema["items"], (((i,), value[i]) for i in range(len(first), len(value)))


def _alongside(schema: Schema, value: Any, root: Schema) -> Iterator[tuple[str, Any]]:  # any JSON values
    """Yield the subschemas that the same value must meet, each with its keyword."""
    if isinstance(reference := schema.get("$ref"), str) and (target := target_of(reference, root)) is not None:
        yield reference, target
    yield from ((f"allOf/{i}", each) for i, each in enumerate(schema.get("allOf", ())))
    for word in ("anyOf", "oneOf"):
        found = [(f"{word}/{i}", each) for i, each in enumerate(schema.get(word, ())) if _may_fit(each, value, root)]
        yield from found if len(found) == 1 else ()  # for example, for a nullable value
    if is_object(value):
        dependent: Schema = schema.get("dependentSchemas", {})
        yield from ((f"dependentSchemas/{_token(name)}", each) for name, each in dependent.items() if name in value)


def _may_fit(schema: Any, value: Any, root: Schema, level: int = 0) -> bool:  # any JSON values
    """Return True if a schema is for values of this type, with the same constant names as this value."""
    if not is_object(schema) or level == _DEEPEST:
        return schema is not False
    kinds, types = _TYPES[value.__class__], schema.get("type", ())
    named = [schema["const"]] if "const" in schema else schema.get("enum", ())
    constants = {  # they distinguish alternatives
        name: each["const"]
        for name, each in object_at(schema, "properties").items()
        if is_object(each) and isinstance(each.get("const"), str)
    }
    all_of = [[each] for each in schema.get("allOf", ())]
    if isinstance(reference := schema.get("$ref"), str):
        all_of.append([target_of(reference, root)])
    return (
        (not types or not kinds.isdisjoint([types] if isinstance(types, str) else types))
        and (not named or any(kinds & _TYPES[each.__class__] for each in named))
        and not (is_object(value) and any(value[name] != const for name, const in constants.items() if name in value))
        and all(
            any(_may_fit(each, value, root, level + 1) for each in several)
            for several in (*all_of, *(schema[word] for word in ("anyOf", "oneOf") if word in schema))
        )
    )


def _rest(schema: Schema, value: Schema) -> Iterator[str]:
    """Yield the names to which `additionalProperties` applies."""
    named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    return (name for name in value if name not in named and not any(_matches(each, name) for each in patterns))


def _of_names(schema: Schema, value: Schema) -> Iterator[str]:
    """Yield the errors in the names of an object."""
    required = (name for name in schema.get("required", ()) if isinstance(name, str) and name not in value)
    yield from (f"{name!r} is a required property" for name in required)
    if schema.get("additionalProperties") is False and (rest := list(islice(_rest(schema, value), MAX_COMPLAINTS))):
        hint = did_you_mean(rest[0][:_SHOWN], (name for name in schema.get("properties", {}) if name not in value))
        yield f"additional properties are not allowed, such as {', '.join(map(repr, rest))}{hint}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'orders'?` if a known name is close, or an empty text."""
    close = closest(name, (word for word in known if word != name))
    return f"; did you mean {close!r}?" if close else ""


def _token(name: str) -> str:
    """Return a name as a part of a JSON Pointer in a URI (RFC 6901, section 6)."""
    return quote(name.replace("~", "~0").replace("/", "~1"), safe="~")


def violations(schema: Mapping[str, Any], value: Any) -> Sequence[str]:  # any JSON value
    """Return the errors of a value according to a JSON Schema: see `Checker`."""
    return Checker(schema).violations(value)


def _is_short(value: Any) -> bool:  # any JSON value
    """Return True if a complaint can repeat the value."""
    if isinstance(value, int):
        return value.bit_length() <= _SHOWN
    return not isinstance(value, list | dict | str) or (isinstance(value, str) and len(value) <= _SHOWN)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def check_schema(schema: Schema) -> Schema:
    """Return the schema itself if it is JSON Schema 2020-12 for an object.

    Raises:
        ValueError: it is not; the message has the reason.
    """
    try:
        Draft202012Validator(schema, pattern_options=_SLOW, validate_formats=True, offline=True)
    except ValidationError as error:
        if isinstance(error.kind, ValidationErrorKind.Referencing):
            text = f"a $ref is not in this schema: inline its target in $defs ({_short(error.message)})"
            raise ValueError(text) from None
        place = _Place(schema={}, value=None, path=tuple(error.instance_path))
        raise ValueError(f"not a JSON Schema: {place.says(error.message)}") from None
    except ValueError as error:  # an unpaired surrogate, or too many levels
        raise ValueError(f"not a JSON Schema: {_short(str(error))}") from None
    if schema.get("type") != "object":
        raise ValueError("must be a JSON Schema of an object: {type: object, properties: {...}}")
    if cost_of(schema) >= ENDLESS:
        raise ValueError("a $ref in it loops, leaves the schema, or is nested more than 200 deep: write #/$defs/NAME")
    for word, pattern in patterns_in(schema):
        if word == "patternProperties" and not is_quick(pattern):
            wrong = "names cannot be checked by it in bounded time; remove lookarounds and backreferences"
            raise ValueError(f"patternProperties: {_short(repr(pattern))}: {wrong}, and large repeats")
    return schema


def without_formats(schema: Any) -> Any:  # any JSON values
    """Return a schema without `format`, because few programs write values exactly as it requires."""
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
