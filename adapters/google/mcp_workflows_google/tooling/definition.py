"""The source of a workflow: its routines, their steps, calls and expressions, and a draft of its input.

Nothing is executed or validated: unexpected parts are skipped, as Google has accepted the source. The owner must
correct the draft: types and required fields are unknown, as are the fields that a subworkflow reads from an argument
that it gets whole.

Syntax: https://cloud.google.com/workflows/docs/reference/syntax
"""

# pyright: reportUnknownMemberType=false
# (ruamel.yaml annotates hardly any attribute)

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import anyio.to_thread
from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import YAMLError

from mcp_workflows.adapter import JSON

MAIN: Final = "main"
AWAITS: Final = "events.await_callback"
OPENS: Final = "events.create_callback_endpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routine:
    """The main workflow or a subworkflow; `steps` includes nested steps."""

    name: str
    params: Sequence[str]
    steps: frozenset[str]
    awaiting: frozenset[str]  # steps that call events.await_callback themselves
    calls: frozenset[str]  # targets of `call`
    methods: frozenset[str]  # HTTP methods of its callbacks, unevaluated
    expressions: Sequence[str] = field(repr=False)  # `${...}`, without the delimiters


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """All routines, including the main one."""

    routines: Mapping[str, Routine]

    @property
    def main(self) -> Routine | None:
        """The main workflow."""
        return self.routines.get(MAIN)

    def calls(self, routine: str) -> bool:
        """Return whether a step or an expression of any routine calls it."""
        return any(
            routine in each.calls or any(f"{routine}(" in text.replace(" ", "") for text in each.expressions)
            for each in self.routines.values()
        )


class _WithoutMerges(SafeConstructor):
    """YAML without merge keys: nested merges of a few lines can double with each level and exhaust the memory."""

    def flatten_mapping(self, node: Any) -> Any:  # Any: as ruamel.yaml has it
        """Keep merge keys, so that a source with them cannot be read."""


def parse_definition(source: str | None) -> Definition | None:
    """Parse a source (YAML or JSON); None if there is none, or it cannot be read."""
    try:
        reader = YAML(typ="safe", pure=True)
        reader.Constructor = _WithoutMerges
        found: object = reader.load(source) if source else None
        return _definition(found)
    except (YAMLError, ValueError, RecursionError):  # ValueError: an invalid date
        return None


async def read_definition(source: str | None) -> Definition | None:
    """Parse a source in a thread, as the largest takes more than a second."""
    return await anyio.to_thread.run_sync(parse_definition, source)


def _definition(found: object) -> Definition | None:
    if isinstance(found, list):  # the steps of the main workflow alone
        found = {MAIN: {"steps": cast("list[object]", found)}}
    if not isinstance(found, dict):
        return None
    routines = cast("dict[object, object]", found).items()
    read = [_routine(str(name), cast("Mapping[Any, Any]", body)) for name, body in routines if isinstance(body, dict)]
    return Definition(routines={routine.name: routine for routine in read})


def _routine(name: str, body: Mapping[Any, Any]) -> Routine:  # Any: YAML
    written = body.get("params")
    params = cast("list[object]", written) if isinstance(written, list) else []
    nodes = list(_nodes(body.get("steps")))
    mappings = [cast("Mapping[Any, Any]", node) for node in nodes if isinstance(node, dict)]
    steps = list(_steps(body, *mappings))
    return Routine(
        name=name,
        params=[_param(each) for each in params],
        steps=frozenset(step for step, _ in steps),
        awaiting=frozenset(step for step, inside in steps if _awaits(inside)),
        calls=frozenset(str(node["call"]) for node in mappings if isinstance(node.get("call"), str)),
        methods=frozenset(_method(node) for node in mappings if node.get("call") == OPENS),
        expressions=[node.partition("${")[2] for node in nodes if isinstance(node, str) and "${" in node],
    )


def _param(written: object) -> str:
    """Return the name of a parameter; the form with a default is `{name: default}`."""
    return str(next(iter(cast("dict[object, object]", written)), "")) if isinstance(written, dict) else str(written)


