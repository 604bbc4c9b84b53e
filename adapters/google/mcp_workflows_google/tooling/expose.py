"""Workflows that their owners have labelled to be tools: found in the list of workflows, described by their own text.

The list is asked for without a filter, as it is not known how Google wants a label with a dash written in one; whoever
has no label is passed over here. What a list leaves out of a workflow, its source, is asked for once a revision.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from mcp_workflows.adapter import JSON, Exposed
from mcp_workflows.errors import EngineError, EngineRefused
from mcp_workflows_google.client import Client
from mcp_workflows_google.names import Place, WorkflowName
from mcp_workflows_google.resources import WorkflowResource
from mcp_workflows_google.settings import Discover
from mcp_workflows_google.tooling.definition import read_definition
from mcp_workflows_google.tooling.draft import draft

ACTIVE: Final = 1  # of Workflow.State
LONGEST: Final = 1_000  # characters of a description, as Google bounds it; all clients and models get it
_MOST_SOURCES: Final = 50  # asked for in one look

_log = logging.getLogger(__name__)


class LabelledWorkflows:
    """The labelled workflows."""

    def __init__(self, client: Client, discover: Discover | None) -> None:
        self._client = client
        self._discover = discover
        self._drafts: dict[tuple[str, str], Mapping[str, JSON] | None] = {}  # by name and revision
        self._left = 0  # sources that may still be asked for in this look
        self._told: set[str] = set()

    async def exposed(self) -> Sequence[Exposed]:
        """All that are labelled now, by name; see `Exposes.exposed`.

        Raises:
            EngineRefused: nobody may look for them.
            EngineUnavailable: it cannot be told now.
        """
        if self._discover is None:
            return []
        key, value = self._discover.key_and_value
        place = await self._client.place()
        labelled = [each for each in await self._client.workflows() if each.labels.get(key) == value]
        there = {(each.name, each.revision) for each in labelled}
        self._drafts = {which: drafted for which, drafted in self._drafts.items() if which in there}
        self._left = _MOST_SOURCES
        found = [await self._tool(each, place, self._discover) for each in labelled if self._usable(each)]
        return sorted((each for each in found if each), key=lambda each: each.name)

    async def _tool(self, found: WorkflowResource, place: Place, discover: Discover) -> Exposed | None:
        try:
            name = WorkflowName.parse(found.name, place)
        except EngineRefused:  # whatever answers there
            self._tell(found.name, "is not offered: that is no name of a workflow")
            return None
        schema = discover.schemas.get(name.workflow)
        open_input: dict[str, JSON] = {"type": "object"}
        return Exposed(
            name=name.workflow,
            workflow=WorkflowName(place=place, workflow=name.workflow).name,
            source=found.name,
            description=clean_description(found.description),
            input=open_input if schema is None else schema,
            draft=await self._draft(found, name) if schema is None else None,
        )

    async def _draft(self, found: WorkflowResource, name: WorkflowName) -> Mapping[str, JSON] | None:
        """A suggestion for its schema; while its source cannot be had there is none."""
        which = found.name, found.revision
        if which in self._drafts:
            return self._drafts[which]
        source = found.source
        if source is None and self._left:
            self._left -= 1
            try:
                source = (await self._client.workflow(name)).source or ""
            except EngineError:
                return None
        if source is None:
            return None
        self._drafts[which] = draft(await read_definition(source))
        return self._drafts[which]

    def _usable(self, found: WorkflowResource) -> bool:
        if found.state != ACTIVE:
            self._tell(found.name, "is not offered: it is not ACTIVE, see its state in the console")
        return found.state == ACTIVE

    def _tell(self, name: str, what: str) -> None:
        """Say it once: it is found again every few minutes."""
        line = f"workflow {name} {what}"
        if line not in self._told:
            self._told.add(line)
            _log.warning("%s", line)


def clean_description(text: str) -> str | None:
    """A description as models may read it: one that its owner wrote, without control characters, and not too long."""
    plain = "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text).strip()
    return (plain if len(plain) <= LONGEST else f"{plain[: LONGEST - 1]}…") or None
