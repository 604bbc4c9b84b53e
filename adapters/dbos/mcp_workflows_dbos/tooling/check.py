"""Checks of a DBOS engine: its database, its executor or queues, and its workflows."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_workflows.adapter import Finding, closest
from mcp_workflows_dbos.executor import Executor
from mcp_workflows_dbos.settings import DbosSettings, is_sqlite
from mcp_workflows_dbos.tables import ExecutedWorkflow


def check_engine(settings: DbosSettings, executor: Executor | None, queues: Sequence[str]) -> Finding:
    """Return whether the workflows of the engine run, after its database has answered."""
    if executor is None:
        names = ", ".join(queues) or "none"
        if settings.queue is not None and settings.queue not in queues:
            return Finding(ok=False, text=f"no worker has registered the queue {settings.queue} (there are: {names})")
        return Finding(ok=True, text=f"the database answers; workers elsewhere have the queues {names}")
    if executor.problem is not None:
        hint = "correct the module and restart" if executor.is_running else None  # otherwise it contains the remedy
        return Finding(ok=False, text=executor.problem, hint=hint)
    if not executor.is_running:
        return Finding(ok=True, text="another process runs the workflows; this one hands executions to it")
    kept = "an SQLite file" if is_sqlite(executor.application.url) else "PostgreSQL"
    text = f"this process runs {len(executor.workflows)} workflows of {executor.application.module}"
    return Finding(ok=True, text=f"{text}, version {executor.version}, kept in {kept}")


def check_workflow(
    workflow: str,
    executor: Executor | None,
    executed: Sequence[ExecutedWorkflow],
    queue: str | None,
    queues: Sequence[str],
) -> Finding:
    """Return whether the module has a workflow; for other workers, whether it has run and its queue exists."""
    if executor is not None:
        if workflow in executor.workflows:
            return Finding(ok=True, text=f"workflow {workflow} is in {executor.application.module}")
        near = closest(workflow, executor.workflows)
        hint = f"did you mean {near}?" if near else f"it has {', '.join(executor.workflows) or 'none'}"
        return Finding(ok=False, text=f"{executor.application.module} has no workflow {workflow}", hint=hint)
    if not queue:
        return Finding(ok=False, text=f"workflow {workflow} has no queue", hint="set queue at the tool or the engine")
    if queue not in queues:
        return Finding(ok=False, text=f"workflow {workflow}: no worker has registered the queue {queue}")
    names = [each.name for each in executed]
    if workflow in names:
        return Finding(ok=True, text=f"workflow {workflow} has run before; it goes to the queue {queue}")
    hint = f"did you mean {near}?" if (near := closest(workflow, names)) else "DBOS keeps no list of functions"
    return Finding(ok=None, text=f"workflow {workflow} has never run on this database", hint=hint)
