"""AdapterContract catches adapters that break a law, and says what to write."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest

from mcp_workflows.adapter import JSON, Adapter, Execution, Ref, Start, Status
from mcp_workflows.adapter.memory import MESSAGES
from mcp_workflows.errors import EngineRefused, EngineUnavailable, ExecutionNotFound, StartConflict
from mcp_workflows.testing import (
    FindableMemoryAdapter,
    FindableMemorySettings,
    MemoryAdapter,
    MemorySettings,
    Role,
    Subject,
    laws,
)

pytestmark = pytest.mark.anyio

Law = Callable[[Subject, Adapter], Awaitable[None]]


@asynccontextmanager
async def losing_nothing(adapter: Adapter) -> AsyncGenerator[None]:
    """A subject's mistake: every reply arrives."""
    yield


def subject_of(kind: type[MemoryAdapter], name: str = "") -> Subject:
    """An engine in memory, in front of which an adapter breaks a law."""
    settings = FindableMemorySettings(name=name or uuid.uuid4().hex)
    return Subject(
        new_adapter=lambda: kind(settings),
        finishes=Role(workflow="echo", arguments=[{"text": "hi"}]),
        output={"text": "hi"},
        other_arguments=[{"text": "ho"}],
        fails=Role(workflow="fail"),
        failure="declined",
        endless=Role(workflow="forever"),
        asks=Role(workflow="ask"),
        refused=Role(workflow="nobody-wrote-this"),
        losing_replies=losing_nothing,
        messages=MESSAGES,
        unreachable=lambda: kind(FindableMemorySettings(name=uuid.uuid4().hex, unreachable=True)),
        timeout=0.5,
        call_timeout=0.2,
    )


async def said(law: Law, kind: type[MemoryAdapter]) -> str:
    """What the contract says of an adapter that breaks this law."""
    subject = subject_of(kind)
    async with subject.new_adapter() as adapter:
        with pytest.raises((pytest.fail.Exception, AssertionError)) as failed:
            await law(subject, adapter)
    return str(failed.value)


class LongPolling(MemoryAdapter):
    """Waits for the end of what runs; what was started just now waits for a worker yet."""

    looks = 0

    async def describe(self, ref: Ref) -> Execution:
        seen = await super().describe(ref)
        self.looks += 1
        if self.looks > 1 and seen.status is Status.RUNNING:
            await anyio.sleep(20)
        return seen


class Blocking(MemoryAdapter):
    """Blocks the event loop with each look."""

    async def describe(self, ref: Ref) -> Execution:
        time.sleep(0.3)  # noqa: ASYNC251  # that is what is wrong with it
        return await super().describe(ref)


@pytest.mark.parametrize("kind", [LongPolling, Blocking])
async def test_a_describe_that_waits_for_what_runs_is_caught(kind: type[MemoryAdapter]) -> None:
    found = await said(laws.a_poll_of_a_running_execution_never_waits, kind)
    assert found.startswith("describe() took more than 0.2 s: it is one poll, and waits for nothing")


class SilentAnswer(MemoryAdapter):
    """Ignores answers to what it does not know."""

    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        return


class SilentCancel(MemoryAdapter):
    """Ignores cancellations of what it does not know."""

    async def cancel(self, ref: Ref) -> None:
        return


class UnsureLook(MemoryAdapter):
    """Does not tell an execution that is not there from an engine that does not answer."""

    async def describe(self, ref: Ref) -> Execution:
        try:
            return await super().describe(ref)
        except ExecutionNotFound as error:
            raise EngineUnavailable(str(error)) from None


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (SilentAnswer, "answer() must raise ExecutionNotFound when there is no such execution: ask the engine, even"),
        (SilentCancel, "cancel() must raise ExecutionNotFound when there is no such execution: ask the engine, even"),
        (UnsureLook, "describe() must raise ExecutionNotFound when there is no such execution (the subject's"),
    ],
)
async def test_a_verb_that_says_nothing_of_an_execution_that_is_not_there_is_caught(
    kind: type[MemoryAdapter], told: str
) -> None:
    found = await said(laws.an_execution_nobody_started_is_not_found, kind)
    assert found.startswith(told)
    assert ("it raised EngineUnavailable: the engine in memory" if kind is UnsureLook else "it returned None") in found


