"""scripts/verify-google comes to the end of its table, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.processes import free_port
from tests.support.google_engine import LOCATION, GoogleEngine

ROOT = Path(__file__).parents[3]


def verify(address: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scripts.verify_google", "--location", LOCATION, "--emulator", address],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_the_table_is_filled_in_against_the_local_engine_and_nothing_stays_behind(
    own_google_engine: GoogleEngine,
) -> None:
    done = verify(own_google_engine.address)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 other than assumed" in done.stdout
    assert "could not be tried" not in done.stdout
    assert done.stdout.count("not tried") == 1  # a sidecar has to be named
    assert not list(own_google_engine.workflows().list_workflows(parent=own_google_engine.place))


@pytest.mark.slow
def test_where_nobody_answers_nothing_is_settled() -> None:
    done = verify(f"127.0.0.1:{free_port()}")
    assert done.returncode == 1
    assert "verify-google: " in done.stdout
    assert "as assumed" not in done.stdout
