"""The results of the suite on a good server, and on servers that are each wrong in one way."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import anyio
import pytest
from mcp_tasks_conformance.check import Check, CheckError, CheckResult, Level, ToolRole, Verdict
from mcp_tasks_conformance.fixtures import EventFixture, Fixture, UsageError, official_fixtures
from mcp_tasks_conformance.runner import CHECKS, has_failed, run_checks, select_checks
from mcp_tasks_conformance.server_under_test import RunSettings

from conformance.tests.event_server import Body
from conformance.tests.faults import EVENT_FAULTS, FAULTS, Fault
from conformance.tests.receiver import Receiver, serve

pytestmark = pytest.mark.anyio

SECONDS = 0.4  # of the slow tool
PATIENT: dict[str, Any] = {"fixtures": official_fixtures(1.0), "slow_seconds": 1.0, "timeout": 10}  # on a busy machine
CONCURRENCY = 16
CREDENTIALS = {"headers": {"authorization": "Bearer ada"}, "other_headers": {"authorization": "Bearer bob"}}


def settings(url: str, *, anonymous: bool = False, **more: Any) -> RunSettings:
    """Return settings for a quick run."""
    given: dict[str, Any] = {**({} if anonymous else CREDENTIALS), **more}
    quick = RunSettings(
        url=url,
        fixtures=official_fixtures(SECONDS),
        timeout=3,
        poll_interval=0.03,
        slow_seconds=SECONDS,
        callback="http://127.0.0.1:0",
        heartbeat=2,
    )
    return replace(quick, **given)


def details(results: Sequence[CheckResult], verdict: Verdict) -> dict[str, str]:
    """Return the detail of each check with this verdict, by its id."""
    return {one.check.id: one.detail for one in results if one.verdict is verdict}


def faulty_receiver(fault: Fault) -> Receiver:
    return Receiver(*fault.flags, mutate=fault.mutate() if fault.mutate else None)


async def run_on(fault: Fault, checks: Sequence[Check], **more: Any) -> Sequence[CheckResult]:
    """Run these checks on a server with this fault."""
    async with serve(faulty_receiver(fault)) as (url,):
        return await run_checks(settings(url, anonymous=fault.anonymous, **more), checks)


async def test_a_good_server_fails_nothing() -> None:
    results = await run_on(Fault(check=""), CHECKS, **PATIENT)
    assert details(results, Verdict.FAILED) | details(results, Verdict.BLOCKED) == {}
    skipped = details(results, Verdict.SKIPPED).keys() - {"delivering.retried-afresh"}  # it may come again too soon
    assert skipped == {
        "negotiation.cancel-undeclared",
        "negotiation.list-undeclared",
        "negotiation.list-needs-an-identity",
        "creation.ids-cannot-be-guessed",
        "creation.immediate-response",
    }


async def test_every_check_fails_on_the_server_that_is_wrong_that_way() -> None:
    found: dict[str, Verdict] = {}
    limiter = anyio.CapacityLimiter(CONCURRENCY)

    async def judge(fault: Fault, url: str) -> None:
        quick = settings(url, anonymous=fault.anonymous)
        for _ in range(3):  # a busy machine may hide a message that is too late or too early
            async with limiter:
                try:
                    results = await run_checks(quick, select_checks([fault.check]))
                except CheckError:  # no connection in time
                    found[fault.check] = Verdict.BLOCKED
                    continue
            found[fault.check] = results[0].verdict
            if found[fault.check] is Verdict.FAILED:
                return

    async with serve(*map(faulty_receiver, FAULTS)) as urls, anyio.create_task_group() as group:
        for fault, url in zip(FAULTS, urls, strict=True):
            group.start_soon(judge, fault, url)
    assert {check: verdict for check, verdict in found.items() if verdict is not Verdict.FAILED} == {}
    assert found.keys() == {check.id for check in CHECKS}


@pytest.mark.slow
async def test_a_server_that_is_wrong_in_one_way_fails_that_check_and_no_other() -> None:
    found: dict[str, Mapping[str, str]] = {}
    limiter = anyio.CapacityLimiter(CONCURRENCY // 4)
    of_events = {fault.check for fault in EVENT_FAULTS}

    async def judge(fault: Fault, url: str) -> None:
        others = [check for check in CHECKS if (check.id in of_events) == (fault.check in of_events)]
        async with limiter:
            results = await run_checks(settings(url, anonymous=fault.anonymous, **{**PATIENT, "timeout": 6}), others)
        expected = {*fault.also, fault.check, *(["negotiation.list-needs-an-identity"] if fault.anonymous else [])}
        failed = details(results, Verdict.FAILED)
        found[fault.check] = {name: detail for name, detail in failed.items() if name not in expected}
        if fault.check not in failed:
            found[fault.check] = {fault.check: "not noticed"}

    async with serve(*map(faulty_receiver, FAULTS)) as urls, anyio.create_task_group() as group:
        for fault, url in zip(FAULTS, urls, strict=True):
            group.start_soon(judge, fault, url)
    assert {check: others for check, others in found.items() if others} == {}


async def test_a_server_that_closes_its_streams_and_resumes_them_passes() -> None:
    fault = Fault(check="", flags=["closes-streams"])
    results = await run_on(fault, select_checks(["results.blocks", "results.again"]))
    assert [one.verdict for one in results] == [Verdict.PASSED, Verdict.PASSED]


def test_only_a_must_fails_a_run_that_is_not_strict() -> None:
    must, should = (next(check for check in CHECKS if check.level is level) for level in (Level.MUST, Level.SHOULD))
    passed = CheckResult(check=must, verdict=Verdict.PASSED)
    assert not has_failed([passed, CheckResult(check=should, verdict=Verdict.FAILED)], strict=False)
    assert has_failed([passed, CheckResult(check=should, verdict=Verdict.FAILED)], strict=True)
    assert has_failed([passed, CheckResult(check=must, verdict=Verdict.BLOCKED)], strict=False)
    assert has_failed([CheckResult(check=must, verdict=Verdict.SKIPPED)], strict=False)


async def test_a_check_whose_prerequisite_is_missing_is_skipped_with_the_reason_and_never_passed() -> None:
    roles = {**official_fixtures(SECONDS), ToolRole.ASKS: Fixture(tool="no_such_tool")}
    async with serve(Receiver()) as (url,):
        checks = select_checks(["asking.status", "isolation.get"])
        results = await run_checks(settings(url, fixtures=roles, anonymous=True), checks)
    assert [one.verdict for one in results] == [Verdict.SKIPPED, Verdict.SKIPPED]
    assert results[0].detail == "no tool 'no_such_tool': --tool asks=..."
    assert "--header-other" in results[1].detail
    assert has_failed(results, strict=False)  # nothing was checked


async def test_a_server_without_events_has_the_checks_of_events_skipped_with_the_reason() -> None:
    def mutate(method: str, _: Body, body: Body) -> Body:
        if method in ("initialize", "server/discover"):
            for name in ("events", "extensions"):
                body["result"]["capabilities"].pop(name)
        return body

    checks = select_checks([fault.check for fault in EVENT_FAULTS])
    async with serve(Receiver(mutate=mutate)) as (url,):
        results = await run_checks(settings(url), checks)
    assert set(details(results, Verdict.SKIPPED).values()) == {"the server does not declare events"}
    assert len(details(results, Verdict.SKIPPED)) == len(checks) >= 25


async def test_webhooks_are_skipped_without_an_endpoint_and_an_event_that_is_not_listed_is_named() -> None:
    checks = select_checks(["delivering.signature", "polling.event-arrives"])
    other = EventFixture(name="disk.full")
    async with serve(Receiver()) as (url,):
        without = details(await run_checks(settings(url, callback=None), checks), Verdict.SKIPPED)
        unknown = details(await run_checks(settings(url, event=other), checks), Verdict.SKIPPED)
    assert without == {"delivering.signature": "needs an endpoint that the server can call: --callback"}
    assert set(unknown.values()) == {"no event 'disk.full' is listed: --event NAME"}


async def test_the_endpoint_may_listen_elsewhere_than_the_server_calls_it() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    there: dict[str, Any] = {"callback": f"http://127.0.0.1:{port}/a/tunnel", "listen": f"127.0.0.1:{port}"}
    async with serve(Receiver()) as (url,):
        results = await run_checks(settings(url, **there), select_checks(["delivering.signature"]))
        with pytest.raises(UsageError, match="cannot listen"):
            await run_checks(settings(url, callback="http://192.0.2.1:1"), select_checks(["delivering.signature"]))
    assert [one.verdict for one in results] == [Verdict.PASSED]


async def test_tasks_that_a_run_leaves_running_are_cancelled() -> None:
    receiver = Receiver()
    async with serve(receiver) as (url,):
        await run_checks(settings(url), select_checks(["isolation.cancel", "results.others-are-served-meanwhile"]))
        assert {work.status for work in receiver.works.values()} == {"cancelled"}


def test_every_check_cites_a_section_and_has_a_text() -> None:
    assert [check.id for check in CHECKS if not check.section or not check.text.endswith(".")] == []
    assert len({check.id for check in CHECKS}) == len(CHECKS)
    assert {check.level for check in CHECKS} == set(Level)
