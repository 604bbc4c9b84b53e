"""The task of an execution that was started elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from mcp_workflows.adapter import Ref
from mcp_workflows.errors import EngineRefused, ExecutionNotFound
from mcp_workflows_stepfunctions.arns import ExecutionArn, Place, is_machine_arn, parse_machine
from mcp_workflows_stepfunctions.client import Client


async def adopt(client: Client, execution_id: str) -> Ref:
    """Return the execution with this ARN, running or ended.

    Raises:
        ExecutionNotFound: it does not exist.
        EngineRefused: it is no execution ARN, it is of another Region or account, or it is an Express one.
    """
    named = ExecutionArn.parse(execution_id.strip())
    if named.express:
        raise EngineRefused("an Express execution cannot be looked up, so it can be no task", final=True)
    if named.place.region != client.region:
        raise ExecutionNotFound(f"this engine is set up for {client.region}, the execution is in {named.place.region}")
    if client.account not in (None, named.place.account):
        raise ExecutionNotFound("this engine is set up for another account than that of the execution")
    found = await client.call("describe_execution", executionArn=execution_id.strip())
    workflow = found.get("stateMachineAliasArn") or found.get("stateMachineVersionArn") or found["stateMachineArn"]
    return Ref(workflow=str(workflow), handle=str(found["executionArn"]))


def same_workflow(written: str, found: str) -> bool:
    """Return True if `found` is the machine that `written` names, by ARN or by name, with a version or alias or not.

    A machine named without a version or alias stands for all of them.
    """
    mine, its = _named(written), _named(found)
    if mine is None or its is None:
        return False
    places = {mine.place, its.place} - {None}
    return mine.machine == its.machine and mine.qualifier in (None, its.qualifier) and len(places) < 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    """The machine in a text; a name alone has no place."""

    machine: str
    qualifier: str | None
    place: Place | None = None


def _named(workflow: str) -> _Named | None:
    if is_machine_arn(workflow):
        try:
            found = parse_machine(workflow)
        except EngineRefused:
            return None
        return _Named(machine=found.name, qualifier=found.qualifier, place=found.place)
    name, _, qualifier = workflow.partition(":")
    return _Named(machine=name, qualifier=qualifier or None)
