"""Checks: can this run now, and if not, what to do; and `mcp-workflows check --live` on the dev server."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from mcp_workflows_temporal import TemporalAdapter, TemporalSettings
from temporalio.client import Client

from adapters.temporal.tests.scene import Scene, open_adapter, plan
from mcp_workflows.adapter import Ref, Status
from tests.support.commands import COMMAND, run
from tests.support.dev_server import DevServer


async def test_a_queue_nobody_polls_is_found_with_what_waits_there_and_what_to_do(scene: Scene) -> None:
    await scene.start("Waits")
    finding = await scene.adapter.tooling.check("Waits", {})
    assert not finding.ok
    assert finding.text.startswith(f"nobody polls task queue {scene.queue}")
    assert finding.hint == f"start a worker on task queue {scene.queue} in namespace default"


async def test_a_queue_that_is_polled_is_fine(working: Scene) -> None:
    await working.ended(await working.start("Echo"))
    finding = await working.adapter.tooling.check("Echo", {})
    assert finding.ok
    assert finding.text.startswith(f"1 worker polls task queue {working.queue}, last ")


async def test_a_tool_without_a_task_queue_is_found(dev_server: DevServer) -> None:
    async with open_adapter(dev_server) as adapter:
        finding = await adapter.tooling.check("Waits", {})
        assert (finding.ok, finding.text) == (False, "Waits has no task queue")
        wrong = await adapter.tooling.check("Waits", {"queue": "q"})
        assert not wrong.ok


async def test_an_own_client_is_used_and_left_open(client: Client) -> None:
    scene = Scene.new(client)
    adapter = TemporalAdapter.from_client(client, settings=TemporalSettings(task_queue=scene.queue))
    async with adapter:
        assert adapter.identity == "temporal:default"
        ref = Ref(workflow="Echo", handle=await adapter.start(plan("Echo", 1)))
    async with scene.worker(), TemporalAdapter.from_client(client) as again:
        seen = await scene.on(again).ended(ref)
    assert (seen.status, seen.output) == (Status.SUCCEEDED, 1)


@pytest.mark.slow  # the contract shows the same promises
def test_all_promises_hold_on_the_dev_server_and_nothing_runs_on(dev_server: DevServer, tmp_path: Path) -> None:
    config = tmp_path / "workflows.yaml"
    engine = {"adapter": "temporal", "address": dev_server.address, "grpc_meta": {"x-key": "s3cret-of-the-header"}}
    config.write_text(
        json.dumps({"engines": {"orders": engine}, "tools": {"echo": {"engine": "orders", "workflow": "Echo"}}})
    )
    done = run([COMMAND, "check", "--live", "orders", "-c", str(config), "--yes", "--json"], seconds=120)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = Counter(each["verdict"] for each in json.loads(done.stdout)["promises"])
    assert counts == {"held": 26, "not tried": 4, "noted": 1}
    assert "s3cret" not in done.stdout + done.stderr
    query = "ExecutionStatus='Running' AND WorkflowType STARTS_WITH 'McpWorkflowsVerify'"
    listed = dev_server.cli("workflow", "count", "--query", query, "--output", "json")
    assert json.loads(listed.stdout).get("count", "0") in ("0", 0), listed.stdout + listed.stderr
