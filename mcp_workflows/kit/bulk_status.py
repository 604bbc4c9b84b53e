"""Bulk polls for engines that list running executions: a few calls cover all executions of a workflow.

Such a list lags behind and has neither questions nor steps, so an execution that is missing from it is polled alone. If
a list shows which executions may wait for a person, each of these is polled alone when that changes.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, Self, TypeAlias, TypeVar

import anyio
import anyio.lowlevel

from mcp_workflows.adapter.boundary import Execution, Ref, Status
from mcp_workflows.errors import EngineRefused, ExecutionNotFound

logger = logging.getLogger(__name__)

PAGE: Final = 1000  # executions
LISTING_EVERY: Final = 2.0  # minimum seconds between two lists of one workflow
KEPT_FOR: Final = 60.0  # seconds to keep the list of a workflow that is no longer requested
_HEADROOM: Final = 0.8  # fraction of the quota
_WITHIN: Final = 5.0  # seconds of one batch; the other workflows use their last list
_AT_ONCE: Final = 500  # executions processed without yielding
_REMEMBERED: Final = 20_000  # executions that lists may not show yet

RUNNING: Final = Execution(status=Status.RUNNING)  # shared, as 10,000 instances would be a lot of garbage

T = TypeVar("T")


class ListingRefusedError(Exception):
    """Listing is not allowed: nothing is reported, and single polls find the states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListEntry:
    """The workflow and name of an execution in lists."""

    workflow: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningNames:
    """The names of all running executions of a workflow, and the number of calls that listing them took.

    `asking` maps executions that may wait for a person to a text that changes when the questions may have changed.
    """

    names: AbstractSet[str]
    calls: int
    asking: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def in_pages(cls, names: AbstractSet[str]) -> Self:
        """Return a list fetched in pages of `PAGE` names."""
        return cls(names=names, calls=max(1, -(-len(names) // PAGE)))

    def execution(self, name: str) -> Execution:
        """Return the state of a running execution according to the list."""
        asks = self.asking.get(name)
        return RUNNING if asks is None else Execution(status=Status.INPUT_REQUIRED, message=asks)


Lister: TypeAlias = Callable[[str], Awaitable[RunningNames]]
"""Lists the running executions of a workflow; may raise `ListingRefusedError` or an `EngineError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """The running executions of a workflow at one time (seconds, on the event loop's clock)."""

    running: RunningNames
    began: float
    is_refused: bool = False  # listing is not allowed: any of them may run


class Listings:
    """Lists of running executions by workflow, refreshed as often as the shared quota allows.

    `listed` returns the list entry of a handle (None: it appears in no list). `refill` returns the calls per second
    that the quota currently allows.
    """

    def __init__(self, lister: Lister, listed: Callable[[str], ListEntry | None], refill: Callable[[], float]) -> None:
        self._lister = lister
        self._listed = listed
        self._refill = refill
        self._known: dict[str, _Listing] = {}
        self._refused: set[str] = set()  # workflows whose failed listing is logged
        self._ran: OrderedDict[str, float] = OrderedDict()
        self._listing = anyio.Lock()

    def note_running(self, handle: str, at: float | None = None) -> None:
        """Note that the execution ran at that time (default: now): lists that began earlier may miss it."""
        self._ran[handle] = anyio.current_time() if at is None else at
        if len(self._ran) > _REMEMBERED:
            self._ran.popitem(last=False)

    async def describe_many(self, refs: Sequence[Ref]) -> Mapping[str, Execution]:
        """Return the executions that still run, by handle.

        Raises:
            EngineUnavailable: no reply.
        """
        by_workflow: dict[str, list[tuple[str, str]]] = defaultdict(list)
        async for ref in gently(refs):
            if listed := self._listed(ref.handle):
                by_workflow[listed.workflow].append((ref.handle, listed.name))
        await self._refresh(by_workflow.keys())
        return {
            handle: known.running.execution(name)
            for workflow, handles in by_workflow.items()
            if (known := self._known.get(workflow))
            async for handle, name in gently(handles)
            if known.is_refused or name in known.running.names or self._ran.get(handle, 0.0) > known.began
        }

    async def _refresh(self, workflows: Collection[str]) -> None:
        """List the workflows that are due, the oldest list first, within the time limit."""
        deadline = anyio.current_time() + _WITHIN
        async with self._listing:
            self._forget(workflows)
            for workflow in sorted(workflows, key=self._age, reverse=True):
                if anyio.current_time() > deadline or self._age(workflow) < self._every:
                    break
                await self._list(workflow)

    async def _list(self, workflow: str) -> None:
        """List a workflow; a failure does not block the other workflows."""
        began, running, is_refused = anyio.current_time(), RunningNames(names=frozenset(), calls=1), False
        try:
            running = await self._lister(workflow)
            self._refused.discard(workflow)
        except (ListingRefusedError, EngineRefused, ExecutionNotFound) as error:
            is_refused = isinstance(error, ListingRefusedError)
            self._say_once(workflow, str(error))
        self._known[workflow] = _Listing(running=running, began=began, is_refused=is_refused)

    def _say_once(self, workflow: str, why: str) -> None:
        if workflow not in self._refused:
            logger.warning("%s cannot be listed; its executions are polled one by one: %s", workflow, why)
        self._refused.add(workflow)

    def _forget(self, wanted: Collection[str]) -> None:
        """Drop the lists of other workflows, which use up quota."""
        for workflow in self._known.keys() - wanted:
            if self._age(workflow) > KEPT_FOR:
                del self._known[workflow]

    def _age(self, workflow: str) -> float:
        known = self._known.get(workflow)
        return float("inf") if known is None else anyio.current_time() - known.began

    @property
    def every(self) -> float:
        """Average seconds between two lists, over all workflows."""
        return self._every / max(1, len(self._known))

    @property
    def _every(self) -> float:
        """Seconds between two lists of a workflow, so that the calls for all workflows fit the quota."""
        calls = sum(listing.running.calls for listing in self._known.values())
        return max(LISTING_EVERY, calls / (_HEADROOM * self._refill()))


async def gently(items: Iterable[T]) -> AsyncGenerator[T]:
    """Yield the items; let other tasks run in between, as 10,000 items take a while."""
    for number, item in enumerate(items, 1):
        yield item
        if number % _AT_ONCE == 0:
            await anyio.lowlevel.checkpoint()
