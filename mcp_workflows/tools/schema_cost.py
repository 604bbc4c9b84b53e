"""The cost of a check by a JSON Schema, known in advance: the number of values times the subschemas each may meet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias, TypeGuard, cast
from urllib.parse import unquote

Schema: TypeAlias = dict[str, Any]  # a JSON Schema 2020-12 object

MAX_SIZE: Final = 65_536  # characters of a schema that a stranger wrote, as JSON
MAX_DEPTH: Final = 40  # objects and lists in each other, in a schema that a stranger wrote
MAX_PATTERNS: Final = 1_000  # characters of all patterns in a schema that a stranger wrote: each takes time to compile
MAX_STEPS: Final = 1_000  # subschemas that one value may have to meet, in a schema that a stranger wrote
ENDLESS: Final = 1_000_000_000  # the cost of a schema that refers to itself for the same value
_MAX_NESTING: Final = 200  # subschemas in each other, references followed
_COMPARISON_COST: Final = 8  # subschemas: to compare a number or an object takes as long


def is_object(value: Any) -> TypeGuard[Schema]:  # any JSON value
    """True if it is a JSON object."""
    return isinstance(value, dict)


def is_list(value: Any) -> TypeGuard[list[Any]]:  # any JSON value
    """True if it is a JSON list."""
    return isinstance(value, list)


def count_values(value: Any) -> int:  # any JSON value
    """Return the number of values in a JSON value, itself included."""
    found = 1
    level: list[Any] = [value] if isinstance(value, dict | list) else []
    while level:  # a level at a time, as a function call for each of 100,000 values takes too long
        found += sum(map(len, level))
        level = [each for item in level for each in _members(item) if isinstance(each, dict | list)]
    return found


def _members(value: Any) -> Iterable[Any]:  # any JSON values
    return value.values() if is_object(value) else value


def excess(schema: Schema) -> str | None:
    """Return the limit that a foreign schema exceeds, or None: to check values by it could take for ever."""
    if is_deeper(schema, MAX_DEPTH):
        return f"it is nested more than {MAX_DEPTH} deep"
    if (size := len(json.dumps(schema))) > MAX_SIZE:
        return f"it is {size} characters, and at most {MAX_SIZE} are taken"
    if (length := sum(len(pattern) for _, pattern in patterns_in(schema))) > MAX_PATTERNS:
        return f"its patterns are {length} characters together, and at most {MAX_PATTERNS} are taken"
    if cost_of(schema) > MAX_STEPS:
        return "its references multiply, or refer to themselves or to somewhere else: write #/$defs/NAME"
    return None


def patterns_in(schema: Schema) -> Iterator[tuple[str, str]]:
    """Yield the regular expressions in a schema, each with its keyword: `pattern` or `patternProperties`."""
    for node in _nodes(schema):
        if is_object(node):
            if isinstance(pattern := node.get("pattern"), str):
                yield "pattern", pattern
            yield from (("patternProperties", name) for name in object_at(node, "patternProperties"))


def is_deeper(value: Any, most: int) -> bool:  # any JSON value
    """True if objects and lists that are not empty are nested more than `most` deep."""
    return not all(_nodes(value, most))


def _nodes(schema: Any, most: float = float("inf")) -> Iterator[Any]:  # any JSON value
    """Yield all objects and lists that are not empty; None for one that is nested deeper than `most`."""
    left: list[tuple[Any, int]] = [(schema, 1)]
    while left:
        node, depth = left.pop()
        yield node if depth <= most else None
        inner = cast("Iterable[Any]", node.values() if isinstance(node, dict) else node)
        if depth <= most:
            left += [(item, depth + 1) for item in inner if item and isinstance(item, dict | list)]


def cost_of(schema: Schema) -> int:
    """Return the number of subschemas that any part of a value may have to meet at most; `ENDLESS` if it has no end."""
    return _Costs(schema).of(schema, frozenset(), 0)


class _Costs:
    """The costs of the subschemas of one schema, each worked out once."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._known: dict[int, int] = {}
        self._begun: set[int] = set()

    def of(self, schema: Any, same: frozenset[int], depth: int) -> int:  # any JSON value
        """Return the cost for one value with all its parts; `same` are the subschemas that led here for that value.

        A subschema that comes back to itself for a part of the value costs nothing more there: jsonschema-rs checks a
        value by it once.
        """
        if not is_object(schema):
            return 1
        key = id(schema)
        if key in same or depth > _MAX_NESTING:
            return ENDLESS
        if key in self._known or key in self._begun:
            return self._known.get(key, 1)
        self._begun.add(key)
        cost = 1 + _comparing(schema)
        for each in self._alongside(schema):
            cost += self.of(each, same | {key}, depth + 1)
        inside = [[self.of(each, frozenset(), depth + 1) for each in group] for group in _groups(schema)]
        any_name, each_name, any_item, each_item = inside
        cost += max(max(any_name, default=0) + sum(each_name), max(any_item, default=0) + sum(each_item))
        self._known[key] = min(cost, ENDLESS)
        return self._known[key]

    def _alongside(self, schema: Schema) -> Iterator[Any]:  # any JSON value
        """Yield the subschemas that the same value has to meet."""
        for word in ("$ref", "$dynamicRef"):
            if isinstance(reference := schema.get(word), str):
                target = target_of(reference, self._root)
                yield schema if target is None else target  # one that cannot be followed may have no end
        for word in ("allOf", "anyOf", "oneOf"):
            yield from list_at(schema, word)
        yield from (schema[word] for word in ("not", "if", "then", "else") if word in schema)
        yield from object_at(schema, "dependentSchemas").values()


