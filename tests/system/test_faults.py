"""What a client sees when things go wrong between us and a real Temporal: the last state, in time, with a reason."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_workflows_temporal import TemporalAdapter, TemporalSettings
from mcp_workflows_temporal.connection import quiet_runtime
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest, DescribeWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker

from mcp_workflows import Tool
from mcp_workflows.access import ANONYMOUS
from mcp_workflows.engines.registry import Engines
from mcp_workflows.store.protocol import open_store
from mcp_workflows.tasks.executions import Executions
from mcp_workflows.tasks.service import TaskService
from mcp_workflows.wire.commands import Call, Created, TaskView
from samples.conformance.workflows import ALL
from tests.support.dev_server import DevServer
from tests.support.served import Peer, peer, site, told
from tests.support.stopwatch import stopwatch
from tests.support.turnstile import turnstile

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


async def test_a_namespace_that_is_removed_ends_no_task(own_dev_server: DevServer, tmp_path: Path) -> None:
    assert own_dev_server.cli("operator", "namespace", "create", "shop").returncode == 0
    async with client_of(own_dev_server, tmp_path, "q", namespace="shop") as client:
        task_id = await created_when_the_namespace_is_known(client)
        done = own_dev_server.cli("operator", "namespace", "delete", "shop", "--yes")
        assert done.returncode == 0, done.stderr
        await told(client, task_id, "no namespace 'shop'")


async def created_when_the_namespace_is_known(client: Peer) -> str:
    """Temporal's frontends learn of a new namespace only after some seconds."""
    with anyio.fail_after(60):
        while True:
            result = (await client.call("slow", CALL)).result
            if result["resultType"] == "task":
                return str(result["taskId"])
            assert "no namespace" in str(result)
            await anyio.sleep(0.3)


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
        with anyio.fail_after(30):
            while (count := (await temporal.count_workflows("TaskQueue = 'q'")).count) == 0:
                await anyio.sleep(0.2)
        assert count == 1


async def throttled(server: DevServer) -> bool:
    """Whether the engine really turns calls away."""
    temporal = await connect(server)
    nothing = WorkflowExecution(workflow_id="nothing")
    request = DescribeWorkflowExecutionRequest(namespace="default", execution=nothing)
    with anyio.fail_after(30):
        while True:
            try:
                await temporal.workflow_service.describe_workflow_execution(request)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    return error.status is RPCStatusCode.RESOURCE_EXHAUSTED


@asynccontextmanager
async def clocked(server: DevServer, folder: Path, clock: Callable[[], datetime]) -> AsyncGenerator[TaskService]:
    """The inside of a sidecar whose clock is ours."""
    adapter = TemporalAdapter(TemporalSettings(address=server.address, task_queue=f"q-{uuid.uuid4().hex}"))
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(f"sqlite:///{folder}/tasks.db"))
        engines = await stack.enter_async_context(Engines({"temporal": adapter}))
        executions = Executions(store=store, engines=engines, retention=RETENTION, clock=clock)
        await stack.enter_async_context(executions)
        yield TaskService(tools={"slow": SLOW}, executions=executions, retention=RETENTION)


async def _quiet(_: object) -> None:
    """Nobody asked for progress."""


async def begin(service: TaskService) -> TaskView:
    outcome = await service.call(
        Call(tool="slow", arguments=CALL, takes_tasks=True, takes_questions=True), ANONYMOUS, _quiet
    )
    assert isinstance(outcome, Created), outcome
    return outcome.task


async def until(service: TaskService, task_id: str, wanted: Callable[[TaskView], bool]) -> TaskView:
    with anyio.fail_after(60):
        while not wanted(seen := (await service.get(task_id, ANONYMOUS))):
            await anyio.sleep(0.1)
    return seen


async def test_an_execution_that_is_deleted_is_a_task_whose_outcome_is_not_known(
    dev_server: DevServer, tmp_path: Path
) -> None:
    ahead = timedelta(0)
    async with clocked(dev_server, tmp_path, lambda: datetime.now(UTC) + ahead) as service:
        task = await begin(service)
        seen = await until(service, task.task_id, lambda seen: "mcp-workflows/executionId" in seen.meta)
        temporal = await connect(dev_server)
        execution = WorkflowExecution(workflow_id=seen.meta["mcp-workflows/executionId"])
        request = DeleteWorkflowExecutionRequest(namespace="default", workflow_execution=execution)
        await temporal.workflow_service.delete_workflow_execution(request)
        seen = await until(service, task.task_id, lambda seen: "does not show the execution" in (seen.message or ""))
        assert seen.error is None, "a new execution may only be late"
        ahead = timedelta(minutes=2)
        gone = await until(service, task.task_id, lambda seen: seen.error is not None)
    assert gone.error is not None
    assert "its outcome is not known" in gone.error.message


async def test_a_clock_that_is_set_back_ends_nothing_and_forgets_nothing(dev_server: DevServer, tmp_path: Path) -> None:
    ahead = timedelta(0)
    async with clocked(dev_server, tmp_path, lambda: datetime.now(UTC) + ahead) as service:
        task = await begin(service)
        ahead = -timedelta(hours=3)
        seen = await until(service, task.task_id, lambda seen: "mcp-workflows/executionId" in seen.meta)
        assert seen.error is None
        assert seen.poll_interval_ms > 0
        another = await begin(service)
        assert another.task_id != task.task_id
        ahead = timedelta(0)
        assert (await service.get(another.task_id, ANONYMOUS)).error is None


async def test_a_permission_that_is_taken_away_ends_no_task(dev_server: DevServer, tmp_path: Path) -> None:
    async with turnstile(dev_server.port) as gate:
        settings = TemporalSettings(address=f"127.0.0.1:{gate.port}", task_queue=f"q-{uuid.uuid4().hex}")
        engines = {"temporal": TemporalAdapter(settings)}
        async with (
            site(store=f"sqlite:///{tmp_path}/tasks.db", tools=[SLOW], adapters=engines) as served,
            peer(served.url) as client,
        ):
            task_id = await started(client)
            await gate.turn(denying=True)
            seen = await told(client, task_id, "our credentials do not allow this")
            assert "token hush-hush" not in str(seen)
            refused = (await client.call("slow", CALL)).result
            assert "our credentials do not allow this" in str(refused)
            await gate.turn(denying=False)
            await recovered(client, task_id)
