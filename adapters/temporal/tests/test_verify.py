"""`mcp-workflows verify` on the dev server, and its recording, which replays as it was seen."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from mcp_workflows_temporal import TemporalAdapter

from mcp_workflows.adapter.recordings import Verdict, load_recording, replay_differences
from tests.support.commands import COMMAND, run
from tests.support.dev_server import DevServer

RECORDING = Path(__file__).parent / "recordings/verify.json"


def test_all_promises_hold_on_the_dev_server_and_nothing_runs_on(dev_server: DevServer, tmp_path: Path) -> None:
    config, file = tmp_path / "workflows.yaml", tmp_path / "recording.json"
    engine = {"adapter": "temporal", "address": dev_server.address, "grpc_meta": {"x-key": "s3cret-of-the-header"}}
    config.write_text(
        json.dumps({"engines": {"orders": engine}, "tools": {"echo": {"engine": "orders", "workflow": "Echo"}}})
    )
    done = run([COMMAND, "verify", "orders", "-c", str(config), "--yes", "--record", str(file)], seconds=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "does not replay" not in done.stderr
    recording = load_recording(file)
    counts = {verdict: sum(each.verdict is verdict for each in recording.promises) for verdict in Verdict}
    assert counts == {Verdict.HELD: 24, Verdict.BROKEN: 0, Verdict.NOT_TRIED: 4, Verdict.NOTED: 1}
    assert [each.part for each in recording.executions] == ["finishes", "fails", "endless", "asks"]
    written = file.read_text()
    assert "s3cret" not in written
    assert f"@{socket.gethostname()}" not in written
    query = "ExecutionStatus='Running' AND WorkflowType STARTS_WITH 'McpWorkflowsVerify'"
    listed = dev_server.cli("workflow", "count", "--query", query, "--output", "json")
    assert json.loads(listed.stdout).get("count", "0") in ("0", 0), listed.stdout + listed.stderr


def test_the_recording_replays_as_it_was_seen() -> None:
    recording = load_recording(RECORDING)
    assert replay_differences(TemporalAdapter, recording) == []
