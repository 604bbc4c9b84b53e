"""AdapterContract: the laws of the boundary, one test each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar

import anyio
import pytest
from pydantic import BaseModel

from mcp_workflows.adapter import Adapter, Finds, StartGuarantee
from mcp_workflows.errors import EngineUnavailable
from mcp_workflows.kit.tooling import Checks
from mcp_workflows.testing import laws
from mcp_workflows.testing.capability_contract import CapabilityLaws
from mcp_workflows.testing.laws import (
    Subject,
    accepted,
    assert_clean,
    finder,
    new_start,
    only_if,
    ref_of,
    unreachable,
)


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
        await laws.starting_twice_with_one_key_is_starting_once(subject, adapter)

    async def test_starting_again_after_it_ended_starts_nothing(self, subject: Subject, adapter: Adapter) -> None:
        """Law: one key starts one execution, even after it ended."""
        await laws.starting_again_after_it_ended_starts_nothing(subject, adapter)

    async def test_a_start_whose_reply_was_lost_is_found_again(self, subject: Subject, adapter: Adapter) -> None:
        """Law: one key starts one execution, even when the reply was lost. ONCE: the outcome is unknown."""
        await laws.a_start_whose_reply_was_lost_is_found_again(subject, adapter)

    async def test_starting_at_once_from_two_replicas_leaves_one_execution(
        self, subject: Subject, adapter: Adapter
    ) -> None:
        """Law: one key starts one execution. FINDABLE: the oldest is adopted, later duplicates are cancelled."""
        await laws.starting_at_once_from_two_replicas_leaves_one_execution(subject, adapter)

    async def test_of_two_started_one_after_the_other_the_first_goes_on(
        self, subject: Subject, adapter: Adapter
    ) -> None:
        """Law: FINDABLE: the oldest is adopted, later duplicates are cancelled."""
        await laws.of_two_started_one_after_the_other_the_first_goes_on(subject, adapter)

    async def test_what_nobody_started_is_not_found_by_its_key(self, subject: Subject, adapter: Adapter) -> None:
        """Law: find sees the executions of this key only. None is no error: it may be started, once it has settled."""
        await laws.what_nobody_started_is_not_found_by_its_key(subject, adapter)

    async def test_a_call_under_way_is_over_before_it_has_settled(self, subject: Subject, adapter: Adapter) -> None:
        """Law: after `settling` the key is started again, so no earlier start can be under way then."""
        only_if(adapter, frozenset({StartGuarantee.FINDABLE}))
        assert finder(adapter).settling.total_seconds() > subject.glance, "shorter than one call may take"

    async def test_another_input_under_the_same_key_is_refused(self, subject: Subject, adapter: Adapter) -> None:
        """Law: another input under the same key is refused."""
        await laws.another_input_under_the_same_key_is_refused(subject, adapter)

    async def test_another_workflow_under_the_same_key_is_refused(self, subject: Subject, adapter: Adapter) -> None:
        """Law: one key starts one execution, of one workflow."""
        await laws.another_workflow_under_the_same_key_is_refused(subject, adapter)

    async def test_a_start_that_the_engine_refuses_is_a_definite_no(self, subject: Subject, adapter: Adapter) -> None:
        """Law: a definite no is `EngineRefused`, with a reason; it is not sent again."""
        await laws.a_start_that_the_engine_refuses_is_a_definite_no(subject, adapter)

    async def test_another_key_is_another_execution(self, subject: Subject, adapter: Adapter) -> None:
        """Law: one key, one execution."""
        await laws.another_key_is_another_execution(subject, adapter)

    async def test_a_handle_survives_our_restart(self, subject: Subject, adapter: Adapter) -> None:
        """Law: the handle is opaque, storable, and survives our restart."""
        await laws.a_handle_survives_our_restart(subject, adapter)

    # --- describe

    async def test_a_look_at_a_running_execution_never_waits(self, subject: Subject, adapter: Adapter) -> None:
        """Law: one look never waits, even if the execution runs for long; it has nothing that belongs to the end."""
        await laws.a_look_at_a_running_execution_never_waits(subject, adapter)

    async def test_a_look_does_not_block_the_event_loop(self, subject: Subject, adapter: Adapter) -> None:
        """Law: one look leaves the event loop to others."""
        await laws.a_look_does_not_block_the_event_loop(subject, adapter)

    async def test_the_output_is_there_when_it_has_succeeded(self, subject: Subject, adapter: Adapter) -> None:
        """Law: the output is there when the execution is terminal."""
        await laws.the_output_is_there_when_it_has_succeeded(subject, adapter)

    async def test_a_failure_says_why_without_a_stack_trace(self, subject: Subject, adapter: Adapter) -> None:
        """Law: the failure is there when the execution has failed, and no stack trace crosses with it."""
        await laws.a_failure_says_why_without_a_stack_trace(subject, adapter)

    async def test_a_terminal_answer_never_changes(self, subject: Subject, adapter: Adapter) -> None:
        """Law: a terminal answer never changes, after any call and for any adapter."""
        await laws.a_terminal_answer_never_changes(subject, adapter)

    async def test_an_execution_nobody_started_is_not_found(self, subject: Subject, adapter: Adapter) -> None:
        """Law: `ExecutionNotFound` is told of each verb that is about one execution; cancel and answer may refuse."""
        await laws.an_execution_nobody_started_is_not_found(subject, adapter)

    # --- answer

    async def test_an_answer_lets_it_go_on(self, subject: Subject, adapter: Adapter) -> None:
        """Law: answer delivers responses by input request key; the question is in the spec's method and params."""
        await laws.an_answer_lets_it_go_on(subject, adapter)

    async def test_an_answer_to_an_unknown_question_is_ignored(self, subject: Subject, adapter: Adapter) -> None:
        """Law: unknown keys are ignored."""
        await laws.an_answer_to_an_unknown_question_is_ignored(subject, adapter)

    async def test_some_of_the_questions_can_be_answered_first(self, subject: Subject, adapter: Adapter) -> None:
        """Law: a strict subset is allowed; answered keys are ignored; a key is never reused."""
        await laws.some_of_the_questions_can_be_answered_first(subject, adapter)

    async def test_a_question_is_answered_after_our_restart(self, subject: Subject, adapter: Adapter) -> None:
        """Law: an adapter is stateless between calls: another one takes over."""
        await laws.a_question_is_answered_after_our_restart(subject, adapter)

    async def test_a_declined_question_is_not_delivered_as_accepted(self, subject: Subject, adapter: Adapter) -> None:
        """Law: a decline is never delivered as an acceptance."""
        await laws.a_declined_question_is_not_delivered_as_accepted(subject, adapter)

    async def test_a_later_answer_does_not_replace_the_first(self, subject: Subject, adapter: Adapter) -> None:
        """Law: the first answer counts."""
        await laws.a_later_answer_does_not_replace_the_first(subject, adapter)

    # --- cancel

    async def test_a_cancel_stops_the_work(self, subject: Subject, adapter: Adapter) -> None:
        """Law: a cancellation stops the work; `has_stopped` of the subject tells."""
        await laws.a_cancel_stops_the_work(subject, adapter)

    async def test_a_running_execution_can_be_cancelled(self, subject: Subject, adapter: Adapter) -> None:
        """Law: cancel asks; the truth is what describe says afterwards. Asking twice is asking once."""
        await laws.a_running_execution_can_be_cancelled(subject, adapter)

    async def test_an_execution_that_waits_for_an_answer_can_be_cancelled(
        self, subject: Subject, adapter: Adapter
    ) -> None:
        """Law: cancel asks, also while the execution waits; an ended one asks nothing."""
        await laws.an_execution_that_waits_for_an_answer_can_be_cancelled(subject, adapter)

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
        tooling = adapter.tooling
        if not isinstance(tooling, Checks):
            pytest.skip("this adapter does not check")
        assert (await tooling.check_engine()).ok
        there = await tooling.check(subject.finishes.workflow, subject.finishes.options)
        assert there.ok is not False, there.text
        assert there.text
        async with unreachable(subject) as nobody:
            tooling = nobody.tooling
            assert isinstance(tooling, Checks)
            for finding in (await tooling.check_engine(), await tooling.check(subject.finishes.workflow, {})):
                assert not finding.ok, "an engine that is not there is not fine; what nothing can say is ok=None"
                assert_clean(subject, f"{finding.text} {finding.hint}")
