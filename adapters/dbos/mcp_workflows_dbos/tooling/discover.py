"""The workflows of an engine: those in its module, and those that have run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from mcp_workflows.adapter import Discovered
from mcp_workflows_dbos.executor import Executor
from mcp_workflows_dbos.tooling.schema import discovered


def discover(executor: Executor | None, names: Sequence[tuple[str, int, int]]) -> Sequence[Discovered]:
    """Return the workflows, the most frequent first; `names` are those that have run: executions, last start in ms."""
    known = (
        {}
        if executor is None
        else {name: discovered(executor.application.module, each) for name, each in executor.workflows.items()}
    )
    ran = {
        name: replace(
            known.get(name, Discovered(workflow=name)),
            executions=count,
            last_seen=datetime.fromtimestamp(last / 1000, UTC),
        )
        for name, count, last in names
        if executor is None or name in known
    }
    return [*ran.values(), *(each for name, each in known.items() if name not in ran)]
