"""The pollers of task queues, asked of Temporal at most once in five seconds: every look may need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

import anyio
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import PollerInfo
from temporalio.api.workflowservice.v1 import DescribeTaskQueueResponse
from temporalio.service import RPCError

STILL_POLLING = timedelta(seconds=90)  # one poll takes up to 60 s; Temporal remembers pollers for 5 minutes
GOOD_FOR = 5.0  # seconds
PATIENCE = timedelta(seconds=1)  # a look must not fail because this is not answered
REMEMBERED = 1000  # queues

WORKFLOWS = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
ACTIVITIES = TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY


class DescribeTaskQueue(Protocol):
    """The call to Temporal."""

    async def __call__(
        self, name: str, kind: TaskQueueType.ValueType, *, patience: timedelta
    ) -> DescribeTaskQueueResponse:
        """Return the pollers of the queue."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _CacheEntry:
    at: float  # seconds of the event loop's clock
    found: DescribeTaskQueueResponse | None  # None: Temporal does not say


class TaskQueues:
    """A cache of task queue descriptions; it sends one request at a time, however many look."""

    def __init__(self, describe: DescribeTaskQueue) -> None:
        self._describe = describe
        self._entries: dict[tuple[str, int], _CacheEntry] = {}
        self._lock = anyio.Lock()

    async def is_deserted(self, name: str, kind: TaskQueueType.ValueType) -> bool:
        """Return whether certainly nobody polls the queue, as of at most 5 s ago."""
        async with self._lock:
            entry = self._entries.get((name, kind))
            if entry is None or anyio.current_time() - entry.at > GOOD_FOR:
                entry = _CacheEntry(found=await self._find(name, kind), at=anyio.current_time())
                self._keep((name, kind), entry)
        return entry.found is not None and not live_pollers(entry.found)

    async def _find(self, name: str, kind: TaskQueueType.ValueType) -> DescribeTaskQueueResponse | None:
        try:
            return await self._describe(name, kind, patience=PATIENCE)
        except RPCError:
            return None

    def _keep(self, key: tuple[str, int], entry: _CacheEntry) -> None:
        self._entries.pop(key, None)
        if len(self._entries) >= REMEMBERED:
            self._entries.pop(next(iter(self._entries)))
        self._entries[key] = entry


def live_pollers(found: DescribeTaskQueueResponse) -> Sequence[PollerInfo]:
    """Return the pollers that poll now; Temporal also lists those of the last minutes."""
    return [poller for poller in found.pollers if idle_time(poller) < STILL_POLLING]


def idle_time(poller: PollerInfo) -> timedelta:
    """Return the time since the last poll began."""
    return datetime.now(UTC) - poller.last_access_time.ToDatetime(UTC)
