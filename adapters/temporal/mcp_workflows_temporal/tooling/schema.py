"""The schemas of a tool from the type hints of `@workflow.run`, and the mapping of arguments to parameters."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, cast, get_type_hints

from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, to_jsonable_python
from pydantic_core.core_schema import DatetimeSchema

from mcp_workflows.adapter import JSON, WorkflowSchema
from mcp_workflows.errors import ConfigError

Schema = dict[str, Any]  # a JSON Schema

_ZONES: Final[Mapping[object, str]] = {"aware": r"([Zz]|[+-]\d\d:\d\d)$", "naive": r"[Tt]\d\d:\d\d:\d\d(\.\d+)?$"}
"""The end of a date-time that needs a zone, and of one that must have none."""


class _JsonSchema(GenerateJsonSchema):
    """Writes down the zone that a type needs: `format: date-time` is for dates with a zone and without."""

    def datetime_schema(self, schema: DatetimeSchema) -> Schema:
        pattern = _ZONES.get(schema.get("tz_constraint"))
        found = super().datetime_schema(schema)
        return found if pattern is None else {**found, "pattern": pattern}


def read_schema(reference: str) -> WorkflowSchema:
    """Return the schemas of `module:WorkflowClass`.

    Raises:
        ConfigError: the class cannot be imported, is no workflow, or its hints give no JSON Schema.
    """
    run = _run_method(load_workflow(reference), reference)
    try:
        parameters, hints = _parameters(run, reference), get_type_hints(run, include_extras=True)
        return _derive(parameters, hints)
    except PydanticUserError as error:
        raise ConfigError(f"{reference}: no JSON Schema for a type hint: {error.message}") from None
    except (TypeError, PydanticSerializationError) as error:
        raise ConfigError(f"{reference}: its type hints cannot be read: {error}") from None


def load_workflow(reference: str) -> object:
    """Import `module:WorkflowClass`.

    Raises:
        ConfigError: the module cannot be imported, or has no such class.
    """
    module_name, _, name = reference.partition(":")
    if not module_name or not name:
        raise ConfigError(f"{reference!r} is not module:WorkflowClass")
    try:
        module = import_module(module_name)
    except (ImportError, SyntaxError, NameError, AttributeError, TypeError, ValueError, RuntimeError, OSError) as error:
        raise ConfigError(f"{reference}: cannot import {module_name}: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        raise ConfigError(f"{reference}: {module_name} has no {name}")
    return getattr(module, name)


def _run_method(workflow: object, reference: str) -> Callable[..., object]:
    # The SDK (1.35) has no public access to the definition that its decorators attach.
    if not isinstance(workflow, type) or not hasattr(workflow, "__temporal_workflow_definition"):
        raise ConfigError(f"{reference} is not a workflow: a class with @workflow.defn is needed")
    definition = getattr(workflow, "__temporal_workflow_definition")
    return cast("Callable[..., object]", definition.run_fn)


def _parameters(run: Callable[..., object], reference: str) -> Sequence[inspect.Parameter]:
    found = list(inspect.signature(run).parameters.values())[1:]  # without self
    for parameter in found:
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise ConfigError(f"{reference}: Temporal passes arguments by position, {parameter} cannot be given")
    return found


def _derive(parameters: Sequence[inspect.Parameter], hints: Mapping[str, Any]) -> WorkflowSchema:  # Any: type hints
    output = _object_schema(hints["return"], "serialization") if hints.get("return") else None
    if len(parameters) == 1 and _is_record(hints.get(parameters[0].name)):
        record = _object_schema(hints[parameters[0].name], "validation")
        if record is not None:
            return WorkflowSchema(input=record, output=output, args=["{{args}}"])
    return WorkflowSchema(input=_properties(parameters, hints), output=output, args=_arguments(parameters))


def _is_record(hint: Any) -> bool:  # Any: a type hint
    return inspect.isclass(hint) and (issubclass(hint, BaseModel) or dataclasses.is_dataclass(hint))


def _object_schema(hint: Any, mode: str) -> Schema | None:  # Any: a type hint
    """Return the schema of a hint if it is one of an object; resolve a recursive model's reference at the root."""
    adapter: TypeAdapter[Any] = TypeAdapter(hint)  # Any: the type of the hint
    schema = adapter.json_schema(
        mode="serialization" if mode == "serialization" else "validation", schema_generator=_JsonSchema
    )
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
        default = {} if _is_needed(parameter) else {"default": _default(parameter)}
        found["properties"][parameter.name] = {**schemas[(parameter.name, "validation")], **default}
    if needed := [parameter.name for parameter in parameters if _is_needed(parameter)]:
        found["required"] = needed
    return {**found, "$defs": shared["$defs"]} if "$defs" in shared else found


def _is_needed(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty


def _default(parameter: inspect.Parameter) -> JSON:
    return to_jsonable_python(parameter.default)


def _arguments(parameters: Sequence[inspect.Parameter]) -> str | list[str]:
    """Return a template that passes all parameters: with fewer the SDK's worker ignores their types (1.35).

    It is one expression for the whole list, as a list of placeholders leaves out absent values at its end.
    """
    if not parameters:
        return []
    return f"{{{{[{', '.join(map(_expression, parameters))}]}}}}"


def _expression(parameter: inspect.Parameter) -> str:
    name = f'args."{parameter.name}"'
    if _is_needed(parameter) or parameter.default is None:
        return name
    literal = json.dumps(_default(parameter)).replace("`", "\\`")
    if "{{" in literal or "}}" in literal:
        raise ConfigError(f"the default of parameter {parameter.name} cannot be written in a template: set args")
    return f"not_null({name}, `{literal}`)"
