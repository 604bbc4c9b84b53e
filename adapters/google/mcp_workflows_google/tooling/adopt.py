"""Make a task of an execution that somebody else started."""

from __future__ import annotations

from dataclasses import replace

from mcp_workflows.adapter import Ref
from mcp_workflows.errors import EngineRefused, ExecutionNotFound
from mcp_workflows_google.client import Client
from mcp_workflows_google.names import ExecutionName, Place, WorkflowName

_ANY = Place(project="", location="")  # of a workflow that is named without one


async def adopt(client: Client, execution_id: str) -> Ref:
    """The execution with this resource name, running or ended; the project by its id or its number.

    It is looked for in the engine's own project alone: a client may name any, and answers go there with our token.

    Raises:
        ExecutionNotFound: there is none, or it is in another location or project.
        EngineRefused: it is no name of an execution.
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
    """Whether what a tool names is this workflow: by its name alone, or by its resource name."""
    try:
        mine, its = WorkflowName.parse(written, _ANY), WorkflowName.parse(found, _ANY)
    except EngineRefused:
        return False
    return mine.workflow == its.workflow and len({mine.place, its.place} - {_ANY}) < 2
