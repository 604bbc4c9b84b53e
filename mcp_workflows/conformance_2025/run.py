"""Runs the checks: those that act all at once, then those that only look at what was sent."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Final

import anyio
import httpx2

from mcp_workflows.conformance_2025.asking import asking
from mcp_workflows.conformance_2025.cancelling import cancelling
from mcp_workflows.conformance_2025.check import (
    STATES,
    Check,
    CheckError,
    Feature,
    Level,
    Outcome,
    Role,
    Scenario,
    State,
    When,
)
from mcp_workflows.conformance_2025.creation import creation
from mcp_workflows.conformance_2025.isolation import isolation
from mcp_workflows.conformance_2025.listing import listing
from mcp_workflows.conformance_2025.negotiation import negotiation
from mcp_workflows.conformance_2025.refusing import refusing
from mcp_workflows.conformance_2025.results import results
from mcp_workflows.conformance_2025.shape import shape
from mcp_workflows.conformance_2025.site import Settings, Site, look
from mcp_workflows.conformance_2025.telling import telling
from mcp_workflows.conformance_2025.traffic import ENDED

SCENARIOS: Final[Sequence[Scenario]] = (
    negotiation,
    creation,
    shape,
    results,
    refusing,
    cancelling,
    listing,
    telling,
    asking,
    isolation,
)
CHECKS: Final[Sequence[Check]] = tuple(check for scenario in SCENARIOS for check in scenario.checks)
STEPS: Final = 4  # steps of a check that may each take as long as the patience lasts


def chosen(only: Collection[str]) -> Sequence[Check]:
    """The checks of these ids or scenarios; all, if none is named.

    Raises:
        KeyError: there is no such check; its argument is the name.
    """
    for name in only:
        if name not in {check.id for check in CHECKS} | {scenario.name for scenario in SCENARIOS}:
            raise KeyError(name)
    return [check for check in CHECKS if not only or {check.id, check.scenario} & set(only)]


async def run(settings: Settings, checks: Sequence[Check]) -> Sequence[Outcome]:
    """What becomes of these checks, in their order.

    Raises:
        CheckError: the server cannot be reached, or does not speak 2025-11-25.
    """
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
    timeout = httpx2.Timeout(settings.patience, read=None)
    https = settings.url.startswith("https:")  # only then there is a certificate to verify
    async with httpx2.AsyncClient(timeout=timeout, limits=limits, verify=https) as http:
        site = await look(settings, http)
        found = await _together(site, checks)
        for check in (check for check in checks if check.when is When.ALONE):
            found[check.id] = await judged(check, site, site)
        await _clean(site)
        for check in (check for check in checks if check.when is When.AFTER):
            found[check.id] = await judged(check, site, site.traffic)
    return [found[check.id] for check in checks]


async def judged(check: Check, site: Site, subject: Site | object) -> Outcome:
    """What becomes of one check."""
    lacking = next((reason for what in check.needs if (reason := site.lacks(what))), None)
    if lacking is not None:
        return Outcome(check=check, state=State.SKIPPED, detail=lacking)
    limit = site.settings.patience * STEPS
    try:
        with anyio.fail_after(limit):
            await check.run(subject)
    except CheckError as error:
        return Outcome(check=check, state=STATES[type(error)], detail=str(error))
    except TimeoutError:
        return Outcome(check=check, state=State.BLOCKED, detail=f"not done within {limit:g} s")
    except (AttributeError, LookupError, TypeError, ValueError, ExceptionGroup) as error:
        detail = f"the server sent what nobody could expect here: {type(error).__name__}: {error}"
        return Outcome(check=check, state=State.FAILED, detail=detail)
    return Outcome(check=check, state=State.PASSED)


async def _together(site: Site, checks: Sequence[Check]) -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    limiter = anyio.CapacityLimiter(site.settings.at_once)

    async def act(check: Check) -> None:
        async with limiter:
            found[check.id] = await judged(check, site, site)

    async with anyio.create_task_group() as group:
        if any(check.when is When.AFTER for check in checks):
            group.start_soon(_journey, site, limiter)
        for check in checks:
            if check.when is When.TOGETHER:
                group.start_soon(act, check)
    return found


async def _journey(site: Site, limiter: anyio.CapacityLimiter) -> None:
    """One of everything, so that there is something to look at; what goes wrong here is not judged here."""
    for part in (_to_the_end, _to_a_cancel, _to_an_answer, _to_an_error):
        async with limiter:
            with suppress(CheckError):
                await part(site)


async def _to_the_end(site: Site) -> None:
    async with site.session() as session:
        await session.listen()
        task = await site.ended(session, Role.SLOW)
        await session.request("tasks/result", {"taskId": task.get("taskId")})
        await site.status(session, str(task.get("taskId")))
        if site.lacks(Feature.LIST) is None:
            await session.request("tasks/list", {})


async def _to_a_cancel(site: Site) -> None:
    async with site.session() as session:
        await site.cancelled(session)


async def _to_an_answer(site: Site) -> None:
    async with site.session() as session:
        task_id = await site.create(session, Role.ASKS)
        await site.until(session, task_id, {"input_required"})
        await session.request("tasks/result", {"taskId": task_id})


async def _to_an_error(site: Site) -> None:
    async with site.session() as session:
        await session.request("tasks/get", {"taskId": "no-such-task"})


async def _clean(site: Site) -> None:
    """Cancel what is still at work: the server is somebody's."""
    if site.lacks(Feature.CANCEL) is not None:
        return
    last = {str(one.task.get("taskId")): one.task.get("status") for one in site.traffic.sightings()}
    running = [task_id for task_id in site.traffic.created() if last.get(str(task_id)) not in ENDED]
    with suppress(CheckError):
        async with site.session(traffic=type(site.traffic)()) as session:
            for task_id in running:
                await session.request("tasks/cancel", {"taskId": task_id})


def failed(outcomes: Sequence[Outcome], *, strict: bool) -> bool:
    """Whether the run as a whole failed: by a MUST, or with `strict` by anything, or because nothing was seen."""
    binding = [one for one in outcomes if strict or one.check.level is Level.MUST]
    return any(one.missed for one in binding) or not any(one.state is State.PASSED for one in outcomes)
