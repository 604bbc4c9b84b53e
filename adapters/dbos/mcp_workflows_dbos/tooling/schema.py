"""The tools of a module: schemas from type hints and defaults, and descriptions from docstrings."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from mcp_workflows.errors import ConfigError
from mcp_workflows.kit.tooling import ArgumentSchema, Discovered, DraftedEngine, WorkflowSchema
from mcp_workflows_dbos.module import WorkflowFunction, hidden_workflows_in, load_module, workflows_in

Schema = dict[str, Any]  # Any: a JSON Schema


def find_workflow(reference: str) -> WorkflowFunction:
    """Return the workflow `module:function`.

    Raises:
        ConfigError: the module cannot be imported, or the function is not a workflow.
    """
    module_name, _, attribute = reference.partition(":")
    known = workflows_in(load_module(module_name))
    found = next((each for each in known.values() if each.attribute == attribute), None)
    if found is None:
        raise ConfigError(f"{reference}: {module_name} has no such function with @DBOS.workflow()")
    return found


def schema_of(workflow: WorkflowFunction) -> WorkflowSchema:
    """Return the schemas of a workflow.

    Raises:
        ConfigError: its type hints have no JSON Schema; the message has the file and line.
    """
    plain, where = inspect.unwrap(workflow.function), f"{workflow.place}: {workflow.attribute}"
    hints: dict[str, Any] = {}  # Any: type hints
    try:
        hints = get_type_hints(plain, include_extras=True)
        parameters = _parameters(plain, where)
        output = _output_schema(hints["return"]) if hints.get("return") else None
        return WorkflowSchema(input=_input_schema(parameters, hints), output=output, args="{{args}}")
    except PydanticUserError as error:
        if error.code == "typed-dict-version":
            remedy = "before Python 3.12, import TypedDict from typing_extensions (typing_extensions.TypedDict)"
            raise ConfigError(f"{where}: {remedy}") from None
        names = ", ".join(name for name, hint in hints.items() if not _has_schema(hint))
        types = "use str, int, float, bool, list, dict, a dataclass or a pydantic model"
        raise ConfigError(f"{where}: no JSON Schema for the type hint of {names}; {types}") from None
    except (NameError, TypeError, PydanticSerializationError) as error:
        raise ConfigError(f"{where}: its type hints cannot be read: {error}") from None


def _has_schema(hint: Any) -> bool:  # Any: a type hint
    try:
        TypeAdapter(hint).json_schema()
    except PydanticUserError:
        return False
    return True


def _parameters(function: Callable[..., Any], where: str) -> Mapping[str, inspect.Parameter]:
    found = inspect.signature(function).parameters
    for parameter in found.values():
        if parameter.kind not in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise ConfigError(f"{where}: arguments are given by name, so {parameter} cannot be given")
    return found


def _input_schema(parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any]) -> Schema:  # Any: type hints
    """Return the schema of an object with a property per parameter, and shared definitions at its root."""
    adapters: list[tuple[str, Any, TypeAdapter[Any]]] = [  # Any: the types of the hints
        (name, "validation", TypeAdapter(hints.get(name, Any))) for name in parameters
    ]
    schemas, shared = TypeAdapter.json_schemas(adapters, schema_generator=ArgumentSchema)
    found: Schema = {"type": "object", "properties": {}, "additionalProperties": False}
    for name, parameter in parameters.items():
        default = {} if parameter.default is parameter.empty else {"default": to_jsonable_python(parameter.default)}
        found["properties"][name] = {**schemas[(name, "validation")], **default}
    if needed := [name for name, parameter in parameters.items() if parameter.default is parameter.empty]:
        found["required"] = needed
    return {**found, "$defs": shared["$defs"]} if "$defs" in shared else found


def _output_schema(hint: Any) -> Schema | None:  # Any: a type hint
    """Return the schema of a result, or None if it is not an object; a recursive model's reference is resolved."""
    adapter: TypeAdapter[Any] = TypeAdapter(hint)  # Any: the type of the hint
    schema = adapter.json_schema(mode="serialization")
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        schema = {**schema["$defs"][name], "$defs": schema["$defs"]}
    return schema if schema.get("type") == "object" else None


def describe_workflows(
    module: str, workflows: Iterable[WorkflowFunction]
) -> tuple[Mapping[str, Discovered], Sequence[str]]:
    """Return the workflows that can be tools, by name, with what their tools need, and why the others cannot."""
    found: dict[str, Discovered] = {}
    problems: list[str] = []
    for each in workflows:
        settings = {key: value for key, value in each.settings.items() if key != "expose"}
        doc = inspect.getdoc(each.function) or f"Runs the workflow {each.name}."
        try:
            found[each.name] = Discovered(
                workflow=each.name,
                description=settings.pop("description", doc),
                input=schema_of(each).input,
                code=f"{module}:{each.attribute}",
                options=settings,
                place=each.place,
            )
        except ConfigError as error:
            problems.append(str(error))
    return found, problems


def draft_file(file: Path, start: str | None) -> DraftedEngine:
    """Return the engine and the tools of a Python file; `start` names the only workflow to offer.

    Raises:
        ConfigError: the file cannot be imported, is not the module of its name, or none of its workflows can be a tool.
    """
    file = file.resolve()
    if not file.is_file():
        raise ConfigError(f"{file}: no such file")
    if not file.stem.isidentifier():
        raise ConfigError(f"{file.name}: give it a name that Python can import: letters, digits and underscores")
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    module = load_module(file.stem)
    if Path(module.__file__ or "").resolve() != file:
        raise ConfigError(f"{file.name}: Python finds {module.__file__} under this name: rename the file")
    known = workflows_in(module).values()
    offered = [each for each in known if start == each.name or (start is None and not each.is_private)]
    found, problems = describe_workflows(file.stem, offered)
    if not found:
        none = f"{file.name}: no function in it has @DBOS.workflow() and a public name"
        raise ConfigError("\n".join(problems or [*hidden_workflows_in(module)[:1], none][:1]))
    settings = {"module": file.stem}
    return DraftedEngine(name=file.stem, settings=settings, workflows=[*found.values()], advice=problems)
