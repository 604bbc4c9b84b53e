"""Published versions of state machines, and aliases that start one of them; moto knows them and starts neither."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

from mcp_workflows_stepfunctions.local.execution import Target
from mcp_workflows_stepfunctions.local.refusing import RefusedError

_QUALIFIED = 8  # the parts of an ARN that names a version or an alias


def target(machines: Callable[[str], Any], arn: str) -> Target:
    """What an ARN of a machine, a version or an alias starts.

    Raises:
        RefusedError: StateMachineDoesNotExist.
    """
    if arn.count(":") < _QUALIFIED - 1:
        return Target(machine=snapshot(machines(arn)))
    source, _, qualifier = arn.rpartition(":")
    machine = machines(source)
    if qualifier.isnumeric():
        return Target(machine=snapshot(machine, version(machine, arn)), version=arn)
    if qualifier not in machine.aliases:
        raise missing(arn)
    chosen = routed(machine.aliases[qualifier].routing_configuration)
    return Target(machine=snapshot(machine, version(machine, chosen)), version=chosen, alias=arn)


def snapshot(machine: Any, of: Any = None) -> Any:
    """A copy that an update does not change, with the definition and role of a version if one is meant.

    Moto copies deeply, with all tags and versions, at every start.
    """
    copied = copy.copy(machine)
    copied.executions = []
    if of is not None:
        copied.definition, copied.roleArn = of.definition, of.roleArn
    return copied


def version(machine: Any, arn: str) -> Any:
    """A version of a machine by its ARN.

    Raises:
        RefusedError: StateMachineDoesNotExist.
    """
    found = machine.versions.get(int(arn.rpartition(":")[2]))
    if found is None:
        raise missing(arn)
    return found


def routed(routes: list[dict[str, Any]]) -> str:
    """One of an alias's versions, by their weights."""
    arns = [str(route["stateMachineVersionArn"]) for route in routes]
    return random.choices(arns, [int(route["weight"]) for route in routes])[0]  # noqa: S311 no secret


def publish(machine: Any, description: str | None) -> Any:
    """The machine as it is, as its next version; nothing new if it has not changed since the latest, as on AWS."""
    latest = machine.latest_version
    if latest is None or (latest.definition, latest.roleArn) != (machine.definition, machine.roleArn):
        machine.publish(description)
    return machine.latest_version


def unpublish(machine: Any, arn: str) -> None:
    """Delete a version; deleting it twice is no error.

    Raises:
        RefusedError: ConflictException, while an alias has it.
    """
    using = [
        alias.name
        for alias in machine.aliases.values()
        if arn in [route["stateMachineVersionArn"] for route in alias.routing_configuration]
    ]
    if using:
        raise RefusedError(
            "ConflictException",
            "Version to be deleted must not be referenced by an alias. Current list of aliases referencing this "
            f"version: [{', '.join(using)}]",
        )
    deleted = machine.versions.pop(int(arn.rpartition(":")[2]), None)
    if deleted is machine.latest_version:
        machine.latest_version = None


def missing(arn: str) -> RefusedError:
    """No such machine, version or alias."""
    return RefusedError("StateMachineDoesNotExist", f"State Machine Does Not Exist: '{arn}'")
