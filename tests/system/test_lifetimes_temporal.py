"""cancel: {grace, then: terminate} with the real Temporal server: for a workflow that nobody works on."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_workflows_temporal.connection import quiet_runtime
from temporalio.client import Client, WorkflowExecutionStatus

from mcp_workflows.sidecar.config.load import load_config
from tests.support.dev_server import DevServer
from tests.support.served import Peer, peer, site
from tests.support.sidecars import sidecar

pytestmark = pytest.mark.anyio

GRACE = 1  # s
WORKFLOWS_YAML = """
store: sqlite:///tasks.db
engines:
  temporal: {{adapter: temporal, address: "{address}", task_queue: {queue}}}
tools:
  unattended:
    engine: temporal
    workflow: NobodysWorkflow
    cancel: {{grace: {grace}s, then: terminate}}
"""


def write_config(folder: Path, server: DevServer, grace: int = GRACE) -> Path:
    config = folder / "workflows.yaml"
    queue = f"nobody-{uuid.uuid4().hex}"
    config.write_text(WORKFLOWS_YAML.format(address=server.address, queue=queue, grace=grace))
    return config


async def cancelled(client: Peer) -> str:
    """A task that was asked to cancel, which nobody is there to do."""
    task_id: str = (await client.call("unattended")).result["taskId"]
    await client.send("tasks/cancel", {"taskId": task_id})
    return task_id


async def closed(server: DevServer, task: Any) -> WorkflowExecutionStatus | None:
    client = await Client.connect(server.address, runtime=quiet_runtime())
    workflow_id = task["_meta"]["mcp-workflows/executionId"].partition("/")[0]
    return (await client.get_workflow_handle(workflow_id).describe()).status


async def test_a_workflow_that_does_not_end_in_its_grace_is_terminated(dev_server: DevServer, tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path, dev_server), {})
    adapters = {name: engine.kind(engine.settings) for name, engine in config.engines.items()}
    async with (
        site(store=config.store.url, tools=config.tools, adapters=adapters) as served,
        peer(served.url) as client,
    ):
        task_id = await cancelled(client)
        seen = await client.get(task_id)
        assert seen["status"] == "working"
        assert seen["statusMessage"].startswith("asked to cancel; will be terminated at ")
        ended = await client.until(task_id)
        assert ended["status"] == "cancelled"
        assert ended["statusMessage"] == "terminated: it had not ended within 1 s of being asked to cancel"
        assert await closed(dev_server, ended) is WorkflowExecutionStatus.TERMINATED


@pytest.mark.slow
async def test_a_sidecar_killed_in_between_leaves_it_to_the_next_one(dev_server: DevServer, tmp_path: Path) -> None:
    config = write_config(tmp_path, dev_server, 3)
    with sidecar(config) as before:
        async with peer(before.url) as client:
            task_id = await cancelled(client)
            seen = await client.get(task_id)
        before.process.kill()
    with sidecar(config) as after:
        with anyio.fail_after(60):
            while await closed(dev_server, seen) is not WorkflowExecutionStatus.TERMINATED:  # nobody asks us
                await anyio.sleep(0.1)
        async with peer(after.url) as client:
            assert (await client.get(task_id))["status"] == "cancelled"
