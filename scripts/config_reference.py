"""Write the reference from the code: python -m scripts.config_reference [--check].

It has the tables of docs/configure/, the command line, the metrics, and the fields of audit events with their JSON
Schema.

The text around the tables is written by hand, in the page itself. A table stands between
`<!-- begin NAME -->` and `<!-- end NAME -->`.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from html import unescape
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeAlias

import typer
from pydantic import BaseModel
from typer.cli import get_docs_for_click
from typer.testing import CliRunner

from mcp_workflows.access.limit_settings import Limits
from mcp_workflows.adapter import ENTRY_POINT_GROUP, load_adapter
from mcp_workflows.events.notifications import NotificationChannel
from mcp_workflows.sidecar.cli.app import COMMANDS, DISTRIBUTION, CommandLine, app, registered
from mcp_workflows.sidecar.cli.connect import Host
from mcp_workflows.sidecar.config.includes import Include
from mcp_workflows.sidecar.config.json_schema import PlainJsonSchema
from mcp_workflows.sidecar.config.models import (
    TOOL_KEYS,
    AuditSettings,
    ServerSettings,
    StoreSettings,
)
from mcp_workflows.sidecar.telemetry.exporters import AuditEvent
from mcp_workflows.telemetry import METRICS, NAME
from mcp_workflows.tools.tool import MODELS

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "configure"
HOSTS = ROOT / "docs" / "use" / "hosts.md"
COMMAND_LINE = ROOT / "docs" / "reference" / "command-line.md"
AUDIT_EVENTS = ROOT / "docs" / "reference" / "audit-events.md"
METRICS_PAGE = ROOT / "docs" / "reference" / "metrics.md"
AUDIT_SCHEMA = ROOT / "docs" / "reference" / "audit-event.schema.json"

Schema: TypeAlias = Mapping[str, Any]  # Any: a JSON Schema
Meaning: TypeAlias = tuple[str, str]  # the last name of a key, and the rest of its row

_TYPES: Mapping[str, str] = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "object": "mapping",
}
_FORMATS: Mapping[str, str] = {"password": "text, secret", "path": "path"}
_HEAD = ("| key | type | default | meaning |", "|---|---|---|---|")
_BY_NAME = frozenset({"questions"})  # keys of a tool that are mappings by name
_OF_MANY = frozenset({"auth.issuers", "auth.introspection", "auth.tokens"})  # lists that are told of row by row
_OF_MCP = frozenset({"annotations"})  # described by MCP


def adapters() -> Sequence[str]:
    """Return the names of the adapters of this repository; the one in memory has settings for tests alone."""
    projects = [tomllib.loads(file.read_text("utf-8"))["project"] for file in ROOT.glob("adapters/*/pyproject.toml")]
    entries = [project.get("entry-points", {}).get(ENTRY_POINT_GROUP, ()) for project in projects]
    return sorted(name for names in entries for name in names)


def regions() -> Iterator[tuple[str, str]]:
    """Yield every generated part of the pages, by name."""
    yield "server", table(ServerSettings)
    yield "include", table(Include)
    yield "store", table(StoreSettings)
    yield "limits", table(Limits)
    yield "audit", table(AuditSettings)
    yield "notify", table(NotificationChannel)
    yield "tools", table(*MODELS.values(), keys=TOOL_KEYS)
    for part, model, level in (("engines", "Settings", "##"), ("options", "Options", "###")):
        known: dict[Meaning, tuple[str, str]] = {}  # with the adapter and the key that has it
        models = {name: getattr(load_adapter(name), model) for name in adapters()}
        parts = {name: _of_adapter(name, each, known) for name, each in models.items()}
        yield part, "\n\n".join(f"{level} `adapter: {name}`\n\n{text}" for name, text in parts.items())


def _of_adapter(name: str, model: type[BaseModel], known: dict[Meaning, tuple[str, str]]) -> str:
    """Return the table of one adapter; rows that have the meaning of a `known` one, of an adapter before, are links."""
    new, same = list[str](), dict[str, list[str]]()
    for row in _rows(model):
        key, meaning = _parts(row)
        other, other_key = known.get(meaning, (name, key))
        if other == name:
            new.append(row)
        else:
            same.setdefault(other, []).append(f"`{key}`" if key == other_key else f"`{key}` (`{other_key}`)")
    for key, meaning in map(_parts, new):
        known.setdefault(meaning, (name, key))
    texts = ["\n".join([*_HEAD, *_joined(new)])] if new else [] if same else ["Nothing."]
    texts += [f"As of [`adapter: {other}`](#adapter-{other}): {', '.join(keys)}." for other, keys in same.items()]
    return "\n\n".join(texts)


def table(*models: type[BaseModel], keys: frozenset[str] | None = None) -> str:
    """Return one row per key of any of the models, those of models inside included."""
    return "\n".join([*_HEAD, *_joined(_rows(*models, keys=keys))])


def _rows(*models: type[BaseModel], keys: frozenset[str] | None = None) -> Sequence[str]:
    rows, found = _Rows(), list[str]()
    for model in models:
        schema = model.model_json_schema(schema_generator=PlainJsonSchema)
        found += rows.of(schema, schema.get("$defs", {}), "", keys)
    return found


def _parts(row: str) -> tuple[str, Meaning]:
    """Return the key of a row; and its last name with the rest of the row."""
    _, key, rest = row.split("`", 2)
    return key, (key.rpartition(".")[2], rest)


def _joined(rows: Sequence[str]) -> Sequence[str]:
    """Return the rows, one for all keys that mean the same: keys of the same name, or in the same mapping."""
    merged: list[tuple[list[str], str]] = []  # keys that mean the same, with the rest of their row
    by_meaning: dict[Meaning, tuple[list[str], str]] = {}
    for row in rows:
        key, (last, rest) = _parts(row)
        beside = (key.removesuffix(last), rest)
        row_of = by_meaning.get((last, rest)) or by_meaning.get(beside)
        if row_of is None:
            merged.append(row_of := ([], rest))
        row_of[0].append(f"`{key}`")
        by_meaning[last, rest] = by_meaning[beside] = row_of
    return [f"| {', '.join(keys)}{rest}" for keys, rest in merged]


class _Rows:
    """The rows of one table; a model that is used at several places is described at the first."""

    def __init__(self) -> None:
        self._places: dict[str, str] = {}  # where a model is described, by its name
        self._keys: set[str] = set()

    def of(
        self,
        schema: Schema,
        shared: Schema,
        prefix: str,
        keys: frozenset[str] | None = None,
        *,
        is_one_of: bool = False,
    ) -> Iterator[str]:
        """Yield the rows of a model; `keys`: those alone. `is_one_of`: another model may be there in its place."""
        for key, value in schema.get("properties", {}).items():
            place = f"{prefix}{key}"
            if place in self._keys or (keys is not None and key not in keys):
                continue
            self._keys.add(place)
            models = _models(value["items"] if place in _OF_MANY else value, shared)
            known = sorted({f"`{self._places[name]}`" for name in models if name in self._places})
            is_required = key in schema.get("required", []) and not is_one_of
            default = "**required**" if is_required else _default(value)
            meaning = _linked(value.get("description", "")).replace("|", "\\|").replace("\n", " ")
            meaning += f" As {', '.join(known)}." if known else ""
            yield f"| `{place}` | {_type(value, shared)} | {default} | {meaning} |"
            new = {name: model for name, model in models.items() if name not in self._places and key not in _OF_MCP}
            self._places |= dict.fromkeys(new, place)
            below = f"{place}[]." if place in _OF_MANY else f"{place}.NAME." if place in _BY_NAME else f"{place}."
            for model in new.values():
                yield from self.of(model, shared, below, is_one_of=len(models) > 1)


def _linked(meaning: str) -> str:
    """Return a description in which pages are links."""
    return re.sub(r"`docs/([\w-]+/)([\w-]+)\.md(#[\w-]+)?`", r"[\2](../\1\2.md\3)", meaning)


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


def _models(schema: Schema, shared: Schema) -> Mapping[str, Schema]:
    """The models a value may be made of, by name."""
    inner: Schema | bool = schema.get("additionalProperties", True)
    outer = [schema] if isinstance(inner, bool) else [schema, inner]
    options = [option for each in outer for option in (each, *each.get("anyOf", []), *each.get("oneOf", []))]
    found = {option["$ref"]: _resolved(option, shared) for option in options if "$ref" in option}
    return {name: model for name, model in found.items() if "properties" in model}


def _resolved(schema: Schema, shared: Schema) -> Schema:
    found: Schema = shared[schema["$ref"].removeprefix("#/$defs/")]
    return found


def pages() -> Mapping[Path, str]:
    """Return the pages with their generated parts as they should be."""
    found = {path: path.read_text(encoding="utf-8") for path in sorted(PAGES.glob("*.md"))}
    for name, content in regions():
        having = [path for path, text in found.items() if f"<!-- begin {name} -->" in text]
        if len(having) != 1:
            raise SystemExit(f"docs/configure: there must be one region {name!r}, there are {len(having)}")
        found[having[0]] = _filled(found[having[0]], name, content)
    return found


def _filled(text: str, name: str, content: str) -> str:
    """Return a page in which the region of this name has this content."""
    head, begin, rest = text.partition(f"<!-- begin {name} -->\n")
    _, end, tail = rest.partition(f"<!-- end {name} -->")
    return f"{head}{begin}\n{content}\n\n{end}{tail}"


_HOSTS: Mapping[Host, str] = {
    Host.CLAUDE: "Claude Code",
    Host.VSCODE: "VS Code",
    Host.CURSOR: "Cursor",
    Host.CODEX: "Codex",
    Host.GEMINI: "Gemini CLI",
    Host.OPENCODE: "opencode",
    Host.INSPECTOR: "MCP Inspector",
}


def audit_schema() -> str:
    """The JSON Schema of audit events."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **AuditEvent.model_json_schema()}
    return json.dumps(schema, indent=2) + "\n"


