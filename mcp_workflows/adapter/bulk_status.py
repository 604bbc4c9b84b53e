"""A cheap look at many executions, for engines that list who runs: one call for every 1000 of a workflow.

Such a list lags behind and tells neither questions nor steps; who is not in it (any more) is described one by one.
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
KEPT_FOR: Final = 60.0  # seconds since a list of a workflow that nobody asks for any more
_HEADROOM: Final = 0.8  # of what the quota allows
_WITHIN: Final = 5.0  # seconds of one sweep; workflows whose turn has not come are told as they were
_AT_ONCE: Final = 500  # executions gone through without a pause
_REMEMBERED: Final = 20_000  # starts of our own that a list may not show yet

RUNNING: Final = Execution(status=Status.RUNNING)  # one for all: 10,000 would be a lot of garbage

T = TypeVar("T")


class ListingRefusedError(Exception):
    """Who runs may not be listed: nothing is told of anybody, and looks in their turn find out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Where an execution would be listed, and as what."""

    workflow: str
    name: str


Lister: TypeAlias = Callable[[str], Awaitable[Collection[str]]]
"""The names of all that run in a workflow; may raise `ListingRefusedError` or an `EngineError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """Who ran in a workflow at a time (seconds of the event loop's clock)."""

    running: frozenset[str] | None  # None: we may not know
    began: float
    pages: int


class Listings:
    """Who runs, by workflow; each is listed as often as the quota of all of them together allows.

    `listed` says where the execution of a handle is listed (None: nowhere), `refill` how many pages a second the
    quota allows now.
    """

    def __init__(self, lister: Lister, listed: Callable[[str], Listed | None], refill: Callable[[], float]) -> None:
        self._lister = lister
        self._listed = listed
        self._refill = refill
        self._known: dict[str, _Listing] = {}
        self._refused: set[str] = set()  # workflows that cannot be listed, which was said in the log
        self._started: OrderedDict[str, float] = OrderedDict()
        self._listing = anyio.Lock()

    def started(self, handle: str) -> None:
        """We have just started it: lists that are older say nothing about it."""
        self._started[handle] = anyio.current_time()
        if len(self._started) > _REMEMBERED:
            self._started.popitem(last=False)

    async def describe_many(self, refs: Sequence[Ref]) -> Mapping[str, Execution]:
        """Those that still run, by handle.

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
        """List those whose turn it is, the oldest first, while the time lasts."""
        deadline = anyio.current_time() + _WITHIN
        async with self._listing:
            self._forget(workflows)
            for workflow in sorted(workflows, key=self._age, reverse=True):
                if anyio.current_time() > deadline or self._age(workflow) < self._every():
                    break
                await self._list(workflow)

    async def _list(self, workflow: str) -> None:
        """Who runs in it; a workflow that cannot be listed is not in the way of the others."""
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
        """The others take no part of the quota."""
        for workflow in self._known.keys() - wanted:
            if self._age(workflow) > KEPT_FOR:
                del self._known[workflow]

    def _age(self, workflow: str) -> float:
        known = self._known.get(workflow)
        return float("inf") if known is None else anyio.current_time() - known.began

    def _every(self) -> float:
        """Seconds between two lists of a workflow: all pages of all workflows within the quota."""
        pages = sum(listing.pages for listing in self._known.values())
        return max(LISTING_EVERY, pages / (_HEADROOM * self._refill()))


async def gently(items: Iterable[T]) -> AsyncGenerator[T]:
    """These; now and then it is everybody else's turn, as 10,000 of them take a while."""
    for number, item in enumerate(items, 1):
        yield item
        if number % _AT_ONCE == 0:
            await anyio.lowlevel.checkpoint()
