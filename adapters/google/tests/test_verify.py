"""`mcp-workflows verify` on the local engine: it leaves nothing behind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from adapters.google.tests.configured import configured
from tests.support.child_processes import free_port
from tests.support.commands import COMMAND, run
from tests.support.google_engine import GoogleEngine

TOOLS: Mapping[str, Mapping[str, Any]] = {"ask": {"workflow": "ask"}}


@pytest.mark.slow
def test_all_promises_hold_on_the_local_engine_and_nothing_stays_behind(
    own_google_engine: GoogleEngine, tmp_path: Path
) -> None:
    engine = own_google_engine
    config = configured(tmp_path, engine.address, TOOLS)
    done = run([COMMAND, "verify", "google", "-c", str(config), "--yes", "--json"], seconds=180)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    not_tried = [each["seen"] for each in found["promises"] if each["verdict"] == "not tried"]
    assert [each for each in not_tried if each.startswith("no answer")] == []
    assert len([each for each in not_tried if each.startswith("name a sidecar")]) == 1
    assert len(found["promises"]) > 70
    assert "found after (s, longest)" in found["measured"]
    assert not list(engine.workflows().list_workflows(parent=engine.place))


@pytest.mark.usefixtures("processes")
def test_where_nobody_answers_nothing_is_settled(tmp_path: Path) -> None:
    config = configured(tmp_path, f"127.0.0.1:{free_port()}", TOOLS, timeout_seconds=1, settle="10s")
    done = run([COMMAND, "verify", "google", "-c", str(config), "--yes"])
    assert (done.returncode, done.stdout) == (1, "")
    assert "127.0.0.1" in done.stderr
