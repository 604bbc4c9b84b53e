"""A draft of a workflow's input schema, from the fields of the argument that its source reads.

The owner must correct it: types and required fields are not known, nor the fields that a subworkflow reads of an
argument that is passed to it as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from mcp_workflows.adapter import JSON
from mcp_workflows_google.tooling.definition import Definition

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
    """Yield the fields that are read of a variable: `args.x`, `args["x"]`, `map.get(args, "x")`, `"x" in args`."""
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