class LettingThrough(MemoryAdapter):
    """Translates no refusal, as a class must."""

    async def start(self, start: Start) -> str:
        try:
            return await super().start(start)
        except EngineRefused as error:
            raise ValueError(str(error)) from None


class Hoping(MemoryAdapter):
    """Takes a refusal for an engine that does not answer."""

    async def start(self, start: Start) -> str:
        try:
            return await super().start(start)
        except EngineRefused as error:
            raise EngineUnavailable(str(error)) from None


@pytest.mark.parametrize(("kind", "did"), [(LettingThrough, "ValueError"), (Hoping, "EngineUnavailable")])
async def test_a_refusal_that_would_be_tried_again_and_again_is_caught(kind: type[MemoryAdapter], did: str) -> None:
    found = await said(laws.a_start_that_the_engine_refuses_is_a_definite_no, kind)
    assert found.startswith("start() must raise EngineRefused when the engine says no (a 4xx)")
    assert f"it raised {did}: no workflow named 'nobody-wrote-this'" in found


class Careless(MemoryAdapter):
    """Takes whatever its key was first used for."""

    async def start(self, start: Start) -> str:
        try:
            return await super().start(start)
        except StartConflict:
            return start.key


class Refusing(MemoryAdapter):
    """Says no, and not which."""

    async def start(self, start: Start) -> str:
        try:
            return await super().start(start)
        except StartConflict as error:
            raise EngineRefused(str(error)) from None


class CarelessFinder(FindableMemoryAdapter):
    """Finds by key alone."""

    async def find(self, start: Start) -> str | None:
        try:
            return await super().find(start)
        except StartConflict:
            return "somebody's"


@pytest.mark.parametrize(
    "law",
    [
        laws.another_input_under_the_same_key_is_refused,
        laws.another_workflow_under_the_same_key_is_refused,
    ],
)
@pytest.mark.parametrize(
    ("kind", "verb", "did"),
    [
        (Careless, "start", "it returned 'contract-"),
        (Refusing, "start", "it raised EngineRefused: this key"),
        (CarelessFinder, "find", 'it returned "somebody\'s"'),
    ],
)
async def test_a_key_that_is_taken_without_a_word_is_caught(
    law: Law, kind: type[MemoryAdapter], verb: str, did: str
) -> None:
    found = await said(law, kind)
    assert found.startswith(f"{verb}() must raise StartConflict when the key belongs to an execution with another")
    assert "compare" in found
    assert did in found


async def test_a_reply_that_was_not_lost_is_told() -> None:
    found = await said(laws.a_start_whose_reply_was_lost_is_found_again, MemoryAdapter)
    assert found.startswith("start() must raise EngineUnavailable when no reply comes (if it came: `losing_replies`")


class Promising(MemoryAdapter):
    """Says that a request that may have arrived certainly did not."""

    async def start(self, start: Start) -> str:
        raise EngineUnavailable("no reply", sent=False)


async def test_a_false_promise_that_nothing_was_started_is_told() -> None:
    found = await said(laws.a_start_whose_reply_was_lost_is_found_again, Promising)
    assert "EngineUnavailable(sent=False) is a promise that nothing was started" in found


class BlockingForLong(MemoryAdapter):
    """Blocks the event loop with each look, for less than a look may take."""

    async def describe(self, ref: Ref) -> Execution:
        time.sleep(2)  # noqa: ASYNC251  # that is what is wrong with it
        return await super().describe(ref)


