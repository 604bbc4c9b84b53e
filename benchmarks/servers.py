"""The servers that `make bench` compares: `python -m benchmarks.servers KIND PORT FOLDER`.

All have the same SDK, HTTP server and event loop; their handlers are ours, or the least one could write.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import mcp_types as types
import uvicorn
from mcp.server import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp_workflows_temporal import TemporalAdapter, TemporalSettings
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest
from temporalio.client import Client

from benchmarks.rounds import pin
from mcp_workflows import Tool, attach
from mcp_workflows.access.limit_settings import Limits
from mcp_workflows.adapter import Adapter
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.engines.polling.policy import DEFAULT_POLICY, PollingPolicy

QUEUE = "conformance"  # the sample whose worker serves the workflows
UNLIMITED = PollingPolicy(polls_per_second=float("inf"))  # an engine in memory needs no limit
UNCACHED = PollingPolicy(polls_per_second=float("inf"), fresh_for=0)
UNREACHED = {"tasks_per_principal": 1_000_000, "creates_per_minute": 1_000_000, "polls_per_minute": 1_000_000_000}
"""Limits of a configuration that are checked as shipped, and never reached."""
_NAME = "memory-echo-0123456789abcdef0123456789abcdef"
_META = {"engine": "engine", "workflow": "echo", "executionId": _NAME, "url": f"memory:memory/{_NAME}"}
TASK = {
    "taskId": "bench",
    "status": "completed",
    "createdAt": "2026-01-01T00:00:00.000Z",
    "lastUpdatedAt": "2026-01-01T00:00:01.000Z",
    "ttlMs": 7776000000,
    "pollIntervalMs": 250,
    "_meta": {f"mcp-workflows/{name}": value for name, value in _META.items()},
    "result": {"content": [{"type": "text", "text": '{"a": 1}'}], "structuredContent": {"a": 1}, "isError": False},
    "resultType": "complete",
}


class TaskParams(types.RequestParams):
    """The parameters of `tasks/get`."""

    task_id: str


Served: TypeAlias = tuple[Server[Any], Sequence[Route]]


def memory(store: str) -> Served:
    """Serve ours on the engine in memory; `/calls` returns the number of its calls, by verb."""
    adapter = MemoryAdapter(MemorySettings())
    tools = [Tool(name="echo", engine="engine", workflow="echo")]

    async def calls(_: Request) -> JSONResponse:
        return JSONResponse(dict(adapter.calls))

    return _ours(store, adapter, tools, UNLIMITED), [Route("/calls", calls)]


def temporal(store: str, polling: PollingPolicy = DEFAULT_POLICY) -> Served:
    """Serve ours on Temporal."""
    adapter = TemporalAdapter(TemporalSettings(address=os.environ["TEMPORAL_ADDRESS"], task_queue=QUEUE))
    tools = [
        Tool(name="slow", engine="engine", workflow="SlowCompute", args=["{{seconds}}"]),
        Tool(name="parked", engine="engine", workflow="SlowCompute", args=["{{seconds}}"], options=_PARKED),
    ]
    return _ours(store, adapter, tools, polling), []


_PARKED: dict[str, Any] = {"task_queue": "nobody-polls-this"}  # for starts: no worker shares the cores with them


def _ours(store: str, adapter: Adapter, tools: Sequence[Tool], polling: PollingPolicy) -> Server[Any]:
    @asynccontextmanager
    async def lifespan(_: Server[Any]) -> AsyncGenerator[None]:
        async with workflows:
            yield

    listening = ListenHandler(InMemorySubscriptionBus())
    server: Server[Any] = Server("bench", version="1", lifespan=lifespan, on_subscriptions_listen=listening)
    limits, engines = Limits.model_validate(UNREACHED), {"engine": adapter}
    workflows = attach(server, tools=tools, engines=engines, store=store, polling=polling, limits=limits)
    return server


def bare() -> Served:
    """Serve `tasks/get` from a dict, and nothing else."""
    tasks = {"bench": TASK}

    async def get(context: ServerRequestContext[Any, Any], params: TaskParams) -> dict[str, Any]:
        return tasks[params.task_id]

    server: Server[Any] = Server("bench", version="1")
    server.add_request_handler("tasks/get", TaskParams, get)
    return server, []


@dataclass(frozen=True, slots=True, kw_only=True)
class Naive:
    """A client of Temporal and a table of tasks."""

    client: Client
    rows: sqlite3.Connection

    async def get(self, context: ServerRequestContext[Any, Any], params: TaskParams) -> dict[str, Any]:
        """Answer `tasks/get`: one SELECT, one describe."""
        found = self.rows.execute("SELECT task FROM tasks WHERE id = ?", (params.task_id,)).fetchone()
        row: Mapping[str, Any] = json.loads(found[0])
        execution = WorkflowExecution(workflow_id=row["workflow"])
        asked = DescribeWorkflowExecutionRequest(namespace=self.client.namespace, execution=execution)
        info = (await self.client.workflow_service.describe_workflow_execution(asked)).workflow_execution_info
        memo = await self.client.data_converter.decode(list(info.memo.fields.values()))
        return {
            "taskId": params.task_id,
            "status": "working" if info.status == 1 else "completed",
            "statusMessage": str(memo[0]) if memo else None,
            "createdAt": info.start_time.ToJsonString(),
            "lastUpdatedAt": info.start_time.ToJsonString(),
            "ttlMs": None,
            "pollIntervalMs": 1000,
            "_meta": {"engine": "engine", "workflow": info.type.name, "executionId": row["workflow"]},
        }

    async def call(self, context: ServerRequestContext[Any, Any], params: types.CallToolRequestParams) -> Any:
        """Answer `tools/call`: one start, and a row for `get`, not written to disk before the reply."""
        arguments, queue = params.arguments or {}, _PARKED["task_queue"] if params.name == "parked" else QUEUE
        name = uuid.uuid4().hex
        await self.client.start_workflow("SlowCompute", args=[arguments["seconds"]], id=name, task_queue=queue)
        self.rows.execute("INSERT INTO tasks VALUES (?, ?)", (name, json.dumps({"workflow": name})))
        return types.CallToolResult(content=[types.TextContent(type="text", text=name)])


def naive() -> Served:
    """Serve the least one could write on Temporal."""
    rows = sqlite3.connect(":memory:", isolation_level=None)
    rows.execute("CREATE TABLE tasks (id TEXT PRIMARY KEY, task TEXT)")

    @asynccontextmanager
    async def lifespan(server: Server[Naive]) -> AsyncGenerator[Naive]:
        found = Naive(client=await Client.connect(os.environ["TEMPORAL_ADDRESS"]), rows=rows)
        server.add_request_handler("tasks/get", TaskParams, found.get)
        server.add_request_handler("tools/call", types.CallToolRequestParams, found.call)
        yield found

    server: Server[Naive] = Server("bench", version="1", lifespan=lifespan)
    return server, []


def main() -> None:
    """Serve on core 0."""
    kind, port, folder = sys.argv[1:]
    pin(0)
    store = f"sqlite:///{folder}/{uuid.uuid4().hex}.db"
    kinds: Mapping[str, Callable[[], Served]] = {
        "memory": partial(memory, store),
        "volatile": partial(memory, "sqlite:///:memory:"),  # nothing is written to disk
        "temporal": partial(temporal, store),
        "uncached": partial(temporal, store, UNCACHED),
        "bare": bare,
        "naive": naive,
    }
    server, routes = kinds[kind]()
    app = server.streamable_http_app(custom_starlette_routes=list(routes))
    options: Mapping[str, Any] = {"loop": "uvloop", "http": "httptools", "timeout_keep_alive": 600}
    uvicorn.run(app, port=int(port), log_level="warning", access_log=False, **options)


if __name__ == "__main__":
    main()
