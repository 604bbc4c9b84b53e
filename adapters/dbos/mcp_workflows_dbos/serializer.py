"""JSON for what DBOS stores, with the types of values that are not JSON.

DBOS pickles by default, and unpickling can run code that the writer of a row chose. Here a typed value is `{"$type":
"module:Class", "value": ...}`. It becomes an object again only if its class is already loaded and is of an allowed
kind: a pydantic model, a dataclass, a named tuple, an enumeration, an exception or one of a few standard types.
Pydantic checks the fields of models and dataclasses. Nothing is imported and no other callable is called for a row.

`serialize` restores each value that it stores, and refuses one that would differ after that.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any, Final, cast
from uuid import UUID
from zoneinfo import ZoneInfo

from dbos import Serializer, WorkflowStatus
from dbos import error as dbos_error
from dbos._serialization import DefaultSerializer
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import to_jsonable_python

__all__ = ["NAME", "TypedJsonSerializer", "binary_places", "numbers_beyond_json", "plain"]

NAME: Final = "mcp_workflows_json"
"""The name of the format in DBOS's column `serialization`."""

_STATUS: Final = "dbos:WorkflowStatus"  # the result of `DBOS.list_workflows`, a class of plain attributes

_TYPE: Final = "$type"
_VALUE: Final = "value"
_SHOWN: Final = "shown"  # the form of a model or a dataclass for callers, if it differs from its fields
_PRIVATE: Final = "private"  # the private attributes of a model
_PARAMETERS: Final = "parameters"  # the type arguments of a generic model
_UNSET: Final = "unset"  # the fields of a model with their defaults
_RESTORES: Final[Mapping[type[Any], Callable[[Any], Any]]] = {  # Any: what a text of the type is read from and into
    float: float,
    date: date.fromisoformat,
    datetime: datetime.fromisoformat,
    time: time.fromisoformat,
    timedelta: TypeAdapter(timedelta).validate_python,
    Decimal: Decimal,
    UUID: UUID,
    bytes: str.encode,
}
_STANDARD: Final = {f"{each.__module__}:{each.__qualname__}": restore for each, restore in _RESTORES.items()}
_COLLECTIONS: Final[Mapping[str, type[Any]]] = {
    f"{each.__module__}:{each.__qualname__}": each for each in (tuple, set, frozenset)
}


def _refuse(cls: DefaultSerializer, serialized_data: str) -> Any:  # Any: any value
    raise TypeError("it is pickled, which is not read here: the writer of a pickle can run code in its reader")


DefaultSerializer.deserialize = _refuse  # type: ignore[method-assign]  # DBOS selects it by a row's column `serialization`, independently of ours


