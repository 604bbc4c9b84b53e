"""JSON Schema of workflows.yaml and of included files, for completion and checks in editors."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from importlib.metadata import version
from typing import Any, cast

from pydantic import (
    BaseModel,
)
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from mcp_workflows.access.limit_settings import Limits
from mcp_workflows.adapter import GATE_WORDS, Adapter, installed_adapters, load_adapter
from mcp_workflows.errors import ConfigError
from mcp_workflows.events.notifications import CHANNEL_NAME, NotificationChannel
from mcp_workflows.sidecar.config.includes import POLICY, Include
from mcp_workflows.sidecar.config.models import (
    CANCEL,
    OTLP,
    TOOL_KEYS,
    AuditSettings,
    ServerSettings,
    StoreSettings,
)
from mcp_workflows.tools.json_schema import Schema
from mcp_workflows.tools.questions import GateQuestion, Question
from mcp_workflows.tools.tool import MODELS, TaskAction, Tool
from mcp_workflows.units import write_duration

logger = logging.getLogger(__name__)
_SUBSTITUTED = r"\$\{"  # `${NAME}` can replace a number, a duration, ...
_REF = "#/$defs/{model}"
_CODE_OR_FILE = {"type": "string", "description": "A file, ./schema.json, or a workflow in code, module:attribute."}


def config_schema() -> Schema:
    """Return the JSON Schema 2020-12 of workflows.yaml with the installed adapters."""
    adapters = dict(_loadable())
    schemas = _model_schemas(adapters)
    engines = [_engine_entry(name, schemas[adapter.Settings]) for name, adapter in adapters.items()]
    tool = _tool_of(adapters, schemas)
    settings: Schema = {**tool, "required": []}  # none is required in `defaults`
    schema: Schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:mcp-workflows:{version('mcp-workflows')}:workflows.yaml",
        "title": "workflows.yaml",
        "description": "Configuration of mcp-workflows.",
        "type": "object",
        "properties": {
            "server": schemas[ServerSettings],
            "store": {"anyOf": [{"type": "string", "description": "The URL alone."}, schemas[StoreSettings]]},
            "limits": schemas[Limits],
            "audit": schemas[AuditSettings],
            "notify": _by_name("Channels of notifications, by name.", schemas[NotificationChannel])
            | {"propertyNames": {"pattern": CHANNEL_NAME.pattern}},
            "telemetry": {"enum": [OTLP], "description": "Send traces and metrics by OTLP."},
            "engines": _by_name("Workflow engines, by name.", {"anyOf": engines}) | {"minProperties": 1},
            "include": {
                "type": "array",
                "description": "Files with the tools of teams: see `docs/secure/teams.md`.",
                "items": {
                    "anyOf": [
                        {"type": "string", "description": "A glob, for your own files."},
                        schemas[Include],
                    ]
                },
            },
            "defaults": {**settings, "description": "Settings of all tools, unless a tool or a rule sets them."},
            "rules": _by_name("Settings that override all others, by tool name or pattern (orders_*).", settings),
            "tools": _tools_by_name(tool, schemas),
        },
        "required": ["engines"],  # all tools may come from the engines
        "additionalProperties": False,
    }
    return {**schema, "$defs": schemas.used_in(schema)}


def team_schema() -> Schema:
    """Return the JSON Schema 2020-12 of the files that workflows.yaml includes."""
    adapters = dict(_loadable())
    schemas = _model_schemas(adapters)
    tool = _tool_of(adapters, schemas)
    theirs = {key: value for key, value in tool["properties"].items() if key not in POLICY}
    schema: Schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:mcp-workflows:{version('mcp-workflows')}:team.yaml",
        "title": "tools of a team",
        "description": "A file that workflows.yaml of mcp-workflows includes.",
        "type": "object",
        "properties": {"tools": _tools_by_name({**tool, "properties": theirs}, schemas) | {"minProperties": 1}},
        "required": ["tools"],
        "additionalProperties": False,
    }
    return {**schema, "$defs": schemas.used_in(schema)}


def _model_schemas(adapters: Mapping[str, type[Adapter]]) -> _ModelSchemas:
    sections: list[type[BaseModel]] = [ServerSettings, StoreSettings, Limits, AuditSettings, NotificationChannel]
    models: list[type[BaseModel]] = [*sections, Include, *MODELS.values(), Question, GateQuestion, TaskAction]
    for adapter in adapters.values():
        optional = (adapter.GateSettings, adapter.ActionSettings)
        models += [adapter.Settings, adapter.Options, *(each for each in optional if each)]
    return _ModelSchemas(models)


def _tool_of(adapters: Mapping[str, type[Adapter]], schemas: _ModelSchemas) -> Schema:
    """Return the schema of a tool of any of these adapters."""
    gates = [schemas[model] for adapter in adapters.values() if (model := adapter.GateSettings)]
    options = [schemas[adapter.Options] for adapter in adapters.values()]
    properties: Schema = {}
    for model in MODELS.values():
        properties = {**schemas[model]["properties"], **properties}
    question = {"anyOf": [schemas[Question], _gate_entry(schemas[GateQuestion], gates)]}
    actions = [schemas[model] for adapter in adapters.values() if (model := adapter.ActionSettings)]
    entry = _tool_entry(properties, options, question, _action_entry(schemas[TaskAction], actions))
    cancels = [model["properties"][CANCEL] for model in options if CANCEL in model.get("properties", {})]
    entry["properties"][CANCEL] = _cancel_entry(schemas[Tool]["properties"][CANCEL], cancels, schemas.made)
    return entry


def _tools_by_name(tool: Schema, schemas: _ModelSchemas) -> Schema:
    return _by_name("Tools, by name.", tool) | {"propertyNames": {"pattern": schemas.name_pattern}}


def _loadable() -> Iterator[tuple[str, type[Adapter]]]:
    for name in installed_adapters():
        try:
            yield name, load_adapter(name)
        except ConfigError as error:
            logger.warning("omitted from the schema: %s", error)


def _by_name(description: str, entry: Schema) -> Schema:
    return {"type": "object", "description": description, "additionalProperties": entry}


def _engine_entry(adapter: str, settings: Schema) -> Schema:
    return {
        **settings,
        "properties": {
            "adapter": {"const": adapter, "description": "The adapter of the engine."},
            **settings["properties"],
        },
        "required": ["adapter", *settings.get("required", [])],
        "additionalProperties": settings.get("additionalProperties") is True,
    }


def _gate_entry(gate: Schema, words: Sequence[Schema]) -> Schema:
    """Return the schema of a gate, with the settings of the installed adapters."""
    properties = dict(gate["properties"])
    for key in GATE_WORDS:
        said = [model["properties"][key] for model in words if key in model["properties"]]
        if said:
            shape = said[0] if len(said) == 1 else {"anyOf": said}
            properties[key] = {**shape, "description": properties[key]["description"]}
    return {**gate, "properties": properties}


def _action_entry(action: Schema, messages: Sequence[Schema]) -> Schema:
    """Return the schema of an action, with the messages of the installed adapters."""
    return {**action, "properties": _merged(messages) | action["properties"], "additionalProperties": False}


def _merged(models: Sequence[Schema]) -> Schema:
    """Return the properties of all these models; a property that differs between models may have any of its schemas."""
    properties: Schema = {}
    for model in models:
        for key, value in model.get("properties", {}).items():
            same = key not in properties or properties[key] == value
            properties[key] = value if same else {"anyOf": [properties[key], value]}
    return properties


def _tool_entry(settings: Schema, options: Sequence[Schema], question: Schema, action: Schema) -> Schema:
    properties = _merged(options)
    properties |= {key: value for key, value in settings.items() if key in TOOL_KEYS}
    properties["questions"] = {**properties["questions"], "additionalProperties": question}
    properties["actions"] = {**properties["actions"], "additionalProperties": action}
    for key in ("input", "output"):
        properties[key] = {"anyOf": [properties[key], _CODE_OR_FILE], "description": properties[key]["description"]}
    return {
        "type": "object",
        "properties": properties,
        "additionalProperties": any(model.get("additionalProperties") is True for model in options),
    }


class PlainJsonSchema(GenerateJsonSchema):
    """Generates schemas without titles derived from names, and with durations as people write them."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # Any: pydantic's own core schemas
        return False

    def encode_default(self, dft: Any) -> Any:  # Any: any default
        return write_duration(dft) if isinstance(dft, timedelta) else super().encode_default(dft)


