"""DbosAdapter keeps the laws of the boundary: no gaps."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest
from mcp_workflows_dbos import DbosAdapter, DbosSettings

from adapters.dbos.tests.postgres_server import binaries, new_database, postgres
from mcp_workflows.adapter import Ref
from mcp_workflows.errors import EngineUnavailable
from mcp_workflows.testing import AdapterContract, Role, Subject, lossy_proxy
from scripts.processes import free_port

ROOT = Path(__file__).resolve().parents[3]
FLOWS = "adapters.dbos.tests.flows"
APPLICATION = "mcp-adapters-dbos-tests-flows"
SECRET = "s3cret"


def in_process(url: str) -> DbosAdapter:
    """Return an adapter that runs the workflows of the tests itself."""
    return DbosAdapter(DbosSettings.model_validate({"module": FLOWS, "database": url}))


def nowhere() -> DbosAdapter:
    """Return an adapter whose database is not there."""
    url = f"postgresql://me:{SECRET}@127.0.0.1:{free_port()}/dbos"
    return DbosAdapter(DbosSettings.model_validate({"database": url, "queue": "work"}))


def subject_of(new_adapter: Callable[[], DbosAdapter], *, refused: str | None = "nobody_wrote_this") -> Subject:
    return Subject(
        new_adapter=new_adapter,
        finishes=Role(workflow="echo", arguments=[{"text": "hi"}]),
        output={"text": "hi"},
        other_arguments=[{"text": "ho"}],
        fails=Role(workflow="declines"),
        failure="the card was declined",
        endless=Role(workflow="forever"),
        asks=Role(workflow="approve"),
        asks_two=Role(workflow="approve_twice"),
        content={"answer": "yes"},
        refused=Role(workflow=refused) if refused else None,
        unknown_handle="nobody",
        unreachable=nowhere,
        secret=SECRET,
    )


class TestInThisProcess(AdapterContract):
    """Workflows in this process, on SQLite."""

    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        return subject_of(lambda: in_process(f"sqlite:///{tmp_path}/flows.db"))


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL server."""
    programs = binaries()
    if programs is None:
        pytest.skip("PostgreSQL is not installed here")
    with postgres(programs) as url:
        yield url


@pytest.mark.usefixtures("processes")
class TestOnPostgres(AdapterContract):
    """Workflows in this process, on PostgreSQL."""

    @pytest.fixture
    def subject(self, postgres_url: str) -> Subject:
        url = new_database(postgres_url)
        return subject_of(lambda: in_process(url))


@pytest.mark.usefixtures("processes")
class TestWorkersElsewhere(AdapterContract):
    """Workflows in another process, on PostgreSQL.

    No reply of a start is lost here: DBOS starts in a transaction of several round trips, and no single one starts it.
    """

    @pytest.fixture
    def subject(self, postgres_url: str) -> Iterator[Subject]:
        url = new_database(postgres_url)
        there = {"database": url, "queue": f"{APPLICATION}-queue", "application": APPLICATION}
        with host(FLOWS, url):
            yield subject_of(lambda: DbosAdapter(DbosSettings.model_validate(there)), refused=None)

    async def test_a_database_that_answers_nothing_is_unavailable_in_time(self, postgres_url: str) -> None:
        async with lossy_proxy(urlsplit(postgres_url).port or 0) as proxy:
            url = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres"
            settings = DbosSettings.model_validate({"database": url, "queue": "work"})
            async with DbosAdapter(settings) as adapter, proxy.losing():
                with anyio.fail_after(10), pytest.raises(EngineUnavailable):
                    await adapter.describe(Ref(workflow="echo", handle="one"))


@contextmanager
def host(*words: str) -> Generator[None]:
    """A process with the workflows."""
    command = [sys.executable, "-m", "adapters.dbos.tests.host", *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "running\n"
            yield
        finally:
            process.kill()
