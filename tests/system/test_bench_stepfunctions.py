"""`make bench ENGINE=stepfunctions` with a few executions instead of 10,000, so that it stays runnable."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest

from scripts.bench_stepfunctions_control import CREDENTIALS, Control
from scripts.bench_stepfunctions_load import Size, followed
from tests.support.child_processes import Child, Command, free_port, stop_all
from tests.support.environments import ROOT

FEW = Size(tasks=300, settling=1, measured=5, ending=6, asking=3)

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
async def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Control]:
    """The stub of AWS."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    control = Control(free_port())
    argv = [sys.executable, "-m", "scripts.bench_stepfunctions_stub", str(control.port)]
    child = Child(Command(name="stub", argv=argv, cwd=ROOT, env={}), tmp_path / "stub.log")
    try:
        with anyio.fail_after(30):
            while not control.answers():
                child.check()
                await anyio.sleep(0.05)
        yield control
    finally:
        control.close()
        stop_all([child])


async def test_listeners_hear_of_every_end_and_question_within_half_of_the_quota(stub: Control, tmp_path: Path) -> None:
    found = await followed(stub, tmp_path, hints=True, size=FEW)
    assert (found["ends_untold"], found["questions_untold"]) == (0, 0)
    assert {api: seen["refused"] for api, seen in found["apis"].items()} == {
        "DescribeExecution": 0,
        "GetExecutionHistory": 0,
        "ListExecutions": 0,
    }
