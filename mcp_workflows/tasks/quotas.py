"""How many tasks there may be: the caps of a new one, what is said at one that is reached, and a look for room."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from math import ceil
from typing import Final

import anyio
from pydantic_core import PydanticSerializationError, to_json

from mcp_workflows.access.limits import Limits
from mcp_workflows.adapter import JSON, Execution
from mcp_workflows.errors import LimitReached, WorkflowsError
from mcp_workflows.store.protocol import CapReached, Caps, Store
from mcp_workflows.task import Task
from mcp_workflows.tasks.results import tool_error
from mcp_workflows.tools.tool import Tool

WINDOW: Final = timedelta(minutes=1)  # in which creations count
LOOKED_AT: Final = 20  # tasks, the oldest: what ended without anybody looking is among them first
LOOKED_FOR: Final = 3.0  # seconds
LOOK_EVERY: Final = 5.0  # seconds for the same owner and tool: who goes on calling must not make work for engines
_MOST_KNOWN: Final = 1000  # of these

_WAIT: Final = "wait until one has ended, or cancel one"
_SAID: Final[Mapping[str, str]] = {
    "live_of_owner": f"at most {{cap}} tasks of one caller may go on at the same time: {_WAIT}",
    "live_of_tool": "at most {cap} tasks of {tool} may go on at the same time, of all callers together: try later",
    "live_of_owner_and_tool": f"at most {{cap}} tasks of {{tool}} of one caller may go on at the same time: {_WAIT}",
    "created_of_owner": "at most {cap} tasks of one caller may be created in a minute: try again",
    "created_of_tool": "at most {cap} tasks of {tool} may be created in a minute, by all callers together: try again",
}
"""What each field of `Caps` says when it is reached."""
_WHOSE: Final[Mapping[str, tuple[bool, bool]]] = {
    "live_of_owner": (True, False),
    "live_of_tool": (False, True),
    "live_of_owner_and_tool": (True, True),
}
"""Which rows count for it: those of the owner, those of the tool."""

NO_MORE: Final = Caps(created_of_owner=0)  # not one more; what an idempotency key already stands for is found


def caps_of(limits: Limits, tool: Tool, now: datetime) -> Caps:
    """The caps for one more task of this tool."""
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
    """What the caller hears: which limit, how much it is, what to do. Nothing of whose tasks these are."""
    text = _SAID[reached.cap].format(cap=getattr(caps, reached.cap), tool=tool)
    if reached.again is None:
        return LimitReached(f"{text}; nothing was started")
    after = max(1.0, (reached.again - now).total_seconds())
    return LimitReached(f"{text} in {ceil(after)} s; nothing was started", retry_after=after)


class TaskQuota:
    """TaskQuota for one more task: rows count as live until somebody looks and sees that they have ended."""

    def __init__(
        self,
        store: Store,
        look: Callable[[Task], Awaitable[Task]],
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`look` asks the engine, within what that allows; `clock` counts seconds."""
        self._store = store
        self._look = look
        self._now = now
        self._clock = clock
        self._looked: OrderedDict[tuple[str | None, str | None], float] = OrderedDict()

    async def within(self, caps: Caps, create: Callable[[], Awaitable[Task]], *, owner: str, tool: str) -> Task:
        """What `create` makes under these caps, after a look at the oldest that count if there is no room.

        Raises:
            LimitReached: there is none.
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
        """Whether one of the oldest that count for this cap has ended."""
        if cap not in _WHOSE:
            return False  # of creations only time makes room
        by_owner, by_tool = _WHOSE[cap]
        whose = (owner if by_owner else None, tool if by_tool else None)
        if not self._may_look(whose):
            return False
        now = self._now()
        rows = await self._store.longest_live(owner=whose[0], tool=whose[1], now=now, limit=LOOKED_AT)
        seen: list[Task] = []

        async def look(row: Task) -> None:
            with suppress(WorkflowsError):  # or nobody knows, and it counts
                seen.append(await self._look(row))

        with anyio.move_on_after(LOOKED_FOR):
            async with anyio.create_task_group() as group:
                for row in rows:
                    if not row.pending(now):
                        group.start_soon(look, row)
        return any(row.ended for row in seen)

    def _may_look(self, whose: tuple[str | None, str | None]) -> bool:
        now = self._clock()
        last = self._looked.get(whose)
        if last is not None and now - last < LOOK_EVERY:
            return False
        self._looked[whose] = now
        self._looked.move_to_end(whose)
        if len(self._looked) > _MOST_KNOWN:
            self._looked.popitem(last=False)
        return True


_MARKS: Final = (b",", b"[", b"{")  # each stands before a value
_SHOWN: Final = 2000  # characters of a failure that is too large to be kept


def size_of(value: JSON) -> int:
    """Return the bytes of it as JSON."""
    return len(_dump(value))


def _dump(value: JSON) -> bytes:
    try:
        return to_json(value, inf_nan_mode="constants")  # five times as fast as `json` with a large value
    except PydanticSerializationError:  # half a surrogate pair, in the output of an engine
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def check_size(what: str, value: JSON, most: int | None, most_values: int | None = None) -> None:
    """Make sure that it has no more bytes than `most`, and no more JSON values than `most_values`.

    Raises:
        LimitReached: it is too large; time does not help.
    """
    if most is None and most_values is None:
        return
    text = _dump(value)
    if most is not None and len(text) > most:
        raise LimitReached(
            f"{what}: {len(text)} bytes of JSON, and at most {most} are taken: send less, or a link to it"
        )
    if most_values is not None and has_more_values(text, most_values):
        raise LimitReached(
            f"{what}: more than {most_values} JSON values (limits.max_json_values): send less, or a link to it"
        )


def has_more_values(text: bytes, most: int) -> bool:
    """Whether JSON holds more than `most` values, told without parsing it.

    Each list and object that is not empty has one value more than commas. What texts hold does not count.
    """
    if _count_marks(text) < most:
        return False
    if b"\0" in text:  # UTF-16 or UTF-32, which MCP does not use: texts cannot be told from the rest
        return True
    plain = text.replace(rb"\\", b"").replace(rb"\"", b"")
    if plain.count(b'"') > 4 * most:  # two for each text and each name
        return True
    outside = b"0".join(plain.split(b'"')[::2]).translate(None, b" \t\r\n")
    return _count_marks(outside) - outside.count(b"[]") - outside.count(b"{}") >= most


def _count_marks(text: bytes) -> int:
    return sum(text.count(mark) for mark in _MARKS)


def keepable(execution: Execution, most: int | None) -> Execution:
    """The execution, with a note in place of an output or a failure that is too large to be kept.

    It ended as it ended: only what came of it is not here, but in the engine.
    """
    failure = execution.failure
    if most is None or not execution.terminal:
        return execution
    if failure is not None and (size := size_of([failure.text, failure.data])) > most:
        text = f"{failure.text[:_SHOWN]} ... ({size} bytes, over the limit of {most}; see the engine for the whole)"
        return replace(execution, failure=replace(failure, text=text, data=None))
    if execution.output is None or (size := size_of(execution.output)) <= most:
        return execution
    where = f" (execution {execution.execution_id})" if execution.execution_id else ""
    text = (
        f"The workflow has ended, and its result has {size} bytes, over the limit of {most} that this server keeps: "
        f"it can be read in the engine only{where}."
    )
    return replace(execution, output=tool_error(text))
