"""`{{JMESPath}}` in the definition of an API: the names that an expression may use, and its value.

An expression can use the order (`key`, `workflow`, `arguments`, `options`), the engine (`vars`), the execution
(`handle`) and the API's reply (`reply`, `more`, `item`). `key.uuid`, `key.short` and `key.dns` are forms of the key.
"""

from __future__ import annotations

import hashlib
import math
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any, Final, TypeVar, cast
from urllib.parse import quote

import jmespath
from pydantic import AfterValidator

from mcp_workflows.adapter import JSON, Start, closest
from mcp_workflows.adapter.templates import Template
from mcp_workflows.errors import ConfigError, MappingError

T = TypeVar("T")

_PLACEHOLDER: Final = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_KEY_FORM: Final = re.compile(r"(?<![\w.])key\.(uuid|short|dns)\b")
_NOT_OF_A_PART: Final = re.compile(r"!\w+\.")
_SHORT: Final = 64  # characters
_DNS: Final = 63
_HASH: Final = 12  # characters of the digest at the end of a shortened name
_MILLISECONDS: Final = 1e11  # seconds: the year 5138, so larger numbers are milliseconds
CLOCKS_DIFFER: Final = 300.0  # maximum seconds between the API's clock and ours
_NOT_DNS: Final = re.compile(r"[^a-z0-9-]+")

ORDER: Final = frozenset(
    {"key", "key_uuid", "key_short", "key_dns", "workflow", "arguments", "digest", "options", "vars", "created"}
)
"""The names of an order to start."""

EXECUTION: Final = frozenset({"workflow", "options", "vars", "handle", "key", "age"})
"""The names of an execution."""

REPLY: Final = frozenset({"reply", "more", "entry", "error"})
ITEM: Final = frozenset({"item", "input", "event", "value"})
STATUS: Final = frozenset({"status"})
ANSWER: Final = frozenset({"answer", "fields", "principal", "item"})
NAMES: Final = ORDER | EXECUTION | REPLY | ITEM | STATUS | ANSWER


def as_list(value: JSON) -> Sequence[JSON] | None:
    """Return a list; None for any other value."""
    return cast("Sequence[JSON]", value) if isinstance(value, list) else None


def as_object(value: JSON) -> Mapping[str, JSON] | None:
    """Return an object; None for any other value."""
    return cast("Mapping[str, JSON]", value) if isinstance(value, dict) else None


def moment_of(text: str | None) -> datetime | None:
    """Parse a time in the formats of APIs: ISO 8601, or seconds or milliseconds since 1970. None if it is not a
    time."""
    number = number_of(text)
    try:
        if number is not None:
            return datetime.fromtimestamp(number / 1000 if number > _MILLISECONDS else number, UTC)
        found = datetime.fromisoformat(text or "")
    except (ValueError, OverflowError, OSError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def number_of(value: Any) -> float | None:  # any JSON value
    """Return a number or a number written as text; None for any other value."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _names(node: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names that an expression looks up in its scope; names within a projection are fields of its items."""
    kind, children = node["type"], cast("Sequence[Any]", node.get("children", ()))
    if kind == "field":
        yield str(node["value"])
    elif kind in {
        "subexpression",
        "index_expression",
        "projection",
        "value_projection",
        "filter_projection",
        "pipe",
        "flatten",
    }:
        yield from _names(children[0])
    elif kind != "expref":
        yield from (
            name
            for child in children
            if isinstance(child, Mapping)
            for name in _names(cast("Mapping[str, Any]", child))
        )


def _strings(value: Any) -> Iterator[str]:  # any JSON value
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for each in cast("Mapping[str, Any]", value).values() for text in _strings(each))
    elif isinstance(value, list):
        yield from (text for each in cast("Sequence[Any]", value) for text in _strings(each))


def names_in(value: Any) -> frozenset[str]:  # any JSON value
    """Return the names used in the placeholders of a value."""
    placeholders = (each for text in _strings(value) for each in _PLACEHOLDER.findall(_without_dots(text)))
    return frozenset(name for each in placeholders for name in _names(jmespath.compile(each.strip()).parsed))


def _without_dots(text: str) -> str:
    return _PLACEHOLDER.sub(lambda found: _KEY_FORM.sub(r"key_\1", found[0]), text)


def _checked(value: Any) -> Any:  # any JSON value
    try:
        Template(value)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    for text in _strings(value):
        if found := _NOT_OF_A_PART.search(" ".join(_PLACEHOLDER.findall(text))):
            raise ValueError(f"{found[0]}... is not what it seems: ! binds tighter than a dot; write !(...)")
    for name in sorted(names_in(value) - NAMES):
        meant = closest(name, NAMES)
        hint = f"did you mean {meant!r}?" if meant else f"there are {', '.join(sorted(NAMES))}"
        raise ValueError(f"no expression has {name!r}; {hint}")
    return value


