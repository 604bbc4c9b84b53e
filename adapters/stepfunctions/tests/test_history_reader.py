"""Histories are read bit by bit, and nothing in them is passed over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
from mcp_workflows_stepfunctions import describe
from mcp_workflows_stepfunctions.client import Client
from mcp_workflows_stepfunctions.describe import HistoryReader

pytestmark = pytest.mark.anyio


class Shown:
    """What GetExecutionHistory shows at the moment, the newest first, in pages."""

    def __init__(self) -> None:
        self.ids: Sequence[int] = ()

    async def call(self, operation: str, **page: Any) -> Mapping[str, Any]:
        assert operation == "get_execution_history"
        begin, size = int(page.get("nextToken", 0)), page["maxResults"]
        events = [_event(number) for number in self.ids[begin : begin + size]]
        more = {"nextToken": str(begin + size)} if begin + size < len(self.ids) else {}
        return {"events": events, **more}


def _event(number: int) -> Mapping[str, Any]:
    details = {"stateEnteredEventDetails": {"name": f"State {number}"}}
    return {"id": number, "previousEventId": number - 1, "type": "PassStateEntered", **details}


@pytest.fixture
def shown() -> Shown:
    return Shown()


@pytest.fixture
def histories(shown: Shown) -> HistoryReader:
    return HistoryReader(cast("Client", shown))


async def test_what_is_new_is_read_in_any_order_and_over_pages(shown: Shown, histories: HistoryReader) -> None:
    shown.ids = [3, 2, 1]
    assert (await histories.read("a")).state == "State 3"
    shown.ids = [*range(250, 5, -1), 4, 5, 3, 2, 1]
    assert (await histories.read("a")).last_id == 250


async def test_an_event_that_does_not_show_yet_is_waited_for(
    shown: Shown, histories: HistoryReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown.ids = [5, 4, 2, 1]
    assert (await histories.read("a")).last_id == 2
    shown.ids = [6, 5, 4, 3, 2, 1]
    assert (await histories.read("a")).last_id == 6
    shown.ids = [8, 6, 5, 4, 3, 2, 1]
    assert (await histories.read("a")).last_id == 6
    monkeypatch.setattr(describe, "_LATE_EVENT_SECONDS", -1.0)  # it has been long enough
    assert (await histories.read("a")).last_id == 8
