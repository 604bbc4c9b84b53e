"""A cheap look at many executions, for APIs that list those that run."""

from __future__ import annotations

from collections.abc import Collection

from mcp_workflows.adapter import Status
from mcp_workflows.adapter.bulk_status import ListEntry, Listings
from mcp_workflows.errors import EngineUnavailable, ExecutionNotFound, MappingError
from mcp_workflows_http.client import ApiClient
from mcp_workflows_http.definition import Sweep, word_of
from mcp_workflows_http.expressions import Scope
from mcp_workflows_http.find import items
from mcp_workflows_http.handle import Handle, run_of
from mcp_workflows_http.settings import HttpSettings


def listings(client: ApiClient, settings: HttpSettings, sweep: Sweep) -> Listings:
    """Return the lists of running executions, by workflow."""

    async def lister(workflow: str) -> Collection[str]:
        scope = Scope(names={"workflow": workflow, "vars": settings.vars, "options": {}})
        try:
            return {
                Handle.name_of(run_of(each.value(sweep.handle)))
                async for item in items(client, sweep, scope)
                if _runs(settings, sweep, each := scope | {"item": item})
            }
        except MappingError as error:
            raise EngineUnavailable(f"its list cannot be read: {error}", silent=False) from None

    return Listings(lister, _entry, lambda: client.refill)


def _entry(handle: str) -> ListEntry | None:
    try:
        found = Handle.parse(handle)
    except ExecutionNotFound:
        return None
    return ListEntry(workflow=found.workflow, name=found.name)


def _runs(settings: HttpSettings, sweep: Sweep, scope: Scope) -> bool:
    """Return True if an item of the list still runs and asks nothing; a word that no map names counts as running."""
    if sweep.asking is not None and scope.is_true(sweep.asking):
        return False
    if sweep.status is None:
        return True
    return settings.look.map.status(word_of(scope.value(sweep.status))) in {None, Status.RUNNING}
