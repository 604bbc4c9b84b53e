"""JSON for what DBOS stores, with the types of values that are no JSON.

DBOS pickles by default, and to unpickle is to run what the writer of a row likes. Here a typed value is
`{"$type": "module:Class", "value": ...}`. It becomes an object again only if the class is loaded already and is a
pydantic model, a dataclass, an enumeration, an exception or one of a few standard types; pydantic checks the value.
Nothing is imported and no other callable is called for a row.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final, cast
from uuid import UUID

from dbos import Serializer, WorkflowStatus
from dbos import error as dbos_error
from dbos._serialization import DefaultSerializer
from pydantic import BaseModel, TypeAdapter

__all__ = ["NAME", "TypedJsonSerializer", "numbers_beyond_json", "plain"]

NAME: Final = "mcp_workflows_json"
"""The name of the format in DBOS's column `serialization`."""

_STATUS: Final = "dbos:WorkflowStatus"  # what `DBOS.list_workflows` returns, a class of plain attributes

_TYPE: Final = "$type"
_VALUE: Final = "value"
_STANDARD: Final[Mapping[str, type[Any]]] = {
    f"{each.__module__}:{each.__qualname__}": each
    for each in (float, date, datetime, time, timedelta, Decimal, UUID, bytes, tuple, set, frozenset)
}
_COLLECTIONS: Final[Mapping[str, type[Any]]] = {
    name: each for name, each in _STANDARD.items() if each in (tuple, set, frozenset)
}


def _refuse(cls: DefaultSerializer, serialized_data: str) -> Any:  # Any: any value
    raise TypeError("it is pickled, which is not read here: the writer of a pickle can run code in its reader")


DefaultSerializer.deserialize = _refuse  # DBOS picks it by a row's column `serialization`, whatever ours is


