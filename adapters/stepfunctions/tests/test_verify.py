"""`mcp-workflows verify` on the local engine: it leaves nothing behind, and its recording replays as it was seen."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from mcp_workflows_stepfunctions import StepFunctionsAdapter

from adapters.stepfunctions.tests.configured import configured
from mcp_workflows.adapter.recordings import Verdict, load_recording, replay_differences
from tests.support.commands import COMMAND, run, start
from tests.support.stepfunctions_engine import ACCOUNT, ROLE, StepFunctions

TOOLS: Mapping[str, Mapping[str, Any]] = {"ask": {"workflow": "ask"}}
RECORDING = Path(__file__).parent / "recordings/verify.json"


def command(folder: Path, engine: StepFunctions, *more: str) -> list[str]:
    config = configured(folder, engine.url, TOOLS)
    return [COMMAND, "verify", "aws", "-c", str(config), "--yes", "--set", f"role={ROLE}", *more]


def environ(engine: StepFunctions) -> Mapping[str, str]:
    return {**os.environ, **engine.environ}


def machines(engine: StepFunctions) -> Sequence[str]:
    found: Sequence[Mapping[str, Any]] = engine.client().list_state_machines()["stateMachines"]
    return [each["name"] for each in found]


@pytest.mark.slow
def test_all_promises_hold_on_the_local_engine_and_nothing_stays_behind(
    own_stepfunctions: StepFunctions, tmp_path: Path
) -> None:
    file = tmp_path / "recording.json"
    engine = own_stepfunctions
    done = run(command(tmp_path, engine, "--record", str(file)), env=environ(engine), seconds=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "does not replay" not in done.stderr
    recording = load_recording(file)
    not_tried = [each.seen for each in recording.promises if each.verdict is Verdict.NOT_TRIED]
    assert [each for each in not_tried if each.startswith("no answer")] == []
    assert sum("--set " in each for each in not_tried) == 3  # a function, a queue and a role have to be named
    assert len(recording.promises) > 50
    assert ACCOUNT not in file.read_text()
    assert machines(engine) == []


@pytest.mark.slow
def test_an_interruption_removes_what_was_created_however_often_it_comes(
    own_stepfunctions: StepFunctions, tmp_path: Path
) -> None:
    engine, said = own_stepfunctions, tmp_path / "said.txt"
    with said.open("wb") as out:
        process = start(command(tmp_path, engine), env=environ(engine), stdout=out, stderr=out)
    deadline = time.monotonic() + 60
    while "held" not in said.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert machines(engine)
    for _ in range(2):  # a person who is in a hurry
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    assert process.wait(60) == 130, said.read_text()
    assert "interrupted; what was started has been ended" in said.read_text()
    assert machines(engine) == []


@pytest.mark.usefixtures("processes")
def test_an_engine_that_is_not_there_is_told_before_anything_is_created(tmp_path: Path) -> None:
    config = configured(tmp_path, "http://127.0.0.1:1", TOOLS)
    done = run([COMMAND, "verify", "aws", "-c", str(config), "--yes", "--set", f"role={ROLE}"])
    assert (done.returncode, done.stdout) == (1, "")
    assert "Step Functions at http://127.0.0.1:1" in done.stderr


def test_the_recording_replays_as_it_was_seen() -> None:
    recording = load_recording(RECORDING)
    assert [each.part for each in recording.executions] == ["finishes", "fails", "endless", "asks"]
    assert replay_differences(StepFunctionsAdapter, recording) == []


@pytest.mark.usefixtures("processes")
def test_the_command_replay_takes_a_recording(tmp_path: Path) -> None:
    config = configured(tmp_path, "http://127.0.0.1:1", TOOLS)
    words = [COMMAND, "replay", "ask", str(RECORDING), "-c", str(config)]
    shown = run(words).stdout
    assert shown.startswith("finishes:\nevent 1 working\n")
    assert "fails:\n" in shown
    assert "failed: CardDeclined: the card was declined" in shown
    assert "input_required: Ship it? (3); Ask" in shown
    told = json.loads(run([*words, "--json"]).stdout)
    assert [each["status"] for each in told if each["execution"] == "endless"][-1] == "cancelled"


@pytest.mark.usefixtures("processes")
def test_a_recording_of_another_adapter_is_refused(tmp_path: Path) -> None:
    config = configured(tmp_path, "http://127.0.0.1:1", TOOLS)
    other = tmp_path / "other.json"
    other.write_text(json.dumps({**json.loads(RECORDING.read_text()), "adapter": "temporal"}))
    done = run([COMMAND, "replay", "ask", str(other), "-c", str(config)])
    assert done.returncode == 1
    assert "was recorded with the adapter 'temporal', and this tool is on 'stepfunctions'" in done.stderr