class _ModelSchemas:
    """The schemas of some models and of the models that they refer to."""

    def __init__(self, models: Sequence[type[BaseModel]]) -> None:
        self._references, made = models_json_schema(
            [(model, "validation") for model in models], ref_template=_REF, schema_generator=PlainJsonSchema
        )
        self._made: Schema = {name: _or_substituted(schema) for name, schema in made.get("$defs", {}).items()}
        self.name_pattern: str = made["$defs"]["Tool"]["properties"]["name"]["pattern"]

    def __getitem__(self, model: type[BaseModel]) -> Schema:
        reference: str = self._references[(model, "validation")]["$ref"]
        return dict(self._made[reference.removeprefix(_REF.format(model=""))])

    @property
    def made(self) -> Mapping[str, Schema]:
        """All schemas by name."""
        return self._made

    def used_in(self, schema: Schema) -> Schema:
        """Return the definitions that the schema or another definition refers to."""
        text = json.dumps([schema, self._made])
        return {name: made for name, made in self._made.items() if f'"{_REF.format(model=name)}"' in text}


def _or_substituted(schema: Schema) -> Schema:
    """Return the schema extended to accept `${NAME}` instead of a number, a choice or a pattern."""
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


def _cancel_entry(tool: Schema, adapters: Sequence[Schema], models: Mapping[str, Schema]) -> Schema:
    """Return the schema of `cancel`, which is either the tool's own or that of one of the adapters."""
    found = [shape for schema in (tool, *adapters) for shape in _cancel_models(schema, models)]
    merged: dict[str, Any] = {}  # Any: schemas
    for shape in found:
        merged |= shape["properties"]
    return {
        "type": ["object", "null"],
        "description": tool["description"],
        "properties": merged,
        "additionalProperties": False,
        "anyOf": [{"required": shape.get("required", [])} for shape in found],
    }


def _cancel_models(schema: Schema, models: Mapping[str, Schema]) -> Iterator[Schema]:
    for option in (schema, *schema.get("anyOf", ())):
        if "$ref" in option:
            yield models[option["$ref"].rpartition("/")[2]]
