"""DbosAdapter keeps the laws of the boundary: no gaps."""

from __future__ import annotations

from pathlib import Path

import pytest
from mcp_workflows_dbos import DbosAdapter, DbosSettings

from mcp_workflows.testing import AdapterContract, Role, Subject
from scripts.processes import free_port

FLOWS = "adapters.dbos.tests.flows"
SECRET = "s3cret"


def in_process(folder: Path) -> DbosAdapter:
    """Return an adapter that runs the workflows of the tests itself."""
    return DbosAdapter(DbosSettings.model_validate({"module": FLOWS, "database": f"sqlite:///{folder}/flows.db"}))


def nowhere() -> DbosAdapter:
    """Return an adapter whose database is not there."""
    url = f"postgresql://me:{SECRET}@127.0.0.1:{free_port()}/dbos"
    return DbosAdapter(DbosSettings.model_validate({"database": url, "queue": "work"}))


class TestInThisProcess(AdapterContract):
    """Workflows in this process, on SQLite."""

    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        return Subject(
            new_adapter=lambda: in_process(tmp_path),
            finishes=Role(workflow="echo", arguments=[{"text": "hi"}]),
            output={"text": "hi"},
            other_arguments=[{"text": "ho"}],
            fails=Role(workflow="declines"),
            failure="the card was declined",
            endless=Role(workflow="forever"),
            asks=Role(workflow="approve"),
            asks_two=Role(workflow="approve_twice"),
            content={"answer": "yes"},
            refused=Role(workflow="nobody_wrote_this"),
            unknown_handle="nobody",
            unreachable=nowhere,
            secret=SECRET,
        )
