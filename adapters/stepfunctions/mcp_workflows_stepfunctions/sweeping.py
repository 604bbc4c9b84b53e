"""A cheap look at many executions at once: the list of those that run, one call for every 1000 of a state machine.

The list lags behind and tells neither questions nor states; who is not in it (any more) is described one by one.
Source: https://docs.aws.amazon.com/step-functions/latest/apireference/API_ListExecutions.html
"""

from __future__ import annotations

import logging
from collections import OrderedDict, defaultdict
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import anyio
import anyio.lowlevel

from mcp_workflows.adapter import Execution, Ref, Status
from mcp_workflows.errors import EngineRefused
from mcp_workflows_stepfunctions.arns import ExecutionName, Machine
from mcp_workflows_stepfunctions.calls import AnsweredError, Calls
from mcp_workflows_stepfunctions.names import DENIED

logger = logging.getLogger(__name__)

PAGE: Final = 1000  # executions
LISTING_EVERY: Final = 2.0  # seconds at least between two lists of one machine
_HEADROOM: Final = 0.8  # of what the quota allows
_WITHIN: Final = 5.0  # seconds of one sweep; machines whose turn has not come are told as they were
_AT_ONCE: Final = 500  # executions gone through without a pause
KEPT_FOR: Final = 60.0  # seconds since a list of a machine that nobody asks for any more
_REMEMBERED: Final = 20_000  # starts of our own that a list may not show yet

_RUNNING: Final = Execution(status=Status.RUNNING)  # one for all: 10,000 would be a lot of garbage

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Who ran in a state machine at a time (seconds of the event loop's clock)."""

    running: frozenset[str] | None  # None: we may not know
    began: float
    pages: int


class Listings:
    """Who runs, by state machine; each is listed as often as the quota of all of them together allows."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._known: dict[str, Listing] = {}
        self._refused: set[str] = set()  # machines that cannot be listed, which was said in the log
        self._started: OrderedDict[str, float] = OrderedDict()
        self._listing = anyio.Lock()

    def started(self, arn: str) -> None:
        """We have just started it: lists that are older say nothing about it."""
        self._started[arn] = anyio.current_time()
        if len(self._started) > _REMEMBERED:
            self._started.popitem(last=False)

    async def describe_many(self, refs: Sequence[Ref]) -> Mapping[str, Execution]:
        """Those that still run, by handle.

        Raises:
            EngineUnavailable: no answer.
        """
        by_machine: dict[str, list[str]] = defaultdict(list)
        async for ref in _gently(refs):
            if machine := _machine(ref.handle):
                by_machine[machine].append(ref.handle)
        await self._refresh(by_machine.keys())
        return {
            handle: _RUNNING
            for machine, handles in by_machine.items()
            if (known := self._known.get(machine))
            async for handle in _gently(handles)
            if known.running is None or handle in known.running or self._started.get(handle, 0.0) > known.began
        }

    async def _refresh(self, machines: Collection[str]) -> None:
        """List those whose turn it is, the oldest first, while the time lasts."""
        deadline = anyio.current_time() + _WITHIN
        async with self._listing:
            self._forget(machines)
            for machine in sorted(machines, key=self._age, reverse=True):
                if anyio.current_time() > deadline or self._age(machine) < self._every():
                    break
                await self._list(machine)

    async def _list(self, machine: str) -> None:
        """Who runs in it; a machine that cannot be listed is not in the way of the others.

        Where we may not list, nothing is told of anybody: they count as running, and looks in their turn find out.
        """
        began = anyio.current_time()
        rows: Sequence[Mapping[str, Any]] | None = ()
        try:
            rows = await self._calls.pages(
                "list_executions",
                "executions",
                known={DENIED},
                stateMachineArn=machine,
                statusFilter="RUNNING",
                maxResults=PAGE,
            )
            self._refused.discard(machine)
        except AnsweredError:
            rows = None
            self._say_once(machine, "states:ListExecutions is not allowed")
        except EngineRefused as error:
            self._say_once(machine, str(error))
        running = None if rows is None else frozenset(str(row["executionArn"]) for row in rows)
        self._known[machine] = Listing(running=running, began=began, pages=max(1, -(-len(rows or ()) // PAGE)))

    def _say_once(self, machine: str, why: str) -> None:
        if machine not in self._refused:
            logger.warning("%s cannot be listed, its executions are looked at one by one: %s", machine, why)
        self._refused.add(machine)

    def _forget(self, wanted: Collection[str]) -> None:
        """The others take no part of the quota."""
        for machine in self._known.keys() - wanted:
            if self._age(machine) > KEPT_FOR:
                del self._known[machine]

    def _age(self, machine: str) -> float:
        known = self._known.get(machine)
        return float("inf") if known is None else anyio.current_time() - known.began

    def _every(self) -> float:
        """Seconds between two lists of a machine: all pages of all machines within the quota."""
        pages = sum(listing.pages for listing in self._known.values())
        return max(LISTING_EVERY, pages / (_HEADROOM * self._calls.refill("list_executions")))


async def _gently(items: Iterable[T]) -> AsyncGenerator[T]:
    """These; now and then it is everybody else's turn, as 10,000 of them take a while."""
    for number, item in enumerate(items, 1):
        yield item
        if number % _AT_ONCE == 0:
            await anyio.lowlevel.checkpoint()


def _machine(handle: str) -> str | None:
    """The ARN of the machine of an execution; None: it is not one that can be listed."""
    try:
        found = ExecutionName.parse(handle)
    except EngineRefused:
        return None
    return None if found.express or found.label else Machine(place=found.place, name=found.machine).arn
