"""Tools that hosts refuse: rules for the warnings of `check`, each with a remedy and its source."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from mcp_workflows.tools.json_schema import Schema, is_list, is_object, list_at, object_at
from mcp_workflows.tools.tool import AnyTool


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRule:
    """A reason for a host to refuse tools."""

    host: str
    complaint: Callable[[AnyTool], str | None]  # the problem with a tool; None: no problem
    hint: str  # the remedy
    source: str


def refusals(tool: AnyTool) -> Iterator[tuple[HostRule, str]]:
    """Yield the rules that the tool breaks, each with the problem."""
    yield from ((rule, text) for rule in _RULES if (text := rule.complaint(tool)))


def _combined(tool: AnyTool) -> str | None:
    found = [word for word in ("anyOf", "oneOf", "allOf") if word in tool.input]
    return f"input has {found[0]} at the top level" if found else None


def _odd_property(tool: AnyTool) -> str | None:
    names = (name for _, schema in _subschemas(tool.input, "input") for name in object_at(schema, "properties"))
    odd = next((name for name in names if not _PROPERTY.fullmatch(name)), None)
    return None if odd is None else f"the property {odd!r} has other characters than letters, digits, _, . and -"


def _first(tool: AnyTool, wanted: Callable[[Schema], bool], what: str) -> str | None:
    found = next((place for place, schema in _subschemas(tool.input, "input") if wanted(schema)), None)
    return None if found is None else f"{found}: {what}"


def _subschemas(schema: Any, place: str) -> Iterator[tuple[str, Schema]]:  # any JSON value
    """Yield a schema and its subschemas, each with its place. A property's name is not mistaken for a keyword."""
    if not is_object(schema):
        return
    yield place, schema
    inner = [(word, schema.get(word)) for word in _SINGLE]
    inner += [(f"{word}.{name}", each) for word in _NAMED for name, each in object_at(schema, word).items()]
    inner += [(f"{word}.{index}", each) for word in _SEVERAL for index, each in enumerate(list_at(schema, word))]
    for where, each in inner:
        yield from _subschemas(each, f"{place}.{where}")


_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SINGLE: Final = ("items", "additionalProperties", "contains", "not", "if", "then", "else")
_SEVERAL: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_PROPERTY: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_RULES: Final = (
    HostRule(
        host="Claude Desktop",
        complaint=lambda tool: "the name has a dot" if "." in tool.name else None,
        hint="use _ or - instead of the dot",
        source="orchard-mcp#14",
    ),
    HostRule(
        host="Cursor",
        complaint=lambda tool: f"the name has {len(tool.name)} characters" if len(tool.name) > 60 else None,
        hint="shorten it to 60 characters",
        source="composio#2788",
    ),
    HostRule(
        host="the Claude API",
        complaint=_combined,
        hint="say in the description which arguments go together",
        source="notion-mcp-server#341",
    ),
    HostRule(
        host="the Claude API",
        complaint=_odd_property,
        hint="rename it: letters, digits, _, . and -, 64 at most",
        source="the Messages API, `tools.input_schema`",
    ),
    HostRule(
        host="VS Code",
        complaint=lambda tool: _first(
            tool, lambda each: each.get("type") == "array" and "items" not in each, "an array without items"
        ),
        hint="say what it contains: `items: {type: string}`",
        source="vscode#248810",
    ),
    HostRule(
        host="the OpenAI Agents SDK",
        complaint=lambda tool: None if is_object(tool.input.get("properties")) else "input has no properties",
        hint="write `input: {type: object, properties: {}}`, or its arguments",
        source="openai-agents-python#449",
    ),
    HostRule(
        host="Gemini",
        complaint=lambda tool: _first(
            tool, lambda each: is_list(object_at(each, "items").get("type")), "items of several types"
        ),
        hint="give items one type",
        source="copilot-cli#4623",
    ),
)
