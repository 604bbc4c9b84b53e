"""What has ended, as an engine lists it: one call like any other, bounded and counted, and fit to be shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from mcp_workflows import from_functions
from mcp_workflows.adapter import EndedExecution, Ref, Start, Status
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import EngineUnavailable

pytestmark = pytest.mark.anyio


class Garish(MemoryAdapter):
    """Has ids that take over a terminal."""

    async def list_ended(self, workflow: str, since: datetime) -> Sequence[EndedExecution]:
        return [replace(each, execution_id="billing\x1b[31m") for each in await super().list_ended(workflow, since)]


async def test_an_id_is_as_people_may_see_it_and_a_handle_as_it_is(tmp_path: object) -> None:
    since, adapter = datetime.now(UTC), Garish(MemorySettings(name=str(tmp_path)))
    async with Engines({"here": adapter}) as engines:
        handle = await adapter.start(Start(workflow="fail", arguments=[], key="one", created=since))
        [found] = await engines.list_ended("here", "fail", since)
        assert (found.handle, found.status) == (handle, Status.FAILED)
        assert found.execution_id.isprintable()
        assert await engines.list_ended("here", "fail", found.ended + timedelta(seconds=1)) == []


async def test_an_engine_that_gives_no_answer_is_unavailable_in_time(tmp_path: object) -> None:
    adapter = MemoryAdapter(MemorySettings(name=str(tmp_path)))
    adapter.faults.silent = frozenset({"list_ended"})
    async with Engines({"here": adapter}, call_timeout=0.05) as engines:
        with pytest.raises(EngineUnavailable, match="no answer within"):
            await engines.list_ended("here", "echo", datetime.now(UTC))
        with pytest.raises(EngineUnavailable, match="no longer in the configuration"):
            await engines.list_ended("elsewhere", "echo", datetime.now(UTC))


async def test_an_engine_that_cannot_list_what_has_ended_has_none() -> None:
    def nothing(ref: Ref) -> None:
        """A cancel that does nothing."""

    adapter = from_functions(start=lambda start: start.key, describe=lambda ref: Status.RUNNING, cancel=nothing)
    async with Engines({"here": adapter}) as engines:
        assert await engines.list_ended("here", "echo", datetime.now(UTC)) == []
