"""Arguments of the command line: `key=value` to JSON, typed by a JSON Schema; pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from mcp_workflows.sidecar.cli.app import WrongUsage
from mcp_workflows.tools.json_schema import did_you_mean

Schema = Mapping[str, Any]  # Any: JSON Schema

_YES_NO = {"true": True, "yes": True, "y": True, "false": False, "no": False, "n": False}
_WHOLE = re.compile(r"[+-]?\d+")
_OPENING = frozenset({"patternProperties", "allOf", "anyOf", "oneOf", "$ref"})  # these may allow further properties


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """`path=text`, or `path:=json`."""

    path: str
    text: str
    raw: bool  # the text is JSON


def read_pair(word: str) -> Pair:
    """Parse one word of the command line as a pair.

    Raises:
        WrongUsage: not a pair.
    """
    left, equals, right = word.partition("=")
    path = left.removesuffix(":")
    if not equals or not path:
        raise WrongUsage(f"{word!r} is not key=value (or key:=JSON)")
    return Pair(path=path, text=right, raw=left.endswith(":"))


def read_arguments(pairs: Iterable[Pair], schema: Schema, given: Mapping[str, Any]) -> dict[str, Any]:  # Any: JSON
    """Return the arguments of a call: the given JSON, with the pairs set.

    Raises:
        WrongUsage: the argument does not exist, or the text does not have its type.
    """
    arguments: dict[str, Any] = json.loads(json.dumps(given))  # a mutable copy
    seen: set[str] = set()
    for pair in pairs:
        inside, key, field = _place(pair, schema, schema, arguments)
        value = typed(pair, field, schema)
        if pair.path in seen and isinstance(inside.get(key), list):
            inside[key] += value if isinstance(value, list) else [value]
        else:
            inside[key] = value
        seen.add(pair.path)
    return arguments


def _place(pair: Pair, schema: Schema, root: Schema, into: dict[str, Any]) -> tuple[dict[str, Any], str, Schema]:
    """Follow a dotted path; return the object that gets the value, its key there, and the value's schema."""
    left, inside, at = pair.path, into, schema
    while True:
        properties: Schema = at.get("properties", {})
        key, dot, rest = left.partition(".")
        if left in properties or not dot:
            return inside, left, _property(pair, left, at, root)
        at = _property(pair, key, at, root)
        inside = inside.setdefault(key, {})
        if not isinstance(cast("object", inside), dict):
            raise WrongUsage(f"{pair.path}: {key} already has a value, which is not an object")
        left = rest


def _property(pair: Pair, key: str, schema: Schema, root: Schema) -> Schema:
    properties: Schema = schema.get("properties", {})
    if key in properties:
        return _resolved(properties[key], root)
    if properties and not schema.get("additionalProperties") and not schema.keys() & _OPENING:
        there = ", ".join(properties)
        raise WrongUsage(f"there is no argument {pair.path!r}{did_you_mean(key, properties)} (there are: {there})")
    return {}


def _resolved(schema: Schema | bool, root: Schema) -> Schema:
    """Return the target of a `$ref` within the schema; any other schema unchanged."""
    if isinstance(schema, bool):
        return {}
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return schema
    found: Any = root  # Any: JSON
    for part in reference.removeprefix("#/").split("/"):
        found = cast("Schema", found).get(part, {}) if isinstance(found, Mapping) else {}
    return cast("Schema", found) if isinstance(found, Mapping) else {}


def typed(pair: Pair, schema: Schema, root: Schema) -> Any:  # Any: JSON
    """Return the text as a value of the schema's type.

    Raises:
        WrongUsage: it does not have that type.
    """
    if pair.raw:
        try:
            return json.loads(pair.text)
        except json.JSONDecodeError as error:
            at = f"{error.msg} (column {error.colno})"
            raise WrongUsage(f"{pair.path}:={pair.text} is not JSON: {at}") from None
    offered: Sequence[Schema | bool] = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    options = [_resolved(option, root) for option in offered] or [schema]
    constants = [[option["const"]] if "const" in option else option.get("enum", ()) for option in options]
    if choices := [choice for each in constants for choice in each]:
        shown = {choice if isinstance(choice, str) else json.dumps(choice): choice for choice in choices}
        if pair.text in shown:
            return shown[pair.text]
        raise WrongUsage(f"{pair.path}: {pair.text!r} is not one of {', '.join(shown)}{did_you_mean(pair.text, shown)}")
    types = [name for option in options for name in _types(option)]
    if not types or "string" in types:
        return pair.text
    for name in types:
        value = _READ[name](pair.text)
        if value is not None:
            return value
    if "array" in types:  # one item of a list: `tag=a tag=b`
        items = next(option for option in options if "array" in _types(option)).get("items", {})
        return [typed(pair, _resolved(items, root), root)]
    wanted = " or ".join(dict.fromkeys(_NAMES[name] for name in types))
    raise WrongUsage(f"{pair.path}: {pair.text!r} is not {wanted}")


def _types(schema: Schema) -> Sequence[str]:
    found = schema.get("type", [])
    names = cast("Sequence[str]", [found] if isinstance(found, str) else found)
    return [name for name in names if name in _READ]


def _number(text: str) -> float | None:
    if (whole := _integer(text)) is not None:
        return whole
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None  # JSON has neither infinity nor NaN


def _integer(text: str) -> int | None:
    if not _WHOLE.fullmatch(text):
        return None
    try:
        return int(text)
    except ValueError:  # more digits than Python accepts
        return None


def _structure(kind: type) -> Callable[[str], Any]:  # Any: JSON
    def read(text: str) -> Any:  # Any: JSON
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            return None
        return value if isinstance(value, kind) else None

    return read


_READ: Mapping[str, Callable[[str], Any]] = {  # Any: JSON; None: not of this type
    "boolean": lambda text: _YES_NO.get(text.lower()),
    "integer": _integer,
    "number": _number,
    "array": _structure(list),
    "object": _structure(dict),
    "null": lambda _: None,  # only as raw JSON
    "string": lambda text: text,
}
_NAMES = {
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "array": "a JSON list",
    "object": "a JSON object",
    "null": "null (write it as key:=null)",
}


class _Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=_Named)


def named(name: str, tools: Sequence[T]) -> T:
    """Return the tool of this name.

    Raises:
        WrongUsage: no such tool.
    """
    by_name = {tool.name: tool for tool in tools}
    if name not in by_name:
        there = ", ".join(by_name) or "none"
        raise WrongUsage(f"there is no tool {name!r}{did_you_mean(name, by_name)} (there are: {there})")
    return by_name[name]


def describe(name: str, schema: Schema) -> str:
    """Describe an argument in a few words: `order_id (string): A-1001, for example`."""
    about = schema.get("description") or schema.get("title")
    kind = "/".join(_types(schema)) or "any"
    return f"{name} ({kind})" + (f": {about}" if about else "")