class RecordedError(dbos_error.DBOSException):
    """An error of an earlier run whose class is not loaded, or now takes other arguments."""

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
            TypeError: the value, or one inside it, has a type that cannot be restored, or is too deep.
        """
        encoded: Any = None
        try:
            encoded = _encoded(data)
            text = json.dumps(encoded, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
            text.encode()  # a database accepts no half of a surrogate pair
        except UnicodeEncodeError:
            raise TypeError("a text that is no Unicode cannot be stored: it has half of a surrogate pair") from None
        except RecursionError:
            raise TypeError("a value of so many levels cannot be stored") from None
        except (ValueError, PydanticUserError) as error:  # such as a number of thousands of digits
            wrong = next(numbers_beyond_json(encoded), _reason(error))
            raise TypeError(f"a value cannot be stored: {wrong}") from None
        if _TYPE in text:
            _check_restored(data, text)
        return text

    def deserialize(self, serialized_data: str) -> Any:  # Any: see `serialize`
        """Return the value of a JSON text."""
        return _decoded(json.loads(serialized_data))


def plain(value: Any) -> Any:  # Any: JSON
    """Return JSON without the names of types, in the form for callers."""
    match value:
        case {"$type": "builtins:BaseException", **rest}:
            return rest
        case {"$type": "builtins:dict", "value": dict()}:
            return {key: plain(each) for key, each in cast("dict[str, Any]", value["value"]).items()}
        case {"$type": "builtins:dict", "value": list()}:
            return {str(plain(key)): plain(each) for key, each in _items(value["value"])}
        case {"$type": str(), "shown": inner} | {"$type": str(), "value": inner}:
            return plain(inner)
        case dict():
            return {key: plain(each) for key, each in cast("dict[str, Any]", value).items()}
        case list():
            return [plain(each) for each in _items(value)]
        case _:
            return value


def binary_places(value: Any) -> Iterator[str]:  # Any: JSON, with the names of types
    """Yield the place of each value in stored JSON that callers see as base64, because its bytes are not text."""
    return (place for place, each in _leaves(value, "") if isinstance(each, dict))


def numbers_beyond_json(value: Any) -> Iterator[str]:  # Any: JSON, with the names of types
    """Yield a text with the place of each number in stored JSON that JSON does not support."""
    for place, each in _leaves(value, ""):
        if isinstance(each, float) and not math.isfinite(each):
            number = "NaN" if math.isnan(each) else "an infinite number"
            yield f"{place or 'it'} is {number}, which JSON does not have: use None or a text"


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:  # Any: JSON, with the names of types
    """Yield the place and value of everything that callers see; bytes that are not text are a mapping."""
    match value:
        case {"$type": "builtins:float", "value": "nan" | "inf" | "-inf" as number}:
            yield place, float(number)
        case {"$type": "builtins:bytes", "base64": _}:
            yield place, value
        case {"$type": "builtins:dict", "value": list()}:
            for key, each in _items(value["value"]):
                yield from _leaves(each, _part(place, plain(key)))
        case {"$type": str(), "shown": inner} | {"$type": str(), "value": inner}:
            yield from _leaves(inner, place)
        case dict():
            for key, each in cast("dict[str, Any]", value).items():
                yield from _leaves(each, _part(place, key))
        case list():
            for i, each in enumerate(_items(value)):
                yield from _leaves(each, _part(place, i))
        case _:
            yield place, value


def _part(place: str, key: object) -> str:
    """Return the place of an item (an index) or of a member."""
    if isinstance(key, int):
        return f"{place}[{key}]"
    return f"{place}.{key}" if place else str(key)


def _encoded(value: Any, place: str = "", *, shown: bool = True) -> Any:  # Any: see `serialize`
    """Return JSON for a value; `shown` adds the form for callers, which only the outermost model or dataclass needs."""
    kind: type[Any] = value.__class__
    if kind is float and not math.isfinite(value):
        return {_TYPE: "builtins:float", _VALUE: str(value)}  # JSON does not support such numbers
    if value is None or kind in (bool, int, float, str):
        return value
    name = f"{kind.__module__}:{kind.__qualname__}"
    if kind is list or name in _COLLECTIONS or _is_named_tuple(kind):
        items = [_encoded(each, _part(place, i), shown=shown) for i, each in enumerate(value)]
        ordered = sorted(items, key=json.dumps) if kind in (set, frozenset) else items
        return items if kind is list else {_TYPE: name, _VALUE: ordered}
    if kind is dict:
        return _object(cast("Mapping[Any, Any]", value), place, shown=shown)
    if isinstance(value, BaseException):
        return _error(value)
    if kind is WorkflowStatus:
        return {_TYPE: _STATUS, _VALUE: _object(cast("Mapping[Any, Any]", vars(value)), place, shown=shown)}
    if name in _STANDARD:
        return {_TYPE: name, **_encoded_standard(value)}
    if isinstance(value, Enum):
        return {_TYPE: name, _VALUE: _encoded(value.value, place, shown=False)}
    if _has_fields(kind):
        return _encoded_fields(value, kind, place, shown=shown)
    raise TypeError(
        f"{f'{place}: ' if place else ''}a {kind.__name__} cannot be stored: return JSON values, pydantic models, "
        "dataclasses, enumerations, dates, times, decimals, UUIDs, bytes, tuples or sets"
    )


def _encoded_standard(value: Any) -> Mapping[str, Any]:  # Any: of a type in `_STANDARD`
    if isinstance(value, bytes):
        try:
            return {_VALUE: value.decode()}
        except UnicodeDecodeError:
            return {_VALUE: base64.b64encode(value).decode(), "base64": True}
    if isinstance(value, datetime | time):
        zone: object = getattr(value.tzinfo, "key", None)  # of a `ZoneInfo`
        return {_VALUE: value.isoformat().replace("+00:00", "Z"), **({"zone": zone} if zone else {})}
    return {_VALUE: to_jsonable_python(value)}


def _encoded_fields(value: Any, kind: Any, place: str, *, shown: bool) -> Any:  # Any: a model or a dataclass
    """Return JSON for a model or a dataclass: each field, and the form for callers if it differs.

    A field of a type without JSON here is in pydantic's form; `serialize` checks whether it can be restored.
    """
    fields: dict[str, Any] = {}
    for name, each in _parts(value):
        try:
            fields[name] = _encoded(each, _part(place, name), shown=False)
        except TypeError:
            written = _written_field(value, kind, name)
            if written is None:
                raise
            fields[name] = _encoded(written)
    generic: Mapping[str, Any] = getattr(kind, "__pydantic_generic_metadata__", {})
    bare = generic.get("origin") or kind
    found: dict[str, Any] = {_TYPE: _name(bare), _VALUE: fields["root"] if _is_root(kind) else fields}
    if bare is not kind:
        found[_PARAMETERS] = [_name(each) if isinstance(each, type) else str(each) for each in generic["args"]]
    if isinstance(value, BaseModel):
        private = _object(dict(_private(value)), place, shown=False)
        unset = [each for each in fields if each not in value.model_fields_set]
        found |= ({_PRIVATE: private} if private else {}) | ({_UNSET: unset} if unset else {})
    if shown:
        try:
            seen = _encoded(_adapter(kind).dump_python(value, mode="json", by_alias=True, warnings="none"))
        except UnicodeDecodeError:  # bytes that are not text: callers see the fields
            return found
        if plain(seen) != plain(found):
            found[_SHOWN] = seen
    return found


def _written_field(value: Any, kind: Any, name: str) -> Any:  # Any: JSON of one field
    """Return pydantic's form of a field, or None if it has none."""
    try:
        return _adapter(kind).dump_python(value, mode="json", include={name}, warnings="none").get(name)
    except (ValueError, AttributeError):  # such as a PydanticSerializationError, or a root that is not an object
        return None