def audit_events() -> str:
    """Return the page with the fields of audit events."""
    head = "# Audit events\n\nThe fields of an event in the [audit log](../operate/observability.md#audit-log)"
    text = f"{head}, generated from its [JSON Schema](audit-event.schema.json).\n\n"
    rows = table(AuditEvent).replace("| key |", "| field |", 1)
    return f"{text}<!-- begin fields -->\n\n{rows}\n\n<!-- end fields -->\n"


_LABELS: Final = """\
Values of labels:

- `outcome` of engine calls: `ok`, `unavailable` (no answer), `throttled`, `refused`, `conflict` (key taken),
  `not_found`, `broke` (adapter defect), `cancelled` (no caller left).
- `api`: `start`, `find`, `describe`, `describe_many`, `answer`, `cancel`, `terminate`, `adopt`, `list_ended`, `check`,
  `exposed`, `other`; `wait` and `hints`, which have no duration; `receive`, a webhook to the server.
- `outcome` of event deliveries: `ok`, `withheld` (not visible now), an error, `given_up`.
- `error_type`: a JSON-RPC code, `tool_error` or `cancelled`.
- Unknown methods and tools are `_OTHER`.
"""


def metrics() -> str:
    """Return the page with all metrics, under the names that Prometheus scrapes."""
    head = "# Metrics\n\nThe metrics of [the operators' listener](../operate/observability.md#metrics), generated from "
    rows = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for name, metric in METRICS.items():
        full = name.replace(".", "_") if "." in name else f"{NAME}_{name}"
        full += "_seconds" * (metric.unit == "s") + "_total" * (metric.kind == "counter")
        labels = ", ".join(f"`{label}`" for label in metric.labels.split())
        rows.append(f"| `{full}` | {metric.kind} | {labels} | {metric.meaning} |")
    table_of_metrics = "\n".join(rows)
    return f"{head}the code.\n\n<!-- begin metrics -->\n\n{table_of_metrics}\n\n{_LABELS}\n<!-- end metrics -->\n"


