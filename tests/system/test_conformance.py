"""The official conformance suite, as `make conformance` runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

needs_suite = pytest.mark.skipif(
    not (ROOT / "node_modules" / ".ready").exists(), reason="the suite is not installed: make conformance does it"
)


def _conformance(*options: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "scripts.conformance", *options]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


@needs_suite
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["temporal", "stepfunctions", "google"])
def test_all_checks_of_the_tasks_scenarios_and_of_events_pass(engine: str) -> None:
    done = _conformance("--engine", engine)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "44 of 44 checks passed" in done.stdout
    assert "Events: 71 of 73 checks passed, 2 were skipped" in done.stdout  # there is one caller, who is known


@needs_suite
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["temporal", "stepfunctions", "google"])
@pytest.mark.parametrize(("revision", "passed"), [("2025-11-25", "16 of 30"), ("2026-07-28", "21 of 37")])
def test_every_miss_of_what_a_revision_requires_of_any_server_is_explained(
    revision: str, passed: str, engine: str
) -> None:
    done = _conformance("--engine", engine, "--requirements", revision)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"\n{passed} scored scenarios passed" in done.stdout
