"""The local engine in this process, for a test that wants one of its own and does not kill it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc.aio
from google.cloud import workflows_v1
from google.cloud.workflows import executions_v1
from google.cloud.workflows.executions_v1.services.executions.transports import ExecutionsGrpcAsyncIOTransport
from google.cloud.workflows_v1.services.workflows.transports import WorkflowsGrpcAsyncIOTransport
from mcp_workflows_google_local.project import Home
from mcp_workflows_google_local.server import Settings, serving

from tests.support.child_processes import free_port
from tests.support.google_engine import LOCATION, NUMBER, PROJECT


@dataclass(frozen=True, slots=True, kw_only=True)
class InProcess:
    """An engine and the official asynchronous clients of it; Any: their methods are typed in part only."""

    url: str
    executions: Any
    workflows: Any

    async def deploy(self, workflow: str, source: str) -> str:
        """Deploy a workflow under this id, and answer its resource name."""
        operation = await self.workflows.create_workflow(
            parent=f"projects/{PROJECT}/locations/{LOCATION}",
            workflow=workflows_v1.Workflow(source_contents=source),
            workflow_id=workflow,
            timeout=60,
        )
        return str((await operation.result(timeout=60)).name)

    async def execute(self, workflow: str, argument: Any = None) -> str:
        """Start an execution, and answer its resource name."""
        execution = executions_v1.Execution(argument=json.dumps(argument))
        return str((await self.executions.create_execution(parent=workflow, execution=execution, timeout=60)).name)

    async def seen(self, name: str) -> Any:
        """What GetExecution answers."""
        return await self.executions.get_execution(name=name, timeout=60)

    async def states(self, *names: str) -> Sequence[Any]:
        """Their states."""
        return [(await self.seen(name)).state for name in names]


@asynccontextmanager
async def local_engine(
    *,
    port: int | None = None,
    database: Path | None = None,
    deploy: Sequence[Path] = (),
    most: int | None = None,
    reached: str | None = None,
    env: Mapping[str, str] = MappingProxyType({}),
    labels: Mapping[str, str] = MappingProxyType({}),
) -> AsyncGenerator[InProcess]:
    """Serve on a free port, or this one."""
    home = Home(project=PROJECT, number=NUMBER, location=LOCATION)
    port = port or free_port()
    settings = Settings(
        host="127.0.0.1",
        port=port,
        home=home,
        database=database,
        deploy=deploy,
        env=env,
        labels=labels,
        most=most,
        reached=reached,
    )
    async with serving(settings), grpc.aio.insecure_channel(settings.address) as channel:
        yield InProcess(
            url=f"http://{settings.address}",
            executions=executions_v1.ExecutionsAsyncClient(transport=ExecutionsGrpcAsyncIOTransport(channel=channel)),
            workflows=workflows_v1.WorkflowsAsyncClient(transport=WorkflowsGrpcAsyncIOTransport(channel=channel)),
        )
