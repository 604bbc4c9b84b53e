"""The arguments of a start, and the options of a start through a queue."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias, cast, get_type_hints

from dbos import EnqueueOptions, WorkflowSerializationFormat
from pydantic import TypeAdapter, ValidationError

from mcp_workflows.adapter import JSON, Start
from mcp_workflows.errors import EngineRefused

DIGEST: Final = "mcp_digest"  # the attribute of an execution with the digest of its workflow and input

_VARIADIC: Final = frozenset({inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD})

Arguments: TypeAlias = Mapping[str, Any] | Sequence[Any]  # by name or by position


def arguments_of(start: Start) -> Arguments:
    """Return the arguments of a start.

    An object, also as the only item of a list, contains them by name; any other list, by position.
    """
    given: object = start.arguments
    if isinstance(given, list):
        items: list[JSON] = list(start.arguments)
        only: object = items[0] if len(items) == 1 else None
        return cast("dict[str, JSON]", only) if isinstance(only, dict) else items
    if isinstance(given, dict):
        return cast("dict[str, JSON]", given)
    return [] if given is None else [given]


def by_position_if_unnamed(function: Callable[..., Any], start: Start, arguments: Arguments) -> Arguments:
    """Return the arguments; a single object argument is passed by position if its keys are not the parameters."""
    if isinstance(start.arguments, list) and isinstance(arguments, Mapping):
        try:
            inspect.signature(function).bind(**arguments)
        except TypeError:
            return [arguments]
    return arguments


def split(arguments: Arguments) -> tuple[Sequence[Any], Mapping[str, Any]]:  # Any: see `Arguments`
    """Return the positional and the named arguments."""
    return ((), arguments) if isinstance(arguments, Mapping) else (arguments, dict[str, Any]())


def validate_arguments(function: Callable[..., Any], arguments: Arguments) -> Arguments:
    """Return the arguments by name, converted to the type hints of the function.

    Raises:
        EngineRefused: the arguments do not fit the parameters or their type hints.
    """
    signature, hints = _parameters(function)
    args, named = split(arguments)
    try:
        bound = signature.bind(*args, **named)
    except TypeError as error:
        raise EngineRefused(f"{function.__name__}: {error}", final=True) from None
    for name, value in bound.arguments.items():
        if name in hints and signature.parameters[name].kind not in _VARIADIC:
            bound.arguments[name] = _validate(function, name, value)
    return {**bound.kwargs, **dict(zip(signature.parameters, bound.args, strict=False))}


@lru_cache(maxsize=256)
def _parameters(function: Callable[..., Any]) -> tuple[inspect.Signature, Mapping[str, Any]]:  # Any: types
    """Return the signature of a workflow and its type hints."""
    return inspect.signature(function), get_type_hints(inspect.unwrap(function), include_extras=True)


@lru_cache(maxsize=1024)
def _type_of(function: Callable[..., Any], name: str) -> TypeAdapter[Any]:  # Any: any type
    return TypeAdapter(_parameters(function)[1][name])


def _validate(function: Callable[..., Any], name: str, value: JSON) -> Any:  # Any: a value of the parameter's type
    try:
        return _type_of(function, name).validate_python(value)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]
        place = ".".join([name, *map(str, wrong["loc"])])
        raise EngineRefused(f"{function.__name__}: {place}: {wrong['msg']}", final=True) from None


def enqueue_options(start: Start, queue: str, *, portable: bool) -> EnqueueOptions:
    """Return DBOS's options for a start; `portable` stores it as JSON with any serializer of the application."""
    options = EnqueueOptions(
        workflow_name=start.workflow,
        queue_name=queue,
        workflow_id=start.key,
        attributes={DIGEST: start.digest},
    )
    if portable:
        options["serialization_type"] = WorkflowSerializationFormat.PORTABLE
    return options
