"""Search for executions by the label of a key; the oldest counts, later ones are cancelled.

Google's list may lag behind, and its filter on labels is not documented. So the labels of each row are checked here,
and until the filter has returned one of our executions, all executions since the start are read.

Source:
https://cloud.google.com/workflows/docs/reference/executions/rest/v1/projects.locations.workflows.executions/list
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from mcp_workflows.adapter import Start
from mcp_workflows.errors import EngineRefused, StartConflict
from mcp_workflows_google.client import Client
from mcp_workflows_google.names import KEY_LABEL, ExecutionName, label
from mcp_workflows_google.notes import ExecutionNotes
from mcp_workflows_google.projects import Projects
from mcp_workflows_google.resources import ExecutionResource
from mcp_workflows_google.start import StartRequest, build_request

CLOCKS_DIFFER: Final = timedelta(minutes=5)  # the largest difference between Google's clock and ours
_LAST: Final = datetime.max.replace(tzinfo=UTC)  # queued executions have no start time


class KeySearch:
    """Search for executions with the label of a key; remembers whether Google's filter on labels works."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._filter_works = False

    async def executions(self, wanted: StartRequest, key: str, since: datetime) -> Sequence[ExecutionResource]:
        """Return the executions of this key since a time, the oldest first.

        Raises:
            EngineRefused, EngineUnavailable: Google's list cannot be read.
        """
        ours = _with(await self._filtered(wanted, key, since), key)
        self._filter_works = self._filter_works or bool(ours)
        if not ours and not self._filter_works:
            ours = _with(await self._client.executions(wanted.workflow, full=True, since=since), key)
        return ours

    async def _filtered(self, wanted: StartRequest, key: str, since: datetime) -> Sequence[ExecutionResource]:
        only = f'labels.{KEY_LABEL}="{key}"'
        try:
            return await self._client.executions(wanted.workflow, only=only, full=True, since=since)
        except EngineRefused:
            if self._filter_works:
                raise
            return ()  # Google does not accept the filter


async def find(
    client: Client, search: KeySearch, notes: ExecutionNotes, projects: Projects, start: Start
) -> str | None:
    """Return the handle of the execution of this key; see `Finds.find`.

    The execution that holds the claim of the key is returned, even if it is not the oldest. If none holds it, the
    oldest gets the claim before the others are cancelled, so that none of them claims it in between.

    Raises:
        StartConflict: the execution has another argument.
        EngineRefused, EngineUnavailable: Google's list cannot be read, or a duplicate could not be cancelled.
    """
    wanted, key = build_request(start, await client.place()), label(start.key)
    found = {row.name: row for row in await search.executions(wanted, key, start.created - CLOCKS_DIFFER)}
    if not found:
        return await notes.claim_holder(f"{wanted.workflow.name}/{key}")
    oldest = next(iter(found.values()))
    if not _same(oldest.argument, wanted.argument):
        raise StartConflict("the key belongs to an execution with another argument")
    names = [ExecutionName.parse(name) for name in found]
    first, one = names[0], names[0]
    if len(names) > 1:
        claimed = await projects.claim_key(replace(first, workflow=wanted.workflow), key)  # the project of the list
        one = await notes.claim(claimed, first)
    for other in names:
        if other.note_prefix != one.note_prefix:
            await client.cancel(other)
    return one.name


def _with(found: Sequence[ExecutionResource], key: str) -> Sequence[ExecutionResource]:
    ours = {resource.name: resource for resource in found if resource.labels.get(KEY_LABEL) == key}
    return sorted(ours.values(), key=lambda resource: (resource.start_time or _LAST, resource.name))


def _same(found: str, wanted: str) -> bool:
    """Return whether two texts are the same JSON: Google may format it differently; older versions sent no `{}`."""
    try:
        return bool(json.loads(found or "{}") == json.loads(wanted))
    except ValueError:
        return found == wanted
