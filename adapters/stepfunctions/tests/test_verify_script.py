"""scripts/verify-stepfunctions comes to the end of its table, and tells an engine that is other than assumed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stepfunctions_engine import ROLE, StepFunctions

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_the_table_is_filled_in_against_the_local_engine_and_nothing_stays_behind(
    stepfunctions: StepFunctions,
) -> None:
    before = stepfunctions.client().list_state_machines()["stateMachines"]
    command = [sys.executable, "-m", "scripts.verify_stepfunctions", "--role", ROLE, "--endpoint-url"]
    done = subprocess.run(
        [*command, stepfunctions.url],
        cwd=ROOT,
        env={**os.environ, **stepfunctions.environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 other than assumed" in done.stdout
    assert "could not be tried" not in done.stdout
    assert done.stdout.count("not tried") == 3  # a function, a queue and a role have to be named
    assert stepfunctions.client().list_state_machines()["stateMachines"] == before
