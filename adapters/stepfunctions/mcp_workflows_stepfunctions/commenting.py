"""What the author of a state machine says about it as a tool: the top-level `Comment` of its definition.

Plain text is the description. A JSON object says more: `description`, `title`, `name`, `inputSchema`, at its top or
under `mcp`, where other tools that read the comment do not trip over it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from mcp_workflows.adapter import JSON

LONGEST: Final = 10_000  # characters of a text: all clients and models get it with every list of tools
_LONG: Final = f"is longer than {LONGEST} characters"
OPEN: Final[Mapping[str, JSON]] = {"type": "object"}  # takes any arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a comment says; `problems` is what in it cannot be meant so, in words for its author."""

    name: str | None = None
    title: str | None = None
    description: str | None = None
    input: Mapping[str, JSON] = field(default_factory=lambda: dict(OPEN))
    problems: tuple[str, ...] = ()


def said_in(definition: object) -> Said:
    """What the comment of a definition (JSON text) says; nothing if there is none."""
    comment = _object(definition).get("Comment")
    if not isinstance(comment, str) or not comment.strip():
        return Said()
    told = _object(comment)
    return _said(told or {"description": comment.strip()})


def _said(told: Mapping[str, Any]) -> Said:
    inner: object = told.get("mcp")
    merged: Mapping[str, Any] = {**told, **cast("dict[str, Any]", inner)} if isinstance(inner, dict) else told
    texts = {key: merged[key] for key in ("name", "title", "description") if merged.get(key) is not None}
    schema = merged.get("inputSchema", OPEN)
    problems = [f"{key} is no text" for key, value in texts.items() if not isinstance(value, str)]
    problems += [f"{key} {_LONG}" for key, value in texts.items() if isinstance(value, str) and len(value) > LONGEST]
    if not isinstance(schema, dict):
        problems.append("inputSchema is no JSON Schema of an object")
    if problems:
        return Said(problems=tuple(problems))
    return Said(**texts, input=cast("Mapping[str, JSON]", schema))


def _object(text: object) -> Mapping[str, Any]:  # Any: any JSON value
    """The JSON object in a text; empty if it is something else."""
    try:
        value = json.loads(text) if isinstance(text, str) and text.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return {}
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}