class YesMan(MemoryAdapter):
    """Delivers each answer as an acceptance."""

    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        await super().answer(ref, {key: {"action": "accept", "content": {"answer": "yes"}} for key in responses})


class LastWins(MemoryAdapter):
    """Delivers answers to questions that were answered before."""

    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        answers = self._engine.executions[ref.handle].answers
        self._change(ref, answers={**answers, **responses})


class OnlySaysCancelled(MemoryAdapter):
    """Notes a cancellation, and leaves the engine working."""

    def __init__(self, settings: MemorySettings) -> None:
        super().__init__(settings)
        self._noted: set[str] = set()

    async def cancel(self, ref: Ref) -> None:
        self._noted.add(ref.handle)

    async def describe(self, ref: Ref) -> Execution:
        seen = await super().describe(ref)
        return replace(seen, status=Status.CANCELLED) if ref.handle in self._noted else seen


@pytest.mark.parametrize(
    ("law", "mutated", "told"),
    [
        (laws.a_poll_does_not_block_the_event_loop, BlockingForLong, "describe() kept the event loop for 2."),
        (laws.a_declined_question_is_not_delivered_as_accepted, YesMan, "a declined question was delivered as"),
        (laws.a_later_answer_does_not_replace_the_first, LastWins, "a later answer replaced the first"),
        (laws.a_cancel_stops_the_work, OnlySaysCancelled, "it ended as cancelled, and the engine still works"),
    ],
)
async def test_a_mutated_adapter_breaks_the_law_and_a_right_one_keeps_it(
    law: Law, mutated: type[MemoryAdapter], told: str
) -> None:
    for kind in (MemoryAdapter, mutated):
        name = uuid.uuid4().hex
        found = subject_of(kind, name)

        async def has_stopped(ref: Ref, settings: str = name) -> bool:
            async with MemoryAdapter(MemorySettings(name=settings)) as engine:
                return (await engine.describe(ref)).terminal

        subject = replace(
            found,
            asks_two=Role(workflow="ask_two"),
            content={"answer": "yes"},
            has_stopped=has_stopped,
            call_timeout=10,
            timeout=5 if kind is MemoryAdapter else 0.5,
        )
        async with subject.new_adapter() as adapter:
            if kind is MemoryAdapter:
                await law(subject, adapter)
            else:
                with pytest.raises(AssertionError, match=re.escape(told)):
                    await law(subject, adapter)


class SendingTwice(MemoryAdapter):
    """Takes no notice of the keys of messages."""

    async def start(self, start: Start) -> str:
        return await super().start(replace(start, key=uuid.uuid4().hex) if start.target else start)


class CancellingBoth(MemoryAdapter):
    """Takes the handle of a message for that of its execution."""

    async def cancel(self, ref: Ref) -> None:
        target = self._engine.executions[ref.handle].start.target
        await super().cancel(Ref(workflow="forever", handle=target or ref.handle))


class SendingToNobody(MemoryAdapter):
    """Says that a message was sent to an execution that is not there."""

    async def start(self, start: Start) -> str:
        return await super().start(start) if start.target in self.handles or not start.target else "sent"


@pytest.mark.parametrize(
    ("law", "kind", "told"),
    [
        (
            laws.a_message_sent_twice_under_its_key_is_delivered_once,
            SendingTwice,
            "what arrived is ['first', 'first', 'first', 'last']",
        ),
        (
            laws.a_message_sent_twice_under_its_key_is_delivered_once,
            CancellingBoth,
            "cancel() of a message must leave its execution alone",
        ),
        (
            laws.a_message_to_an_execution_that_is_not_there_is_refused,
            SendingToNobody,
            "start() must raise EngineRefused for a message to an execution that the engine does not know",
        ),
    ],
)
async def test_messages_that_are_sent_twice_or_to_nobody_are_caught(
    law: Law, kind: type[MemoryAdapter], told: str
) -> None:
    assert told in await said(law, kind)
