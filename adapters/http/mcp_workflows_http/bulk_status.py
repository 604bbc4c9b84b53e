"""A cheap look at many executions, for APIs that list those that run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mcp_workflows.adapter import Status
from mcp_workflows.errors import EngineRefused, EngineUnavailable, ExecutionNotFound, MappingError
from mcp_workflows.kit.bulk_status import ListEntry, Listings, RunningNames
from mcp_workflows.kit.definition import word_of
from mcp_workflows.kit.expressions import Scope
from mcp_workflows_http.client import ApiClient
from mcp_workflows_http.definition import Sweep
from mcp_workflows_http.find import pages
from mcp_workflows_http.handle import Handle, run_of
from mcp_workflows_http.settings import HttpSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RateShares:
    """The shares of the rate limit; starts, answers and searches get the rest."""

    looks: float
    lists: float


WITHOUT_LISTS: Final = RateShares(looks=0.8, lists=0.0)
WITH_LISTS: Final = RateShares(looks=0.5, lists=0.4)


def listings(client: ApiClient, settings: HttpSettings, sweep: Sweep) -> Listings:
    """Return the lists of running executions, by workflow."""

    async def lister(workflow: str) -> RunningNames:
        scope = Scope(names={"workflow": workflow, "vars": settings.vars, "options": {}})
        names, asking, calls = set[str](), dict[str, str](), 0
        try:
            for value in sweep.values or (None,):
                async for page in pages(client, sweep, scope | {"value": value}):
                    calls += 1
                    for each in (scope | {"item": item} for item in page):
                        asks = None if sweep.asking is None else each.value(sweep.asking)
                        name = Handle.name_of(run_of(each.value(sweep.handle)))
                        if isinstance(asks, str) and asks:
                            asking[name] = asks
                        if not asks and _runs(settings, sweep, each):
                            names.add(name)
        except MappingError as error:
            raise EngineRefused(f"its list cannot be read: {error}") from None
        except EngineUnavailable as error:
            if error.silent or error.throttled:
                raise
            raise EngineRefused(str(error)) from None  # of this workflow only
        return RunningNames(names=names | asking.keys(), calls=calls, asking=asking)

    return Listings(lister, _entry, lambda: client.refill * WITH_LISTS.lists)


def _entry(handle: str) -> ListEntry | None:
    try:
        found = Handle.parse(handle)
    except ExecutionNotFound:
        return None
    return ListEntry(workflow=found.workflow, name=found.name)


def _runs(settings: HttpSettings, sweep: Sweep, scope: Scope) -> bool:
    """Return True if an item of the list still runs; a word that no map names counts as running."""
    if sweep.status is None:
        return True
    return settings.look.map.status(word_of(scope.value(sweep.status))) in {None, Status.RUNNING}
