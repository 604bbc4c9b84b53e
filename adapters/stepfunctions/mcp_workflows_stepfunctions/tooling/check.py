"""Checks that a workflow could run now: Step Functions answers, and the machine exists and has the right type."""

from __future__ import annotations

from typing import Final

from mcp_workflows.adapter import Finding
from mcp_workflows.errors import EngineError
from mcp_workflows_stepfunctions.arns import Machine
from mcp_workflows_stepfunctions.client import Client, ExpectedCodeError
from mcp_workflows_stepfunctions.machines import Machines
from mcp_workflows_stepfunctions.names import DENIED
from mcp_workflows_stepfunctions.options import StepFunctionsOptions
from mcp_workflows_stepfunctions.settings import Events

_ANSWERS: Final = frozenset({DENIED, "ResourceNotFound", "StateMachineDoesNotExist"})


async def check_engine(client: Client, events: Events | None) -> Finding:
    """Check that Step Functions accepts these credentials; a missing permission to list machines is no problem.

    A queue of `events` that cannot be read is reported, and no problem: all works without it.
    """
    try:
        await client.call("list_state_machines", known={DENIED}, maxResults=1)
    except ExpectedCodeError:
        pass  # it accepts the credentials; the permissions of each tool are checked with the tool
    except EngineError as error:
        running = client.endpoint_is_custom and "connection refused" in str(error)
        hint = "if it is, check endpoint_url" if running else "check region, endpoint_url, profile and assume_role"
        return Finding(ok=False, text=str(error), hint=hint)
    answers = f"Step Functions answers in {client.region}"
    try:
        if events is not None:  # VisibilityTimeout=0 hides no message from other consumers
            await client.queue("receive_message", QueueUrl=events.queue_url, WaitTimeSeconds=0, VisibilityTimeout=0)
    except EngineError as error:
        return Finding(ok=True, text=f"{answers}, but events tell nothing: {error}")
    return Finding(ok=True, text=answers)


async def check_machine(client: Client, machines: Machines, workflow: str, options: StepFunctionsOptions) -> Finding:
    """Check that the state machine exists, and its version or alias, too."""
    try:
        machine = await machines.find(workflow)
        machines.forget(machine)
        await machines.check_type(machine, express=options.express)
        if machine.qualifier:
            return await _check_qualified(client, machine)
    except EngineError as error:
        return Finding(ok=False, text=str(error))
    kind = "Express" if options.express else "Standard"
    return Finding(ok=True, text=f"{kind} state machine {machine.name} is there")


async def _check_qualified(client: Client, machine: Machine) -> Finding:
    """Check a version, which is described like a machine, or an alias, which has a call of its own."""
    word = "version" if str(machine.qualifier).isdigit() else "alias"
    try:
        if word == "version":
            await client.call("describe_state_machine", known=_ANSWERS, stateMachineArn=machine.arn)
        else:
            await client.call("describe_state_machine_alias", known=_ANSWERS, stateMachineAliasArn=machine.arn)
    except ExpectedCodeError as answered:
        if answered.code == DENIED:
            return Finding(ok=None, text=f"{machine.name} is there; nobody may look whether its {word} is")
        return Finding(ok=False, text=f"{machine.name} has no {word} {machine.qualifier}")
    return Finding(ok=True, text=f"{machine.name} is there, with its {word} {machine.qualifier}")
