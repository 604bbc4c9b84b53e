"""Find: the executions that carry the label of a key; the oldest counts, later ones are cancelled.

Google's list may lag behind, and how its filter takes labels is not documented: each row's labels are looked at here,
and as long as the filter has never shown one of ours, all executions since the start are gone through.
Source: https://cloud.google.com/workflows/docs/reference/executions/rest/v1/projects.locations.workflows.executions/list
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

CLOCKS_DIFFER: Final = timedelta(minutes=5)  # between Google's and ours, at most
_LAST: Final = datetime.max.replace(tzinfo=UTC)  # what is still queued has not started


class KeySearch:
    """The executions that carry the label of a key, and whether Google's filter shows them, once that is known."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._filter_works = False

    async def executions(self, wanted: StartRequest, key: str, since: datetime) -> Sequence[ExecutionResource]:
        """Those of this key that began since then, the oldest first.

        Raises:
            EngineRefused, EngineUnavailable: it cannot be told.
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
            return ()  # a filter that Google does not take


async def find(
    client: Client, search: KeySearch, notes: ExecutionNotes, projects: Projects, start: Start
) -> str | None:
    """The handle of the execution of this key; see `Finds.find`.

    Who has claimed the key is the one, even if it is not the oldest: it is what runs. If nobody has, the oldest gets
    it before the others are cancelled, so that none of those claims it in between.

    Raises:
        StartConflict: it has another argument.
        EngineRefused, EngineUnavailable: it cannot be told, or a duplicate could not be cancelled.
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
        claimed = await projects.claim_key(replace(first, workflow=wanted.workflow), key)  # they are listed there
        one = await notes.claim(claimed, first)
    for other in names:
        if other.note_prefix != one.note_prefix:
            await client.cancel(other)
    return one.name


def _with(found: Sequence[ExecutionResource], key: str) -> Sequence[ExecutionResource]:
    ours = {resource.name: resource for resource in found if resource.labels.get(KEY_LABEL) == key}
    return sorted(ours.values(), key=lambda resource: (resource.start_time or _LAST, resource.name))


def _same(found: str, wanted: str | None) -> bool:
    """Whether it is the same JSON: Google need not keep its spelling."""
    try:
        return (json.loads(found) if found else None) == (json.loads(wanted) if wanted else None)
    except ValueError:
        return found == wanted
