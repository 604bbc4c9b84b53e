"""The histories of executions, read incrementally: each look reads only new events.

Everything here is a cache: a forgotten history is read again.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import anyio.lowlevel

from mcp_workflows.adapter import Gate
from mcp_workflows.errors import EngineError
from mcp_workflows_stepfunctions.client import Client, ExpectedCodeError
from mcp_workflows_stepfunctions.definition import states
from mcp_workflows_stepfunctions.history import History
from mcp_workflows_stepfunctions.names import DENIED, KMS_REFUSES
from mcp_workflows_stepfunctions.questions import needs_definition

KEPT: Final = 5_000  # executions
_SMALL_PAGE, _LARGE_PAGE = 100, 1000  # events of one page
_FEED_SECONDS: Final = 0.01  # seconds
_LATE_EVENT_SECONDS: Final = 5.0  # seconds after its successor that a missing event is waited for
_RETRY_SECONDS: Final = 60.0  # seconds
_ACTION: Final = "DescribeStateMachineForExecution"
_DEFINITION: Final = "describe_state_machine_for_execution"
_UNREADABLE: Final = KMS_REFUSES | {DENIED}
_NO_GATES: Final[Mapping[str, Gate]] = {}


class HistoryReader:
    """The histories read so far, by ARN."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._histories: OrderedDict[str, History] = OrderedDict()
        self._missing: dict[str, tuple[int, float]] = {}  # by ARN: the missing event, and the time it was missed first
        self._located: dict[str, float] = {}  # by ARN: the time when its definition may be read again

    async def read(self, arn: str, gates: Mapping[str, Gate] = _NO_GATES) -> History:
        """Return the history up to now, and read the definition if these gates need it.

        Raises:
            ExecutionNotFound, EngineUnavailable: see `Adapter.describe`.
        """
        history = self._histories.setdefault(arn, History())
        self._histories.move_to_end(arn)
        while len(self._histories) > KEPT:
            self.forget(next(iter(self._histories)))
        known = history.last_id
        await _feed(history, self._without_gaps(arn, known, await self._new_events(arn, known)))
        if history.token_places is None and needs_definition(history, gates):
            await self.locate(arn, history)
        return history

    async def locate(self, arn: str, history: History) -> None:
        """Read the token places from the definition of this execution, once; again some time after a failure.

        The machine may have another definition by now; that of an execution does not change.
        """
        now = time.monotonic()
        if history.token_places is not None or now < self._located.get(arn, 0.0):
            return
        self._located[arn] = now + _RETRY_SECONDS
        try:
            found = await self._client.call(_DEFINITION, known=_UNREADABLE, executionArn=arn)
        except ExpectedCodeError as answered:
            denied = answered.code == DENIED
            history.unread = (
                f"its definition {'may not be read (states:' + _ACTION + ')' if denied else 'is encrypted'}"
            )
        except EngineError:
            history.unread = "its definition cannot be read now"
        else:
            history.unread = None
            there = states(str(found.get("definition", ""))).values()
            history.token_places = {state.name: state.token_places for state in there if state.waits_for_token}

    def forget(self, arn: str) -> None:
        """Forget an execution that has ended."""
        self._histories.pop(arn, None)
        self._missing.pop(arn, None)
        self._located.pop(arn, None)

    def _without_gaps(self, arn: str, known: int, events: Sequence[Any]) -> Sequence[Any]:  # Any: events of boto3
        """Return the events before the first missing id: branches write at the same time, and an event may be late."""
        missing = next((number for number, event in enumerate(events, known + 1) if event["id"] != number), None)
        if missing is None:
            self._missing.pop(arn, None)
            return events
        now = time.monotonic()
        before, since = self._missing.get(arn, (missing, now))
        self._missing[arn] = missing, (since if before == missing else now)
        return events if now - self._missing[arn][1] > _LATE_EVENT_SECONDS else events[: missing - known - 1]

    async def _new_events(self, arn: str, known: int) -> list[Any]:  # Any: events of boto3
        events: list[Any] = []
        page: dict[str, Any] = {
            "executionArn": arn,
            "reverseOrder": True,
            "maxResults": _SMALL_PAGE if known else _LARGE_PAGE,
        }
        while True:
            found = await self._client.call("get_execution_history", **page)
            fresh = [event for event in found["events"] if event["id"] > known]
            events += fresh
            if not found.get("nextToken") or len(fresh) < len(found["events"]):
                return sorted(
                    events, key=lambda event: event["id"]
                )  # AWS sorts by time, which several events may share
            page["nextToken"] = found["nextToken"]


async def _feed(history: History, events: Sequence[Any]) -> None:  # Any: events of boto3
    """Feed events to a history, and let other tasks run now and then: a long history takes a while.

    Two tasks may feed one history: both feed by ascending ids, and the history skips known events.
    """
    began = time.monotonic()
    for event in events:
        history.feed((event,))
        if time.monotonic() - began > _FEED_SECONDS:
            await anyio.lowlevel.checkpoint()
            began = time.monotonic()
