"""State machines and endpoints that mean harm: nothing blocks, leaks, or keeps a task or a process from ending."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final

import anyio
import pytest
from mcp_workflows_stepfunctions import StepFunctionsAdapter, StepFunctionsSettings

from adapters.stepfunctions.tests.injecting import HANG, Answer, Injecting, injecting, wait_for
from adapters.stepfunctions.tests.lag import watched_loop
from adapters.stepfunctions.tests.stubbed import EXECUTION, execution, play
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


DRIPPED: Final = """
import socket, sys, threading, time
import anyio
from mcp_workflows_stepfunctions import StepFunctionsAdapter, StepFunctionsSettings
from mcp_workflows.adapter import Ref
from mcp_workflows.errors import EngineUnavailable

listening = socket.create_server(("127.0.0.1", 0))

def drip():
    connection, _ = listening.accept()
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-length: 100000\\r\\n\\r\\n")
    while True:
        connection.sendall(b" ")
        time.sleep(0.1)

async def main():
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    settings = StepFunctionsSettings(region="us-east-1", endpoint_url=url, timeout_seconds=1)
    async with StepFunctionsAdapter(settings) as adapter:
        try:
            await adapter.describe(Ref(workflow="m", handle=sys.argv[1], options={}))
        except EngineUnavailable as error:
            print(error)

threading.Thread(target=drip, daemon=True).start()
anyio.run(main)
"""


@pytest.mark.usefixtures("processes")
def test_an_endpoint_that_answers_a_byte_at_a_time_keeps_no_process_from_ending() -> None:
    done = subprocess.run([sys.executable, "-c", DRIPPED, EXECUTION], capture_output=True, timeout=60, check=True)
    assert b"no answer within 1 s" in done.stdout


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
    bomb = "[" + "{}," * 40_000 + "{}]"
    events: list[dict[str, Any]] = [{"id": 1, "type": "ExecutionStarted", "timestamp": 1.0}]
    for number in range(2, 42):
        scheduled = {"resourceType": "sqs", "resource": "sendMessage.waitForTaskToken", "region": REGION}
        details = {**scheduled, "parameters": bomb}
        event = {"id": number, "previousEventId": 1, "type": "TaskScheduled", "timestamp": 1.0}
        events.append({**event, "taskScheduledEventDetails": details})
    server.tell("GetExecutionHistory", Answer(body=json.dumps({"events": events[::-1]})))
    began = time.process_time()
    with untouched_by_the_collector():
        async with watched_loop(clock=time.thread_time) as held:
            await adapter.describe(REF)
    assert max(held) < (time.process_time() - began) / 2  # all at once are 0.8 of it, one is a fortieth
