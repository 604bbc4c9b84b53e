"""Repeated calls without a key: a call that gets no reply marks its task, and the same call again takes it over.

See docs/decisions/0032.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Final

import anyio

from mcp_workflows.access import Principal
from mcp_workflows.adapter import JSON, Status, digest
from mcp_workflows.errors import StoreError
from mcp_workflows.store.protocol import Store
from mcp_workflows.task import CLOCKS_DIFFER, Task, UnansweredCall, mark_answered, mark_unanswered, take_over
from mcp_workflows.tasks.start import is_refused

logger = logging.getLogger(__name__)

MARKED_AFTER: Final = timedelta(seconds=2)  # of a call; parallel calls, which stay two, arrive within milliseconds
KEPT: Final = timedelta(minutes=10)  # a mark, from when the caller leaves
_RENEWED_EVERY: Final = 300.0  # seconds; a mark of a call that is still unanswered
_TICK: Final = 0.5  # seconds between two rounds of marking
_LEAVING: Final = 5.0  # seconds to mark the task of a caller that has left


@dataclass(slots=True, kw_only=True, eq=False)
class OpenCall:
    """One `tools/call` that is being served: enter it around the work; its reply follows when it is left.

    Its task is marked if that takes long, and stays marked if the caller does not get the reply.
    """

    calls: RepeatedCalls
    began: float  # the arrival, on the event loop's clock
    limit: float  # seconds that its host waits
    match: str | None = None  # None: no call continues this one
    task: Task | None = None
    continues: datetime | None = None  # the arrival of the call whose task it has taken over
    is_lost: bool = False  # the caller does not get the reply
    holder: str = field(default_factory=partial(secrets.token_hex, 8))  # its id in the mark
    is_marked: bool = False
    due: float = 0.0  # the next marking, on the event loop's clock
    marking: anyio.Lock | None = None

    def about(self, task: Task) -> None:
        """Note the task of the call, which may not be stored yet."""
        if self.match is None:
            return
        if self.task is None or self.task.id != task.id:
            self.is_marked = task.unanswered is not None
        if task.unanswered is not None:  # by the call that it continues, or by an earlier round of its dialogue
            self.holder = task.unanswered.holder
        self.task = task
        self.calls.add(self)

    def leave(self) -> None:
        """Note that the caller has left, though the work goes on."""
        self.is_lost, self.due = True, 0.0
        self.calls.hurry()

    async def __aenter__(self) -> OpenCall:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.task is None:
            return
        self.calls.remove(self)
        in_time = anyio.current_time() - self.began <= self.limit
        if error is None and in_time and not self.is_lost:
            if self.is_marked:
                await self.calls.unmark(self, self.task)
            return
        with anyio.move_on_after(_LEAVING, shield=True):
            await self.calls.mark(self, self.task)


class RepeatedCalls:
    """The open calls of this process, and the marks that all replicas share. `run` marks those that take long."""

    def __init__(self, store: Store, clock: Callable[[], datetime]) -> None:
        self.salt = b""  # set once the store is open
        self._store = store
        self._clock = clock
        self._open: dict[int, OpenCall] = {}
        self._is_wanted = anyio.Event()
        self._is_urgent = anyio.Event()

    def match(self, tool: str, arguments: Mapping[str, JSON], principal: Principal, host: str | None) -> str:
        """Return the digest by which a repeated call finds the task of the first."""
        return digest([self.salt.hex(), principal.id, tool, arguments, principal.client, host])

    async def take_over(self, call: OpenCall) -> Task | None:
        """Return the oldest task that got no reply for a call like this, which is this call's from now on.

        Raises:
            StoreUnavailable: the tasks cannot be read.
        """
        if call.match is None:
            return None
        for task in await self._store.unanswered(call.match, self._clock()):
            former, now = task.unanswered, self._clock()
            if former is None or not _may_be_taken(task, former, now):
                continue
            mark = UnansweredCall(
                match=call.match,
                holder=call.holder,
                called=former.called,
                open_from=now + MARKED_AFTER,
                open_until=now + KEPT,
            )
            change = partial(take_over, former=former.holder, call=mark)
            taken = await self._store.change(task.id, task.owner, change, durable=False)
            if taken is not None and taken.unanswered == mark:
                call.continues = former.called
                return taken
        return None

    def add(self, call: OpenCall) -> None:
        """Mark the task of this call from when it is `MARKED_AFTER` old."""
        call.due = 0.0 if call.is_lost else max(call.due, call.began + MARKED_AFTER.total_seconds())
        self._open[id(call)] = call
        self._is_wanted.set()

    def remove(self, call: OpenCall) -> None:
        """Do not mark its task any more."""
        self._open.pop(id(call), None)

    def hurry(self) -> None:
        """Mark now what is due."""
        self._is_urgent.set()

    async def run(self) -> None:
        """Mark the tasks of calls that take long, for ever."""
        while True:
            await self._is_wanted.wait()
            now = anyio.current_time()
            for call in [each for each in self._open.values() if each.due <= now]:
                if call.task is not None and id(call) in self._open:
                    await self.mark(call, call.task)
                    call.due = now + _RENEWED_EVERY
            if not self._open:
                self._is_wanted = anyio.Event()
            with anyio.move_on_after(_TICK):
                await self._is_urgent.wait()
            self._is_urgent = anyio.Event()

    async def mark(self, call: OpenCall, task: Task) -> None:
        """Mark the task as unanswered, or renew its mark, unless another call has taken it over."""
        call.marking = call.marking or anyio.Lock()
        async with call.marking:
            now = self._clock()
            mark = UnansweredCall(
                match=call.match or "",
                holder=call.holder,
                called=call.continues or now - timedelta(seconds=anyio.current_time() - call.began),
                open_from=now,
                open_until=now + KEPT,
            )
            change = partial(mark_unanswered, call=mark, again=call.is_marked)
            try:
                await self._store.change(task.id, task.owner, change, durable=False)
                call.is_marked = True
            except StoreError as error:
                logger.warning("a call of %s cannot be continued if its caller leaves: %s", task.tool, error)

    async def unmark(self, call: OpenCall, task: Task) -> None:
        """Delete the mark: the caller gets its reply."""
        async with call.marking or anyio.Lock():
            try:
                await self._store.change(task.id, task.owner, partial(mark_answered, holder=call.holder), durable=False)
            except StoreError as error:
                logger.warning("the same call of %s again will continue one that was answered: %s", task.tool, error)


def _may_be_taken(task: Task, mark: UnansweredCall, now: datetime) -> bool:
    """Return True if the task may be taken over now; a time too far ahead was written by a clock that was ahead."""
    is_cancelled = task.cancel_requested is not None or task.execution.status is Status.CANCELLED
    if is_cancelled or task.expired(now) or is_refused(task):
        return False
    is_young = now < mark.open_from <= now + MARKED_AFTER + CLOCKS_DIFFER
    return not is_young and mark.open_until <= now + KEPT + CLOCKS_DIFFER
