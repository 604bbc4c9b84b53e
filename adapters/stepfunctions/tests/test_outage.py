"""The adapter on an AWS that says no, breaks, or is not there: nothing starts twice, and why is told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from mcp_workflows_stepfunctions import StepFunctionsAdapter, StepFunctionsSettings

from adapters.stepfunctions.tests.injecting import LOST, Answer, Injecting, error, injecting
from adapters.stepfunctions.tests.refused import ACCOUNT, EXECUTION, MACHINE, REGION
from mcp_workflows.adapter import Ref, Start
from mcp_workflows.errors import ConfigError, EngineUnavailable
from tests.support.child_processes import free_port

pytestmark = pytest.mark.anyio

INPUT = '{"a":1}'
STARTED = Answer(body={"executionArn": EXECUTION, "startDate": 1.0})
RUNNING = Answer(body={"executionArn": EXECUTION, "status": "RUNNING", "input": INPUT})
REF = Ref(workflow=MACHINE, handle=EXECUTION)


@pytest.fixture
def server() -> Iterator[Injecting]:
    with injecting() as server:
        server.tell("DescribeStateMachine", Answer(body={"stateMachineArn": MACHINE, "type": "STANDARD"}))
        server.tell("StartExecution", STARTED)
        server.tell("DescribeExecution", RUNNING)
        server.tell("GetExecutionHistory", Answer(body={"events": []}))
        yield server


@pytest.fixture
async def adapter(server: Injecting) -> AsyncIterator[StepFunctionsAdapter]:
    async with StepFunctionsAdapter(settings(server.url)) as adapter:
        yield adapter


def settings(url: str, **more: Any) -> StepFunctionsSettings:
    return StepFunctionsSettings.model_validate({"region": REGION, "account": ACCOUNT, "endpoint_url": url, **more})


def start(workflow: str = MACHINE) -> Start:
    return Start(workflow=workflow, arguments=[{"a": 1}], key="o-1", created=datetime.now(UTC))


async def test_a_reply_that_was_lost_is_asked_for_again_under_the_same_name(
    adapter: StepFunctionsAdapter, server: Injecting
) -> None:
    server.tell("StartExecution", LOST, STARTED)
    assert await adapter.start(start()) == EXECUTION
    asked = [request for name, request in server.requests if name == "StartExecution"]
    assert asked == [{"stateMachineArn": MACHINE, "name": "o-1", "input": INPUT}] * 2


async def test_a_start_whose_outcome_nobody_knows_is_healed_by_starting_again(
    adapter: StepFunctionsAdapter, server: Injecting
) -> None:
    server.tell("StartExecution", LOST)
    with pytest.raises(EngineUnavailable) as caught:
        await adapter.start(start())
    assert caught.value.sent is True
    server.tell("StartExecution", error("ExecutionAlreadyExists"))
    assert await adapter.start(start()) == EXECUTION


async def test_an_engine_that_is_not_there_is_found_out_by_the_first_call() -> None:
    async with StepFunctionsAdapter(settings(f"http://127.0.0.1:{free_port()}")) as adapter:
        with pytest.raises(EngineUnavailable, match="cannot connect") as caught:
            await adapter.start(start())
        assert caught.value.sent is False
        finding = await adapter.tooling.check_engine()
        assert (finding.ok, "is the engine running there?" in finding.text) == (False, True)
        assert finding.hint == "if it is, check endpoint_url"


async def test_no_region_is_told_when_it_is_opened() -> None:
    with pytest.raises(ConfigError, match="no Region"):
        await StepFunctionsAdapter(StepFunctionsSettings()).__aenter__()


async def test_two_accounts_and_regions_are_two_engines(server: Injecting) -> None:
    elsewhere = settings(server.url, region="us-east-1", account="210987654321")
    async with StepFunctionsAdapter(settings(server.url)) as here, StepFunctionsAdapter(elsewhere) as there:
        await here.start(start("orders"))
        await there.start(start("orders"))
    asked = [request["stateMachineArn"] for name, request in server.requests if name == "StartExecution"]
    assert asked == [MACHINE, MACHINE.replace(REGION, "us-east-1").replace(ACCOUNT, "210987654321")]
