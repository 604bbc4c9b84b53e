"""What can be said in workflows.yaml: its models, and the JSON Schema that editors complete and check it by."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.metadata import version
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from mcp_workflows.adapter import Adapter, installed_adapters, load_adapter
from mcp_workflows.capabilities import GATE_WORDS, gate_settings
from mcp_workflows.config_problems import known_keys
from mcp_workflows.duration import Duration, parse_duration
from mcp_workflows.errors import ConfigError
from mcp_workflows.gate import ToolGate
from mcp_workflows.schema import Schema
from mcp_workflows.tool import Tool

logger = logging.getLogger(__name__)

DISTRIBUTION = "mcp-workflows"
SECTIONS = ("server", "store", "engines", "tools")
TOOL_KEYS = known_keys(Tool) - {"name", "options", "listed"}

_SUBSTITUTED = r"\$\{"  # `${NAME}` can stand for a number, a duration, ...
_REF = "#/$defs/{model}"
_UNITS = {
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}
_CODE_OR_FILE = {"type": "string", "description": "A file, ./schema.json, or a workflow in code, module:attribute."}


LONGEST_DRAIN = timedelta(hours=1)

Drain = Annotated[
    timedelta,
    Field(strict=True, ge=timedelta(0), le=LONGEST_DRAIN),
    BeforeValidator(parse_duration),
    WithJsonSchema({"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*(ms|s|m|h)\s*$", "examples": ["0s", "15s"]}),
]
"""A duration that may be none at all."""


class ServerSettings(BaseModel):
    """How the server presents itself, and whom it lets in over HTTP."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(default=DISTRIBUTION, min_length=1, description="The server's name, as hosts see it.")
    title: str | None = Field(default=None, description="The name people see.")
    version: str = Field(
        default_factory=lambda: version(DISTRIBUTION),
        description="The server's version, as hosts see it. Default: the version of mcp-workflows.",
    )
    instructions: str | None = Field(default=None, description="What the model reads about the server as a whole.")
    strict_headers: bool = Field(
        default=False, description="Refuse `tasks/*` requests over HTTP that have no `Mcp-Name` header."
    )
    allowed_hosts: list[str] = Field(
        default_factory=list, description="`Host` headers to accept besides the address that is listened on."
    )
    allowed_origins: list[str] = Field(
        default_factory=list, description="`Origin` headers of browsers to accept besides loopback."
    )
    single_user: bool = Field(
        default=False,
        description="Everybody who reaches it over loopback HTTP is one user, the local one: lists of tasks and "
        "watching are on. Only on loopback.",
    )
    my_tasks: bool = Field(
        default=False,
        description="Whether clients that take tasks get the tool `my_tasks` too, a list of the caller's own tasks; "
        "clients without tasks always do. For callers who are identified.",
    )
    drain: Drain = Field(
        default=timedelta(seconds=5),
        description="How long it goes on serving after SIGTERM while `/readyz` says no, so that load balancers notice. "
        "At most 1h; `0s`: not at all.",
    )
    max_looks_per_second: float = Field(
        default=50,
        gt=0,
        allow_inf_nan=False,
        description="How often each engine is asked how executions are; with more tasks, clients poll less.",
    )
    max_open_waits: int = Field(
        default=200,
        ge=0,
        le=1000,
        description="How many executions are waited for with an open request, where an engine has these (Temporal).",
    )


