"""Checks that Google answers, and that a workflow exists and is active."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mcp_workflows.adapter import Finding
from mcp_workflows.errors import EngineError
from mcp_workflows_google.client import Client
from mcp_workflows_google.errors import PermissionDenied
from mcp_workflows_google.resources import WorkflowName
from mcp_workflows_google.settings import GoogleSettings
from mcp_workflows_google.tooling.expose import ACTIVE

_UNAVAILABLE: Final = 2  # of Workflow.State
_STATES: Final[Mapping[int, str]] = {
    0: "has no state that can be seen",
    _UNAVAILABLE: "is UNAVAILABLE: Google cannot use the key it is encrypted with, or may not",
}


_CHECK: Final = "check project, location, endpoint and the credentials"
_CHECK_REFUSED: Final = "if it is, check emulator"  # after a message that asks whether the engine runs
_CHECK_LOCAL: Final = "start the local engine (python -m mcp_workflows_google_local), or check emulator and location"


async def check_engine(client: Client, settings: GoogleSettings) -> Finding:
    """Check that Google accepts the credentials; a denied permission to list workflows is enough."""
    try:
        place = await client.place()
        await client.workflows()
    except PermissionDenied as denied:
        if settings.emulator:
            return Finding(ok=False, text=str(denied), hint="a local engine plays one project: correct project here")
        place = await client.place()  # the credentials are valid; each tool's permissions are checked with the tool
    except EngineError as error:
        local = _CHECK_REFUSED if "connection refused" in str(error) else _CHECK_LOCAL
        return Finding(ok=False, text=str(error), hint=local if settings.emulator else _CHECK)
    answers = f"Google Cloud Workflows answers in {place.name}"
    if settings.inbound is None:
        return Finding(ok=True, text=f"{answers}; without inbound no workflow can ask by mcp_elicit")
    accounts = ", ".join(settings.inbound.accounts)
    return Finding(ok=True, text=f"{answers}; questions are taken from {accounts}")


async def check_workflow(client: Client, workflow: str) -> Finding:
    """Check that the workflow exists, takes executions, and that they can be listed.

    Without the permission to list, a start whose reply is lost cannot be found again.
    """
    try:
        name = WorkflowName.parse(workflow, await client.place())
        found = await client.workflow(name)
        await client.executions(name, limit=1)
    except EngineError as error:
        return Finding(ok=False, text=str(error))
    if found.state == ACTIVE:
        return Finding(ok=True, text=f"workflow {name.workflow} is there, revision {found.revision or 'unknown'}")
    state = _STATES.get(found.state, f"has a state that is not known yet ({found.state})")
    why = f": {found.state_error}" if found.state_error else ""
    return Finding(ok=False, text=f"workflow {name.workflow} {state}{why}", hint="see it in the console")