class RecordedError(dbos_error.DBOSException):
    """An error of an earlier run whose class is not loaded, or takes other arguments now."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    def __str__(self) -> str:
        return str(self.message)


class TypedJsonSerializer(Serializer):
    """Serializer for DBOSConfig and DBOSClient."""

    def name(self) -> str:
        """Return the name of the format."""
        return NAME

    def serialize(self, data: Any) -> str:  # Any: what a workflow or step returns
        """Return the JSON text of a value.

        Raises:
            TypeError: the value, or one inside it, is of a type that cannot be restored, or is too deep.
        """
        try:
            text = json.dumps(_encoded(data), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
            text.encode()  # a database takes no half of a surrogate pair
        except UnicodeEncodeError:
            raise TypeError("a text that is no Unicode cannot be stored: it has half of a surrogate pair") from None
        except RecursionError:
            raise TypeError("a value of so many levels cannot be stored") from None
        except ValueError as error:  # a number in a model or a dataclass, or one of thousands of digits
            wrong = next(numbers_beyond_json(_encoded(data)), str(error))
            raise TypeError(f"a value cannot be stored: {wrong}") from None
        return text

    def deserialize(self, serialized_data: str) -> Any:  # Any: see `serialize`
        """Return the value of a JSON text."""
        return _decoded(json.loads(serialized_data))


def plain(value: Any) -> Any:  # Any: JSON
    """Return JSON without the names of types, as callers see it."""
    match value:
        case {"$type": "builtins:BaseException", **rest}:
            return rest
        case {"$type": "builtins:dict", "value": dict()}:
            return {key: plain(each) for key, each in cast("dict[str, Any]", value["value"]).items()}
        case {"$type": str(), "value": inner}:
            return plain(inner)
        case dict():
            return {key: plain(each) for key, each in cast("dict[str, Any]", value).items()}
        case list():
            return [plain(each) for each in _items(value)]
        case _:
            return value


def numbers_beyond_json(value: Any, place: str = "") -> Iterator[str]:  # Any: JSON, with the names of types
    """Yield a text with the place of each number in stored JSON that JSON itself does not have."""
    match value:
        case {"$type": "builtins:float", "value": "nan" | "inf" | "-inf" as number}:
            yield from numbers_beyond_json(float(number), place)
        case {"$type": str(), "value": inner}:
            yield from numbers_beyond_json(inner, place)
        case dict():
            for key, each in cast("dict[str, Any]", value).items():
                yield from numbers_beyond_json(each, f"{place}.{key}")
        case list():
            for i, each in enumerate(_items(value)):
                yield from numbers_beyond_json(each, f"{place}[{i}]")
        case float() if not math.isfinite(value):
            number = "NaN" if math.isnan(value) else "an infinite number"
            yield f"{place.removeprefix('.') or 'it'} is {number}, which JSON does not have: use None or a text"
        case _:
            pass


def _encoded(value: Any) -> Any:  # Any: see `serialize`
    """Return JSON for a value."""
    kind: type[Any] = value.__class__
    if kind is float and not math.isfinite(value):
        return {_TYPE: "builtins:float", _VALUE: str(value)}  # JSON has no such numbers
    if value is None or kind in (bool, int, float, str):
        return value
    if isinstance(value, list):
        return [_encoded(each) for each in _items(value)]
    if isinstance(value, dict):
        return _object(cast("Mapping[Any, Any]", value))
    if isinstance(value, BaseException):
        return _error(value)
    if kind is WorkflowStatus:
        return {_TYPE: _STATUS, _VALUE: _object(cast("Mapping[Any, Any]", vars(value)))}
    name = f"{kind.__module__}:{kind.__qualname__}"
    if name in _COLLECTIONS:
        return {_TYPE: name, _VALUE: [_encoded(each) for each in _items(value)]}
    if name in _STANDARD or _is_restorable(kind):
        return {_TYPE: name, _VALUE: TypeAdapter(kind).dump_python(value, mode="json")}
    raise TypeError(
        f"a {kind.__name__} cannot be stored: return JSON values, pydantic models, dataclasses, enumerations, "
        "dates, times, decimals, UUIDs, bytes, tuples or sets"
    )


def _object(value: Mapping[Any, Any]) -> Any:  # Any: JSON
    for key in value:
        if not isinstance(key, str):
            raise TypeError(f"the key {key!r} of a mapping cannot be stored: keys are texts")
    encoded = {key: _encoded(each) for key, each in value.items()}
    return {_TYPE: "builtins:dict", _VALUE: encoded} if _TYPE in encoded else encoded


def _error(error: BaseException) -> Any:  # Any: JSON
    kind = type(error)
    found: dict[str, Any] = {
        _TYPE: "builtins:BaseException",
        "name": f"{kind.__module__}:{kind.__qualname__}",
        "message": str(error),
    }
    reduced: Any = error.__reduce__()
    try:
        found["args"] = [_encoded(each) for each in reduced[1]]
    except TypeError:
        found["args"] = None  # it is a `RecordedError` when it is raised again
    return found


def _is_restorable(kind: type[Any]) -> bool:
    return issubclass(kind, BaseModel | Enum) or dataclasses.is_dataclass(kind)


def _decoded(value: Any) -> Any:  # Any: JSON
    match value:
        case {"$type": "builtins:BaseException"}:
            return _restored_error(cast("dict[str, Any]", value))
        case {"$type": "builtins:dict", "value": inner}:
            return {key: _decoded(each) for key, each in cast("dict[str, Any]", inner).items()}
        case {"$type": str(name), "value": inner}:
            return _restored(name, inner)
        case dict():
            return {key: _decoded(each) for key, each in cast("dict[str, Any]", value).items()}
        case list():
            return [_decoded(each) for each in _items(value)]
        case _:
            return value


def _items(value: Any) -> list[Any]:  # Any: of a list, a tuple or a set
    return list(value)


def _restored(name: str, value: Any) -> Any:  # Any: JSON, and an object of that type
    if name == _STATUS:
        status = WorkflowStatus()
        vars(status).update({key: _decoded(each) for key, each in value.items()})
        return status
    if name in _COLLECTIONS:
        collection: Any = _COLLECTIONS[name]
        return collection(_decoded(each) for each in value)
    kind: type[Any] | None = _STANDARD.get(name) or _loaded(name)
    if kind is None or not (name in _STANDARD or _is_restorable(kind)):
        raise TypeError(f"{name} is not loaded, or is no type that is restored from a stored value")
    return (
        TypeAdapter(kind).validate_python(value)
        if issubclass(kind, Enum)
        else TypeAdapter(kind).validate_json(json.dumps(value))
    )


def _restored_error(found: Mapping[str, Any]) -> BaseException:
    kind = _loaded(found["name"])
    recorded = RecordedError(found["name"].rpartition(":")[2], found["message"])
    if kind is None or found["args"] is None or not issubclass(kind, Exception):
        return recorded
    try:
        return kind(*(_decoded(each) for each in found["args"]))
    except TypeError:  # the class takes other arguments now
        return recorded


def _loaded(name: str) -> type[Any] | None:
    """Return a class by its module and name if that module is loaded; never import one."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None