def _steps(*holders: Mapping[Any, Any]) -> Iterator[tuple[str, object]]:
    """Yield the names and the bodies of steps."""
    for holder in holders:
        steps = holder.get("steps")
        for step in cast("list[object]", steps) if isinstance(steps, list) else []:
            if isinstance(step, dict):
                yield from ((str(name), inside) for name, inside in cast("dict[object, object]", step).items())


def _awaits(step: object) -> bool:
    """Return whether a step calls events.await_callback, also in a `try`; expressions cannot."""
    body = _mapping(step)
    return AWAITS in {str(body.get("call")), str(_mapping(body.get("try")).get("call"))}


def _method(step: Mapping[Any, Any]) -> str:  # Any: YAML
    """Return the HTTP method of the callback that a step opens; Google's default is POST."""
    return str(_mapping(step.get("args")).get("http_callback_method", "POST"))


def _mapping(node: object) -> Mapping[object, object]:
    return cast("Mapping[object, object]", node) if isinstance(node, dict) else {}


def _nodes(root: object) -> Iterator[object]:
    """Yield all distinct values and keys of a tree: a YAML alias (`*anchor`) is the same object as its anchor."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        inner = _inner(node)
        if inner and id(node) in seen:
            continue
        seen.add(id(node))
        waiting.extend(inner)
        yield node


def _inner(node: object) -> Sequence[object]:
    if isinstance(node, dict):
        mapping = cast("dict[object, object]", node)
        return [*mapping, *mapping.values()]
    return cast("list[object]", node) if isinstance(node, list) else ()


MOST: Final = 200  # fields

_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|[A-Za-z_]\w*|[0-9.]+(?=\d)|\S')
_IDENTIFIER: Final = re.compile(r"[A-Za-z_]\w*")


def draft(definition: Definition | None) -> Mapping[str, JSON] | None:
    """Return a JSON Schema with the fields that the source reads; None if it reads none."""
    main = definition.main if definition else None
    if main is None or len(main.params) != 1:
        return None
    fields = dict.fromkeys(name for text in main.expressions for name in read_fields(main.params[0], text))
    if not fields:
        return None
    return {"type": "object", "properties": {name: {} for name in sorted(fields)[:MOST]}}


def read_fields(variable: str, expression: str) -> Iterator[str]:
    """Yield the fields that are read from a variable: `args.x`, `args["x"]`, `map.get(args, "x")`, `"x" in args`."""
    tokens = _TOKEN.findall(expression)
    for place, token in enumerate(tokens):
        before, after = tokens[max(0, place - 4) : place], tokens[place + 1 : place + 4]
        if token == variable and before[-1:] != ["."]:
            name = _attribute(after) or _item(after) or _map_get(before, after) or _contained(before)
            if name is not None:
                yield name


def _attribute(after: Sequence[str]) -> str | None:
    """Return the name in `args.x`, unless it is a call."""
    match after:
        case [".", name, *rest] if _IDENTIFIER.fullmatch(name) and rest[:1] != ["("]:
            return name
        case _:
            return None


def _item(after: Sequence[str]) -> str | None:
    """Return the name in `args["x"]`."""
    return _text(after[1]) if len(after) > 2 and after[0] == "[" and after[2] == "]" else None


def _map_get(before: Sequence[str], after: Sequence[str]) -> str | None:
    """Return the first key in `map.get(args, "x")` or `map.get(args, ["x", "y"])`."""
    if list(before) != ["map", ".", "get", "("] or after[:1] != [","]:
        return None
    return next((name for token in after[1:] if (name := _text(token)) is not None), None)


def _contained(before: Sequence[str]) -> str | None:
    """Return the name in `"x" in args`; the negation is written `not("x" in args)`."""
    return _text(before[-2]) if len(before) > 1 and before[-1] == "in" else None


def _text(token: str) -> str | None:
    """Return the value of a string literal without escapes."""
    quoted = len(token) > 1 and token[0] in "\"'" and "\\" not in token
    return token[1:-1] if quoted else None
