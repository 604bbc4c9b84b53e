"""mcpwf.ts in a real TypeScript worker, seen and answered through the adapter; and a workflow without it."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError

from adapters.temporal.tests.answers import BAD_FORMS, QUESTIONS, Case
from adapters.temporal.tests.scene import Scene, current_run, open_adapter, reset_to_second_task, workflow_id
from adapters.temporal.tests.test_contract_page import page_block
from adapters.temporal.tests.typescript_worker import Factory
from mcp_workflows.adapter import Progress, Ref, Status
from tests.support.dev_server import DevServer

SIZE = {
    "type": "object",
    "properties": {"size": {"type": "string", "enum": ["S", "M"]}, "count": {"type": "integer", "minimum": 1}},
    "required": ["size"],
}
YES = {"action": "accept", "content": {"size": "S"}}


@pytest.fixture(scope="module")
def queue(dev_server: DevServer, typescript_worker: Factory) -> str:
    """A task queue with a worker for all tests that leave it alive."""
    queue = f"q-{uuid.uuid4().hex}"
    typescript_worker(dev_server, queue)
    return queue


@pytest.fixture
async def scene(dev_server: DevServer, client: Client, queue: str) -> AsyncIterator[Scene]:
    async with open_adapter(dev_server, queue) as adapter:
        yield Scene(client=client, queue=queue, opened=adapter)


async def test_a_question_from_typescript_is_shown_and_its_answer_comes_back(scene: Scene) -> None:
    ref = await scene.start("asks", "Bob")
    seen = await scene.asked(ref)
    assert (seen.status, seen.message, seen.progress) == (
        Status.INPUT_REQUIRED,
        "asking Bob",
        Progress(value=1, total=2),
    )
    [(key, request)] = seen.requests.items()
    assert request.method == "elicitation/create"
    assert request.params == {"mode": "form", "message": "Which size, Bob?", "requestedSchema": SIZE}
    await scene.adapter.answer(ref, {key: YES})
    assert (await scene.adapter.describe(ref)).requests == {}  # the update published it
    done = await scene.ended(ref)
    assert (done.output, done.message) == ({"action": "accept", "content": {"size": "S"}}, "asked")


async def test_answers_are_checked_by_typescript_and_a_wrong_one_leaves_the_question_open(scene: Scene) -> None:
    async def check(case: Case) -> None:
        ref = await scene.start("asksThis", case.form)
        [key] = (await scene.asked(ref)).requests
        if case.complaint is None:
            await send_update(scene, ref, key, case.response)
            assert (await scene.ended(ref)).output["action"] == case.response["action"]
            return
        refused = await refusal(scene, ref, key, case.response)
        assert refused.type == "McpBadInput"
        assert case.complaint in refused.message
        assert list((await scene.adapter.describe(ref)).requests) == [key]

    async with anyio.create_task_group() as group:
        for case in QUESTIONS:
            group.start_soon(check, case)


async def test_a_second_answer_is_accepted_and_ignored_and_an_unknown_key_refused(scene: Scene) -> None:
    ref = await scene.start("asksTwice")
    seen = await scene.asked(ref, 2)
    by_text = {request.params["message"]: key for key, request in seen.requests.items()}
    handle = scene.client.get_workflow_handle(workflow_id(ref))
    await scene.adapter.answer(ref, {by_text["second"]: YES})
    assert list((await scene.asked(ref)).requests) == [by_text["first"]]
    await send_update(scene, ref, by_text["second"], {"action": "decline"})
    await handle.signal("mcp_answer_signal", {"key": by_text["second"], "response": {"action": "decline"}})
    await handle.signal("mcp_answer_signal", {"key": by_text["first"], "response": {"action": "nonsense"}})
    assert (await refusal(scene, ref, "nobody-asked", YES)).type == "McpUnknownInput"
    await scene.adapter.answer(ref, {by_text["first"]: {"action": "accept", "content": {"note": "hi"}}})
    assert (await scene.ended(ref)).output == [{"note": "hi"}, {"size": "S"}]


async def test_a_form_no_client_can_show_fails_the_typescript_workflow(scene: Scene) -> None:
    for case in BAD_FORMS:
        failure = (await scene.ended(await scene.start("asksThis", case.form))).failure
        assert failure is not None
        assert failure.kind == "McpBadQuestion"
        assert (case.complaint or "") in failure.text


async def test_a_cancelled_scope_takes_its_question_back(scene: Scene) -> None:
    ref = await scene.start("changesItsMind")
    await scene.asked(ref)
    seen = await scene.until(ref, lambda seen: not seen.requests)
    assert seen.status is Status.RUNNING


async def test_cancelling_a_typescript_execution_takes_its_question_back(scene: Scene) -> None:
    ref = await scene.start("asks", "Bob")
    await scene.asked(ref)
    await scene.adapter.cancel(ref)
    done = await scene.ended(ref)
    assert (done.status, done.requests) == (Status.CANCELLED, {})
    described = await scene.client.get_workflow_handle(workflow_id(ref)).describe()
    assert "mcp.input" not in await described.memo()


@pytest.mark.parametrize(
    ("workflow", "output"), [("asksThenContinues", "the end"), ("asksThenFails", "second attempt")]
)
async def test_a_question_of_an_earlier_run_is_not_shown(scene: Scene, workflow: str, output: str) -> None:
    handle = await scene.client.start_workflow(
        workflow, id=uuid.uuid4().hex, task_queue=scene.queue, retry_policy=RetryPolicy(maximum_attempts=2)
    )
    ref = Ref(workflow=workflow, handle=f"{handle.id}/{handle.first_execution_run_id}")
    await scene.asked(ref)
    await handle.signal("go")
    seen = await scene.until(ref, lambda seen: not seen.requests)
    assert seen.status is Status.RUNNING
    await scene.client.get_workflow_handle(handle.id).signal("go")
    assert (await scene.ended(ref)).output == output


async def test_a_question_from_typescript_survives_a_reset(scene: Scene) -> None:
    ref = await scene.start("asks", "Bob")
    [key] = (await scene.asked(ref)).requests
    await scene.client.get_workflow_handle(workflow_id(ref)).signal("nobody_listens")  # one more workflow task
    before = await current_run(scene, ref)
    await reset_to_second_task(scene, ref)
    assert await current_run(scene, ref) != before
    assert list((await scene.asked(ref)).requests) == [key]
    await scene.adapter.answer(ref, {key: YES})
    assert (await scene.ended(ref)).output["action"] == "accept"


async def test_a_protocol_error_from_typescript_has_its_code(scene: Scene) -> None:
    failure = (await scene.ended(await scene.start("refuses"))).failure
    assert failure is not None
    assert (failure.text, failure.code, failure.data) == ("no such order", -32602, {"order": "o-1"})


def test_the_typescript_file_and_the_example_on_the_page_pass_a_strict_compiler(typescript_project: Path) -> None:
    (typescript_project / "example.ts").write_text(page_block("typescript"))
    command = ["node", "node_modules/typescript/bin/tsc", "--project", "."]
    done = subprocess.run(command, cwd=typescript_project, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "")


async def refusal(scene: Scene, ref: Ref, key: str, response: Any) -> ApplicationError:
    """What the workflow's validator says against it."""
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await send_update(scene, ref, key, response)
    assert isinstance(refused.value.cause, ApplicationError)
    return refused.value.cause


async def send_update(scene: Scene, ref: Ref, key: str, response: Any) -> None:
    handle = scene.client.get_workflow_handle(workflow_id(ref))
    await handle.execute_update("mcp_answer", args=[key, response])  # pyright: ignore[reportUnknownMemberType]  # unknown in temporalio
