"""Answers to questions that AWS says are not open, while their history says they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from mcp_workflows_stepfunctions import StepFunctionsAdapter
from mcp_workflows_stepfunctions.settings import StepFunctionsSettings

from adapters.stepfunctions.tests.events import Telling
from adapters.stepfunctions.tests.injecting import Answer, Injecting, error, injecting
from adapters.stepfunctions.tests.stubbed import EXECUTION, MACHINE, play
from mcp_workflows.adapter import Ref
from mcp_workflows.errors import EngineRefused
from tests.support.stepfunctions_engine import REGION

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def server() -> Iterator[Injecting]:
    with injecting() as server:
        play(server)
        told = Telling()
        told.ask(1)
        events: list[dict[str, Any]] = [{**event, "timestamp": 1.0} for event in reversed(told.events)]
        server.tell("GetExecutionHistory", Answer(body={"events": events}))
        yield server


async def answered(server: Injecting, code: str) -> None:
    server.tell("SendTaskSuccess", error(code))
    ref = Ref(workflow=MACHINE, handle=EXECUTION)
    async with StepFunctionsAdapter(StepFunctionsSettings(region=REGION, endpoint_url=server.url)) as adapter:
        [key] = (await adapter.describe(ref)).requests
        await adapter.answer(ref, {key: {"action": "accept", "content": {"ok": True}}})


async def test_a_task_that_is_over_takes_no_answer_whatever_its_history_still_says(server: Injecting) -> None:
    """As after an answer whose reply was lost: it was sent once more."""
    await answered(server, "TaskTimedOut")


async def test_events_of_one_moment_may_come_in_any_order(server: Injecting) -> None:
    told = Telling()
    told.ask(1)
    events: list[dict[str, Any]] = [{**told.events[number - 1], "timestamp": 1.0} for number in (5, 4, 2, 3, 1)]
    server.tell("GetExecutionHistory", Answer(body={"events": events}))
    async with StepFunctionsAdapter(StepFunctionsSettings(region=REGION, endpoint_url=server.url)) as adapter:
        seen = await adapter.describe(Ref(workflow=MACHINE, handle=EXECUTION))
    assert (seen.message, list(seen.requests)) == ("Ask", ["3"])


@pytest.mark.parametrize("code", ["InvalidToken", "TaskDoesNotExist"])
async def test_a_token_that_aws_does_not_know_is_told(server: Injecting, code: str) -> None:
    with pytest.raises(EngineRefused, match="does not know the task token that was found in state Ask"):
        await answered(server, code)
