"""Checks of names, inputs, outputs and Express definitions as AWS makes them; moto takes anything."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, cast

from mcp_workflows_stepfunctions_local.errors import RefusedError

MAX_BYTES: Final = 262_144
_FORBIDDEN: Final = re.compile(r'[\s?*<>{}\[\]"#%\\^|~`$&,;:/\x00-\x1f\x7f-\x9f]')
_LONGEST_NAME: Final = 80
_TOO_LONG: Final = "1 validation error detected: Value at '{}' failed to satisfy constraint: Member must have length less than or equal to {}"  # noqa: E501 AWS's words
_NOT_IN_EXPRESS: Final = {
    ".waitForTaskToken": "'.waitForTaskToken' service integration",
    ".sync": "'.sync' service integration",
    ":activity:": "Activity ARN",
}


def check_name(name: str) -> None:
    """Check the name of an execution; moto takes any length and character.

    Raises:
        RefusedError: InvalidName.
    """
    if len(name) > _LONGEST_NAME or _FORBIDDEN.search(name):
        raise RefusedError("InvalidName", f"Invalid Name: '{name}'")


def check_input(text: str) -> None:
    """Check the input of an execution; moto takes any size, and its error for an input that is not JSON has no code.

    Raises:
        RefusedError: ValidationException, InvalidExecutionInput.
    """
    _check_json(text, "input", "InvalidExecutionInput", "Invalid State Machine Execution Input")


def check_output(text: str) -> None:
    """Check the output of a task; moto takes one that is not JSON or too large, and then fails the execution.

    Raises:
        RefusedError: InvalidOutput, ValidationException.
    """
    _check_json(text, "output", "InvalidOutput", "Invalid Output")


def _check_json(text: str, member: str, code: str, words: str) -> None:
    if len(text.encode()) > MAX_BYTES:
        raise RefusedError("ValidationException", _TOO_LONG.format(member, MAX_BYTES))
    try:
        json.loads(text)
    except ValueError as error:
        raise RefusedError(code, f"{words}: '{error}'") from error


def check_express(definition: str) -> None:
    """Check that an Express machine has no state that can wait for more than five minutes, which moto accepts.

    Raises:
        RefusedError: InvalidDefinition.
    """
    for resource in _resources(json.loads(definition)):
        for mark, what in _NOT_IN_EXPRESS.items():
            if mark in resource:
                raise RefusedError(
                    "InvalidDefinition",
                    f"Invalid State Machine Definition: 'SCHEMA_VALIDATION_FAILED: Express state machine does not "
                    f"support {what}'",
                )


def _resources(part: Any) -> Iterator[str]:
    """Yield the resources of the Task states of a definition, also inside Map and Parallel states."""
    match part:
        case {"Type": "Task", "Resource": str(resource)}:
            yield resource
        case dict() | list():
            for value in _values(part):
                yield from _resources(value)
        case _:
            pass


def _values(container: Any) -> list[Any]:
    mapping = isinstance(container, dict)
    return list(cast("dict[str, Any]", container).values() if mapping else cast("list[Any]", container))
