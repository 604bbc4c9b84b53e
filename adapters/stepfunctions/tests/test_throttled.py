"""AWS throttles us: tasks show what was known last, calls go on waiting, we ask less, and it passes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from adapters.stepfunctions.tests.configured import called, client_of, configured
from adapters.stepfunctions.tests.injecting import Answer, Injecting, error, injecting
from adapters.stepfunctions.tests.stubbed import MACHINE, execution, play
from tests.support.served import Peer
from tests.support.stopwatch import stopwatch

pytestmark = pytest.mark.anyio

THROTTLED: Final = error("ThrottlingException", "Rate exceeded")
PACKING: Final = {
    "id": 2,
    "previousEventId": 1,
    "type": "PassStateEntered",
    "timestamp": 1.0,
    "stateEnteredEventDetails": {"name": "Packing"},
}
PLAIN: Final[Any] = {}  # the capabilities of a client without tasks


@pytest.fixture
def server() -> Iterator[Injecting]:
    with injecting() as server:
        play(server)
        server.tell("GetExecutionHistory", Answer(body={"events": [PACKING]}))
        yield server


async def until(client: Peer, task_id: str, text: str) -> str:
    """The message once it has this text; each answer on the way comes in time, and is no end."""
    with anyio.fail_after(20):
        while True:
            with stopwatch() as seconds:
                seen = await client.get(task_id)
                assert seconds() < 6, "an engine in trouble must not make its clients wait"
            assert seen["status"] == "working"
            if text in (said := str(seen.get("statusMessage", ""))):
                return said
            await anyio.sleep(0.05)


@pytest.mark.parametrize("operation", ["DescribeExecution", "GetExecutionHistory"])
async def test_a_task_shows_its_last_known_state_and_a_plain_call_goes_on_waiting(
    server: Injecting, tmp_path: Path, operation: str
) -> None:
    config = configured(tmp_path, server.url, {"it": {"workflow": MACHINE, "tasks": "wait"}}, timeout_seconds=1)
    results: list[Any] = []

    async def plain(client: Peer) -> None:
        results.append((await client.call("it", capabilities=PLAIN)).result)

    async with client_of(config) as client, anyio.create_task_group() as group:
        group.start_soon(plain, client)
        task_id = await called(client)
        assert await until(client, task_id, "Packing") == "Packing"
        server.tell(operation, THROTTLED)
        said = await until(client, task_id, "AWS throttles")
        assert f"AWS throttles states:{operation}: the quota of the account in us-east-1 is used up" in said
        assert said.endswith("last known: Packing")
        assert results == []
        play(server)
        server.tell("DescribeExecution", execution("SUCCEEDED", output='{"packed":true}'))
        assert (await client.until(task_id))["result"]["structuredContent"] == {"packed": True}
    assert [result["structuredContent"] for result in results] == [{"packed": True}]


async def test_what_is_throttled_halves_our_rate_for_a_while(
    server: Injecting, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rate = {"bucket": 2, "refill": 16}
    quota = {"share": 1, "describe_execution": rate, "get_execution_history": {"bucket": 99, "refill": 99}}
    config = configured(
        tmp_path, server.url, {"it": {"workflow": MACHINE, "tasks": "wait", "history": False}}, quota=quota
    )

    async def plain(client: Peer) -> None:
        await client.call("it", capabilities=PLAIN)

    async def rate_of_looks() -> float:
        before = server.counts["DescribeExecution"]
        with stopwatch() as seconds:
            while seconds() < 1.5:  # it is a rate that is measured
                await anyio.sleep(0.05)
            return (server.counts["DescribeExecution"] - before) / seconds()

    async with client_of(config) as client, anyio.create_task_group() as group:
        for _ in range(18):
            group.start_soon(plain, client)
        with anyio.fail_after(10):
            while server.counts["DescribeExecution"] < 18:
                await anyio.sleep(0.01)
        with anyio.fail_after(60):
            while await rate_of_looks() < 11:  # a busy machine may be slower than the limit
                pass
        server.tell("DescribeExecution", THROTTLED, execution())
        with caplog.at_level(logging.WARNING), anyio.fail_after(10):
            while "AWS throttles describe_execution: 8 calls per second" not in caplog.text:
                await anyio.sleep(0.01)
        assert await rate_of_looks() <= 8 + 2 / 1.5  # and what its bucket holds
        group.cancel_scope.cancel()


async def test_a_start_that_is_throttled_is_a_task_that_starts_later(server: Injecting, tmp_path: Path) -> None:
    config = configured(tmp_path, server.url, {"it": {"workflow": MACHINE}}, timeout_seconds=1)
    started = Answer(
        body={"executionArn": "arn:aws:states:us-east-1:123456789012:execution:orders:o-1", "startDate": 1}
    )
    async with client_of(config) as client:
        server.tell("StartExecution", THROTTLED)
        task_id = await called(client)
        assert (await client.get(task_id))["status"] == "working"
        server.tell("StartExecution", started)
        server.tell("DescribeExecution", execution("SUCCEEDED", output="{}"))
        assert (await client.until(task_id))["status"] == "completed"
    names = {request["name"] for operation, request in server.requests if operation == "StartExecution"}
    assert len(names) == 1
