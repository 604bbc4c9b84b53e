"""`mcp-workflows verify` on the local engine: it leaves nothing behind, and its recording replays as it was seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from mcp_workflows_google import GoogleAdapter

from adapters.google.tests.configured import configured
from mcp_workflows.adapter import Replays
from mcp_workflows.adapter.recordings import Verdict, load_recording, replay_differences
from mcp_workflows.errors import ConfigError
from scripts.processes import free_port
from tests.support.commands import COMMAND, run
from tests.support.google_engine import NUMBER, GoogleEngine

TOOLS: Mapping[str, Mapping[str, Any]] = {"ask": {"workflow": "ask"}}
NO_HISTORIES: Sequence[Any] = [[], {}, {"looks": []}, {"looks": [1]}, {"looks": [{"execution": {"state": []}}]}]
RECORDING = Path(__file__).parent / "recordings/verify.json"


@pytest.mark.slow
def test_all_promises_hold_on_the_local_engine_and_nothing_stays_behind(
    own_google_engine: GoogleEngine, tmp_path: Path
) -> None:
    engine, file = own_google_engine, tmp_path / "recording.json"
    config = configured(tmp_path, engine.address, TOOLS)
    done = run([COMMAND, "verify", "google", "-c", str(config), "--yes", "--record", str(file)], seconds=180)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "does not replay" not in done.stderr
    recording = load_recording(file)
    not_tried = [each.seen for each in recording.promises if each.verdict is Verdict.NOT_TRIED]
    assert [each for each in not_tried if each.startswith("no answer")] == []
    assert len([each for each in not_tried if each.startswith("name a sidecar")]) == 1
    assert len(recording.promises) > 70
    assert "found after (s, longest)" in recording.measured
    assert not {NUMBER, '"demo"', "projects/demo"} & set(file.read_text().split())
    assert not list(engine.workflows().list_workflows(parent=engine.place))


@pytest.mark.usefixtures("processes")
def test_where_nobody_answers_nothing_is_settled(tmp_path: Path) -> None:
    config = configured(tmp_path, f"127.0.0.1:{free_port()}", TOOLS, timeout_seconds=1, settle="10s")
    done = run([COMMAND, "verify", "google", "-c", str(config), "--yes"])
    assert (done.returncode, done.stdout) == (1, "")
    assert "127.0.0.1" in done.stderr


def test_the_recording_replays_as_it_was_seen() -> None:
    recording = load_recording(RECORDING)
    assert issubclass(GoogleAdapter, Replays)
    assert [each.part for each in recording.executions] == ["finishes", "fails", "endless"]
    assert replay_differences(GoogleAdapter, recording) == []


@pytest.mark.parametrize("history", NO_HISTORIES)
def test_what_is_no_recording_is_refused(history: Any) -> None:
    with pytest.raises(ConfigError, match="this is not a history of Google Workflows"):
        GoogleAdapter.replay(history, {})
