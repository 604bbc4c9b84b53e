"""Writes the tables of docs/configuration.md from the models: python -m scripts.config_reference [--check].

Also the JSON Schema of audit events.

The text around the tables is written by hand, in the document itself; a table stands between
`<!-- begin NAME -->` and `<!-- end NAME -->`.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import BaseModel

from mcp_workflows.access.limit_settings import Limits
from mcp_workflows.adapter import ENTRY_POINT_GROUP, load_adapter
from mcp_workflows.sidecar.config.includes import Include
from mcp_workflows.sidecar.config.json_schema import PlainJsonSchema
from mcp_workflows.sidecar.config.models import (
    TOOL_KEYS,
    AuditSettings,
    ServerSettings,
    StoreSettings,
    TelemetrySettings,
)
from mcp_workflows.sidecar.telemetry.audit_log import AuditEvent
from mcp_workflows.tools.tool import Tool

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "configuration.md"
AUDIT_SCHEMA = ROOT / "docs" / "audit-event.schema.json"

Schema: TypeAlias = Mapping[str, Any]  # Any: a JSON Schema

_TYPES: Mapping[str, str] = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "object": "mapping",
}
_FORMATS: Mapping[str, str] = {"password": "text, secret", "path": "path"}
_BY_NAME = frozenset({"ask", "gates"})  # keys of a tool that are mappings by name
_OF_MANY = frozenset({"auth.issuers", "auth.introspection", "auth.tokens"})  # lists that are told of row by row


def adapters() -> Sequence[str]:
    """Return the names of the adapters in this repository, the one in memory last."""
    projects = [tomllib.loads(file.read_text("utf-8"))["project"] for file in ROOT.glob("adapters/*/pyproject.toml")]
    entries = [project.get("entry-points", {}).get(ENTRY_POINT_GROUP, ()) for project in projects]
    return [*sorted(name for names in entries for name in names), "memory"]


def regions() -> Iterator[tuple[str, str]]:
    """Every generated part of the document, by name."""
    yield "server", table(ServerSettings)
    yield "include", table(Include)
    yield "store", table(StoreSettings)
    yield "limits", table(Limits)
    yield "audit", table(AuditSettings)
    yield "telemetry", table(TelemetrySettings)
    yield "tools", table(Tool, TOOL_KEYS)
    yield "engines", "\n\n".join(_of_adapter(name, load_adapter(name).Settings) for name in adapters())
    yield "options", "\n\n".join(_of_adapter(name, load_adapter(name).Options) for name in adapters())


def _of_adapter(name: str, model: type[BaseModel]) -> str:
    rows = table(model) if model.model_fields else "Nothing."
    return f"### `adapter: {name}`\n\n{rows}"


def table(model: type[BaseModel], keys: frozenset[str] | None = None) -> str:
    """One row per key, those of models inside included."""
    schema = model.model_json_schema(schema_generator=PlainJsonSchema)
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    return "\n".join([*lines, *_rows(schema, schema.get("$defs", {}), "", keys)])


def _rows(schema: Schema, shared: Schema, prefix: str, keys: frozenset[str] | None = None) -> Iterator[str]:
    for key, value in schema.get("properties", {}).items():
        if keys is not None and key not in keys:
            continue
        default = "**required**" if key in schema.get("required", []) else _default(value)
        meaning = _linked(value.get("description", "")).replace("|", "\\|").replace("\n", " ")
        yield f"| `{prefix}{key}` | {_type(value, shared)} | {default} | {meaning} |"
        for inner in _models(value, shared):
            yield from _rows(inner, shared, f"{prefix}{key}.{'NAME.' if prefix + key in _BY_NAME else ''}")
        if prefix + key in _OF_MANY:
            yield from _rows(_resolved(value["items"], shared), shared, f"{prefix}{key}[].")


def _linked(meaning: str) -> str:
    """Pages that the terminal is told by their command are links here, in a page."""
    return re.sub(r"`mcp-workflows docs ([\w-]+)(#[\w-]+)?`", r"[\1](\1.md\2)", meaning)


def _default(schema: Schema) -> str:
    default = schema.get("default")
    if default is None:
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _type(schema: Schema, shared: Schema) -> str:
    if "$ref" in schema:
        return _type(_resolved(schema, shared), shared)
    if choices := schema.get("enum"):
        return ", ".join(f"`{choice}`" for choice in choices)
    if options := schema.get("anyOf"):
        return " or ".join(_type(option, shared) for option in options if option.get("type") != "null")
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'], shared)}"
    if "examples" in schema:
        return "duration"
    return _FORMATS.get(schema.get("format", "")) or _TYPES.get(schema.get("type", ""), "anything")


def _models(schema: Schema, shared: Schema) -> Iterator[Schema]:
    """The models a value may be made of."""
    inner: Schema | bool = schema.get("additionalProperties", True)
    options: Sequence[Schema] = [schema, *schema.get("anyOf", []), *([] if isinstance(inner, bool) else [inner])]
    for option in options:
        if "$ref" in option and "properties" in (found := _resolved(option, shared)):
            yield found


def _resolved(schema: Schema, shared: Schema) -> Schema:
    found: Schema = shared[schema["$ref"].removeprefix("#/$defs/")]
    return found


def fresh(text: str) -> str:
    """The document with its generated parts as they should be."""
    for name, content in regions():
        pattern = re.compile(rf"(<!-- begin {name} -->\n).*?(\n?<!-- end {name} -->)", re.DOTALL)
        matches = list(pattern.finditer(text))
        if len(matches) != 1:
            raise SystemExit(f"{DOCUMENT.name}: there must be one region {name!r}, there are {len(matches)}")
        [match] = matches
        text = f"{text[: match.start()]}{match[1]}\n{content}\n\n{match[2].lstrip()}{text[match.end() :]}"
    return text


def audit_schema() -> str:
    """The JSON Schema of audit events."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **AuditEvent.model_json_schema()}
    return json.dumps(schema, indent=2) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write the document, or with --check only say whether it is as it should be."""
    wanted = {DOCUMENT: fresh(DOCUMENT.read_text(encoding="utf-8")), AUDIT_SCHEMA: audit_schema()}
    stale = {path: text for path, text in wanted.items() if path.read_text(encoding="utf-8") != text}
    for path, text in stale.items():
        if "--check" in arguments:
            print(f"{path.relative_to(ROOT)} is stale: python -m scripts.config_reference", file=sys.stderr)
        else:
            path.write_text(text, encoding="utf-8")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
