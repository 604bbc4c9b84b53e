"""Comparison of projects: each has an id and a number, and Google uses both."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mcp_workflows.errors import EngineRefused, ExecutionNotFound
from mcp_workflows_google.client import Client
from mcp_workflows_google.names import ExecutionName

_MOST: Final = 1000  # remembered pairs


class Projects:
    """Pairs of project names that are known to be the same, for the lifetime of this process."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._same: set[frozenset[str]] = set()

    async def is_same(self, name: ExecutionName, project: str) -> bool:
        """Return whether this execution is in that project, by asking Google for it there.

        Google generates the ids of executions, so no id exists in two projects and nobody can forge one.

        Raises:
            EngineUnavailable: Google does not answer.
        """
        ours = name.workflow.place.project
        pair = frozenset({ours, project})
        if len(pair) == 1 or pair in self._same:
            return True
        if not (await self._is_there(name, ours) and await self._is_there(name, project)):
            return False
        if len(self._same) < _MOST:
            self._same.add(pair)
        return True

    async def claim_key(self, name: ExecutionName, key: str) -> str:
        """Return the name under which an execution claims its key, which is valid in its own workflow only.

        Anybody can set the label in a project of their own. With the workflow in the name, such an execution cannot
        take over a task.

        Raises:
            EngineUnavailable: Google does not answer.
        """
        place, workflow = await self._client.place(), name.workflow
        if await self.is_same(name, place.project):
            workflow = replace(workflow, place=replace(workflow.place, project=place.project))
        return f"{workflow.name}/{key}"

    async def _is_there(self, name: ExecutionName, project: str) -> bool:
        place = replace(name.workflow.place, project=project)
        try:
            await self._client.get(replace(name, workflow=replace(name.workflow, place=place)), full=False)
        except (ExecutionNotFound, EngineRefused):
            return False
        return True
