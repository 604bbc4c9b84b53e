"""The workflow types that ran lately, from the list of executions: Temporal counts by status only (server 1.32)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from mcp_workflows.adapter import Discovered
from mcp_workflows_temporal.client import Frontend

PAGE = 1000  # executions
PAGES = 5


async def discover(frontend: Frontend, own_queue: str | None) -> Sequence[Discovered]:
    """Return the types of the latest executions, the most frequent first; a task queue only if not the engine's."""
    counts: Counter[tuple[str, str]] = Counter()
    seen: dict[tuple[str, str], datetime] = {}
    async for row in frontend.list_executions("", page=PAGE, pages=PAGES):
        key = row.type.name, row.task_queue
        started = row.start_time.ToDatetime(UTC)
        counts[key] += 1
        seen[key] = max(seen.get(key, started), started)
    return [
        Discovered(
            workflow=workflow,
            options={} if queue in {own_queue, ""} else {"task_queue": queue},
            last_seen=seen[workflow, queue],
            executions=count,
        )
        for (workflow, queue), count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
