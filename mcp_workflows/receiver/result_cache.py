"""A cache of the rendered results of ended tasks: clients poll these repeatedly, and they never change."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from mcp_workflows.adapter import TERMINAL
from mcp_workflows.wire.commands import TaskView

MOST: Final = 1000  # kept; the oldest goes first
LARGEST: Final = 16 * 1024  # characters of one; what is larger is rendered again


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedResult:
    """The result that the owner of a task got, and the view of the task."""

    result: dict[str, Any]
    task: TaskView
    expires: datetime | None

    def copy(self) -> dict[str, Any]:
        """Return a copy, as callers may add to it."""
        return dict(self.result)


class ResultCache:
    """Results of `tasks/get` by task and owner, until the task expires."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], CachedResult] = {}

    def find(self, task_id: str, owner: str, now: datetime) -> CachedResult | None:
        """Return the result if this owner got it before and the task has not expired."""
        kept = self._kept.get((task_id, owner))
        if kept is None or (kept.expires is not None and kept.expires <= now):
            return None
        return kept

    def keep(self, task: TaskView, owner: str, result: dict[str, Any]) -> None:
        """Store the result, if the task has ended and the result is not too large."""
        if task.status not in TERMINAL or len(json.dumps(result)) > LARGEST:
            return
        expires = None if task.ttl_ms is None else task.created + timedelta(milliseconds=task.ttl_ms)
        self._kept[task.task_id, owner] = CachedResult(result=dict(result), task=task, expires=expires)
        if len(self._kept) > MOST:
            del self._kept[next(iter(self._kept))]
