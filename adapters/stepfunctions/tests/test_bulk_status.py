"""Lists of who runs: how often a machine is listed, and what is told when it cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from mcp_workflows_stepfunctions.adapter import listings
from mcp_workflows_stepfunctions.client import open_client
from mcp_workflows_stepfunctions.settings import StepFunctionsSettings

from adapters.stepfunctions.tests.injecting import Answer, Injecting, error, injecting
from mcp_workflows.adapter import Ref
from mcp_workflows.kit import bulk_status

pytestmark = pytest.mark.anyio

RUNNING = Answer(body={"executions": []})
PLENTY = {"share": 1, "list_executions": {"bucket": 1000, "refill": 4}}


@pytest.fixture
def server() -> Iterator[Injecting]:
    with injecting() as server:
        server.tell("ListExecutions", RUNNING)
        yield server


def settings(server: Injecting, **more: Any) -> StepFunctionsSettings:
    return StepFunctionsSettings.model_validate({"region": "eu-west-1", "endpoint_url": server.url, **more})


def of(machine: str) -> Ref:
    handle = f"arn:aws:states:eu-west-1:123456789012:execution:{machine}:one"
    return Ref(workflow=machine, handle=handle)


async def test_machines_that_nobody_asks_for_any_more_take_no_part_of_the_quota(
    server: Injecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_status, "LISTING_EVERY", 0.0)
    monkeypatch.setattr(bulk_status, "KEPT_FOR", 0.0)
    async with open_client(settings(server, quota=PLENTY)) as calls:
        listed = listings(calls)
        await listed.describe_many([of(f"m{n}") for n in range(40)])
        assert server.counts["ListExecutions"] == 40  # again in 12 s, all of them
        with anyio.fail_after(60):
            while server.counts["ListExecutions"] == 40:
                await listed.describe_many([of("m0")])
                await anyio.sleep(0.02)


async def test_a_machine_that_cannot_be_listed_is_told_once(
    server: Injecting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bulk_status, "LISTING_EVERY", 0.0)
    denied = error("AccessDeniedException")
    server.tell("ListExecutions", denied, denied, RUNNING, denied)
    told: list[int] = []
    async with open_client(settings(server)) as calls:
        listed = listings(calls)
        seen: list[int] = []
        for _ in range(4):
            seen.append(len(await listed.describe_many([of("orders")])))
            told.append(caplog.text.count("orders cannot be listed"))
    assert told == [1, 1, 1, 2]
    assert seen == [1, 1, 0, 1]  # who may not list cannot say that somebody has ended