Text = Annotated[str, AfterValidator(_checked)]
"""A text with placeholders."""

Value = Annotated[Any, AfterValidator(_checked)]
"""A JSON value with placeholders in its strings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The names that expressions can use, with their values."""

    names: Mapping[str, JSON]
    own: Mapping[str, JSON] = field(default_factory=dict[str, JSON])  # `answer` and `principal`

    def __or__(self, more: Mapping[str, JSON]) -> Scope:
        """Return a scope with additional names."""
        return Scope(names={**self.names, **more}, own=self.own)

    def value(self, source: JSON) -> JSON:
        """Fill in the placeholders of a value.

        Raises:
            MappingError: an expression fails on these values.
        """
        return _template(source).render({"args": self.names, **self.own})

    def text(self, source: str) -> str:
        """Fill in the placeholders of a text; missing values become empty.

        Raises:
            MappingError: see `value`.
        """
        return _template(source).text({"args": self.names, **self.own})

    def is_true(self, source: str) -> bool:
        """True if the expression is truthy in JMESPath.

        Raises:
            MappingError: see `value`.
        """
        return self.value(source) not in (None, False, "", [], {})

    def path(self, source: str) -> str:
        """Fill in a path. A value is confined to its segment; each part of a `split` fills one segment.

        Raises:
            MappingError: see `value`.
            ValueError: a value is missing, or would change the path.
        """
        return _PLACEHOLDER.sub(lambda found: self._segments(found[0]), source)

    def _segments(self, placeholder: str) -> str:
        listed = as_list(self.value(placeholder)) if "split(" in placeholder else None
        texts = [self.text(placeholder)] if listed is None else listed or [""]
        for text in texts:
            if not isinstance(text, str) or text.strip(".") == "":
                raise ValueError(f"{placeholder} has {text!r} here, and cannot be a part of a path")
        return "/".join(quote(str(text), safe="") for text in texts)


def lenient(function: Callable[[], T]) -> T | None:
    """Return None if an expression fails on this reply: the value is only for people."""
    try:
        return function()
    except MappingError:
        return None


def _template(source: JSON) -> Template:
    return _of_text(source) if isinstance(source, str) else Template(_replaced(source))


@lru_cache(maxsize=1024)
def _of_text(source: str) -> Template:
    return Template(_without_dots(source))


def _replaced(value: Any) -> Any:  # any JSON value
    if isinstance(value, str):
        return _without_dots(value)
    if isinstance(value, Mapping):
        return {name: _replaced(each) for name, each in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list):
        return [_replaced(each) for each in cast("Sequence[Any]", value)]
    return value


def order_names(start: Start, settling_seconds: float) -> Mapping[str, JSON]:
    """Return the names common to every order; adapters add others."""
    return {
        **forms_of(start.key),
        "workflow": start.workflow,
        "arguments": _arguments(start.arguments),
        "digest": start.digest,
        "options": start.options.get("options") or {},
        "created": created_forms(start.created, settling_seconds),
    }


def _arguments(arguments: JSON) -> JSON:
    """Return the single argument of a call; a tool without `args` passes its arguments as one object."""
    listed = as_list(arguments)
    if listed is None or len(listed) > 1:
        return arguments
    return listed[0] if listed else {}


def forms_of(key: str) -> Mapping[str, str]:
    """Return the forms of a key: APIs accept different formats."""
    dns = _NOT_DNS.sub("-", key.lower()).strip("-")
    return {
        "key": key,
        "key_uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, f"mcp-workflows:{key}")),
        "key_short": _cut(key, key, _SHORT),
        "key_dns": _cut(dns, key, _DNS) if dns == key else _cut(dns, key, _DNS, always=True),
    }


def _cut(name: str, key: str, longest: int, *, always: bool = False) -> str:
    """Return the name, or its beginning with a digest of the key, so that every key has a unique name."""
    if len(name) <= longest and not always:
        return name
    digest = hashlib.sha256(key.encode()).hexdigest()[:_HASH]
    return f"{name[: longest - _HASH - 1]}-{digest}"


def created_forms(at: datetime, settling_seconds: float) -> Mapping[str, JSON]:
    """Return the time of an order in the formats of APIs. `since` is earlier, as clocks differ and lists lag."""
    since = at.timestamp() - settling_seconds - CLOCKS_DIFFER
    return {
        "at": at.isoformat(),
        "seconds": int(at.timestamp()),
        "ms": int(at.timestamp() * 1000),
        "since": datetime.fromtimestamp(since, at.tzinfo).isoformat(timespec="seconds"),
        "since_seconds": int(since),
        "since_ms": int(since * 1000),
    }
