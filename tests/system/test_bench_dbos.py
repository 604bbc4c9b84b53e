"""`make bench ENGINE=dbos` with our side alone, so that it stays runnable; and the engines that `make bench` names."""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path

import pytest

from scripts import bench_dbos
from scripts.bench import GOALS
from scripts.bench_dbos import HALF, ours, running, survivors
from scripts.bench_place import Place
from tests.support.environments import ROOT


@pytest.fixture
def place(tmp_path: Path) -> Generator[Place]:
    with Place(tmp_path, tmp_path / "out") as found:
        yield found


def test_make_help_names_every_engine_of_the_bench() -> None:
    line = re.search(r"^bench:.* ENGINE=(\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert line is not None
    assert sorted(line[1].split("|")) == sorted(GOALS)


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_no_task_of_ours_is_lost_whatever_is_killed(place: Place) -> None:
    found = survivors(place, ours("ours"))
    assert set(found.left.values()) == {2 * HALF}
    assert found.repeated < HALF


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_the_end_of_each_workflow_is_told_in_every_way(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_dbos, "ENDS", 2)
    with running(place, ours("ours")) as processes:
        port = processes.servers[0].port
        lags = [lag for way in bench_dbos.WAYS.values() for lag in way(port)]
    assert len(lags) == 2 * len(bench_dbos.WAYS)
