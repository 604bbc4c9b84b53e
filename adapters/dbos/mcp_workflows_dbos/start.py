"""The start of an execution under its key: in this process, or through a queue that workers elsewhere read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast, get_type_hints

from dbos import EnqueueOptions, WorkflowSerializationFormat
from pydantic import TypeAdapter, ValidationError

from mcp_workflows.adapter import JSON, Start
from mcp_workflows.errors import EngineRefused

Arguments: TypeAlias = Mapping[str, Any] | Sequence[Any]  # by name or by position


def arguments_of(start: Start) -> Arguments:
    """Return the arguments of a call: an object is by name, also as the only item of a list; a list is by position."""
    given: object = start.arguments
    if isinstance(given, list):
        items: list[JSON] = list(start.arguments)
        only: object = items[0] if len(items) == 1 else None
        return cast("dict[str, JSON]", only) if isinstance(only, dict) else items
    if isinstance(given, dict):
        return cast("dict[str, JSON]", given)
    return [] if given is None else [given]


def fitting(function: Callable[..., Any], start: Start, arguments: Arguments) -> Arguments:
    """Return the arguments by position if the only one is an object that does not name parameters of the function."""
    if isinstance(start.arguments, list) and isinstance(arguments, Mapping):
        try:
            inspect.signature(function).bind(**arguments)
        except TypeError:
            return [arguments]
    return arguments


def split(arguments: Arguments) -> tuple[Sequence[Any], Mapping[str, Any]]:  # Any: see `Arguments`
    """Return the arguments by position and by name."""
    return ((), arguments) if isinstance(arguments, Mapping) else (arguments, dict[str, Any]())


def typed(function: Callable[..., Any], arguments: Arguments) -> Arguments:
    """Return the arguments as the type hints of a function have them.

    Raises:
        EngineRefused: they do not fit.
    """
    signature = inspect.signature(function)
    args, named = split(arguments)
    try:
        bound = signature.bind(*args, **named)
    except TypeError as error:
        raise EngineRefused(f"{function.__name__}: {error}", final=True) from None
    hints = get_type_hints(inspect.unwrap(function), include_extras=True)
    for name, value in bound.arguments.items():
        if name in hints and signature.parameters[name].kind not in _SEVERAL:
            bound.arguments[name] = _validated(function.__name__, name, hints[name], value)
    return {**bound.kwargs, **dict(zip(signature.parameters, bound.args, strict=False))}


_SEVERAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _validated(workflow: str, name: str, hint: Any, value: JSON) -> Any:  # Any: a type, and a value of it
    try:
        return TypeAdapter(hint).validate_python(value)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]
        place = ".".join([name, *map(str, wrong["loc"])])
        raise EngineRefused(f"{workflow}: {place}: {wrong['msg']}", final=True) from None


def enqueue_options(start: Start, queue: str, *, portable: bool) -> EnqueueOptions:
    """Return how DBOS enqueues it; `portable`: as JSON, whatever the serializer of the application is."""
    options = EnqueueOptions(
        workflow_name=start.workflow,
        queue_name=queue,
        workflow_id=start.key,
        attributes={"mcp_digest": start.digest},
    )
    if portable:
        options["serialization_type"] = WorkflowSerializationFormat.PORTABLE
    return options
