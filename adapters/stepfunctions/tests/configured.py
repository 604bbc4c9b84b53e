"""A workflows.yaml over an engine of the tests, clients of the sidecar that it makes, and what those do most."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from mcp_workflows.config import load_config
from mcp_workflows.sidecar import build, http_app
from tests.served import Peer, peer, serving
from tests.stepfunctions_engine import REGION, StepFunctions

KEY: Final = {"mcp-workflows/idempotencyKey": "order-1"}
YES: Final = {"action": "accept", "content": {"answer": "yes"}}


def configured(
    folder: Path,
    url: str,
    tools: Mapping[str, Mapping[str, Any]],
    server: Mapping[str, Any] | None = None,
    **engine: Any,
) -> Path:
    """These tools of the engine `aws` at this URL, with a store beside it; `engine` adds to its settings."""
    settings = {"adapter": "stepfunctions", "region": REGION, "endpoint_url": url, **engine}
    written = {
        "server": {"name": "tests", **(server or {})},
        "store": "sqlite:///tasks.db",
        "engines": {"aws": settings},
        "tools": {name: {"engine": "aws", **tool} for name, tool in tools.items()},
    }
    path = folder / "workflows.yaml"
    path.write_text(json.dumps(written, indent=2))  # JSON is YAML
    return path


@asynccontextmanager
async def client_of(config: Path) -> AsyncGenerator[Peer]:
    """A client of a sidecar in this process."""
    loaded = load_config(config, {})
    async with serving(http_app(build(loaded), loaded, "127.0.0.1", 0)) as url, peer(url) as client:
        yield client


async def called(client: Peer, **more: Any) -> str:
    return str((await client.call("it", {"order_id": "A1"}, **more)).result["taskId"])


def executions(engine: StepFunctions, machine: str) -> list[str]:
    found = engine.client().list_executions(stateMachineArn=machine)["executions"]
    return [each["executionArn"] for each in found]


def types(engine: StepFunctions, execution: str) -> list[str]:
    history = engine.client().get_execution_history(executionArn=execution, maxResults=1000)
    return [event["type"] for event in history["events"]]


async def asked(client: Peer, task_id: str) -> tuple[str, Mapping[str, Any]]:
    """The one question that is open."""
    [(key, question)] = (await client.until(task_id, "input_required"))["inputRequests"].items()
    return key, question
