"""Repeated calls without a key: a call that gets no reply marks its task, and a repetition claims that task.

See docs/decisions/0032.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Final

import anyio

from mcp_workflows.access import Principal
from mcp_workflows.adapter import JSON, Status, digest
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import StoreError
from mcp_workflows.store.protocol import Store
from mcp_workflows.task import CLOCKS_DIFFER, Task, UnansweredCall, mark_answered, mark_unanswered, take_over
from mcp_workflows.tasks.start import is_refused
from mcp_workflows.tools.hosts import SHORTEST_LIMIT, call_limit
from mcp_workflows.tools.tool import AnyTool

logger = logging.getLogger(__name__)

MARKED_AFTER: Final = timedelta(seconds=2)  # after a call; parallel calls, which stay two, arrive within milliseconds
KEPT: Final = timedelta(minutes=10)  # lifetime of a mark after the caller leaves
_RENEWED_EVERY: Final = 300.0  # seconds between renewals of the mark of an unanswered call
_AGAIN_AFTER: Final = 1.0  # seconds before a retry, if the store did not accept a mark
_TICK: Final = 0.5  # seconds between marking rounds
_LEAVING: Final = 5.0  # seconds for marking the task of a caller that has left
_REPLY_DELAY: Final = 0.5  # maximum seconds that a reply waits for the store to delete the mark
_CLOCK_ERROR: Final = timedelta(seconds=1)  # between replicas, for tasks claimed a moment ago
_VOLATILE: Final = frozenset({"exp", "iat", "nbf", "jti", "auth_time", "nonce", "sid", "at_hash", "c_hash"})
"""Claims that differ between tokens of the same person."""


@dataclass(slots=True, kw_only=True, eq=False)
class OpenCall:
    """A `tools/call` in progress: enter it around the work; the reply is sent after it exits.

    Its task is marked if that takes long, and stays marked if the caller does not get the reply.
    """

    calls: RepeatedCalls
    arrived: float  # on the event loop's clock
    host: str | None = None
    wait: timedelta | None = None  # the tool's setting
    match: str = ""  # empty: no repetition can continue this call
    continues: datetime | None = None  # arrival of the call whose task this one has claimed
    holder: str = field(default_factory=partial(secrets.token_hex, 8), init=False)  # its id in the mark
    task: Task | None = field(default=None, init=False)
    is_lost: bool = field(default=False, init=False)  # the caller will not get the reply
    is_answered: bool = field(default=False, init=False)
    has_marked: bool = field(default=False, init=False)  # its mark was stored
    due: float = field(default=0.0, init=False)  # next change of the mark, on the event loop's clock
    opened: frozenset[str] = field(default=frozenset(), init=False)  # keys of questions whose links it was sent
    lock: anyio.Lock | None = field(default=None, init=False)  # held while the mark changes; None: it never changed
    waits_since: float = field(init=False)

    def __post_init__(self) -> None:
        self.waits_since = self.arrived

    def about(self, task: Task) -> None:
        """Record the task of the call, which may not be stored yet."""
        if self.match:
            if self.task is None or self.task.id != task.id:
                self.has_marked = task.unanswered is not None and task.unanswered.holder == self.holder
            self.task = task
            self.calls.add(self)

    def wait_on(self) -> None:
        """Restart the host's waiting time, because a person was just asked."""
        self.waits_since = anyio.current_time()

    def lose(self) -> None:
        """Record that the caller will not get the reply, because it left or gets an error; the work may continue."""
        self.is_lost, self.due = True, 0.0
        self.calls.hurry()

    async def __aenter__(self) -> OpenCall:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.task is None:
            return
        waited = anyio.current_time() - self.waits_since
        in_time = waited <= SHORTEST_LIMIT or waited <= call_limit(self.host, self.wait)
        self.is_answered = error is None and in_time and not self.is_lost
        is_settled = self.is_answered and self.lock is None and not self.has_marked
        if not is_settled:
            with anyio.move_on_after(_REPLY_DELAY if self.is_answered else _LEAVING, shield=not self.is_answered):
                is_settled = await self.calls.settle(self)
        if is_settled or not self.is_answered:
            self.calls.remove(self)  # otherwise `run` deletes the mark later


