"""Real engines, each started once for all tests that ask for it."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from adapters.http.tests.airflow_engine import Airflow
from adapters.http.tests.buildbot_engine import Buildbot
from adapters.http.tests.prefect_engine import Prefect
from adapters.http.tests.toil_engine import Toil


@pytest.fixture(scope="session")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Generator[Airflow]:
    with Airflow(tmp_path_factory.mktemp("airflow")) as engine:
        yield engine


@pytest.fixture(scope="session")
def buildbot(tmp_path_factory: pytest.TempPathFactory) -> Generator[Buildbot]:
    with Buildbot(tmp_path_factory.mktemp("buildbot")) as engine:
        yield engine


@pytest.fixture(scope="session")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Generator[Prefect]:
    with Prefect(tmp_path_factory.mktemp("prefect")) as engine:
        yield engine


@pytest.fixture(scope="session")
def toil(tmp_path_factory: pytest.TempPathFactory) -> Generator[Toil]:
    with Toil(tmp_path_factory.mktemp("toil")) as engine:
        yield engine