class StoreSettings(BaseModel):
    """Where tasks are kept. A URL alone will do: `store: sqlite:///tasks.db`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(
        default="sqlite:///mcp-workflows.db",
        description="The store. A relative SQLite path (three slashes) starts at the folder of this file.",
    )
    retention: Duration = Field(
        default=timedelta(days=90), description="How long a task can be read after its creation, without a ttl."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One workflow engine: the adapter for it, and the settings that the adapter is opened with."""

    name: str
    adapter: str  # the entry point
    kind: type[Adapter]
    settings: BaseModel = field(repr=False)  # may hold secrets


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All of workflows.yaml."""

    server: ServerSettings
    store: StoreSettings
    engines: Mapping[str, Engine]
    tools: Sequence[Tool]


def config_schema() -> Schema:
    """JSON Schema 2020-12 of workflows.yaml, as the adapters installed here make it."""
    adapters = dict(_loadable())
    options = [adapter.Options for adapter in adapters.values()]
    settings = [adapter.Settings for adapter in adapters.values()]
    gates = [model for adapter in adapters.values() if (model := gate_settings(adapter))]
    models: list[type[BaseModel]] = [ServerSettings, StoreSettings, Tool, ToolGate, *settings, *options, *gates]
    shapes = _Shapes(models)
    engines = [_engine_entry(name, shapes[adapter.Settings]) for name, adapter in adapters.items()]
    gate = _gate_entry(shapes[ToolGate], [shapes[model] for model in gates])
    schema: Schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "workflows.yaml",
        "description": "Configuration of mcp-workflows.",
        "type": "object",
        "properties": {
            "server": shapes[ServerSettings],
            "store": {"anyOf": [{"type": "string", "description": "The URL alone."}, shapes[StoreSettings]]},
            "engines": _by_name("Workflow engines, by name.", {"anyOf": engines}) | {"minProperties": 1},
            "tools": _by_name("Tools, by name.", _tool_entry(shapes[Tool], [shapes[model] for model in options], gate))
            | {"propertyNames": {"pattern": shapes.name_pattern}},
        },
        "required": ["engines"],  # tools may all be found on the engines
        "additionalProperties": False,
    }
    return {**schema, "$defs": shapes.used_in(schema)}


def _loadable() -> Iterator[tuple[str, type[Adapter]]]:
    for name in installed_adapters():
        try:
            yield name, load_adapter(name)
        except ConfigError as error:
            logger.warning("left out of the schema: %s", error)


def _by_name(description: str, entry: Schema) -> Schema:
    return {"type": "object", "description": description, "additionalProperties": entry}


def _engine_entry(adapter: str, settings: Schema) -> Schema:
    return {
        **settings,
        "properties": {"adapter": {"const": adapter, "description": "The adapter for it."}, **settings["properties"]},
        "required": ["adapter", *settings.get("required", [])],
        "additionalProperties": settings.get("additionalProperties") is True,
    }


def _gate_entry(gate: Schema, words: Sequence[Schema]) -> Schema:
    """A gate, its parts in the words of the adapters installed here."""
    properties = dict(gate["properties"])
    for key in GATE_WORDS:
        said = [model["properties"][key] for model in words if key in model["properties"]]
        if said:
            shape = said[0] if len(said) == 1 else {"anyOf": said}
            properties[key] = {**shape, "description": properties[key]["description"]}
    return {**gate, "properties": properties}


def _tool_entry(tool: Schema, options: Sequence[Schema], gate: Schema) -> Schema:
    properties: Schema = {}
    for model in options:
        for key, value in model.get("properties", {}).items():
            same = key not in properties or properties[key] == value
            properties[key] = value if same else {"anyOf": [properties[key], value]}
    properties |= {key: value for key, value in tool["properties"].items() if key in TOOL_KEYS}
    properties["gates"] = {**properties["gates"], "additionalProperties": gate}
    for key in ("input", "output"):
        properties[key] = {"anyOf": [properties[key], _CODE_OR_FILE], "description": properties[key]["description"]}
    return {
        "type": "object",
        "properties": properties,
        "required": [key for key in tool["required"] if key in TOOL_KEYS],
        "additionalProperties": any(model.get("additionalProperties") is True for model in options),
    }


class PlainJsonSchema(GenerateJsonSchema):
    """Without titles made up from names, and with durations as they are written here."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # Any: pydantic's own core schemas
        return False

    def encode_default(self, dft: Any) -> Any:  # Any: whatever a default can be
        return write_duration(dft) if isinstance(dft, timedelta) else super().encode_default(dft)


def write_duration(value: timedelta) -> str:
    """As people write it: 90d, 500ms."""
    unit, length = next(pair for pair in _UNITS.items() if not value % pair[1])
    return f"{value // length}{unit}"


class _Shapes:
    """The schemas of some models, with the models they refer to on the side."""

    def __init__(self, models: Sequence[type[BaseModel]]) -> None:
        self._references, made = models_json_schema(
            [(model, "validation") for model in models], ref_template=_REF, schema_generator=PlainJsonSchema
        )
        self._made: Schema = {name: _or_substituted(schema) for name, schema in made.get("$defs", {}).items()}
        self.name_pattern: str = made["$defs"]["Tool"]["properties"]["name"]["pattern"]

    def __getitem__(self, model: type[BaseModel]) -> Schema:
        reference: str = self._references[(model, "validation")]["$ref"]
        return dict(self._made[reference.removeprefix(_REF.format(model=""))])

    def used_in(self, schema: Schema) -> Schema:
        """Definitions that are referred to, here or by each other."""
        text = json.dumps([schema, self._made])
        return {name: made for name, made in self._made.items() if f'"{_REF.format(model=name)}"' in text}


def _or_substituted(schema: Schema) -> Schema:
    """The same schema, which also takes `${NAME}` where it takes a number, a choice or a pattern."""
    result = {key: _inside(key, value) for key, value in schema.items()}
    if "enum" in result or "const" in result:
        return {"anyOf": [result, {"type": "string", "pattern": _SUBSTITUTED}]}
    if result.get("type") in {"integer", "number", "boolean"}:
        return {**result, "type": [result["type"], "string"], "pattern": _SUBSTITUTED}
    if "pattern" in result:
        return {**result, "pattern": f"({result['pattern']})|{_SUBSTITUTED}"}
    return result


def _inside(key: str, value: Any) -> Any:  # any JSON value
    if key == "properties":
        return {name: _or_substituted(schema) for name, schema in value.items()}
    if key in {"anyOf", "oneOf", "allOf", "prefixItems"}:
        return [_or_substituted(schema) for schema in value]
    if key in {"items", "additionalProperties"} and isinstance(value, dict):
        return _or_substituted(cast("Schema", value))
    return value
