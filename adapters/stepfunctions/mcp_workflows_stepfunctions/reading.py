"""The history of an execution, as far as it has been read: each look reads only what is new.

Nothing in here must be kept: whatever is forgotten is read again.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

import anyio.lowlevel

from mcp_workflows_stepfunctions.calls import Calls
from mcp_workflows_stepfunctions.fold import Fold

KEPT: Final = 5_000  # executions
_NEWS, _ALL = 100, 1000  # events of one page
_TURN: Final = 0.01  # seconds
_NEVER_AFTER: Final = 5.0  # seconds: an event that does not show for so long after its successor does not come any more


class Histories:
    """What the histories of executions come to, by ARN."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._folds: OrderedDict[str, Fold] = OrderedDict()
        self._missing: dict[str, tuple[int, float]] = {}  # by ARN: the event that does not show, and since when

    async def read(self, arn: str) -> Fold:
        """The history up to now: newest first, down to what is known.

        Raises:
            ExecutionNotFound, EngineUnavailable: see `Adapter.describe`.
        """
        fold = self._folds.setdefault(arn, Fold())
        self._folds.move_to_end(arn)
        while len(self._folds) > KEPT:
            self.forget(next(iter(self._folds)))
        known = fold.last_id
        await _feed(fold, self._settled(arn, known, await self._news(arn, known)))
        return fold

    def forget(self, arn: str) -> None:
        """It has ended."""
        self._folds.pop(arn, None)
        self._missing.pop(arn, None)

    def _settled(self, arn: str, known: int, events: Sequence[Any]) -> Sequence[Any]:  # Any: events of boto3
        """Those before the first id that is missing: branches write at the same time, and one may not show yet."""
        missing = next((number for number, event in enumerate(events, known + 1) if event["id"] != number), None)
        if missing is None:
            self._missing.pop(arn, None)
            return events
        now = time.monotonic()
        before, since = self._missing.get(arn, (missing, now))
        self._missing[arn] = missing, (since if before == missing else now)
        return events if now - self._missing[arn][1] > _NEVER_AFTER else events[: missing - known - 1]

    async def _news(self, arn: str, known: int) -> list[Any]:  # Any: events of boto3
        news: list[Any] = []
        page: dict[str, Any] = {"executionArn": arn, "reverseOrder": True, "maxResults": _NEWS if known else _ALL}
        while True:
            found = await self._calls.call("get_execution_history", **page)
            fresh = [event for event in found["events"] if event["id"] > known]
            news += fresh
            if not found.get("nextToken") or len(fresh) < len(found["events"]):
                return sorted(news, key=lambda event: event["id"])  # AWS orders by time, which several events may share
            page["nextToken"] = found["nextToken"]


async def _feed(fold: Fold, events: Sequence[Any]) -> None:  # Any: events of boto3
    """Take them in; now and then it is everybody else's turn, as a long history takes a while.

    Who feeds the same fold meanwhile does no harm: both go by ascending ids, and what it has is passed over.
    """
    turn = time.monotonic()
    for event in events:
        fold.feed((event,))
        if time.monotonic() - turn > _TURN:
            await anyio.lowlevel.checkpoint()
            turn = time.monotonic()
