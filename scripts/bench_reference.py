"""What `make bench` compares with: the least one could write. `tasks/get` is one describe, nothing is kept.

The same SDK, server and event loop as the sidecar's, so that the difference is what we add and what we save.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server import ServerRequestContext
from mcp.server.lowlevel import Server
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest
from temporalio.client import Client


class TaskParams(types.RequestParams):
    """The task's id is the workflow's id."""

    task_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Naive:
    """The state of the server: a client of the engine."""

    client: Client

    async def get(self, context: ServerRequestContext[Any, Any], params: TaskParams) -> dict[str, Any]:
        """`tasks/get`: ask the engine, every time."""
        execution = WorkflowExecution(workflow_id=params.task_id)
        asked = DescribeWorkflowExecutionRequest(namespace=self.client.namespace, execution=execution)
        found = await self.client.workflow_service.describe_workflow_execution(asked)
        info = found.workflow_execution_info
        return {
            "taskId": params.task_id,
            "status": "working" if info.status == 1 else "completed",
            "createdAt": info.start_time.ToJsonString(),
            "lastUpdatedAt": info.start_time.ToJsonString(),
            "ttlMs": None,
            "pollIntervalMs": 1000,
        }


@asynccontextmanager
async def lifespan(server: Server[Naive]) -> AsyncGenerator[Naive]:
    """Connect when the server starts."""
    naive = Naive(client=await Client.connect(os.environ["TEMPORAL_ADDRESS"]))
    server.add_request_handler("tasks/get", TaskParams, naive.get)
    yield naive


def main() -> None:
    """Serve on the port given."""
    server: Server[Naive] = Server("naive", lifespan=lifespan)
    app = server.streamable_http_app()
    uvicorn.run(app, port=int(sys.argv[1]), loop="uvloop", http="httptools", log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
