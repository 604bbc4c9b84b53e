"""`make bench ENGINE=google` with a few executions instead of 10,000, so that it stays runnable."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest

from scripts.bench_google_load import Control, followed
from scripts.bench_stepfunctions_load import Size
from tests.support.child_processes import Child, Command, free_port, stop_all
from tests.support.environments import ROOT

FEW = Size(tasks=300, settling=1, measured=5, ending=6)

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
async def stub(tmp_path: Path) -> AsyncGenerator[Control]:
    """The stub of Google."""
    control = Control(free_port())
    argv = [sys.executable, "-m", "scripts.bench_google_stub", control.address.rpartition(":")[2]]
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


async def test_listeners_hear_of_every_end_within_half_of_the_quota(stub: Control, tmp_path: Path) -> None:
    found = await followed(stub, tmp_path, size=FEW)
    assert found["ends_untold"] == 0
    assert {api: seen["busiest"] <= seen["quota"] for api, seen in found["apis"].items()} == {
        "GetExecution": True,
        "ListExecutions": True,
    }
