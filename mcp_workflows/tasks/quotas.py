"""Quotas: the caps for a new task."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from math import ceil
from typing import Final

import anyio

from mcp_workflows.access.limit_settings import Limits
from mcp_workflows.errors import LimitReached, WorkflowsError
from mcp_workflows.store.protocol import CapReached, Caps, Store
from mcp_workflows.task import Task
from mcp_workflows.tools.tool import Tool

WINDOW: Final = timedelta(minutes=1)  # in which creations count
LOOKED_AT: Final = 20  # tasks, the oldest: those have most likely ended unseen
LOOKED_FOR: Final = 3.0  # seconds
LOOK_EVERY: Final = 5.0  # seconds for the same owner and tool: repeated calls must not load engines
_MOST_KNOWN: Final = 1000  # of these
_WAIT: Final = "wait until one has ended, or cancel one"
_MESSAGES: Final[Mapping[str, str]] = {
    "live_of_owner": f"at most {{cap}} tasks of one caller may go on at the same time: {_WAIT}",
    "live_of_tool": "at most {cap} tasks of {tool} may go on at the same time, of all callers together: try later",
    "live_of_owner_and_tool": f"at most {{cap}} tasks of {{tool}} of one caller may go on at the same time: {_WAIT}",
    "created_of_owner": "at most {cap} tasks of one caller may be created in a minute: try again",
    "created_of_tool": "at most {cap} tasks of {tool} may be created in a minute, by all callers together: try again",
}
"""The message for each field of `Caps`."""
_COUNTED_BY: Final[Mapping[str, tuple[bool, bool]]] = {
    "live_of_owner": (True, False),
    "live_of_tool": (False, True),
    "live_of_owner_and_tool": (True, True),
}
"""The rows that count for a cap: those of the owner, those of the tool."""
NO_MORE: Final = Caps(created_of_owner=0)  # no new task; a task with the same idempotency key is still found


def caps_of(limits: Limits, tool: Tool, now: datetime) -> Caps:
    """Return the caps for one more task of this tool."""
    own = tool.limits
    return Caps(
        live_of_owner=limits.tasks_per_principal,
        live_of_tool=own.tasks,
        live_of_owner_and_tool=own.tasks_per_principal,
        created_of_owner=limits.creates_per_minute,
        created_of_tool=own.creates_per_minute,
        since=now - WINDOW,
    )


def limit_reached(reached: CapReached, caps: Caps, tool: str, now: datetime) -> LimitReached:
    """Return the error for the caller: the limit, its value, and advice. It tells nothing about the other tasks."""
    text = _MESSAGES[reached.cap].format(cap=getattr(caps, reached.cap), tool=tool)
    if reached.again is None:
        return LimitReached(f"{text}; nothing was started")
    after = max(1.0, (reached.again - now).total_seconds())
    return LimitReached(f"{text} in {ceil(after)} s; nothing was started", retry_after=after)


class TaskQuota:
    """Enforces the caps; looks at the oldest tasks first, as rows count as live until a look sees their end."""

    def __init__(
        self,
        store: Store,
        look: Callable[[Task], Awaitable[Task]],
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`look` asks the engine, within its limits; `clock` counts seconds."""
        self._store = store
        self._look = look
        self._now = now
        self._clock = clock
        self._looked: OrderedDict[tuple[str | None, str | None], float] = OrderedDict()

    async def within(self, caps: Caps, create: Callable[[], Awaitable[Task]], *, owner: str, tool: str) -> Task:
        """Return the task that `create` makes within these caps; first look at the oldest tasks if needed.

        Raises:
            LimitReached: a cap is reached.
        """
        try:
            return await create()
        except CapReached as reached:
            if not await self._made(reached.cap, owner, tool):
                raise limit_reached(reached, caps, tool, self._now()) from None
        try:
            return await create()
        except CapReached as reached:
            raise limit_reached(reached, caps, tool, self._now()) from None

    async def _made(self, cap: str, owner: str, tool: str) -> bool:
        """Look at the oldest tasks that count for this cap; return True if one of them has ended."""
        if cap not in _COUNTED_BY:
            return False  # caps on creations depend on time only
        by_owner, by_tool = _COUNTED_BY[cap]
        counted = (owner if by_owner else None, tool if by_tool else None)
        if not self._may_look(counted):
            return False
        now = self._now()
        rows = await self._store.longest_live(owner=counted[0], tool=counted[1], now=now, limit=LOOKED_AT)
        seen: list[Task] = []

        async def look(row: Task) -> None:
            with suppress(WorkflowsError):  # without an answer the task counts
                seen.append(await self._look(row))

        with anyio.move_on_after(LOOKED_FOR):
            async with anyio.create_task_group() as group:
                for row in rows:
                    if not row.pending(now):
                        group.start_soon(look, row)
        return any(row.ended for row in seen)

    def _may_look(self, counted: tuple[str | None, str | None]) -> bool:
        now = self._clock()
        last = self._looked.get(counted)
        if last is not None and now - last < LOOK_EVERY:
            return False
        self._looked[counted] = now
        self._looked.move_to_end(counted)
        if len(self._looked) > _MOST_KNOWN:
            self._looked.popitem(last=False)
        return True
