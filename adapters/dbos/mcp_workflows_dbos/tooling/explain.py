"""The reason for the state of an execution: its process, the version of its code, or its open question."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from mcp_workflows.adapter import rough_duration
from mcp_workflows.kit.tooling import Explanation
from mcp_workflows_dbos.describe import execution_of
from mcp_workflows_dbos.executor import Executor
from mcp_workflows_dbos.tables import Row

_REPEATED: Final = 2  # from this number of attempts, the reason contains it
_RESUME: Final = (
    "DBOS recovers an execution only with the version of the code that began it. Deploy that version again, or, if the "
    "new code takes the same steps in the same order, set `version:` in the engine and keep it across edits; or cancel "
    "it and start it again"
)


def explain(row: Row, executor: Executor | None, latest: str | None) -> Explanation:
    """Return the explanation; `latest` is the version of the code that was last launched."""
    reason, advice = _reason(row, executor, latest)
    return Explanation(reason=reason, facts=dict(_facts(row, executor)), advice=advice)


def _reason(row: Row, executor: Executor | None, latest: str | None) -> tuple[str, str | None]:
    seen = execution_of(row)
    if seen.terminal:
        failure = f": {seen.failure.text.splitlines()[0]}" if seen.failure else ""
        return f"it has ended: {seen.status.value}{failure}", None
    here = latest if executor is None else executor.version
    if row.status == "PENDING" and here is not None and row.version != here:
        where = "the newest application" if executor is None else "this process"
        return f"it was started by version {row.version} of the code, and {where} has version {here}", _RESUME
    if seen.requests:
        asked = "; ".join(str(each.params.get("message", "")).splitlines()[0] for each in seen.requests.values())
        return f"it waits for a person: {asked}", None
    if row.status in {"ENQUEUED", "DELAYED"}:
        since = rough_duration(_age(row.created_at))
        text = f"it has waited in the queue {row.queue} for {since}: no worker has taken it"
        return text, "start a worker for this queue, or check the queue's concurrency"
    if executor is not None and executor.problem is not None:
        return executor.problem, "correct the module and restart" if executor.is_running else None
    if executor is not None and not executor.is_running:
        return "another process runs it", None
    if row.attempts >= _REPEATED:
        return f"it runs, and was started {row.attempts} times, as its process ended before", None
    return "it runs", None


def _facts(row: Row, executor: Executor | None) -> Iterator[tuple[str, str]]:
    yield "status in DBOS", row.status
    yield "version of its code", str(row.version)
    if executor is not None and executor.version is not None:
        yield "version of this process", executor.version
    if row.queue is not None:
        yield "queue", row.queue
    yield "times begun", str(row.attempts)
    yield "without a change for", rough_duration(_age(row.updated_at))
    if row.steps:
        last = row.steps[-1]
        yield "last step", f"{last.name} ({'failed' if last.failed else 'done'})"


def _age(milliseconds: int) -> timedelta:
    return datetime.now(UTC) - datetime.fromtimestamp(milliseconds / 1000, UTC)