def _groups(schema: Schema) -> Iterator[list[Any]]:  # any JSON values
    """Yield the subschemas for names of which a name meets one, and each; then those for items, likewise."""
    rest = [schema[word] for word in ("additionalProperties", "unevaluatedProperties") if word in schema]
    yield [*object_at(schema, "properties").values(), *rest]
    yield [*object_at(schema, "patternProperties").values(), *(schema[w] for w in ("propertyNames",) if w in schema)]
    yield [*list_at(schema, "prefixItems"), *(schema[w] for w in ("items", "unevaluatedItems") if w in schema)]
    yield [schema[word] for word in ("contains",) if word in schema]


def _comparing(schema: Schema) -> int:
    """Return the cost of comparing a value with the allowed ones; texts, and numbers, are looked up."""
    several = list_at(schema, "enum")
    kinds: set[object] = {type(each) for each in several}
    mixed = len(kinds) > 1 or any(isinstance(each, dict | list) for each in several)
    one = _COMPARISON_COST if "const" in schema and not isinstance(schema["const"], str) else 0
    return len(several) * mixed + one


def list_at(schema: Schema, word: str) -> list[Any]:
    """Return the list under this word; empty if there is none."""
    found = schema.get(word)
    return found if is_list(found) else []


def object_at(schema: Schema, word: str) -> Schema:
    """Return the object under this word; empty if there is none."""
    found = schema.get(word)
    return found if is_object(found) else {}


def target_of(reference: str, root: Schema) -> Any:  # any JSON value
    """Return the subschema that a reference means; None if it leads out of the schema."""
    if reference != "#" and not reference.startswith("#/"):
        return next((node for node in _nodes(root) if is_object(node) and _is_named(node, reference)), None)
    found: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if is_list(found):
            found = found[int(name)] if name.isdecimal() and int(name) < len(found) else None
        else:
            found = found.get(name) if is_object(found) else None
    return found


def _is_named(schema: Schema, reference: str) -> bool:
    anchors = [schema.get("$anchor"), schema.get("$dynamicAnchor")]
    return reference == schema.get("$id") or (reference.startswith("#") and reference[1:] in anchors)
