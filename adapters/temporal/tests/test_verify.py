"""`mcp-workflows verify` on the dev server."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from tests.support.commands import COMMAND, run
from tests.support.dev_server import DevServer


def test_all_promises_hold_on_the_dev_server_and_nothing_runs_on(dev_server: DevServer, tmp_path: Path) -> None:
    config = tmp_path / "workflows.yaml"
    engine = {"adapter": "temporal", "address": dev_server.address, "grpc_meta": {"x-key": "s3cret-of-the-header"}}
    config.write_text(
        json.dumps({"engines": {"orders": engine}, "tools": {"echo": {"engine": "orders", "workflow": "Echo"}}})
    )
    done = run([COMMAND, "verify", "orders", "-c", str(config), "--yes", "--json"], seconds=120)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = Counter(each["verdict"] for each in json.loads(done.stdout)["promises"])
    assert counts == {"held": 24, "not tried": 4, "noted": 1}
    assert "s3cret" not in done.stdout + done.stderr
    query = "ExecutionStatus='Running' AND WorkflowType STARTS_WITH 'McpWorkflowsVerify'"
    listed = dev_server.cli("workflow", "count", "--query", query, "--output", "json")
    assert json.loads(listed.stdout).get("count", "0") in ("0", 0), listed.stdout + listed.stderr
