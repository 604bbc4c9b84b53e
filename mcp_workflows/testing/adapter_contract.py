"""AdapterContract: the laws of the boundary, one test each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

import anyio
import pytest
from pydantic import BaseModel

from mcp_workflows.adapter import Adapter, Checks, Finds, Ref, StartGuarantee, Status
from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable
from mcp_workflows.testing.capability_contract import CapabilityLaws
from mcp_workflows.testing.subject import (
    STACK_TRACES,
    Subject,
    accepted,
    assert_clean,
    cancelled_afterwards,
    expect,
    expect_conflict,
    expect_not_found,
    finder,
    look,
    new_start,
    one_left,
    only_if,
    ref_of,
    run_on,
    see_end,
    see_questions,
    start_again,
    unreachable,
    until,
    until_ended,
)

STARTS_ONCE_PER_KEY = frozenset({StartGuarantee.KEYED, StartGuarantee.FINDABLE})


class AdapterContract(CapabilityLaws):
    """Prove an adapter: subclass this in a test module and override one fixture, `subject`.

    ```python
    from mcp_workflows.testing import AdapterContract, Role, Subject

    class TestMyAdapter(AdapterContract):
        @pytest.fixture
        def subject(self, my_engine: str) -> Subject:
            return Subject(
                new_adapter=lambda: MyAdapter(MyAdapter.Settings(address=my_engine)),
                finishes=Role(workflow="Echo", arguments=[{"text": "hi"}]),
                output={"text": "hi"},
                other_arguments=[{"text": "ho"}],
                fails=Role(workflow="Decline"),
                failure="card declined",
                endless=Role(workflow="Forever"),
                asks=Role(workflow="Approve"),
                asks_two=Role(workflow="ApproveTwice"),
                content={"answer": "yes"},
                refused=Role(workflow="NobodyWroteThis"),
                unreachable=lambda: MyAdapter(MyAdapter.Settings(address="127.0.0.1:1", api_key="s3cret")),
                secret="s3cret",
            )
    ```
    Where the engine cannot keep a law, override that test and say why in its docstring:

    ```python
        async def test_another_input_under_the_same_key_is_refused(self, subject, adapter):
            '''MyEngine does not tell the input of an execution that has ended.'''
    ```
    `losing_replies(adapter)` is a context in which each reply of `start` is lost after it took effect: a proxy that
    cuts the connection, a time-out of nearly nothing. What the subject leaves out is skipped, with the reason.
    `Adapter.starts` chooses which laws of starting apply, and how: what may have been started is started again under
    its key (KEYED) or looked for (FINDABLE), as the core does. Needs pytest; runs on asyncio.
    """

    pytestmark: ClassVar[Sequence[pytest.MarkDecorator]] = [pytest.mark.anyio]

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Return the one backend that counts: asyncio."""
        return "asyncio"

    @pytest.fixture
    def subject(self) -> Subject:
        """Override: return the subject of the tests."""
        raise NotImplementedError("override the fixture `subject`")

    @pytest.fixture
    async def adapter(self, subject: Subject) -> AsyncIterator[Adapter]:
        """Yield one entered adapter."""
        async with subject.new_adapter() as adapter:
            yield adapter

    # --- what it is

    async def test_it_publishes_its_settings_and_options(self, subject: Subject) -> None:
        """Law: an adapter publishes two pydantic models, and its guarantee about starting twice."""
        adapter = subject.new_adapter()
        kind = type(adapter)
        assert issubclass(kind.Settings, BaseModel)
        assert issubclass(kind.Options, BaseModel)
        assert isinstance(kind.starts, StartGuarantee)
        assert isinstance(adapter, Finds) or kind.starts is not StartGuarantee.FINDABLE, "FINDABLE: write find()"

    # --- start

    async def test_starting_twice_with_one_key_is_starting_once(self, subject: Subject, adapter: Adapter) -> None:
        """Law: one key starts one execution."""
        only_if(adapter, STARTS_ONCE_PER_KEY)
        start = new_start(subject.endless)
        async with cancelled_afterwards(subject, adapter, start) as ref:
            assert await start_again(subject, adapter, start) == ref.handle

    async def test_starting_again_after_it_ended_starts_nothing(self, subject: Subject, adapter: Adapter) -> None:
        """Law: one key starts one execution, even after it ended."""
        only_if(adapter, STARTS_ONCE_PER_KEY)
        start = new_start(subject.finishes)
        ref = ref_of(start, await adapter.start(start))
        ended = await until_ended(subject, adapter, ref)
        assert await start_again(subject, adapter, start) == ref.handle
        assert await adapter.describe(ref) == ended

    async def test_a_start_whose_reply_was_lost_is_found_again(self, subject: Subject, adapter: Adapter) -> None:
        """Law: one key starts one execution, even when the reply was lost. ONCE: the outcome is unknown."""
        if subject.losing_replies is None:
            pytest.skip("the subject cannot lose a reply")
        start = new_start(subject.finishes)
        async with subject.losing_replies(adapter):
            advice = "start() must raise EngineUnavailable when no reply comes (if it came: `losing_replies` lost none)"
            lost = await expect(adapter.start(start), EngineUnavailable, advice=advice)
        assert isinstance(lost, EngineUnavailable)
        assert lost.sent, "EngineUnavailable(sent=False) is a promise that nothing was started: this may have been"
        if adapter.starts in STARTS_ONCE_PER_KEY:
            taken = replace(start, arguments=subject.other_arguments)
            await expect_conflict(subject, adapter, taken)  # so the lost start is the one found below
            handle = await start_again(subject, adapter, start)
            assert await start_again(subject, adapter, start) == handle
            assert (await until_ended(subject, adapter, ref_of(start, handle))).output == subject.output

    async def test_starting_at_once_from_two_replicas_leaves_one_execution(
        self, subject: Subject, adapter: Adapter
    ) -> None:
        """Law: one key starts one execution. FINDABLE: the oldest is adopted, later duplicates are cancelled."""
        only_if(adapter, STARTS_ONCE_PER_KEY)
        start = new_start(subject.endless)
        handles: list[str] = []
        refused: list[EngineError] = []
        async with subject.new_adapter() as other:

            async def begin(one: Adapter) -> None:
                try:
                    handles.append(await one.start(start))
                except EngineError as error:
                    refused.append(error)  # a group of ten says no more than the first

            async with anyio.create_task_group() as group:
                for number in range(10):
                    group.start_soon(begin, (adapter, other)[number % 2])
        assert not refused, f"{len(refused)} of 10 starts under one key: {refused[0]}"
        if adapter.starts is StartGuarantee.FINDABLE:
            assert await one_left(subject, adapter, start, handles) in handles
        async with cancelled_afterwards(subject, adapter, start, again=True) as ref:
            if adapter.starts is StartGuarantee.KEYED:
                assert set(handles) == {ref.handle}
            assert (await adapter.describe(ref)).status is Status.RUNNING

    async def test_of_two_started_one_after_the_other_the_first_goes_on(
        self, subject: Subject, adapter: Adapter
    ) -> None:
        """Law: FINDABLE: the oldest is adopted, later duplicates are cancelled."""
        only_if(adapter, frozenset({StartGuarantee.FINDABLE}))
        start = new_start(subject.endless)
        async with cancelled_afterwards(subject, adapter, start) as first:
            second = await adapter.start(start)
            assert await one_left(subject, adapter, start, {first.handle, second}) == first.handle
            assert (await adapter.describe(first)).status is Status.RUNNING

    async def test_what_nobody_started_is_not_found_by_its_key(self, subject: Subject, adapter: Adapter) -> None:
        """Law: find sees the executions of this key only. None is no error: it may be started, once it has settled."""
        only_if(adapter, frozenset({StartGuarantee.FINDABLE}))
        finding, start = finder(adapter), new_start(subject.endless)
        async with cancelled_afterwards(subject, adapter, start):
            await start_again(subject, adapter, start)  # now others would be seen, too
            assert await finding.find(new_start(subject.endless)) is None

    async def test_a_call_under_way_is_over_before_it_has_settled(self, subject: Subject, adapter: Adapter) -> None:
        """Law: after `settling` the key is started again, so no earlier start can be under way then."""
        only_if(adapter, frozenset({StartGuarantee.FINDABLE}))
        assert finder(adapter).settling.total_seconds() > subject.glance, "shorter than one call may take"

    async def test_another_input_under_the_same_key_is_refused(self, subject: Subject, adapter: Adapter) -> None:
        """Law: another input under the same key is refused."""
        only_if(adapter, STARTS_ONCE_PER_KEY)
        start = new_start(subject.finishes)
        ref = ref_of(start, await adapter.start(start))
        await expect_conflict(subject, adapter, replace(start, arguments=subject.other_arguments))
        assert (await until_ended(subject, adapter, ref)).output == subject.output

    async def test_another_workflow_under_the_same_key_is_refused(self, subject: Subject, adapter: Adapter) -> None:
        """Law: one key starts one execution, of one workflow."""
        only_if(adapter, STARTS_ONCE_PER_KEY)
        start = new_start(subject.finishes)
        await adapter.start(start)
        await expect_conflict(subject, adapter, replace(new_start(subject.fails), key=start.key))

    async def test_a_start_that_the_engine_refuses_is_a_definite_no(self, subject: Subject, adapter: Adapter) -> None:
        """Law: a definite no is `EngineRefused`, with a reason; it is not sent again."""
        if subject.refused is None:
            pytest.skip("the subject has nothing that its engine refuses to start")
        advice = (
            "start() must raise EngineRefused when the engine says no (a 4xx): anything else is tried again and again"
        )
        refused = await expect(adapter.start(new_start(subject.refused)), EngineRefused, advice=advice)
        assert_clean(subject, str(refused))

    async def test_another_key_is_another_execution(self, subject: Subject, adapter: Adapter) -> None:
        """Law: one key, one execution."""
        one, other = new_start(subject.finishes), new_start(subject.finishes)
        assert await adapter.start(one) != await adapter.start(other)

    async def test_a_handle_survives_our_restart(self, subject: Subject) -> None:
        """Law: the handle is opaque, storable, and survives our restart."""
        start = new_start(subject.finishes)
        async with subject.new_adapter() as before:
            handle = await before.start(start)
        assert isinstance(handle, str), "the handle that start() returns is a text"
        assert handle
        async with subject.new_adapter() as after:
            assert (await until_ended(subject, after, ref_of(start, handle))).output == subject.output

    # --- describe

    async def test_a_look_at_a_running_execution_never_waits(self, subject: Subject, adapter: Adapter) -> None:
        """Law: one look never waits, even if the execution runs for long; it has nothing that belongs to the end."""
        async with cancelled_afterwards(subject, adapter, new_start(subject.endless)) as ref:
            looks = [await look(subject, adapter, ref)]  # perhaps before it runs
            await run_on(subject, adapter)
            looks += [await look(subject, adapter, ref) for _ in range(2)]
        for seen in looks:
            assert seen.status is Status.RUNNING
            assert (seen.output, seen.failure, dict(seen.requests)) == (None, None, {})
            assert seen.execution_id, "describe() says execution_id: what a person types into the engine's own page"

    async def test_the_output_is_there_when_it_has_succeeded(self, subject: Subject, adapter: Adapter) -> None:
        """Law: the output is there when the execution is terminal."""
        seen = await see_end(subject, adapter, subject.finishes)
        assert (seen.status, seen.output, seen.failure) == (Status.SUCCEEDED, subject.output, None)

    async def test_a_failure_says_why_without_a_stack_trace(self, subject: Subject, adapter: Adapter) -> None:
        """Law: the failure is there when the execution has failed, and no stack trace crosses with it."""
        seen = await see_end(subject, adapter, subject.fails)
        assert seen.status is Status.FAILED
        assert seen.failure is not None
        assert subject.failure in seen.failure.text
        assert not [trace for trace in STACK_TRACES if trace in f"{seen.failure}{seen.message}"]

    async def test_a_terminal_answer_never_changes(self, subject: Subject, adapter: Adapter) -> None:
        """Law: a terminal answer never changes, after any call and for any adapter."""
        for role in (subject.finishes, subject.fails):
            start = new_start(role)
            ref = ref_of(start, await adapter.start(start))
            ended = await until_ended(subject, adapter, ref)
            await adapter.cancel(ref)
            await adapter.answer(ref, {"late": accepted(subject)})
            assert await adapter.describe(ref) == ended
            async with subject.new_adapter() as other:
                assert await other.describe(ref) == ended

    async def test_an_execution_nobody_started_is_not_found(self, subject: Subject, adapter: Adapter) -> None:
        """Law: `ExecutionNotFound` is told of each verb that is about one execution; cancel and answer may refuse."""
        ref = Ref(
            workflow=subject.finishes.workflow, handle=subject.unknown_handle, options=dict(subject.finishes.options)
        )
        await expect_not_found(adapter.describe(ref), "describe")
        await expect_not_found(adapter.cancel(ref), "cancel", refused=True)
        await expect_not_found(adapter.answer(ref, {"question": accepted(subject)}), "answer", refused=True)

    # --- answer

    async def test_an_answer_lets_it_go_on(self, subject: Subject, adapter: Adapter) -> None:
        """Law: answer delivers responses by input request key; the question is in the spec's method and params."""
        ref, seen = await see_questions(subject, adapter, subject.asks)
        (key, request), *more = seen.requests.items()
        assert not more
        assert request.method == "elicitation/create"
        assert {"message", "requestedSchema"} <= set(request.params)
        await adapter.answer(ref, {key: accepted(subject)})
        ended = await until_ended(subject, adapter, ref)
        assert ended.status is Status.SUCCEEDED
        await adapter.answer(ref, {key: {"action": "decline"}})  # a host that sends it again: ignored, not refused
        assert await adapter.describe(ref) == ended

    async def test_an_answer_to_an_unknown_question_is_ignored(self, subject: Subject, adapter: Adapter) -> None:
        """Law: unknown keys are ignored."""
        ref, seen = await see_questions(subject, adapter, subject.asks)
        await adapter.answer(ref, {"nobody-asked": accepted(subject)})
        still = await adapter.describe(ref)
        assert (still.status, still.requests) == (Status.INPUT_REQUIRED, seen.requests)
        await adapter.answer(
            ref, {"nobody-asked": accepted(subject)} | {key: accepted(subject) for key in seen.requests}
        )
        assert (await until_ended(subject, adapter, ref)).status is Status.SUCCEEDED

    async def test_some_of_the_questions_can_be_answered_first(self, subject: Subject, adapter: Adapter) -> None:
        """Law: a strict subset is allowed; answered keys are ignored; a key is never reused."""
        ref, _ = await see_questions(subject, adapter, subject.asks_two)
        seen = await until(subject, adapter, ref, lambda now: len(now.requests) > 1)  # they may show one by one
        first, second = seen.requests
        await adapter.answer(ref, {first: accepted(subject)})
        left = await until(subject, adapter, ref, lambda now: first not in now.requests)
        assert (left.status, set(left.requests)) == (Status.INPUT_REQUIRED, {second})
        await adapter.answer(ref, {first: {"action": "decline"}})
        assert set((await adapter.describe(ref)).requests) == {second}
        await adapter.answer(ref, {second: accepted(subject)})
        ended = await until(subject, adapter, ref, lambda now: now.terminal or first in now.requests)
        assert ended.status is Status.SUCCEEDED

    async def test_a_question_is_answered_after_our_restart(self, subject: Subject, adapter: Adapter) -> None:
        """Law: an adapter is stateless between calls: another one takes over."""
        ref, seen = await see_questions(subject, adapter, subject.asks)
        async with subject.new_adapter() as other:
            assert (await other.describe(ref)).requests == seen.requests
            await other.answer(ref, {key: accepted(subject) for key in seen.requests})
            assert (await until_ended(subject, other, ref)).status is Status.SUCCEEDED

    # --- cancel

    async def test_a_running_execution_can_be_cancelled(self, subject: Subject, adapter: Adapter) -> None:
        """Law: cancel asks; the truth is what describe says afterwards. Asking twice is asking once."""
        start = new_start(subject.endless)
        ref = ref_of(start, await adapter.start(start))
        await adapter.cancel(ref)
        await adapter.cancel(ref)
        ended = await until_ended(subject, adapter, ref)
        assert (ended.status, ended.output) == (Status.CANCELLED, None)

    async def test_an_execution_that_waits_for_an_answer_can_be_cancelled(
        self, subject: Subject, adapter: Adapter
    ) -> None:
        """Law: cancel asks, also while the execution waits; an ended one asks nothing."""
        ref, _ = await see_questions(subject, adapter, subject.asks)
        await adapter.cancel(ref)
        ended = await until_ended(subject, adapter, ref)
        assert (ended.status, dict(ended.requests)) == (Status.CANCELLED, {})

    # --- when the engine is not there

    async def test_an_engine_that_is_not_there_is_unavailable(self, subject: Subject) -> None:
        """Law: entering needs no engine; only `EngineUnavailable` crosses, soon, and no secret with it."""
        async with unreachable(subject) as adapter:
            start = new_start(subject.finishes)
            ref = ref_of(start, subject.unknown_handle)
            calls: Mapping[str, Callable[[], Awaitable[object]]] = {
                "start": lambda: adapter.start(start),
                "describe": lambda: adapter.describe(ref),
                "answer": lambda: adapter.answer(ref, {"question": accepted(subject)}),
                "cancel": lambda: adapter.cancel(ref),
            }
            if isinstance(adapter, Finds):
                calls = {**calls, "find": partial(adapter.find, start)}
            for verb, call in calls.items():
                try:
                    with anyio.fail_after(subject.glance):
                        await call()
                except EngineUnavailable as unavailable:
                    assert_clean(subject, str(unavailable))
                else:
                    pytest.fail(f"{verb}() returned: it must ask the engine, even when there seems to be nothing to do")

    async def test_checks_find_out_what_is_there(self, subject: Subject, adapter: Adapter) -> None:
        """Law: a check says in a sentence if it is fine, not fine or unknown, and never raises an EngineError."""
        if not isinstance(adapter, Checks):
            pytest.skip("this adapter does not check")
        assert (await adapter.check_engine()).ok
        there = await adapter.check(subject.finishes.workflow, subject.finishes.options)
        assert there.ok is not False, there.text
        assert there.text
        async with unreachable(subject) as nobody:
            assert isinstance(nobody, Checks)
            for finding in (await nobody.check_engine(), await nobody.check(subject.finishes.workflow, {})):
                assert not finding.ok, "an engine that is not there is not fine; what nothing can say is ok=None"
                assert_clean(subject, f"{finding.text} {finding.hint}")
