"""Tasks for testing stores."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from mcp_workflows.task import Task

NOON = datetime(2026, 7, 28, 12, 0, 0, 123456, tzinfo=UTC)
DAY = timedelta(days=1)
NOBODYS_IDS = ("", "nobody-made-this", "-x", "' OR 1=1 --", "%", "\0", "\ud800", "x" * 100_000)


def make_task(**changes: Any) -> Task:  # Any: any field of Task
    """Create a task with a unique id; every field can be set."""
    name = uuid.uuid4().hex
    fields: dict[str, Any] = {  # Any: the same
        "id": f"task-{name}",
        "owner": "anna",
        "tool": "fulfil_order",
        "engine": "orders",
        "workflow": "FulfilOrder",
        "key": f"key-{name}",
        "input": [{"order_id": "o-1", "express": True}],
        "created": NOON,
        "updated": NOON,
        "expires": NOON + DAY,
        "max_result": 1_000_000,
        "fingerprint": "f" * 64,
    }
    return Task(**{**fields, **changes})