def _object(value: Mapping[Any, Any], place: str, *, shown: bool) -> Any:  # Any: JSON
    """Return JSON for a mapping: an object if its keys are texts, otherwise a list of pairs."""
    members = [(key, _encoded(each, _part(place, key), shown=shown)) for key, each in value.items()]
    if not all(type(key) is str for key in value):
        pairs = [[_encoded(key, f"{place} (key)", shown=False), each] for key, each in members]
        return {_TYPE: "builtins:dict", _VALUE: pairs}
    return {_TYPE: "builtins:dict", _VALUE: dict(members)} if _TYPE in value else dict(members)


def _error(error: BaseException) -> Any:  # Any: JSON
    kind = type(error)
    found: dict[str, Any] = {
        _TYPE: "builtins:BaseException",
        "name": f"{kind.__module__}:{kind.__qualname__}",
        "message": str(error),
    }
    reduced: Any = error.__reduce__()
    try:
        args = json.loads(TypedJsonSerializer().serialize(list(reduced[1])))
    except TypeError:
        args = None  # it is a `RecordedError` that was raised again
    return {**found, "args": args}


def _is_named_tuple(kind: Any) -> bool:  # Any: a class
    return hasattr(kind, "_fields") and tuple in kind.__mro__


def _is_root(kind: Any) -> bool:  # Any: a class
    return getattr(kind, "__pydantic_root_model__", False)


def _has_fields(kind: Any) -> bool:  # Any: a class
    return issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind)


@lru_cache(maxsize=512)
def _adapter(kind: Any) -> TypeAdapter[Any]:  # Any: an object of that type
    return TypeAdapter(kind)


def _name(kind: type[Any]) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _decoded(value: Any) -> Any:  # Any: JSON
    match value:
        case {"$type": "builtins:BaseException"}:
            return _restored_error(cast("dict[str, Any]", value))
        case {"$type": "builtins:dict", "value": list()}:
            return {_decoded(key): _decoded(each) for key, each in _items(value["value"])}
        case {"$type": "builtins:dict", "value": inner}:
            return {key: _decoded(each) for key, each in cast("dict[str, Any]", inner).items()}
        case {"$type": str(name), "value": inner}:
            return _restored(name, inner, cast("dict[str, Any]", value))
        case dict():
            return {key: _decoded(each) for key, each in cast("dict[str, Any]", value).items()}
        case list():
            return [_decoded(each) for each in _items(value)]
        case _:
            return value


def _items(value: Any) -> list[Any]:  # Any: of a list, a tuple or a set
    return list(value)


def _restored(name: str, value: Any, stored: Mapping[str, Any]) -> Any:  # Any: JSON, and an object of that type
    if name == _STATUS:
        status = WorkflowStatus()
        vars(status).update({key: _decoded(each) for key, each in value.items()})
        return status
    if name in _COLLECTIONS:
        collection: Any = _COLLECTIONS[name]
        return collection(_decoded(each) for each in value)
    if name in _STANDARD:
        found: Any = base64.b64decode(value) if "base64" in stored else _STANDARD[name](value)
        if "zone" not in stored:
            return found
        there = found.replace(tzinfo=ZoneInfo(stored["zone"]))
        return there if there.utcoffset() == found.utcoffset() else there.replace(fold=1)
    kind = _loaded(name)
    if kind is not None and _is_named_tuple(kind):
        return cast("Any", tuple).__new__(kind, [_decoded(each) for each in value])  # without the class's own code
    if kind is not None and issubclass(kind, Enum):
        return kind(_decoded(value))
    if kind is None or not _has_fields(kind):
        raise TypeError(f"{name} is not loaded, or is no type that is restored from a stored value")
    return _restored_fields(kind, value, stored)


