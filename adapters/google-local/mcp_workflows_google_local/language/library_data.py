"""Conversions and conditions, list.*, map.*, math.*: values in, value out."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

from mcp_workflows_google_local import JSON
from mcp_workflows_google_local.language.errors import Tag, failure
from mcp_workflows_google_local.language.functions import Function, need, wrong
from mcp_workflows_google_local.language.operators import as_text, bounded, truth
from mcp_workflows_google_local.language.values import is_list, is_map

_INTEGER: Final = re.compile(r"[-+]?[0-9]+")
_LONG: Final = 1000  # digits that certainly exceed 64 bits
_DOUBLE: Final = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


def _int(value: JSON) -> JSON:
    if isinstance(value, str):
        if not _INTEGER.fullmatch(value):
            raise failure(Tag.VALUE, "int: the string is not an integer")
        return bounded(int(value) if len(value) < _LONG else 2**64)
    need("int", "number", value=value)
    return bounded(int(value))


def _double(value: JSON) -> JSON:
    if isinstance(value, str):
        if not _DOUBLE.fullmatch(value):
            raise failure(Tag.VALUE, "double: the string is not a number")
        return bounded(float(value))
    need("double", "number", value=value)
    return float(value)


def _keys(map_: JSON) -> JSON:
    need("keys", "map", map_=map_)
    return list(map_)


def _len(value: JSON) -> JSON:
    if not isinstance(value, str | list | dict):
        raise wrong("len", "value", "list, map or string", value)
    return len(value)  # pyright: ignore[reportUnknownArgumentType]  # a JSON value


def _default(val: JSON, default_val: JSON) -> JSON:
    return default_val if val is None else val


def _if(condition: JSON, if_true: JSON, if_false: JSON) -> JSON:
    return if_true if truth(condition, "the condition of if()") else if_false


def _concat(objs: JSON, val: JSON) -> JSON:
    need("list.concat", "list", objs=objs)
    return [*objs, val]


def _prepend(objs: JSON, val: JSON) -> JSON:
    need("list.prepend", "list", objs=objs)
    return [val, *objs]


def _get(map_: JSON, keys: JSON) -> JSON:
    """Return the value at a key or a path of keys; null if a map or a key is missing."""
    path = keys if is_list(keys) else [keys]
    found = map_
    for key in path:
        need("map.get", "string", key=key)
        found = found.get(key) if is_map(found) else None
    return found


def _delete(map_: JSON, key: JSON) -> JSON:
    need("map.delete", "map", map_=map_)
    need("map.delete", "string", key=key)
    if key not in map_:
        raise failure(Tag.KEY, f"key not found: {key}")
    return {name: value for name, value in map_.items() if name != key}


def _merge(first: JSON, second: JSON) -> JSON:
    need("map.merge", "map", first=first, second=second)
    return {**first, **second}


def _merge_nested(first: JSON, second: JSON) -> JSON:
    need("map.merge_nested", "map", first=first, second=second)
    both = {
        key: _merge_nested(first[key], value)
        for key, value in second.items()
        if key in first and is_map(first[key]) and is_map(value)
    }
    return {**first, **second, **both}


def _abs(x: JSON) -> JSON:
    need("math.abs", "number", x=x)
    return bounded(abs(x))


def _floor(x: JSON) -> JSON:
    need("math.floor", "number", x=x)
    return bounded(math.floor(x))


def _max(x: JSON, y: JSON) -> JSON:
    need("math.max", "number", x=x, y=y)
    return max(x, y)


def _min(x: JSON, y: JSON) -> JSON:
    need("math.min", "number", x=x, y=y)
    return min(x, y)


def _string(value: JSON) -> JSON:
    return as_text(value)


DATA: Final[Sequence[Function]] = (
    Function(name="default", required=("val", "default_val"), pure=_default),
    Function(name="double", required=("value",), pure=_double),
    Function(name="if", required=("condition", "if_true", "if_false"), pure=_if),
    Function(name="int", required=("value",), pure=_int),
    Function(name="keys", required=("map",), pure=_keys),
    Function(name="len", required=("value",), pure=_len),
    Function(name="list.concat", required=("objs", "val"), pure=_concat),
    Function(name="list.prepend", required=("objs", "val"), pure=_prepend),
    Function(name="map.delete", required=("map", "key"), pure=_delete),
    Function(name="map.get", required=("map", "keys"), pure=_get),
    Function(name="map.merge", required=("first", "second"), pure=_merge),
    Function(name="map.merge_nested", required=("first", "second"), pure=_merge_nested),
    Function(name="math.abs", required=("x",), pure=_abs),
    Function(name="math.floor", required=("x",), pure=_floor),
    Function(name="math.max", required=("x", "y"), pure=_max),
    Function(name="math.min", required=("x", "y"), pure=_min),
    Function(name="string", required=("value",), pure=_string),
)
