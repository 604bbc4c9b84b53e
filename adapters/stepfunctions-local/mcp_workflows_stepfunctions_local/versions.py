"""Published versions of state machines, and aliases that start one of them; moto keeps both and starts neither."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

from mcp_workflows_stepfunctions_local.errors import RefusedError
from mcp_workflows_stepfunctions_local.execution import Target

_QUALIFIED = 8  # the parts of an ARN that names a version or an alias


def resolve(find_machine: Callable[[str], Any], arn: str) -> Target:
    """Return the machine that an ARN of a machine, a version or an alias starts.

    Raises:
        RefusedError: StateMachineDoesNotExist.
    """
    if arn.count(":") < _QUALIFIED - 1:
        return Target(machine=snapshot(find_machine(arn)))
    source, _, qualifier = arn.rpartition(":")
    machine = find_machine(source)
    if qualifier.isnumeric():
        return Target(machine=snapshot(machine, version(machine, arn)), version=arn)
    if qualifier not in machine.aliases:
        raise missing(arn)
    chosen = choose_version(machine.aliases[qualifier].routing_configuration)
    return Target(machine=snapshot(machine, version(machine, chosen)), version=chosen, alias=arn)


def snapshot(machine: Any, published: Any = None) -> Any:
    """Return a copy that an update does not change, with the definition and role of a published version if given.

    Moto makes a deep copy, with all tags and versions, at every start.
    """
    copied = copy.copy(machine)
    copied.executions = []
    if published is not None:
        copied.definition, copied.roleArn = published.definition, published.roleArn
    return copied


def version(machine: Any, arn: str) -> Any:
    """Return a version of a machine by its ARN.

    Raises:
        RefusedError: StateMachineDoesNotExist.
    """
    found = machine.versions.get(int(arn.rpartition(":")[2]))
    if found is None:
        raise missing(arn)
    return found


def choose_version(routes: list[dict[str, Any]]) -> str:
    """Return the ARN of one of an alias's versions, randomly by their weights."""
    arns = [str(route["stateMachineVersionArn"]) for route in routes]
    return random.choices(arns, [int(route["weight"]) for route in routes])[0]  # noqa: S311 no secret


def publish(machine: Any, description: str | None) -> Any:
    """Return the machine as its next version, or the latest version if it is unchanged, as on AWS."""
    latest = machine.latest_version
    if latest is None or (latest.definition, latest.roleArn) != (machine.definition, machine.roleArn):
        machine.publish(description)
    return machine.latest_version


def unpublish(machine: Any, arn: str) -> None:
    """Delete a version; a second deletion is not an error.

    Raises:
        RefusedError: ConflictException, while an alias uses it.
    """
    aliases = [
        alias.name
        for alias in machine.aliases.values()
        if arn in [route["stateMachineVersionArn"] for route in alias.routing_configuration]
    ]
    if aliases:
        raise RefusedError(
            "ConflictException",
            "Version to be deleted must not be referenced by an alias. Current list of aliases referencing this "
            f"version: [{', '.join(aliases)}]",
        )
    deleted = machine.versions.pop(int(arn.rpartition(":")[2]), None)
    if deleted is machine.latest_version:
        machine.latest_version = None


def missing(arn: str) -> RefusedError:
    """Return the error for an ARN of no machine, version or alias."""
    return RefusedError("StateMachineDoesNotExist", f"State Machine Does Not Exist: '{arn}'")
