"""Whether two names mean one project: it has an id and a number, and Google uses both."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mcp_workflows.errors import EngineRefused, ExecutionNotFound
from mcp_workflows_google.client import Client
from mcp_workflows_google.names import ExecutionName

_MOST: Final = 1000  # pairs that are remembered


class Projects:
    """What has been found out, for as long as this process lives."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._same: set[frozenset[str]] = set()

    async def is_same(self, name: ExecutionName, project: str) -> bool:
        """Whether this execution is in that project: Google itself shows it there.

        Executions have ids that Google makes up, so that none is in two projects; nobody can forge this.

        Raises:
            EngineUnavailable: it cannot be told now.
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
        """What an execution claims by its key: the label may be anybody's, and counts in its own workflow alone.

        Or who may start any workflow, in a project of their own, could have a task shown and answered as theirs.

        Raises:
            EngineUnavailable: it cannot be told now.
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
