"""MemoryAdapter keeps the laws of the boundary, and fails on request."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

import anyio
import pytest

from mcp_workflows.adapter import (
    Adapter,
    Adopts,
    Gate,
    InputRequest,
    ListsEnded,
    MessageRole,
    Ref,
    Start,
    StartGuarantee,
    Status,
    Terminates,
)
from mcp_workflows.adapter.memory import MESSAGES, Script, ScriptedAdapter
from mcp_workflows.errors import EngineRefused, ExecutionNotFound
from mcp_workflows.kit.tooling import Checks
from mcp_workflows.testing import (
    AdapterContract,
    FindableMemoryAdapter,
    FindableMemorySettings,
    MemoryAdapter,
    MemorySettings,
    Role,
    Subject,
)

LONG = 3600


@asynccontextmanager
async def losing_replies(adapter: Adapter) -> AsyncGenerator[None]:
    """The next reply of a start is lost."""
    assert isinstance(adapter, MemoryAdapter)
    adapter.faults.lost_start_replies = 1
    yield
    assert adapter.faults.lost_start_replies == 0


def subject_of(new_adapter: Callable[[], Adapter], unreachable: Callable[[], Adapter]) -> Subject:
    """What every engine in memory has."""
    return Subject(
        new_adapter=new_adapter,
        finishes=Role(workflow="echo", arguments=[{"text": "hi"}]),
        output={"text": "hi"},
        other_arguments=[{"text": "ho"}],
        fails=Role(workflow="fail"),
        failure="declined",
        asks=Role(workflow="ask"),
        asks_two=Role(workflow="ask_two"),
        content={"answer": "yes"},
        endless=Role(workflow="forever"),
        refused=Role(workflow="nobody-wrote-this"),
        unreachable=unreachable,
        losing_replies=losing_replies,
        timeout=2,
        call_timeout=1,
    )


class TestMemoryAdapter(AdapterContract):
    """All laws, no gaps."""

    capabilities = frozenset({Adopts, Checks, ListsEnded, MessageRole, Terminates})

    @pytest.fixture
    def subject(self) -> Subject:
        settings = MemorySettings(name=uuid.uuid4().hex)
        nowhere = MemorySettings(name=uuid.uuid4().hex, unreachable=True)
        subject = subject_of(lambda: MemoryAdapter(settings), lambda: MemoryAdapter(nowhere))
        return replace(subject, messages=MESSAGES)


class TestFindableMemoryAdapter(AdapterContract):
    """All laws of an engine without keys, whose list lags behind."""

    starts = StartGuarantee.FINDABLE
    capabilities = frozenset({Adopts, Checks, ListsEnded, Terminates})

    @pytest.fixture
    def subject(self) -> Subject:
        settings = FindableMemorySettings(name=uuid.uuid4().hex)

        def new_adapter() -> FindableMemoryAdapter:
            adapter = FindableMemoryAdapter(settings)
            adapter.faults.lag = 0.1
            return adapter

        nowhere = FindableMemorySettings(name=uuid.uuid4().hex, unreachable=True)
        return subject_of(new_adapter, lambda: FindableMemoryAdapter(nowhere))


async def test_of_what_was_started_twice_the_oldest_goes_on_and_what_has_ended_stays_so() -> None:
    async with FindableMemoryAdapter(FindableMemorySettings(name=uuid.uuid4().hex)) as adapter:
        start = Start(workflow="ask", arguments=[], key="k", created=datetime.now(UTC))
        oldest, ended, running = [Ref(workflow="ask", handle=await adapter.start(start)) for _ in range(3)]
        await adapter.answer(ended, {"question": {"action": "decline"}})
        assert await adapter.find(start) == oldest.handle
        seen = [(await adapter.describe(ref)).status for ref in (oldest, ended, running)]
        assert seen == [Status.INPUT_REQUIRED, Status.SUCCEEDED, Status.CANCELLED]


@pytest.fixture
async def adapter() -> AsyncIterator[MemoryAdapter]:
    async with MemoryAdapter(MemorySettings(name=uuid.uuid4().hex)) as adapter:
        yield adapter


async def begin(adapter: Adapter, workflow: str, arguments: object = None) -> Ref:
    start = Start(workflow=workflow, arguments=arguments or [], key=uuid.uuid4().hex, created=datetime.now(UTC))
    return Ref(workflow=workflow, handle=await adapter.start(start))


@pytest.mark.parametrize("arguments", [[{"seconds": LONG}], [LONG], {"seconds": LONG}])
async def test_sleep_shows_progress_in_seconds(adapter: MemoryAdapter, arguments: object) -> None:
    seen = await adapter.describe(await begin(adapter, "sleep", arguments))
    assert seen.status is Status.RUNNING
    assert seen.progress is not None
    assert (seen.progress.value, seen.progress.total) == (0, LONG)


async def test_questions_in_turn_come_one_after_the_other(adapter: MemoryAdapter) -> None:
    ref = await begin(adapter, "ask_in_turn")
    assert set((await adapter.describe(ref)).requests) == {"first"}
    await adapter.answer(
        ref, {"second": {"action": "decline"}, "first": {"action": "accept", "content": {"answer": "a"}}}
    )
    assert set((await adapter.describe(ref)).requests) == {"second"}
    await adapter.answer(ref, {"second": {"action": "decline"}})
    seen = await adapter.describe(ref)
    assert seen.output == {"first": {"answer": "a"}, "second": {"action": "decline"}}


async def test_a_stubborn_workflow_only_notes_that_it_should_cancel(adapter: MemoryAdapter) -> None:
    ref = await begin(adapter, "stubborn", [LONG])
    await adapter.cancel(ref)
    seen = await adapter.describe(ref)
    assert (seen.status, seen.cancel_requested) == (Status.RUNNING, True)


async def test_a_silent_verb_never_answers(adapter: MemoryAdapter) -> None:
    ref = await begin(adapter, "forever")
    adapter.faults.silent = frozenset({"describe"})
    with anyio.move_on_after(0.01) as scope:
        await adapter.describe(ref)
    assert scope.cancelled_caught


async def test_a_refused_start_starts_nothing(adapter: MemoryAdapter) -> None:
    adapter.faults.refused_starts = 1
    start = Start(workflow="forever", arguments=[], key="k", created=datetime.now(UTC))
    with pytest.raises(EngineRefused):
        await adapter.start(start)
    with pytest.raises(ExecutionNotFound):
        await adapter.describe(Ref(workflow="forever", handle="memory-k"))
    assert await adapter.start(start) == "memory-k"


async def test_a_script_fails_ends_and_stops_the_executions_of_its_tools() -> None:
    script = Script()
    script.fail("no stock", code=-32602, tool="ship")
    script.run_elsewhere("tonight", "Billing", tool="ship")
    async with ScriptedAdapter(script) as adapter:
        failed = await adapter.describe(Ref(workflow="Billing", handle="tonight"))
        assert failed.failure is not None
        assert (failed.status, failed.failure.text, failed.failure.code) == (Status.FAILED, "no stock", -32602)
        other = await begin(adapter, "ship")
        await adapter.cancel(other)
        assert (await adapter.describe(other)).status is Status.CANCELLED
    assert [start.key for start in script.cancelled] == [start.key for start in script.starts] == [other.handle]


async def test_an_end_is_as_late_as_it_was_first_seen_and_of_too_many_the_earliest_are_listed(
    adapter: MemoryAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_workflows.adapter.memory.MOST_ENDED", 2)
    since = datetime.now(UTC)
    refs = [await begin(adapter, "echo") for _ in range(3)]
    for ref in reversed(refs):
        await adapter.describe(ref)
    first = await adapter.list_ended("echo", since)
    assert [each.handle for each in first] == [ref.handle for ref in refs[:0:-1]]
    assert refs[0].handle in {each.handle for each in await adapter.list_ended("echo", first[-1].ended)}
    adapter.forget(refs[2].handle)
    assert refs[2].handle not in {each.handle for each in await adapter.list_ended("echo", since)}


async def test_an_execution_with_gates_runs_for_those_who_list_it(adapter: MemoryAdapter) -> None:
    ref, since = await begin(adapter, "gated"), datetime.now(UTC)
    assert await adapter.list_ended("gated", since) == []
    gate = Gate(when={"after_seconds": 0}, request=InputRequest(method="elicitation/create", params={}), send=None)
    gated = replace(ref, gates={"go": gate})
    await adapter.answer(gated, {"go.1": {"action": "accept", "send": 1}})
    await adapter.describe(gated)
    assert [(each.handle, each.status) for each in await adapter.list_ended("gated", since)] == [
        (ref.handle, Status.SUCCEEDED)
    ]


async def test_what_a_script_runs_elsewhere_is_listed_once_it_has_ended() -> None:
    script, since = Script(), datetime.now(UTC)
    script.run_elsewhere("tonight", "Billing")
    async with ScriptedAdapter(script) as adapter:
        script.open_gate("release")
        assert await adapter.list_ended("Billing", since) == []
        script.engine.executions["tonight"] = replace(
            script.engine.executions["tonight"], answers={"release.1": {"action": "accept"}}
        )
        script.fail("no totals")
        found = await adapter.list_ended("Billing", since)
    assert [(each.execution_id, each.status) for each in found] == [("tonight", Status.FAILED)]
