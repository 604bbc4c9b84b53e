"""Existing workflows and executions: deployed workflows, labelled ones as tools, executions to adopt.

The list is read without a filter, because the syntax for labels with dashes is not documented, and the labels are
checked here. If the list lacks the source of a workflow, it is fetched once per revision.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from mcp_workflows.adapter import JSON, MOST_ENDED, TERMINAL, EndedExecution, Ref
from mcp_workflows.adapter.display_text import cleaned
from mcp_workflows.errors import EngineError, EngineRefused, ExecutionNotFound
from mcp_workflows.kit.tooling import Discovered, Exposed
from mcp_workflows_google.client import Client
from mcp_workflows_google.outcome import status_of
from mcp_workflows_google.resources import ExecutionName, Place, WorkflowName, WorkflowResource
from mcp_workflows_google.settings import Discover
from mcp_workflows_google.tooling.definition import draft, read_definition


async def discover(client: Client) -> Sequence[Discovered]:
    """Return all workflows of the engine's project and location, by name.

    Their executions are not counted: a list per workflow would use up the quota that tasks need.

    Raises:
        EngineRefused, EngineUnavailable: see `Discovers.discover`.
    """
    place = await client.place()
    names = [WorkflowName.parse(found.name, place).workflow for found in await client.workflows()]
    return [Discovered(workflow=name) for name in sorted(names)]


ACTIVE: Final = 1  # of Workflow.State
LONGEST: Final = 1_000  # characters of a description, which all clients and models get
_MOST_SOURCES: Final = 50  # fetched in one search

_log = logging.getLogger(__name__)


class LabelledWorkflows:
    """Search for labelled workflows."""

    def __init__(self, client: Client, discover: Discover | None) -> None:
        self._client = client
        self._discover = discover
        self._drafts: dict[tuple[str, str], Mapping[str, JSON] | None] = {}  # by name and revision
        self._left = 0  # sources that may still be fetched in this search
        self._reported: set[str] = set()

    async def exposed(self) -> Sequence[Exposed]:
        """Return the labelled workflows by name; see `Exposes.exposed`.

        Raises:
            EngineRefused: the permission to list workflows is missing.
            EngineUnavailable: Google does not answer.
        """
        if self._discover is None:
            return []
        key, value = self._discover.key_and_value
        place = await self._client.place()
        labelled = [each for each in await self._client.workflows() if each.labels.get(key) == value]
        there = {(each.name, each.revision) for each in labelled}
        self._drafts = {which: drafted for which, drafted in self._drafts.items() if which in there}
        self._left = _MOST_SOURCES
        found = [await self._tool(each, place, self._discover) for each in labelled]
        return sorted((each for each in found if each), key=lambda each: each.name)

    async def _tool(self, found: WorkflowResource, place: Place, discover: Discover) -> Exposed | None:
        if found.state != ACTIVE:
            self._tell(found.name, "is not offered: it is not ACTIVE, see its state in the console")
            return None
        try:
            name = WorkflowName.parse(found.name, place)
        except EngineRefused:  # an invalid name in Google's reply
            self._tell(found.name, "is not offered: that is no name of a workflow")
            return None
        schema = discover.schemas.get(name.workflow)
        open_input: dict[str, JSON] = {"type": "object"}
        return Exposed(
            name=name.workflow,
            workflow=WorkflowName(place=place, workflow=name.workflow).name,
            source=found.name,
            description=cleaned(found.description, LONGEST).strip() or None,
            input=open_input if schema is None else schema,
            draft=await self._draft(found, name) if schema is None else None,
        )

    async def _draft(self, found: WorkflowResource, name: WorkflowName) -> Mapping[str, JSON] | None:
        """Return a draft of the input schema; None while the source cannot be fetched."""
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

    def _tell(self, name: str, what: str) -> None:
        """Log a message once, as each search finds the same problem."""
        line = f"workflow {name} {what}"
        if line not in self._reported:
            self._reported.add(line)
            _log.warning("%s", line)


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


async def list_ended(client: Client, workflow: str, since: datetime) -> Sequence[EndedExecution]:
    """Return the executions of a workflow that ended since then, earliest first.

    The result does not depend on Google's order if one page contains all.
    """
    named, only = WorkflowName.parse(workflow, await client.place()), f'endTime>="{since.isoformat()}"'
    rows = await client.executions(named, only=only, order="endTime", limit=MOST_ENDED)
    ended = [
        EndedExecution(handle=row.name, execution_id=row.name, status=status, ended=row.end_time)
        for row in rows
        if row.end_time is not None and (status := status_of(row.state)) in TERMINAL and row.end_time >= since
    ]
    return sorted(ended, key=lambda each: each.ended)


def same_workflow(written: str, found: str) -> bool:
    """Return whether a tool's workflow is this one, by its short name or its resource name."""
    try:
        mine, its = WorkflowName.parse(written, _ANY), WorkflowName.parse(found, _ANY)
    except EngineRefused:
        return False
    return mine.workflow == its.workflow and len({mine.place, its.place} - {_ANY}) < 2
