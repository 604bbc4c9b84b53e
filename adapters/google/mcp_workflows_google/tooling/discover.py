"""The workflows there are: for a draft of tools, asked by a person."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_workflows.adapter import Discovered
from mcp_workflows_google.client import Client
from mcp_workflows_google.names import WorkflowName


async def discover(client: Client) -> Sequence[Discovered]:
    """All workflows of the engine's project and location, by name.

    How often each ran is not counted: a list of executions for each of them would cost the quota that tasks live on.

    Raises:
        EngineRefused, EngineUnavailable: see `Discovers.discover`.
    """
    place = await client.place()
    names = [WorkflowName.parse(found.name, place).workflow for found in await client.workflows()]
    return [Discovered(workflow=name) for name in sorted(names)]
