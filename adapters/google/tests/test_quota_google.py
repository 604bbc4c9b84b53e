"""Google's quotas per minute, our share of them, and what we do when Google throttles all the same."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import pytest
from mcp_workflows_google.client import PER_MINUTE, Client, limits, open_client
from mcp_workflows_google.resources import ExecutionName, Place, WorkflowName
from mcp_workflows_google.settings import GoogleSettings, Quota

from adapters.google.tests.injecting import Fault, Injecting, injecting
from mcp_workflows.errors import EngineUnavailable
from mcp_workflows.kit.token_bucket import UNLIMITED, Buckets

pytestmark = pytest.mark.anyio

ORDERS = WorkflowName(place=Place(project="demo", location="us-central1"), workflow="orders")
EXECUTION = ExecutionName(workflow=ORDERS, execution="e-1")


@pytest.fixture(scope="module")
def engine() -> Iterator[Injecting]:
    with injecting() as server:
        yield server


@pytest.fixture
def server(engine: Injecting) -> Injecting:
    engine.clear()
    return engine


def settings(server: Injecting, **quota: float) -> GoogleSettings:
    given = {"location": "us-central1", "emulator": server.address, "quota": quota}
    return GoogleSettings.model_validate(given)


@pytest.mark.parametrize("api", PER_MINUTE)
def test_no_minute_sees_more_than_our_share(api: str) -> None:
    ours = limits(api, Quota(share=0.5))
    assert ours.bucket + 60 * ours.refill == pytest.approx(PER_MINUTE[api] / 2)


def test_replicas_divide_the_share_and_one_call_at_once_is_always_left() -> None:
    assert limits("get_execution", Quota(share=1, replicas=4)).refill == pytest.approx(6000 / 4 / 60 * 5 / 6)
    assert limits("list_executions", Quota(share=0.001)).bucket == 1


def test_a_project_with_other_quotas_says_so_per_api() -> None:
    assert limits("get_execution", Quota(share=1, get_execution=60)).bucket == 10
    assert limits("list_executions", Quota(get_execution=60)) == limits("list_executions", Quota())


def test_a_local_engine_has_no_quota_unless_the_settings_say_so() -> None:
    assert limits("get_execution", None) == UNLIMITED
    calls = Client(GoogleSettings(location="us-central1", emulator="127.0.0.1:1"))
    assert calls.refill("get_execution") == inf
    assert calls.allowance.looks_per_second == 50
    assert Client(GoogleSettings(location="us-central1")).refill("get_execution") < 50


async def test_what_is_over_the_quota_is_held_back_here_and_was_not_sent(server: Injecting) -> None:
    tight = settings(server, share=1, write_executions=1)
    async with open_client(tight) as calls:
        await calls.create(ORDERS, "{}", {})
        with pytest.raises(EngineUnavailable, match="held back") as caught:
            await calls.create(ORDERS, "{}", {})
    assert (caught.value.sent, caught.value.throttled) == (False, True)
    assert server.count("CreateExecution") == 1


async def test_engines_of_one_project_and_location_share_a_quota(server: Injecting) -> None:
    tight = settings(server, share=1, list_executions=2)
    async with open_client(tight) as one, open_client(tight) as other:
        await one.executions(ORDERS)
        with pytest.raises(EngineUnavailable, match="held back"):
            await other.executions(ORDERS)


async def test_each_page_takes_a_token(server: Injecting) -> None:
    calls = Client(settings(server, share=1, list_executions=1200), Buckets(clock=lambda: 0.0))  # nothing comes in
    for _ in range(101):
        await calls.create(ORDERS, "{}", {})
    before = calls._caller.bucket("list_executions").spare  # pyright: ignore[reportPrivateUsage]
    await calls.executions(ORDERS, full=True)
    assert before - calls._caller.bucket("list_executions").spare == 3  # pyright: ignore[reportPrivateUsage]
    await calls.close()


async def test_attempts_beyond_the_first_are_paid_for(server: Injecting) -> None:
    calls = Client(settings(server, share=1, get_execution=600), Buckets(clock=lambda: 0.0))
    made = await calls.create(ORDERS, "{}", {})
    before = calls._caller.bucket("get_execution").spare  # pyright: ignore[reportPrivateUsage]
    server.tell("GetExecution", Fault(code="INTERNAL"), Fault(code="INTERNAL"))
    await calls.get(ExecutionName.parse(made.name), full=False)
    spent = before - calls._caller.bucket("get_execution").spare  # pyright: ignore[reportPrivateUsage]
    assert server.count("GetExecution") == 3
    assert spent == 3
    await calls.close()


async def test_when_google_throttles_we_ask_less_for_a_while(server: Injecting) -> None:
    async with open_client(settings(server, share=1, get_execution=60_000)) as calls:
        before = calls.allowance.looks_per_second
        server.tell("GetExecution", Fault(code="RESOURCE_EXHAUSTED", reason="RATE_LIMIT_EXCEEDED"))
        with pytest.raises(EngineUnavailable, match="throttles") as caught:
            await calls.get(EXECUTION, full=False)
        assert caught.value.throttled
        assert calls.refill("get_execution") < 60_000 / 60 * 5 / 6 * 0.6
        assert calls.allowance.looks_per_second <= before
        assert calls.allowance.burst == 0
    assert server.count("GetExecution") == 1
