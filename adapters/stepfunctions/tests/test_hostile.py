"""State machines and endpoints that mean harm: nothing blocks, leaks, or keeps a task or a process from ending."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import anyio
import pytest
from mcp_workflows_stepfunctions import StepFunctionsAdapter, StepFunctionsSettings

from adapters.stepfunctions.tests.injecting import (
    EXECUTION,
    HANG,
    Answer,
    Injecting,
    execution,
    injecting,
    play,
    wait_for,
)
from mcp_workflows.adapter import Ref, Status
from mcp_workflows.errors import EngineUnavailable
from tests.support.stepfunctions_engine import REGION
from tests.support.stopwatch import stopwatch

pytestmark = pytest.mark.anyio

REF: Final = Ref(workflow="orders", handle=EXECUTION, options={})


@pytest.fixture
def server() -> Iterator[Injecting]:
    with injecting() as server:
        play(server)
        yield server


@pytest.fixture
async def adapter(server: Injecting) -> AsyncIterator[StepFunctionsAdapter]:
    async with StepFunctionsAdapter(StepFunctionsSettings(region=REGION, endpoint_url=server.url)) as adapter:
        yield adapter


async def test_looks_that_get_no_answer_keep_no_cancel_waiting(
    server: Injecting, adapter: StepFunctionsAdapter
) -> None:
    server.tell("DescribeExecution", HANG)
    async with anyio.create_task_group() as group:
        for _ in range(40):
            group.start_soon(adapter.describe, REF)
        await anyio.to_thread.run_sync(wait_for, server, "DescribeExecution", 12)
        with stopwatch() as seconds:
            await adapter.cancel(REF)
            assert seconds() < 2
        group.cancel_scope.cancel()


async def test_an_output_that_nobody_can_read_ends_its_task(server: Injecting, adapter: StepFunctionsAdapter) -> None:
    server.tell("DescribeExecution", execution("SUCCEEDED", output="[" * 10_000 + "]" * 10_000))
    seen = await adapter.describe(REF)
    assert seen.status is Status.FAILED
    assert seen.failure is not None
    assert seen.failure.text == "the execution succeeded, but its output is nested too deeply"


@pytest.mark.parametrize("body", [[1], {"events": "abc"}, {"events": [1]}, "[" * 5000 + "]" * 5000])
async def test_what_is_json_but_no_answer_of_aws_is_said_to_be_that(
    server: Injecting, adapter: StepFunctionsAdapter, body: Any
) -> None:
    server.tell("GetExecutionHistory", Answer(body=body))
    with pytest.raises(EngineUnavailable, match="is not this API: check endpoint_url"):
        await adapter.describe(REF)


@asynccontextmanager
async def watched_loop() -> AsyncGenerator[list[float]]:
    """How long each tick had to wait, in seconds that this thread worked."""
    held: list[float] = []

    async def tick() -> None:
        while True:
            due = time.thread_time()
            await anyio.sleep(0.002)
            held.append(time.thread_time() - due)

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        yield held
        await anyio.sleep(0.004)
        group.cancel_scope.cancel()


@contextmanager
def untouched_by_the_collector() -> Generator[None]:
    """What other tests have left is not looked through meanwhile: that alone takes most of a second."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


async def test_many_large_questions_never_hold_the_event_loop_for_long(
    server: Injecting, adapter: StepFunctionsAdapter
) -> None:
    bomb = "[" + "{}," * 20_000 + "{}]"
    events: list[dict[str, Any]] = [{"id": 1, "type": "ExecutionStarted", "timestamp": 1.0}]
    for number in range(2, 22):
        scheduled = {"resourceType": "sqs", "resource": "sendMessage.waitForTaskToken", "region": REGION}
        details = {**scheduled, "parameters": bomb}
        event = {"id": number, "previousEventId": 1, "type": "TaskScheduled", "timestamp": 1.0}
        events.append({**event, "taskScheduledEventDetails": details})
    server.tell("GetExecutionHistory", Answer(body=json.dumps({"events": events[::-1]})))
    began = time.process_time()
    with untouched_by_the_collector():
        async with watched_loop() as held:
            await adapter.describe(REF)
    assert max(held) < (time.process_time() - began) / 2  # all at once are 0.8 of it, one is a twentieth
