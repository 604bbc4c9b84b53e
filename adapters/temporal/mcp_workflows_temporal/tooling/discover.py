"""Which workflow types ran lately: from the list of executions, as Temporal counts by status only (server 1.32)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from mcp_workflows.adapter import Discovered
from mcp_workflows_temporal.client import Frontend
from mcp_workflows_temporal.listing import listed

PAGE = 1000  # executions
PAGES = 5


async def discover(frontend: Frontend, own_queue: str | None) -> Sequence[Discovered]:
    """The types of the latest executions, the most frequent first; the task queue only if it is not the engine's."""
    counts: Counter[tuple[str, str]] = Counter()
    seen: dict[tuple[str, str], datetime] = {}
    async for row in listed(frontend, "", page=PAGE, pages=PAGES):
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