class RepeatedCalls:
    """The open calls of this process, and the marks shared by all replicas. `run` marks calls that take long."""

    def __init__(self, store: Store, engines: Engines, clock: Callable[[], datetime]) -> None:
        self.salt = b""  # set once the store is open
        self._store = store
        self._engines = engines
        self._clock = clock
        self._open: dict[str, OpenCall] = {}  # by holder
        self._is_wanted = anyio.Event()
        self._is_urgent = anyio.Event()

    def match(self, tool: AnyTool, arguments: JSON, principal: Principal, host: str | None) -> str:
        """Return the digest by which a repeated call finds the first call's task; `arguments` is its full content.

        If the tool's templates name the principal, the claims are included, because they lead to another execution.
        """
        claims: JSON = None
        if tool.names_principal:
            claims = {name: value for name, value in principal.claims.items() if name not in _VOLATILE}
        caller = [principal.id, principal.client, host, claims]
        return digest([self.salt.hex(), tool.name, tool.engine, tool.workflow, arguments, *caller])

    async def is_repeated(self, call: OpenCall) -> bool:
        """Return True if a task exists that the call may claim.

        Raises:
            StoreUnavailable: the tasks cannot be read.
        """
        return bool(call.match) and bool(await self._candidates(call))

    async def claim(self, call: OpenCall) -> Task | None:
        """Claim the oldest task of an identical call without a reply, and return it, or None.

        Raises:
            StoreUnavailable: the tasks cannot be read or changed.
        """
        for task, former in await self._candidates(call):
            now = self._clock()
            mark = UnansweredCall(
                match=call.match,
                holder=call.holder,
                called=former.called,
                open_from=now + MARKED_AFTER,
                open_until=now + KEPT,
            )
            change = partial(take_over, former=former.holder, call=mark)
            claimed = await self._store.change(task.id, task.owner, change, durable=False)
            if claimed is not None and claimed.unanswered == mark:
                return claimed
        return None

    async def _candidates(self, call: OpenCall) -> list[tuple[Task, UnansweredCall]]:
        tasks = await self._store.unanswered(call.match, self._clock())
        found = [(task, task.unanswered) for task in tasks if task.unanswered is not None]
        return [(task, mark) for task, mark in found if self._may_claim(call, task, mark)]

    def _may_claim(self, call: OpenCall, task: Task, mark: UnansweredCall) -> bool:
        now, holder = self._clock(), self._open.get(mark.holder)
        is_cancelled = task.cancel_requested is not None or task.execution.status is Status.CANCELLED
        if is_cancelled or task.expired(now) or is_refused(task) or self._engines.is_foreign(task):
            return False
        if holder is not None and not holder.is_lost and call.arrived - holder.arrived < MARKED_AFTER.total_seconds():
            return False  # they arrived together, although one may have started later
        is_young = mark.open_from is not None and now < mark.open_from <= now + MARKED_AFTER + _CLOCK_ERROR
        return not is_young and mark.open_until <= now + KEPT + CLOCKS_DIFFER  # later: the clock that set it was wrong

    def add(self, call: OpenCall) -> None:
        """Mark the task of this call once the call is `MARKED_AFTER` old."""
        call.due = 0.0 if call.is_lost else max(call.due, call.arrived + MARKED_AFTER.total_seconds())
        self._open[call.holder] = call
        self._is_wanted.set()

    def remove(self, call: OpenCall) -> None:
        """Stop changing its mark."""
        self._open.pop(call.holder, None)

    def hurry(self) -> None:
        """Process due marks now."""
        self._is_urgent.set()

    async def run(self) -> None:
        """Mark the tasks of calls that take long, until cancelled."""
        while True:
            await self._is_wanted.wait()
            for call in [each for each in self._open.values() if each.due <= anyio.current_time()]:
                if call.holder in self._open:
                    call.due = anyio.current_time() + _RENEWED_EVERY
                    is_settled = await self.settle(call)
                    if not is_settled:
                        call.due = anyio.current_time() + _AGAIN_AFTER
                    elif call.is_answered:
                        self.remove(call)
            if not self._open:
                self._is_wanted = anyio.Event()
            with anyio.move_on_after(_TICK):
                await self._is_urgent.wait()
            self._is_urgent = anyio.Event()

    async def settle(self, call: OpenCall) -> bool:
        """Mark the call's task, renew the mark, or delete it if the call is answered; return False to retry."""
        task = call.task
        if task is None:
            return True
        call.lock = call.lock or anyio.Lock()
        async with call.lock:
            change = partial(mark_answered, holder=call.holder)
            if not call.is_answered:
                change = partial(mark_unanswered, call=self._mark(call), again=call.has_marked)
            try:
                row = await self._store.change(task.id, task.owner, change, durable=False)
            except StoreError as error:
                logger.warning("the store could not record a call of %s: %s", task.tool, error)
                return False
            except Exception:  # a store may be third-party code: docs/decisions/0002
                logger.exception("a call of %s cannot be recorded", task.tool)
                return False
            mark = None if row is None else row.unanswered
            call.has_marked = call.has_marked or (mark is not None and mark.holder == call.holder)
            return row is not None or call.is_answered

    def _mark(self, call: OpenCall) -> UnansweredCall:
        now = self._clock()
        called = call.continues or now - timedelta(seconds=anyio.current_time() - call.arrived)
        return UnansweredCall(match=call.match, holder=call.holder, called=called, open_until=now + KEPT)
