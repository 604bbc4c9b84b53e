"""`mcp-workflows verify` on the local engine: it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from adapters.stepfunctions.tests.configured import configured
from tests.support.commands import COMMAND, run, start
from tests.support.stepfunctions_engine import ROLE, StepFunctions

TOOLS: Mapping[str, Mapping[str, Any]] = {"ask": {"workflow": "ask"}}


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
    engine = own_stepfunctions
    done = run(command(tmp_path, engine, "--json"), env=environ(engine), seconds=120)
    assert done.returncode == 0, done.stdout + done.stderr
    promises = json.loads(done.stdout)["promises"]
    not_tried = [each["seen"] for each in promises if each["verdict"] == "not tried"]
    assert [each for each in not_tried if each.startswith("no answer")] == []
    assert sum("--set " in each for each in not_tried) == 3  # a function, a queue and a role have to be named
    assert len(promises) > 50
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
