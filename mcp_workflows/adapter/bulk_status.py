"""A cheap look at many executions, for engines that list running ones: one call for every 1000 of a workflow.

Such a list lags behind and has neither questions nor steps; an execution that is not in it (any more) is described on
its own.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

import anyio
import anyio.lowlevel

from mcp_workflows.adapter.boundary import Execution, Ref, Status
from mcp_workflows.errors import EngineRefused

logger = logging.getLogger(__name__)

PAGE: Final = 1000  # executions
LISTING_EVERY: Final = 2.0  # seconds at least between two lists of one workflow
KEPT_FOR: Final = 60.0  # seconds since the list of a workflow that is no longer asked for
_HEADROOM: Final = 0.8  # of what the quota allows
_WITHIN: Final = 5.0  # seconds of one sweep; of the other workflows the last list counts
_AT_ONCE: Final = 500  # executions gone through without a pause
_REMEMBERED: Final = 20_000  # starts of our own that a list may not show yet

RUNNING: Final = Execution(status=Status.RUNNING)  # one for all: 10,000 would be a lot of garbage

T = TypeVar("T")


class ListingRefusedError(Exception):
    """Listing is not allowed: nothing is reported, and single looks find out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListEntry:
    """The place and the name of an execution in lists."""

    workflow: str
    name: str


Lister: TypeAlias = Callable[[str], Awaitable[Collection[str]]]
"""Returns the names of all running executions of a workflow; may raise `ListingRefusedError` or an `EngineError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """The running executions of a workflow at one time (seconds of the event loop's clock)."""

    running: frozenset[str] | None  # None: listing is not allowed
    began: float
    pages: int


class Listings:
    """Lists of running executions by workflow, each as often as the quota of all of them together allows.

    `listed` returns the list entry of a handle (None: it is in no list), `refill` the pages per second that the quota
    allows now.
    """

    def __init__(self, lister: Lister, listed: Callable[[str], ListEntry | None], refill: Callable[[], float]) -> None:
        self._lister = lister
        self._listed = listed
        self._refill = refill
        self._known: dict[str, _Listing] = {}
        self._refused: set[str] = set()  # workflows that cannot be listed, as the log says
        self._started: OrderedDict[str, float] = OrderedDict()
        self._listing = anyio.Lock()

    def started(self, handle: str) -> None:
        """Note that we have just started it: older lists do not have it yet."""
        self._started[handle] = anyio.current_time()
        if len(self._started) > _REMEMBERED:
            self._started.popitem(last=False)

    async def describe_many(self, refs: Sequence[Ref]) -> Mapping[str, Execution]:
        """Return the executions that still run, by handle.

        Raises:
            EngineUnavailable: no answer.
        """
        by_workflow: dict[str, list[tuple[str, str]]] = defaultdict(list)
        async for ref in gently(refs):
            if listed := self._listed(ref.handle):
                by_workflow[listed.workflow].append((ref.handle, listed.name))
        await self._refresh(by_workflow.keys())
        return {
            handle: RUNNING
            for workflow, handles in by_workflow.items()
            if (known := self._known.get(workflow))
            async for handle, name in gently(handles)
            if known.running is None or name in known.running or self._started.get(handle, 0.0) > known.began
        }

    async def _refresh(self, workflows: Collection[str]) -> None:
        """List the workflows that are due, the oldest list first, while the time lasts."""
        deadline = anyio.current_time() + _WITHIN
        async with self._listing:
            self._forget(workflows)
            for workflow in sorted(workflows, key=self._age, reverse=True):
                if anyio.current_time() > deadline or self._age(workflow) < self._every():
                    break
                await self._list(workflow)

    async def _list(self, workflow: str) -> None:
        """List a workflow; one that cannot be listed does not block the others."""
        began = anyio.current_time()
        running: frozenset[str] | None = frozenset()
        try:
            running = frozenset(await self._lister(workflow))
            self._refused.discard(workflow)
        except ListingRefusedError as error:
            running = None
            self._say_once(workflow, str(error))
        except EngineRefused as error:
            self._say_once(workflow, str(error))
        self._known[workflow] = _Listing(running=running, began=began, pages=max(1, -(-len(running or ()) // PAGE)))

    def _say_once(self, workflow: str, why: str) -> None:
        if workflow not in self._refused:
            logger.warning("%s cannot be listed, its executions are looked at one by one: %s", workflow, why)
        self._refused.add(workflow)

    def _forget(self, wanted: Collection[str]) -> None:
        """Drop the lists of other workflows, so that they take no part of the quota."""
        for workflow in self._known.keys() - wanted:
            if self._age(workflow) > KEPT_FOR:
                del self._known[workflow]

    def _age(self, workflow: str) -> float:
        known = self._known.get(workflow)
        return float("inf") if known is None else anyio.current_time() - known.began

    def _every(self) -> float:
        """Return the seconds between two lists of a workflow: all pages of all workflows fit the quota."""
        pages = sum(listing.pages for listing in self._known.values())
        return max(LISTING_EVERY, pages / (_HEADROOM * self._refill()))


async def gently(items: Iterable[T]) -> AsyncGenerator[T]:
    """Yield the items; let other tasks run now and then, as 10,000 items take a while."""
    for number, item in enumerate(items, 1):
        yield item
        if number % _AT_ONCE == 0:
            await anyio.lowlevel.checkpoint()
