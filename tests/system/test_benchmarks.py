"""`make bench`: its stubs answer as the engines do, its goals are those of the page, and a small run works."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Generator
from pathlib import Path

import pytest

from benchmarks.__main__ import GOALS
from benchmarks.control import AWS_CREDENTIALS, MACHINE
from benchmarks.durability import HALF, ours, survivors
from benchmarks.events import delivery
from benchmarks.load import Mode, Size, adapter, load_lines, run_load
from benchmarks.place import Place
from mcp_workflows.adapter import Ref, Start, Status
from mcp_workflows.units import utc_now
from tests.support.environments import ROOT

FEW = Size(tasks=300, settling=1, measured=5, ending=6, asking=3)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Place]:
    for name, value in AWS_CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with Place(tmp_path) as found:
        yield found


def test_the_makefile_and_the_page_name_every_engine_and_goal() -> None:
    line = re.search(r"^bench:.* ENGINE=(\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert line is not None
    assert sorted(line[1].split("|")) == sorted(GOALS)
    page = (ROOT / "docs" / "why" / "benchmarks.md").read_text()
    assert {engine: re.findall(rf"^\| `{engine} ([\w-]+)` \|", page, re.MULTILINE) for engine in GOALS} == {
        engine: list(goals) for engine, goals in GOALS.items()
    }


@pytest.mark.parametrize("engine", ["stepfunctions", "google"])
async def test_a_stub_starts_lists_and_ends_executions_as_the_engine_does(place: Place, engine: str) -> None:
    with place.stub(engine) as control:
        async with adapter(engine, control.port) as there:
            handle = await there.start(
                Start(workflow=MACHINE, key="k" * 32, arguments={"sku": "A1"}, created=utc_now())
            )
            ref = Ref(workflow=MACHINE, handle=handle)
            assert (await there.describe(ref)).status is Status.RUNNING
            control.order(end=control.order())
            found = await there.describe(ref)
        assert (found.status, found.output) == (Status.SUCCEEDED, {"total": 1})
        assert "StartExecution" in (apis := {api for api, _ in control.report()["calls"]}) or "CreateExecution" in apis


@pytest.mark.slow
def test_a_small_load_notifies_every_client_within_the_quota(place: Place, tmp_path: Path) -> None:
    with place.stub("stepfunctions") as control:
        found = asyncio.run(run_load("stepfunctions", control, tmp_path, Mode.EVENTS, FEW))
    assert (found["ends_missed"], found["questions_missed"]) == (0, 0)
    assert [refused for _, _, _, refused in found["quotas"]] == [0, 0, 0]
    assert len(list(load_lines(found, Mode.EVENTS))) > len(found["quotas"])


@pytest.mark.slow
def test_each_of_a_few_ends_is_delivered_once(place: Place) -> None:
    measured = {line.what: line.measured for line in delivery(place, ends=20, subscriptions=30)}
    assert measured["events lost of 20"] == "0"
    assert measured["events delivered again"] == "0"


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["the server", "all processes", "one of two servers"])
def test_no_task_of_ours_is_lost_whatever_is_killed(place: Place, killed: str) -> None:
    left, repeated, _ = survivors(place, ours(), killed)
    assert left == 2 * HALF
    assert repeated < HALF
