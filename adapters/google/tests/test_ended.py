"""What has ended, as ListExecutions tells it by the time of the end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.cloud.workflows import executions_v1
from mcp_workflows_google import GoogleAdapter
from mcp_workflows_google.tooling import discover

from adapters.google.tests import cloud
from adapters.google.tests.injecting import Injecting
from adapters.google.tests.stubbed import BEGAN, start
from mcp_workflows.adapter import Status
from tests.support.google_engine import GoogleEngine

pytestmark = pytest.mark.anyio

State = executions_v1.Execution.State


async def test_of_more_than_fit_the_earliest_are_told_and_the_next_call_goes_on(
    google_engine: GoogleEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discover, "MOST_ENDED", 2)
    workflow, since = google_engine.deploy("declines", cloud.DECLINES), datetime.now(UTC) - timedelta(minutes=1)
    names = [google_engine.ended(google_engine.execute(workflow)).name for _ in range(3)]
    async with cloud.adapter(google_engine) as adapter:
        for written in (workflow, workflow.rpartition("/")[2]):
            first = await adapter.list_ended(written, since)
            assert [each.handle for each in first] == [each.execution_id for each in first] == names[:2]
            second = await adapter.list_ended(written, first[-1].ended)
            assert [(each.handle, each.status) for each in second] == [(name, Status.FAILED) for name in names[1:]]
            assert await adapter.list_ended(written, second[-1].ended + timedelta(microseconds=1)) == []


async def test_what_the_filter_lets_through_is_looked_at_again(stub: Injecting, adapter: GoogleAdapter) -> None:
    """The stub knows neither filter nor order."""
    states = {State.SUCCEEDED: 3, State.FAILED: 2, State.CANCELLED: 1, State.UNAVAILABLE: 4, State.ACTIVE: None}
    for key, (state, minute) in enumerate([*states.items(), (State.SUCCEEDED, -1)]):
        name = await adapter.start(start(str(key)))
        ended: dict[str, Any] = {} if minute is None else {"end_time": BEGAN + timedelta(minutes=minute)}
        stub.executions[name] = executions_v1.Execution(name=name, state=state, **ended)
    found = await adapter.list_ended("orders", BEGAN)
    assert [each.status for each in found] == [Status.CANCELLED, Status.FAILED, Status.SUCCEEDED]
    asked = [each.request for each in stub.asked if each.what == "ListExecutions"]
    assert [(each.filter, each.order_by) for each in asked] == [('endTime>="2023-11-14T22:13:20+00:00"', "endTime")]
