"""The workflows of an engine: those in its module, and those that have run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from mcp_workflows.kit.tooling import Discovered
from mcp_workflows_dbos.executor import Executor
from mcp_workflows_dbos.tables import ExecutedWorkflow
from mcp_workflows_dbos.tooling.schema import describe_workflows


def discover(executor: Executor | None, executed: Sequence[ExecutedWorkflow]) -> Sequence[Discovered]:
    """Return the workflows that have run, in their order, and then those of the module that never have."""
    known: Mapping[str, Discovered] = {}
    if executor is not None:
        public = [each for each in executor.workflows.values() if not each.is_private]
        known, _ = describe_workflows(executor.application.module, public)
    ran = {
        each.name: replace(
            known.get(each.name, Discovered(workflow=each.name)),
            executions=each.executions,
            last_seen=datetime.fromtimestamp(each.last_start / 1000, UTC),
        )
        for each in executed
        if executor is None or each.name in known
    }
    return [*ran.values(), *(each for name, each in known.items() if name not in ran)]
