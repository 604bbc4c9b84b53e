"""Eight things about Temporal and its Python SDK that bite; one test each that shows we are not bitten."""

from __future__ import annotations

import subprocess
import sys

import anyio
import pytest
from mcp_workflows_temporal import TemporalAdapter
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import (
    DeleteWorkflowExecutionRequest,
    PauseWorkflowExecutionRequest,
    UnpauseWorkflowExecutionRequest,
)

from adapters.temporal.tests.scene import PATIENCE, Scene, open_adapter, workflow_id
from mcp_workflows.adapter import Execution, Ref, Status
from mcp_workflows.errors import EngineUnavailable, ExecutionNotFound
from tests.support.dev_server import DevServer
from tests.support.stopwatch import stopwatch

YES = {"action": "accept", "content": {"size": "S"}}

LOOK_AND_LEAVE = """
import asyncio, logging, sys
from datetime import UTC, datetime
from mcp_workflows.adapter import Ref, Start
from mcp_workflows.errors import EngineUnavailable
from mcp_workflows_temporal import TemporalAdapter, TemporalSettings

logging.basicConfig(stream=sys.stderr, level=logging.WARNING)

async def main(address, key, size, timeout):
    settings = TemporalSettings(address=address, task_queue="leave", timeout_seconds=float(timeout))
    async with TemporalAdapter(settings) as adapter:
        try:
            plan = Start(workflow="Echo", arguments=["x" * int(size)], key=key, created=datetime.now(UTC))
            await adapter.describe(Ref(workflow="Echo", handle=await adapter.start(plan)))
        except EngineUnavailable as error:
            print("unavailable", error, file=sys.stderr)

asyncio.run(main(*sys.argv[1:]))
"""


def look_and_leave(server: DevServer, key: str, size: int = 1, timeout: float = 8) -> subprocess.CompletedProcess[str]:
    """A whole interpreter that starts something, looks at it and ends."""
    command = [sys.executable, "-c", LOOK_AND_LEAVE, server.address, key, str(size), str(timeout)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


async def test_1_a_paused_execution_can_be_looked_at_and_answered(working: Scene) -> None:
    ref = await working.start("Ask", "Bob")
    [key] = (await working.asked(ref)).requests
    service = working.client.workflow_service
    await service.pause_workflow_execution(
        PauseWorkflowExecutionRequest(namespace="default", workflow_id=workflow_id(ref), reason="stocktaking")
    )
    seen = await working.until(ref, lambda seen: seen.message == "paused: stocktaking")
    assert (seen.status, seen.requests) == (Status.RUNNING, {})
    await working.adapter.answer(ref, {key: YES})
    await service.unpause_workflow_execution(
        UnpauseWorkflowExecutionRequest(namespace="default", workflow_id=workflow_id(ref))
    )
    assert (await working.ended(ref)).output["accepted"] is True


def test_2_the_log_of_the_core_does_not_reach_stdout_and_the_interpreter_ends(dev_server: DevServer) -> None:
    done = look_and_leave(dev_server, "loud", size=600_000)
    assert "temporal.core" in done.stderr  # a warning about the size was due
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.slow
def test_3_an_interpreter_ends_after_a_call_that_was_given_up(own_dev_server: DevServer) -> None:
    own_dev_server.freeze()
    for attempt in range(4):
        done = look_and_leave(own_dev_server, f"stuck-{attempt}", timeout=0.5)
        assert "unavailable" in done.stderr
        assert done.returncode == 0


@pytest.mark.slow
async def test_4_looking_holds_no_poll_so_that_1300_lookers_leave_the_namespace_free(
    scene: Scene, dev_server: DevServer
) -> None:
    ref = await scene.start("Waits")
    looks: list[Execution] = []
    async with open_adapter(dev_server, scene.queue, timeout_seconds=60) as patient, anyio.create_task_group() as group:

        async def look() -> None:
            looks.append(await patient.describe(ref))

        for _ in range(1300):
            group.start_soon(look)
    assert len(looks) == 1300
    async with scene.worker():
        assert await scene.client.execute_workflow("Echo", "free", id=scene.queue, task_queue=scene.queue) == "free"


async def test_6_every_verb_ends_in_time_when_the_engine_hangs(own_dev_server: DevServer) -> None:
    async with open_adapter(own_dev_server, "q", timeout_seconds=1) as adapter:
        ref = Ref(workflow="Waits", handle="nobody/nothing")
        with pytest.raises(ExecutionNotFound):
            await adapter.describe(ref)  # connected now
        own_dev_server.freeze()
        for verb in (adapter.describe(ref), adapter.cancel(ref), adapter.answer(ref, {"key": YES})):
            with stopwatch() as seconds:
                with pytest.raises(EngineUnavailable, match="no answer") as caught:
                    await verb
                assert seconds() < 2
            assert caught.value.sent
        own_dev_server.thaw()
        await until_not_found(adapter, ref)


async def test_7_a_cancel_reaches_the_current_run_after_continue_as_new(working: Scene) -> None:
    ref = await working.start("AskThenContinue")
    await working.asked(ref)
    await working.client.get_workflow_handle(workflow_id(ref)).signal("go")
    await working.until(ref, lambda seen: not seen.requests)
    await working.adapter.cancel(ref)
    assert (await working.ended(ref)).status is Status.CANCELLED


async def test_8_what_the_engine_forgot_is_not_found_by_its_handle_even_if_the_key_starts_again(scene: Scene) -> None:
    ref = await scene.start("Waits", key=scene.queue)
    execution = WorkflowExecution(workflow_id=workflow_id(ref))
    request = DeleteWorkflowExecutionRequest(namespace="default", workflow_execution=execution)
    await scene.client.workflow_service.delete_workflow_execution(request)
    await until_not_found(scene.adapter, ref)
    again = await scene.start("Waits", key=scene.queue)
    assert again.handle != ref.handle
    with pytest.raises(ExecutionNotFound, match="another execution"):
        await scene.adapter.describe(ref)


async def until_not_found(adapter: TemporalAdapter, ref: Ref) -> None:
    with anyio.fail_after(PATIENCE):
        while True:
            try:
                await adapter.describe(ref)
            except ExecutionNotFound:
                return
            except EngineUnavailable:
                pass  # still waking up
            await anyio.sleep(0.1)
