"""A run of the suite: checks that act on the server first, then passive checks of the recorded traffic."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Final

import anyio
import httpx2

from mcp_tasks_conformance.cancellation import cancellation
from mcp_tasks_conformance.check import (
    UNEXPECTED,
    VERDICTS,
    Check,
    CheckError,
    CheckResult,
    Feature,
    Level,
    Phase,
    Scenario,
    ToolRole,
    Verdict,
    unexpected,
)
from mcp_tasks_conformance.creation import creation
from mcp_tasks_conformance.elicitation import elicitation
from mcp_tasks_conformance.endpoint import Endpoint
from mcp_tasks_conformance.event_deliveries import event_deliveries
from mcp_tasks_conformance.event_polls import event_polls
from mcp_tasks_conformance.event_streams import event_streams
from mcp_tasks_conformance.event_subscriptions import event_subscriptions
from mcp_tasks_conformance.event_types import event_types
from mcp_tasks_conformance.fixtures import UsageError
from mcp_tasks_conformance.isolation import isolation
from mcp_tasks_conformance.message_shapes import message_shapes
from mcp_tasks_conformance.negotiation import negotiation
from mcp_tasks_conformance.notifications import notifications
from mcp_tasks_conformance.results import results
from mcp_tasks_conformance.server_under_test import RunSettings, ServerUnderTest, inspect_server
from mcp_tasks_conformance.task_ids import task_ids
from mcp_tasks_conformance.task_list import task_list
from mcp_tasks_conformance.traffic import TERMINAL, Traffic
from mcp_tasks_conformance.trial_run import run_trials

SCENARIOS: Final[Sequence[Scenario]] = (
    negotiation,
    creation,
    message_shapes,
    results,
    task_ids,
    cancellation,
    task_list,
    notifications,
    elicitation,
    isolation,
    event_types,
    event_polls,
    event_streams,
    event_subscriptions,
    event_deliveries,
)
CHECKS: Final[Sequence[Check]] = tuple(check for scenario in SCENARIOS for check in scenario.checks)
STEPS: Final = 4  # a check may take this many times the timeout of one step


def select_checks(only: Collection[str]) -> Sequence[Check]:
    """Return the checks with these ids or of these scenarios; all checks if `only` is empty.

    Raises:
        KeyError: there is no such check or scenario; its argument is the name.
    """
    for name in only:
        if name not in {check.id for check in CHECKS} | {scenario.name for scenario in SCENARIOS}:
            raise KeyError(name)
    return [check for check in CHECKS if not only or {check.id, check.scenario} & set(only)]


async def run_checks(settings: RunSettings, checks: Sequence[Check]) -> Sequence[CheckResult]:
    """Run these checks, and return their results in the same order.

    Raises:
        CheckError: the server cannot be reached, or does not speak 2025-11-25.
        UsageError: the endpoint for deliveries cannot listen.
    """
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
    timeout = httpx2.Timeout(settings.timeout, read=None)
    is_https = settings.url.startswith("https:")  # only HTTPS has a certificate to verify
    with _endpoint(settings) as endpoint:
        async with httpx2.AsyncClient(timeout=timeout, limits=limits, verify=is_https) as http:
            return await _run(await inspect_server(settings, http, endpoint), checks)


async def _run(server: ServerUnderTest, checks: Sequence[Check]) -> Sequence[CheckResult]:
    found = await _run_concurrently(server, checks)
    for check in (check for check in checks if check.phase is Phase.SEQUENTIAL):
        found[check.id] = await _run_check(check, server, server)
    await _cancel_running_tasks(server)
    for check in (check for check in checks if check.phase is Phase.PASSIVE):
        found[check.id] = await _run_check(check, server, server.traffic)
    return [found[check.id] for check in checks]


def _endpoint(settings: RunSettings) -> AbstractContextManager[Endpoint | None]:
    if settings.callback is None:
        return nullcontext()
    try:
        return Endpoint(settings.callback, settings.listen)
    except (OSError, ValueError) as error:
        raise UsageError(f"--callback {settings.callback}: the endpoint cannot listen there: {error}") from None


def has_failed(results: Sequence[CheckResult], *, strict: bool) -> bool:
    """Return True if a MUST (with `strict`, any check) failed or was blocked, or if no check passed."""
    binding = [one for one in results if strict or one.check.level is Level.MUST]
    return any(one.is_missed for one in binding) or not any(one.verdict is Verdict.PASSED for one in results)


async def _run_check(check: Check, server: ServerUnderTest, subject: ServerUnderTest | Traffic) -> CheckResult:
    reason = next((reason for need in check.needs if (reason := server.skip_reason(need))), None)
    if reason is not None:
        return CheckResult(check=check, verdict=Verdict.SKIPPED, detail=reason)
    limit = server.settings.timeout * STEPS
    try:
        with anyio.fail_after(limit):
            await check.run(subject)
    except CheckError as error:
        return CheckResult(check=check, verdict=VERDICTS[type(error)], detail=str(error))
    except TimeoutError:
        return CheckResult(check=check, verdict=Verdict.BLOCKED, detail=f"not done within {limit:g} s")
    except (*UNEXPECTED, ExceptionGroup) as error:
        return CheckResult(check=check, verdict=Verdict.FAILED, detail=unexpected(error))
    return CheckResult(check=check, verdict=Verdict.PASSED)


async def _run_concurrently(server: ServerUnderTest, checks: Sequence[Check]) -> dict[str, CheckResult]:
    found: dict[str, CheckResult] = {}
    limiter = anyio.CapacityLimiter(server.settings.concurrency)

    async def run(check: Check) -> None:
        async with limiter:
            found[check.id] = await _run_check(check, server, server)

    async with anyio.create_task_group() as group:
        if any(Feature.CALLBACK in check.needs and check.phase is Phase.SEQUENTIAL for check in checks):
            group.start_soon(run_trials, server)
        if any(check.phase is Phase.PASSIVE for check in checks):
            group.start_soon(_generate_traffic, server, limiter)
        for check in checks:
            if check.phase is Phase.CONCURRENT:
                group.start_soon(run, check)
    return found


async def _generate_traffic(server: ServerUnderTest, limiter: anyio.CapacityLimiter) -> None:
    """Cause a message of each kind for the passive checks; errors here fail no check."""
    for exchange in (_complete_task, _cancel_task, _answer_task, _request_unknown_task):
        async with limiter:
            with suppress(CheckError):
                await exchange(server)


async def _complete_task(server: ServerUnderTest) -> None:
    async with server.session() as session:
        await session.listen()
        task = await server.run_to_end(session, ToolRole.SLOW)
        await session.request("tasks/result", {"taskId": task.get("taskId")})
        await server.get_status(session, str(task.get("taskId")))
        if server.skip_reason(Feature.LIST) is None:
            await session.request("tasks/list", {})


async def _cancel_task(server: ServerUnderTest) -> None:
    async with server.session() as session:
        await server.create_cancelled(session)


async def _answer_task(server: ServerUnderTest) -> None:
    async with server.session() as session:
        task_id = await server.create_task(session, ToolRole.ASKS)
        await server.wait_for_status(session, task_id, {"input_required"})
        await session.request("tasks/result", {"taskId": task_id})


async def _request_unknown_task(server: ServerUnderTest) -> None:
    async with server.session() as session:
        await session.request("tasks/get", {"taskId": "no-such-task"})


async def _cancel_running_tasks(server: ServerUnderTest) -> None:
    """Cancel the tasks that the checks left running on the server."""
    if server.skip_reason(Feature.CANCEL) is not None:
        return
    last = {str(one.task.get("taskId")): one.task.get("status") for one in server.traffic.observations()}
    running = [task_id for task_id in server.traffic.created_ids() if last.get(str(task_id)) not in TERMINAL]
    with suppress(CheckError):
        async with server.session(traffic=Traffic()) as session:
            for task_id in running:
                await session.request("tasks/cancel", {"taskId": task_id})