def _restored_fields(kind: Any, value: Any, stored: Mapping[str, Any]) -> Any:  # Any: see `_restored`
    """Return a model or a dataclass of these fields, which pydantic checks."""
    if parameters := [_loaded(each) for each in stored.get(_PARAMETERS, ())]:
        if None in parameters:
            raise TypeError(f"a generic {kind.__name__} is restored only if its parameters are classes")
        kind = kind[tuple(parameters)]
    computed = {each.name for each in getattr(kind, "__dataclass_fields__", {}).values() if not each.init}
    fields: Any = (
        _decoded(value)
        if _is_root(kind)
        else {key: _decoded(each) for key, each in value.items() if key not in computed}
    )
    found = _adapter(kind).validate_python(fields, strict=False, by_alias=False, by_name=True)
    if isinstance(found, BaseModel):
        for key, each in _decoded(stored.get(_PRIVATE, {})).items():
            if key in kind.__private_attributes__:
                setattr(found, key, each)
        found.model_fields_set.difference_update(stored.get(_UNSET, ()))
    return found


def _difference(value: Any, restored: Any, place: str) -> str | None:  # Any: see `serialize`
    """Return the place of the first part of a value that differs from the restored one, or None."""
    kind: Any = value.__class__
    if isinstance(value, BaseException) or kind is WorkflowStatus:
        return None  # an error may be restored as another class
    if type(restored) is not kind:
        return place
    if _has_parts(value):
        before, after = (_parts(each) + _private(each) for each in (value, restored))
        if [key for key, _ in before] != [key for key, _ in after]:
            return place
        places = (
            _difference(each, other, _part(place, key)) for (key, each), (_, other) in zip(before, after, strict=True)
        )
        return next((each for each in places if each is not None), None)
    return None if _exact(value) == _exact(restored) else place


def _private(value: Any) -> list[tuple[str, Any]]:  # Any: see `serialize`
    private: Mapping[str, Any] = getattr(value, "__pydantic_private__", None) or {}  # Any: see `serialize`
    return list(private.items())


def _exact(value: Any) -> Any:  # Any: see `serialize`
    """Return what equal values must share: the digits of numbers, the zone of times."""
    if isinstance(value, float | Decimal):
        return repr(value)
    if isinstance(value, datetime | time):
        fixed = value.tzinfo and value.tzinfo.utcoffset(None)
        return value, value.utcoffset(), fixed, getattr(value.tzinfo, "key", None)
    return value


def _has_parts(value: Any) -> bool:  # Any: see `serialize`
    return isinstance(value, list | tuple | dict) or _has_fields(value.__class__)


def _parts(value: Any) -> list[tuple[Any, Any]]:  # Any: see `serialize`
    """Return the keys, indexes or names of the parts of a value, and the parts."""
    if isinstance(value, dict):
        return list(cast("dict[Any, Any]", value).items())  # type: ignore[redundant-cast]  # pyright needs it
    if isinstance(value, BaseModel):
        return [(name, getattr(value, name)) for name in (*type(value).model_fields, *(value.model_extra or {}))]
    if dataclasses.is_dataclass(value):
        return [(each.name, getattr(value, each.name)) for each in dataclasses.fields(value)]
    return list(enumerate(_items(value)))


def _check_restored(value: Any, text: str, place: str = "") -> None:  # Any: see `serialize`
    """Restore a value from its text.

    Raises:
        TypeError: the value, or its named part, cannot be restored, or would differ.
    """
    try:
        different = _difference(value, _decoded(json.loads(text)), place)
        reason = "it would not come back as it is"
    except Exception as error:  # noqa: BLE001  # the validators are the user's
        if _has_parts(value):
            for key, each in _parts(value):
                _check_restored(each, json.dumps(_encoded(each, shown=False)), _part(place, key))
        different, reason = place, f"it could not be restored: {_reason(error)}"
    if different is not None:
        raise TypeError(f"{different or 'the value'} cannot be stored: {reason}") from None


def _reason(error: Exception) -> str:
    """Return the text of an error without the value that caused it."""
    if not isinstance(error, ValidationError):
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    wrong = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return f"{error.title}: {'.'.join(map(str, (*wrong['loc'], '')))} {wrong['msg']}".replace(". ", ": ", 1)


def _restored_error(found: Mapping[str, Any]) -> BaseException:
    kind = _loaded(found["name"])
    recorded = RecordedError(found["name"].rpartition(":")[2], found["message"])
    if kind is None or found["args"] is None or not issubclass(kind, Exception):
        return recorded
    try:
        return kind(*(_decoded(each) for each in found["args"]))
    except Exception:  # noqa: BLE001  # the class is the user's, and may now take other arguments
        return recorded


def _loaded(name: str) -> type[Any] | None:
    """Return a class by its module and name if that module is loaded; never import one."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None
