"""The workflow-side library: questions, answers and progress, in the sandbox and through the adapter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from mcp_workflows_temporal.questions import read_questions
from mcp_workflows_temporal_worker.contract import MEMO_INPUT
from temporalio.common import RetryPolicy

from adapters.temporal.tests.scene import Scene, current_run, reset_to_second_task, workflow_id
from adapters.temporal.tests.workflows import APPROVAL
from mcp_workflows.adapter import Progress, Ref, Status
from mcp_workflows.errors import EngineRefused

YES = {"action": "accept", "content": {"size": "S"}}


async def test_a_question_is_shown_and_its_answer_comes_back_to_the_workflow(scene: Scene) -> None:
    async with scene.sandboxed_worker("Ask"):
        ref = await scene.start("Ask", "Bob")
        seen = await scene.asked(ref)
        assert (seen.status, seen.message) == (Status.INPUT_REQUIRED, "asking Bob")
        assert seen.progress == Progress(value=1, total=2)
        [(key, request)] = seen.requests.items()
        assert request.method == "elicitation/create"
        assert request.params == {"mode": "form", "message": "Which size, Bob?", "requestedSchema": APPROVAL}
        assert list(request.params["requestedSchema"]["properties"]) == list(APPROVAL["properties"])  # not sorted
        await scene.adapter.answer(ref, {key: YES})
        assert (await scene.adapter.describe(ref)).requests == {}  # the update published it
        done = await scene.ended(ref)
    assert done.output == {"action": "accept", "content": {"size": "S"}, "accepted": True}
    assert (done.status, done.requests) == (Status.SUCCEEDED, {})


WRONG: list[tuple[Any, str]] = [({}, "'size' is missing"), ("S", "must be an object"), (None, "'size' is missing")]


async def test_an_answer_against_the_schema_is_refused_and_the_question_stays(scene: Scene) -> None:
    async with scene.sandboxed_worker("Ask"):
        ref = await scene.start("Ask", "Bob")
        [key] = (await scene.asked(ref)).requests
        for content, complaint in WRONG:
            with pytest.raises(EngineRefused, match=complaint):
                await scene.adapter.answer(ref, {key: {"action": "accept", "content": content}})
            assert list((await scene.adapter.describe(ref)).requests) == [key]


async def test_a_question_from_a_class_has_its_schema(scene: Scene) -> None:
    async with scene.sandboxed_worker("AskTwice"):
        seen = await scene.asked(await scene.start("AskTwice"), 2)
    schemas = {request.params["message"]: request.params["requestedSchema"] for request in seen.requests.values()}
    assert schemas["first"]["properties"]["tone"]["enum"] == ["kind", "firm"]
    assert schemas["second"]["required"] == ["sku"]


async def test_a_question_no_client_can_show_fails_the_workflow_with_the_reason(scene: Scene) -> None:
    async with scene.sandboxed_worker("AskBadly"):
        failure = (await scene.ended(await scene.start("AskBadly"))).failure
    assert failure is not None
    assert failure.kind == "McpBadQuestion"
    assert "'nested'" in failure.text


async def test_a_cancelled_question_is_taken_back(scene: Scene) -> None:
    async with scene.sandboxed_worker("CancelTheQuestion"):
        ref = await scene.start("CancelTheQuestion")
        await scene.asked(ref)
        seen = await scene.until(ref, lambda seen: not seen.requests)
    assert seen.status is Status.RUNNING


async def test_a_terminated_execution_shows_no_question(scene: Scene) -> None:
    async with scene.sandboxed_worker("Ask"):
        ref = await scene.start("Ask", "Bob")
        [key] = (await scene.asked(ref)).requests
        await scene.client.get_workflow_handle(workflow_id(ref)).terminate(reason="fire")
    seen = await scene.adapter.describe(ref)
    assert (seen.status, seen.message, seen.requests) == (Status.CANCELLED, "terminated: fire", {})
    await scene.adapter.answer(ref, {key: YES})


async def test_two_answers_wait_for_the_worker_when_none_is_up(scene: Scene) -> None:
    async with scene.sandboxed_worker("AskTwice"):
        ref = await scene.start("AskTwice")
        requests = (await scene.asked(ref, 2)).requests
    contents = {"first": {"text": "hi"}, "second": {"sku": "a"}}
    answers = {
        key: {"action": "accept", "content": contents[request.params["message"]]} for key, request in requests.items()
    }
    await scene.adapter.answer(ref, answers)
    assert (await scene.adapter.describe(ref)).status is Status.INPUT_REQUIRED  # nobody has taken them yet
    async with scene.sandboxed_worker("AskTwice"):
        assert (await scene.ended(ref)).output == [{"text": "hi"}, {"sku": "a"}]


@pytest.mark.parametrize("keep_memo", [True, False])
async def test_a_question_left_behind_by_continue_as_new_is_not_shown(scene: Scene, keep_memo: bool) -> None:
    async with scene.sandboxed_worker("AskThenContinue"):
        ref = await scene.start("AskThenContinue", True, keep_memo)
        await scene.asked(ref)
        handle = scene.client.get_workflow_handle(workflow_id(ref))
        await handle.signal("go")
        seen = await scene.until(ref, lambda seen: not seen.requests)
        assert seen.status is Status.RUNNING
        assert (MEMO_INPUT in await memo_of(scene, ref)) is keep_memo
        await handle.signal("go")
        assert (await scene.ended(ref)).output == "the end"


async def test_a_question_left_behind_by_a_failed_attempt_is_not_shown(scene: Scene) -> None:
    async with scene.sandboxed_worker("AskThenFail"):
        handle = await scene.client.start_workflow(
            "AskThenFail", id=scene.queue, task_queue=scene.queue, retry_policy=RetryPolicy(maximum_attempts=2)
        )
        ref = Ref(workflow="AskThenFail", handle=f"{handle.id}/{handle.first_execution_run_id}")
        await scene.asked(ref)
        await handle.signal("go")
        seen = await scene.until(ref, lambda seen: not seen.requests)
        assert seen.status is Status.RUNNING
        await scene.client.get_workflow_handle(handle.id).signal("go")
        assert (await scene.ended(ref)).output == "second attempt"


async def test_a_question_survives_a_reset_and_can_be_answered(scene: Scene) -> None:
    async with scene.sandboxed_worker("Ask"):
        ref = await scene.start("Ask", "Bob")
        [key] = (await scene.asked(ref)).requests
        await scene.client.get_workflow_handle(workflow_id(ref)).signal("nobody_listens")  # one more workflow task
        before = await current_run(scene, ref)
        await reset_to_second_task(scene, ref)
        assert await current_run(scene, ref) != before
        assert list((await scene.asked(ref)).requests) == [key]
        await scene.adapter.answer(ref, {key: YES})
        assert (await scene.ended(ref)).output["accepted"] is True


async def memo_of(scene: Scene, ref: Ref) -> Mapping[str, Any]:
    description = await scene.client.get_workflow_handle(workflow_id(ref)).describe()
    return description.raw_description.workflow_execution_info.memo.fields


FIELDS = {"a": {"type": "string"}, "b": {"type": "string"}, "c": {"type": "string"}}


@pytest.mark.parametrize(
    ("order", "shown"),
    [
        (["c", "a", "b"], ["c", "a", "b"]),
        (["c"], ["c", "a", "b"]),
        (["c", "x", "c", 1, None, ["a"]], ["c", "a", "b"]),
        (None, ["a", "b", "c"]),
        ("cab", ["a", "b", "c"]),
        ({"c": 1}, ["a", "b", "c"]),
    ],
)
def test_the_fields_of_a_form_come_in_the_order_it_says_and_none_is_lost(order: Any, shown: list[str]) -> None:
    schema = {"type": "object", "properties": FIELDS, "required": ["a"]}
    asked = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": schema}, "order": order}
    request = read_questions({"requests": {"k": asked}})["k"]
    assert request.params == asked["params"]
    assert list(request.params["requestedSchema"]["properties"]) == shown


@pytest.mark.parametrize("schema", [None, "?", {}, {"properties": []}, {"properties": {}}])
def test_a_form_of_another_shape_stays_what_it_is(schema: Any) -> None:
    asked = {"method": "elicitation/create", "params": {"requestedSchema": schema}, "order": ["a"]}
    assert read_questions({"requests": {"k": asked}})["k"].params == {"requestedSchema": schema}
