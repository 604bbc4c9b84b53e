"""Tools for authors of workflows: schemas from type hints, handlers compared with gates, and files to embed."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any, Final, Literal, cast, get_type_hints

from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, to_jsonable_python
from pydantic_core.core_schema import DatetimeSchema

from mcp_workflows.adapter import JSON
from mcp_workflows.errors import ConfigError
from mcp_workflows.kit.tooling import ArgumentSchema, WorkflowSchema
from mcp_workflows_temporal.diagnosis import counted
from mcp_workflows_temporal.payloads import as_mapping
from mcp_workflows_temporal.settings import load_attribute
from mcp_workflows_temporal.tooling.check import Reference
from mcp_workflows_temporal.tooling.histories import Sent, is_typo, nearest, read_sent

Schema = dict[str, Any]  # a JSON Schema
_ANSWER_FIELD = re.compile(r"\{\{\s*answer\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")

_ZONES: Final[Mapping[object, str]] = {"aware": r"([Zz]|[+-]\d\d:\d\d)$", "naive": r"[Tt]\d\d:\d\d:\d\d(\.\d+)?$"}
"""The end of a date-time that requires a zone, and of one that must have none."""


class _JsonSchema(ArgumentSchema):
    """Adds the zone that a type requires: `format: date-time` is for dates with and without a zone."""

    def datetime_schema(self, schema: DatetimeSchema) -> Schema:
        pattern = _ZONES.get(schema.get("tz_constraint"))
        found = super().datetime_schema(schema)
        return found if pattern is None else {**found, "pattern": pattern}


def read_schema(reference: str) -> WorkflowSchema:
    """Return the schemas of `module:WorkflowClass`.

    Raises:
        ConfigError: the class cannot be imported, is not a workflow, or its hints produce no JSON Schema.
    """
    workflow = load_attribute(reference, "WorkflowClass")
    # The SDK (1.35) has no public access to the definition that its decorators attach.
    if not isinstance(workflow, type) or not hasattr(workflow, "__temporal_workflow_definition"):
        raise ConfigError(f"{reference} is not a workflow: a class with @workflow.defn is needed")
    run: Callable[..., object] = getattr(workflow, "__temporal_workflow_definition").run_fn
    parameters = list(inspect.signature(run).parameters.values())[1:]  # without self
    for each in parameters:
        if each.kind not in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD):
            raise ConfigError(f"{reference}: Temporal passes arguments by position, {each} cannot be given")
    try:
        hints = get_type_hints(run, include_extras=True)
        output = _object_schema(hints["return"], "serialization") if hints.get("return") else None
        only = hints.get(parameters[0].name) if len(parameters) == 1 else None
        is_record = inspect.isclass(only) and (issubclass(only, BaseModel) or dataclasses.is_dataclass(only))
        if is_record and (record := _object_schema(only, "validation")) is not None:
            return WorkflowSchema(input=record, output=output, args=["{{args}}"])
        return WorkflowSchema(input=_properties(parameters, hints), output=output, args=_arguments(parameters))
    except PydanticUserError as error:
        raise ConfigError(f"{reference}: no JSON Schema for a type hint: {error.message}") from None
    except (TypeError, PydanticSerializationError) as error:
        raise ConfigError(f"{reference}: its type hints cannot be read: {error}") from None


def _object_schema(hint: Any, mode: Literal["validation", "serialization"]) -> Schema | None:  # Any: a type hint
    """Return the schema of a hint if it describes an object; resolve a recursive model's reference at the root."""
    adapter: TypeAdapter[Any] = TypeAdapter(hint)  # Any: the type of the hint
    schema = adapter.json_schema(mode=mode, schema_generator=_JsonSchema)
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        schema = {**schema["$defs"][name], "$defs": schema["$defs"]}
    return schema if schema.get("type") == "object" else None


def _properties(parameters: Sequence[inspect.Parameter], hints: Mapping[str, Any]) -> Schema:  # Any: type hints
    """Return an object schema with a property for each parameter, and shared definitions at the root."""
    adapters: list[tuple[str, Any, TypeAdapter[Any]]] = [  # Any: the types of the hints
        (parameter.name, "validation", TypeAdapter(hints.get(parameter.name, Any))) for parameter in parameters
    ]
    schemas, shared = TypeAdapter.json_schemas(adapters, schema_generator=_JsonSchema)
    found: Schema = {"type": "object", "properties": {}, "additionalProperties": False}
    for parameter in parameters:
        default = {} if parameter.default is parameter.empty else {"default": to_jsonable_python(parameter.default)}
        found["properties"][parameter.name] = {**schemas[(parameter.name, "validation")], **default}
    if needed := [parameter.name for parameter in parameters if parameter.default is parameter.empty]:
        found["required"] = needed
    return {**found, "$defs": shared["$defs"]} if "$defs" in shared else found


