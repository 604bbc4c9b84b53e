"""YAML or JSON text -> nodes with their places; plain scalars have their YAML 1.2 meaning (`no` is a string)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from mcp_workflows_google_local import JSON
from mcp_workflows_google_local.language.errors import DeployError
from mcp_workflows_google_local.language.values import is_finite

SOURCE_LIMIT: Final = 128 * 1024  # bytes of UTF-8
DEPTH_LIMIT: Final = 100  # of nested maps and lists: our limit, against overflows


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """A place in the source, 1-based."""

    line: int
    column: int

    def error(self, text: str) -> DeployError:
        """Return an error at this place."""
        return DeployError(text, line=self.line, column=self.column)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """A string, number, boolean or null."""

    at: At
    value: JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """A list."""

    at: At
    items: Sequence[Node]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """A map; its keys also have places."""

    at: At
    fields: Mapping[str, Node]
    keys: Mapping[str, At]


Node: TypeAlias = Scalar | Items | Fields

_NULLS: Final = ("", "~", "null", "Null", "NULL")
_PLAIN: Sequence[tuple[re.Pattern[str], Callable[[str], JSON]]] = (
    (re.compile(r"~|null|Null|NULL|"), lambda text: None),
    (re.compile(r"true|True|TRUE"), lambda text: True),
    (re.compile(r"false|False|FALSE"), lambda text: False),
    (re.compile(r"[-+]?[0-9]+"), int),
    (re.compile(r"0x[0-9a-fA-F]+"), lambda text: int(text, 16)),
    (re.compile(r"0o[0-7]+"), lambda text: int(text, 8)),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), float),
)


def read(source: str) -> Node:
    """Return the nodes of a source.

    Raises:
        DeployError: it is too large, not YAML, empty, or nested too deeply.
    """
    if len(source.encode()) > SOURCE_LIMIT:
        raise DeployError("The source is larger than 128 KB: move parts of it to workflows of their own")
    text = source.replace("\t", " ") if source.lstrip()[:1] in ("{", "[") else source  # JSON may be indented with tabs
    yaml: JSON = YAML(typ="safe", pure=True)  # its methods have no types
    try:
        events: Iterator[JSON] = yaml.parse(text)
        found = [_node(next(events), events, 0) for event in events if isinstance(event, DocumentStartEvent)]
    except MarkedYAMLError as error:
        raise _unreadable(error) from None
    except YAMLError:
        raise DeployError("Not YAML: it has characters that YAML does not allow") from None
    if len(found) != 1:
        raise DeployError("The source must be one YAML document that is not empty: write `main:` with `steps:`")
    return found[0]


def _unreadable(error: JSON) -> DeployError:
    mark = error.problem_mark or error.context_mark
    return (_at(mark) if mark else At(line=1, column=1)).error(f"Not YAML: {error.problem}")


def _at(mark: JSON) -> At:
    return At(line=mark.line + 1, column=mark.column + 1)


def _node(event: JSON, events: Iterator[JSON], depth: int) -> Node:
    at = _at(event.start_mark)
    if isinstance(event, AliasEvent) or event.anchor:
        raise at.error("YAML anchors and aliases (&, *) are not supported: write it out")
    if event.tag:
        raise at.error("YAML tags (!...) are not supported: leave it out")
    if depth > DEPTH_LIMIT:
        raise at.error(f"Nested more than {DEPTH_LIMIT} levels deep: use subworkflows")
    if isinstance(event, MappingStartEvent):
        return _fields(at, events, depth)
    if isinstance(event, SequenceStartEvent):
        return Items(at=at, items=[_node(item, events, depth + 1) for item in _until(SequenceEndEvent, events)])
    return Scalar(at=at, value=_scalar(event, at))


def _until(end: type, events: Iterator[JSON]) -> Iterator[JSON]:
    """Yield the first event of each item before the end; the caller takes the other events of the item."""
    while not isinstance(event := next(events), end):
        yield event


def _fields(at: At, events: Iterator[JSON], depth: int) -> Fields:
    fields: dict[str, Node] = {}
    keys: dict[str, At] = {}
    for event in _until(MappingEndEvent, events):
        place, key = _at(event.start_mark), str(getattr(event, "value", ""))
        if not isinstance(event, ScalarEvent):
            raise place.error("A key must be a string")
        if key in fields:
            raise place.error(f"The key {key!r} is here twice: remove one")
        keys[key] = place
        fields[key] = _node(next(events), events, depth + 1)
    return Fields(at=at, fields=fields, keys=keys)


def _scalar(event: JSON, at: At) -> JSON:
    text = str(event.value)
    if event.style is not None:
        return text
    if text in (".inf", "-.inf", ".nan"):
        raise at.error("Infinity and NaN are not numbers of the language")
    try:
        value = next((made(text) for shape, made in _PLAIN if shape.fullmatch(text)), text)
    except ValueError:  # more digits than Python reads
        value = None
    if (value is None and text not in _NULLS) or not is_finite(value):
        raise at.error("The number does not fit 64 bits: write it as a string, in quotes")
    return value
