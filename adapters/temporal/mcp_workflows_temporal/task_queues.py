"""Who polls a task queue, asked of the engine at most once in a while: every look may want to know."""

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


class Ask(Protocol):
    """The call to the engine."""

    async def __call__(
        self, name: str, kind: TaskQueueType.ValueType, *, patience: timedelta
    ) -> DescribeTaskQueueResponse:
        """Who polls the queue."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    at: float  # of the event loop's clock, in seconds
    found: DescribeTaskQueueResponse | None  # None: Temporal does not tell


class Queues:
    """What was last found out of each queue; one question at a time, however many look."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._asked: dict[tuple[str, int], _Asked] = {}
        self._turn = anyio.Lock()

    async def deserted(self, name: str, kind: TaskQueueType.ValueType) -> bool:
        """Whether certainly nobody polls the queue, as it was at most 5 s ago."""
        async with self._turn:
            asked = self._asked.get((name, kind))
            if asked is None or anyio.current_time() - asked.at > GOOD_FOR:
                asked = _Asked(found=await self._find(name, kind), at=anyio.current_time())
                self._keep((name, kind), asked)
        return asked.found is not None and not polling(asked.found)

    async def _find(self, name: str, kind: TaskQueueType.ValueType) -> DescribeTaskQueueResponse | None:
        try:
            return await self._ask(name, kind, patience=PATIENCE)
        except RPCError:
            return None

    def _keep(self, key: tuple[str, int], asked: _Asked) -> None:
        self._asked.pop(key, None)
        if len(self._asked) >= REMEMBERED:
            self._asked.pop(next(iter(self._asked)))
        self._asked[key] = asked


def polling(found: DescribeTaskQueueResponse) -> Sequence[PollerInfo]:
    """Those that poll now; Temporal also tells of those that did."""
    return [poller for poller in found.pollers if idle(poller) < STILL_POLLING]


def idle(poller: PollerInfo) -> timedelta:
    """How long ago its last poll began."""
    return datetime.now(UTC) - poller.last_access_time.ToDatetime(UTC)