def _arguments(parameters: Sequence[inspect.Parameter]) -> str | list[str]:
    """Return a template that passes all parameters: with fewer, the SDK's worker ignores their types (1.35).

    It is one expression for the whole list, as a list of placeholders omits absent values at its end.
    """
    if not parameters:
        return []
    return f"{{{{[{', '.join(map(_expression, parameters))}]}}}}"


def _expression(parameter: inspect.Parameter) -> str:
    name = f'args."{parameter.name}"'
    if parameter.default is parameter.empty or parameter.default is None:
        return name
    literal = json.dumps(to_jsonable_python(parameter.default)).replace("`", "\\`")
    if "{{" in literal or "}}" in literal:
        raise ConfigError(f"the default of parameter {parameter.name} cannot be written in a template: set args")
    return f"not_null({name}, `{literal}`)"


_PLURALS: Final[Mapping[str, str]] = {"signal": "signals", "update": "updates", "query": "queries"}
"""The SDK's attributes with the handlers of a workflow, by kind."""


def find_mismatches(
    reference: str, workflow: str, named: Sequence[Reference], gates: Mapping[str, Mapping[str, JSON]]
) -> Mapping[str, str]:
    """Return the settings that `module:WorkflowClass` contradicts: its type, handlers, and their argument counts.

    A workflow may register handlers as it runs, so a missing one counts only if another has a very similar name.

    Raises:
        ConfigError: the workflow cannot be imported.
    """
    definition = getattr(load_attribute(reference, "WorkflowClass"), "__temporal_workflow_definition", None)
    found: dict[str, str] = {}
    name: str | None = getattr(definition, "name", None)  # None: it accepts every type
    if name is not None and workflow and name != workflow:
        found["workflow"] = f"{reference} is the workflow type {name!r}, and not {workflow!r}"
    for each in named:
        kind = _PLURALS.get(each.kind)
        known: Mapping[str | None, object] = getattr(definition, kind, {}) if kind else {}
        near = None if each.name in known or None in known else nearest(each.name, filter(None, known))
        if near and is_typo(each.name, near):
            found[each.where] = f"{reference} has no {each.kind} {each.name!r}; did you mean {near!r}?"
    for sent in read_sent(gates):
        handler = getattr(definition, _PLURALS[sent.message.kind], {}).get(sent.message.name)
        if handler is not None and (mismatch := _mismatch(sent, gates[sent.gate], handler)):
            found[sent.where] = mismatch
    return found


def _mismatch(sent: Sent, ask: Mapping[str, JSON], handler: Any) -> str | None:  # Any: the SDK's private definition
    parameters = list(inspect.signature(handler.fn).parameters.values())[1 if handler.is_method else 0 :]
    if not parameters or any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return None  # measured: a handler without parameters runs with any arguments (SDK 1.35)
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    needed = [each for each in positional if each.default is each.empty]
    optional = _left_empty(sent.args, as_mapping(ask.get("schema")))
    given, most = len(sent.args), counted(len(positional), "argument")
    takes = most if len(needed) == len(positional) else f"{len(needed)} to {most}"
    named = f"{sent.message.kind} {sent.message.name} takes {takes} ({', '.join(each.name for each in positional)})"
    if not len(needed) <= given <= len(positional):
        return f"{named}, and this gives it {given}"
    if given - len(optional) < len(needed):
        return f"{named}, and {', '.join(optional)} is left out when the person leaves it empty: require it"
    return None


def _left_empty(args: Sequence[JSON], schema: Mapping[str, JSON]) -> Sequence[str]:
    """Return the answer's fields at the end of a list that the person may leave empty."""
    required: JSON = schema.get("required")
    needed: Sequence[JSON] = cast("Sequence[JSON]", required) if isinstance(required, list) else ()
    found: list[str] = []
    for value in reversed(args):
        field = _ANSWER_FIELD.fullmatch(value) if isinstance(value, str) else None
        if field is None or field[1] in needed or schema.get("type") != "object":
            break
        found.append(field[1])
    return found


FILES: Mapping[str, str] = {"go": "mcpwf.go", "typescript": "mcpwf.ts"}


def embedded_files() -> Mapping[str, str]:
    """Return the text of each file, by language."""
    folder = resources.files("mcp_workflows_temporal") / "embedded"
    return {language: (folder / name).read_text("utf-8") for language, name in FILES.items()}
