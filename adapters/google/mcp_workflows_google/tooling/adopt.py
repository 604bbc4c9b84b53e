"""Adoption of executions that were started elsewhere."""

from __future__ import annotations

from dataclasses import replace

from mcp_workflows.adapter import Ref
from mcp_workflows.errors import EngineRefused, ExecutionNotFound
from mcp_workflows_google.client import Client
from mcp_workflows_google.resources import ExecutionName, Place, WorkflowName

_ANY = Place(project="", location="")  # matches a workflow without a place


async def adopt(client: Client, execution_id: str) -> Ref:
    """Return the execution with this resource name, running or ended; the project may be an id or a number.

    Only the engine's own project is searched: a client may name any, and answers are sent there with our token.

    Raises:
        ExecutionNotFound: there is none, or it is in another location or project.
        EngineRefused: the text does not name an execution.
    """
    named, place = ExecutionName.parse(execution_id.strip()), await client.place()
    if named.workflow.place.location != place.location:
        raise ExecutionNotFound(
            f"this engine is set up for {place.location}, the execution is in {named.workflow.place.location}"
        )
    workflow = replace(named.workflow, place=place)
    found = ExecutionName.parse((await client.get(replace(named, workflow=workflow), full=False)).name)
    return Ref(workflow=workflow.name, handle=found.name)


def same_workflow(written: str, found: str) -> bool:
    """Return whether a tool's workflow is this one, by its short name or its resource name."""
    try:
        mine, its = WorkflowName.parse(written, _ANY), WorkflowName.parse(found, _ANY)
    except EngineRefused:
        return False
    return mine.workflow == its.workflow and len({mine.place, its.place} - {_ANY}) < 2