def hosts() -> str:
    """Return the page on hosts with an example for each, as `connect` prints it."""
    parts = list[str]()
    for host in (each for each in Host if each is not Host.CHATGPT):  # its steps are on the page on events
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            done = CliRunner().invoke(app, ["connect", host, "--url", "https://workflows.example.com/mcp"])
        said = [line for line in done.stderr.splitlines() if line]
        language = "json" if done.stdout.startswith("{") else "toml" if done.stdout.startswith("[") else "sh"
        parts += [f"## {_HOSTS[host]}", f"Put this into {said[0].removesuffix(':')}:" if language != "sh" else "Run:"]
        parts += [f"```{language}\n{done.stdout.rstrip()}\n```"]
        parts += [
            f"Or open this link:\n\n```text\n{line.removeprefix('or open: ')}\n```"
            for line in said
            if "or open:" in line
        ]
    return _filled(HOSTS.read_text(encoding="utf-8"), "hosts", "\n\n".join(parts))


def command_line() -> str:
    """Return the page with all commands and their options, as `--help` shows them."""
    for module, _ in COMMANDS.values():
        import_module(f"mcp_workflows.sidecar.cli.{module}")
    command = typer.main.get_command(app)
    assert isinstance(command, CommandLine)
    command.commands.update({name: registered(name) for name in COMMANDS})
    shown = get_docs_for_click(obj=command, ctx=typer.Context(command), name=DISTRIBUTION)
    options = re.compile(r"\* `--(?:help|install-completion|show-completion)`: .*\n")
    plain = re.sub(r"\*\*Options\*\*:\n\n(?=\n|#|\Z|\*\*)", "", options.sub("", unescape(shown)))
    title = f"# Command line\n\nAll commands of `{DISTRIBUTION}`, generated from `--help`.\n\n<!-- begin commands -->\n"
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"\A# .*\n", title, plain)).rstrip() + "\n\n<!-- end commands -->\n"


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or with --check only say whether they are as they should be."""
    wanted = {
        **pages(),
        AUDIT_SCHEMA: audit_schema(),
        AUDIT_EVENTS: audit_events(),
        METRICS_PAGE: metrics(),
        COMMAND_LINE: command_line(),
        HOSTS: hosts(),
    }
    stale = {path: text for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text}
    for path, text in stale.items():
        if "--check" in arguments:
            print(f"{path.relative_to(ROOT)} is stale: python -m scripts.config_reference", file=sys.stderr)
        else:
            path.write_text(text, encoding="utf-8")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
