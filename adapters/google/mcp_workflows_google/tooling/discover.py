"""The deployed workflows, for a draft of tools."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_workflows.adapter import Discovered
from mcp_workflows_google.client import Client
from mcp_workflows_google.resources import WorkflowName


async def discover(client: Client) -> Sequence[Discovered]:
    """Return all workflows of the engine's project and location, by name.

    Their executions are not counted: a list for each workflow would use up the quota that tasks need.

    Raises:
        EngineRefused, EngineUnavailable: see `Discovers.discover`.
    """
    place = await client.place()
    names = [WorkflowName.parse(found.name, place).workflow for found in await client.workflows()]
    return [Discovered(workflow=name) for name in sorted(names)]
