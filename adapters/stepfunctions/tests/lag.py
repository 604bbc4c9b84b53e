"""How late the event loop is while the adapter's calls are under way: python -m adapters.stepfunctions.tests.lag."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, asynccontextmanager

import anyio
from mcp_workflows_stepfunctions.client import Client, open_client
from mcp_workflows_stepfunctions.settings import StepFunctionsSettings

from adapters.stepfunctions.tests.injecting import Answer, injecting

TICK = 0.002  # seconds
EXECUTION = "arn:aws:states:eu-west-1:123456789012:execution:orders:o-1"


@asynccontextmanager
async def watched_loop(clock: Callable[[], float] = time.perf_counter) -> AsyncGenerator[list[float]]:
    """How late each tick was, in seconds; or what each had to wait for, by a clock that tells what this thread did."""
    late: list[float] = []

    async def tick() -> None:
        while True:
            due = clock() + (TICK if clock is time.perf_counter else 0)
            await anyio.sleep(TICK)
            late.append(clock() - due)

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        yield late
        await anyio.sleep(TICK * 2)
        group.cancel_scope.cancel()


async def many(calls: Client, concurrent: int) -> None:
    """So many looks at once."""
    async with anyio.create_task_group() as group:
        for _ in range(concurrent):
            group.start_soon(lambda: calls.call("describe_execution", executionArn=EXECUTION))


def told(name: str, late: list[float]) -> str:
    """One line of the table."""
    ordered = sorted(late)
    p50, p99 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    return f"{name:<48} p50 {p50 * 1000:5.1f} ms   p99 {p99 * 1000:5.1f} ms   max {ordered[-1] * 1000:5.1f} ms"


async def measured(url: str, connections: int) -> AsyncGenerator[str]:
    """The lines of the table."""
    settings = StepFunctionsSettings(region="eu-west-1", endpoint_url=url, max_connections=connections)
    async with watched_loop() as late:
        await anyio.sleep(1)
    yield told("nothing under way", late)
    async with watched_loop() as late, open_client(settings) as calls:
        pass
    yield told("opening", late)
    async with open_client(settings) as calls:
        async with watched_loop() as late:
            await many(calls, 50)
        yield told("the first 50 calls at once", late)
        async with watched_loop() as late:
            for _ in range(20):
                await many(calls, 50)
        yield told("50 calls at once, 20 times", late)


async def main() -> None:
    """Print the table; the server is a process of its own, or its lag would be counted too."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        url = pool.apply(_serve)
        for connections in (16, 50):
            sys.stdout.write(f"{connections} connections\n")
            async for line in measured(url, connections):
                sys.stdout.write(f"  {line}\n")


_KEPT = ExitStack()


def _serve() -> str:
    """In the other process, until that ends."""
    server = _KEPT.enter_context(injecting())
    server.tell("DescribeExecution", Answer(delay=0.02, body={"executionArn": EXECUTION, "status": "RUNNING"}))
    server.keep_requests = False
    return server.url


if __name__ == "__main__":
    os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_EC2_METADATA_DISABLED="true")
    anyio.run(main)
