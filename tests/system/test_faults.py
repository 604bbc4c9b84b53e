"""What a client sees when things go wrong between us and a real Temporal: the last state, in time, with a reason."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_workflows_temporal import TemporalAdapter, TemporalSettings
from mcp_workflows_temporal.connection import quiet_runtime
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker

from mcp_workflows import Tool
from samples.conformance.workflows import ALL
from tests.support.dev_server import DevServer
from tests.support.served import Peer, peer, site, told
from tests.support.stopwatch import stopwatch

pytestmark = pytest.mark.anyio

SLOW = Tool(name="slow", engine="temporal", workflow="SlowCompute", args=["{{seconds}}", "{{label}}"])
CALL: Mapping[str, Any] = {"seconds": 3600, "label": "a"}
RETENTION = timedelta(days=90)


async def connect(server: DevServer, namespace: str = "default") -> Client:
    return await Client.connect(server.address, namespace=namespace, runtime=quiet_runtime())


@asynccontextmanager
async def client_of(server: DevServer, folder: Path, queue: str, **settings: Any) -> AsyncGenerator[Peer]:
    """A client of a server whose workflows run on that engine."""
    temporal = TemporalSettings(address=server.address, task_queue=queue, **settings)
    engines = {"temporal": TemporalAdapter(temporal)}
    store = f"sqlite:///{folder}/tasks.db"
    async with site(store=store, tools=[SLOW], adapters=engines) as served, peer(served.url) as client:
        yield client


async def started(client: Peer) -> str:
    return (await client.call("slow", CALL)).result["taskId"]


async def recovered(client: Peer, task_id: str) -> Mapping[str, Any]:
    """The task once its engine is heard again."""
    with anyio.fail_after(60):
        while "engine temporal" in (seen := await client.get(task_id)).get("statusMessage", ""):
            await anyio.sleep(0.1)
    assert seen["status"] == "working"
    return seen


async def test_an_engine_that_hangs_is_told_in_time_and_the_task_goes_on(
    own_dev_server: DevServer, tmp_path: Path
) -> None:
    async with (
        Worker(await connect(own_dev_server), task_queue="q", workflows=ALL),
        client_of(own_dev_server, tmp_path, "q", timeout_seconds=2) as client,
    ):
        task_id = await started(client)
        own_dev_server.freeze()
        await told(client, task_id, "no answer since")
        for _ in range(10):
            with stopwatch() as seconds:
                assert "last known: " in (await client.get(task_id))["statusMessage"]
                assert seconds() < 1, "its silence is known"
        own_dev_server.thaw()
        await recovered(client, task_id)


@pytest.mark.slow
async def test_an_engine_that_throttles_ends_no_task_and_starts_nothing_twice(tmp_path: Path) -> None:
    config = {"frontend.namespaceRPS": "2", "frontend.namespaceBurstRatio": "1.0"}
    with DevServer(tmp_path, config=config) as server:
        async with client_of(server, tmp_path, "q", timeout_seconds=2) as client:
            key = {"mcp-workflows/idempotencyKey": "one-" * 8}
            answers: list[Mapping[str, Any]] = []

            async def call() -> None:
                answers.append((await client.call("slow", CALL, meta=key)).result)

            async with anyio.create_task_group() as group:
                for _ in range(20):
                    group.start_soon(call)
            tasks = {answer["taskId"] for answer in answers if answer["resultType"] == "task"}
            refused = [answer for answer in answers if answer["resultType"] != "task"]
            assert len(tasks) == 1, (tasks, refused)
            assert refused == []
            (task_id,) = tasks
            for _ in range(20):
                assert (await client.get(task_id))["status"] == "working"
            assert await throttled(server)
    # how often it was started is counted without the limit
    with DevServer(tmp_path) as server:
        temporal = await connect(server)
        with anyio.fail_after(60):
            while (count := (await temporal.count_workflows("TaskQueue = 'q'")).count) == 0:
                await anyio.sleep(0.2)
        assert count == 1


async def throttled(server: DevServer) -> bool:
    """Whether the engine really turns calls away."""
    temporal = await connect(server)
    nothing = WorkflowExecution(workflow_id="nothing")
    request = DescribeWorkflowExecutionRequest(namespace="default", execution=nothing)
    with anyio.fail_after(60):
        while True:
            try:
                await temporal.workflow_service.describe_workflow_execution(request)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    return error.status is RPCStatusCode.RESOURCE_EXHAUSTED
