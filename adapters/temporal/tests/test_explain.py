"""Why is it still working: the sentence in the status message, and the whole story for the operator."""

from __future__ import annotations

import re
import shlex
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import anyio
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from mcp_workflows_temporal import TemporalAdapter, TemporalSettings
from mcp_workflows_temporal.client import TaskQueues
from mcp_workflows_temporal.connection import quiet_runtime
from mcp_workflows_temporal.diagnosis import LONGEST_TEXT, ago, counted, one_line
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import PollerInfo
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueResponse,
    PauseActivityRequest,
    PauseWorkflowExecutionRequest,
)
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DefaultFailureConverterWithEncodedAttributes
from temporalio.service import RPCError, RPCStatusCode

from adapters.temporal.tests.handlers import Anything
from adapters.temporal.tests.scene import PATIENCE, Scene, open_adapter, workflow_id
from adapters.temporal.tests.test_codec import Upside
from adapters.temporal.tests.troubled import troubled_worker
from mcp_workflows.adapter import Ref, Status
from mcp_workflows.errors import ExecutionNotFound
from mcp_workflows.kit.tooling import Explanation
from tests.support.dev_server import DevServer, temporal_binary

LONG_TIMER = re.compile(r"1, the next fires .* UTC, in (2 h|119 min)")
WORKFLOW_QUEUE = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW


def attempt(message: str | None) -> int:
    """The number in it; 0 if there is none."""
    found = re.search(r"attempt (\d+)", message or "")
    return int(found[1]) if found else 0


async def cancel_and_see(scene: Scene, ref: Ref) -> str:
    await scene.adapter.cancel(ref)
    return (await scene.until(ref, lambda seen: seen.cancel_requested)).message or ""


# --- nobody polls


async def test_without_a_worker_it_says_that_nobody_polls_and_what_to_do(scene: Scene) -> None:
    ref = await scene.start("Waiter")
    seen = await scene.until(ref, lambda seen: seen.message)
    assert (seen.status, seen.message) == (Status.RUNNING, f"nobody polls task queue {scene.queue}")
    why = await scene.adapter.tooling.explain(ref)
    assert why.reason == seen.message
    assert why.advice == f"start a worker on task queue {scene.queue} in namespace default"
    assert why.facts["workflow"] == f"Waiter on task queue {scene.queue}"
    assert why.facts[f"task queue {scene.queue}"].startswith("nobody polls it; 1 waiting")
    assert "WorkflowTaskScheduled" in why.facts["nothing new since"]
    assert await cancel_and_see(scene, ref) == f"cancellation requested: nobody polls task queue {scene.queue}"
    why = await scene.adapter.tooling.explain(ref)
    assert why.reason == f"it was asked to cancel and continues; nobody polls task queue {scene.queue}"
    assert "the MCP client asked to cancel the task" in why.facts["cancel requested"]


async def test_a_step_on_a_queue_that_nobody_polls_is_named(troubled: Scene) -> None:
    ref = await troubled.start("Elsewhere", "nobodys-queue")
    seen = await troubled.until(ref, lambda seen: seen.message not in {None, "running Ship"})
    assert seen.message == "Ship: nobody polls task queue nobodys-queue"
    why = await troubled.adapter.tooling.explain(ref)
    assert why.advice == "start a worker with activity Ship on task queue nobodys-queue in namespace default"
    assert why.facts["task queue nobodys-queue, activities"].startswith("nobody polls it")
    assert why.facts[f"task queue {troubled.queue}"].startswith("1 worker: ")


# --- steps that fail


async def test_the_attempts_of_a_failing_step_climb_in_the_message(troubled: Scene) -> None:
    ref = await troubled.start("Order", "charging card")
    seen = await troubled.until(ref, lambda seen: attempt(seen.message) >= 3)
    assert seen.message == (
        f"charging card (ChargeCard attempt {attempt(seen.message)}: the card service gave no answer)"
    )
    assert seen.progress is not None
    await troubled.until(ref, lambda later: attempt(later.message) > attempt(seen.message))
    why = await troubled.adapter.tooling.explain(ref)
    assert re.fullmatch(r"ChargeCard attempt \d+: the card service gave no answer", why.reason)
    assert "ChargeCard" in (why.advice or "")
    told = why.facts["activity ChargeCard (1)"]
    for part in ("last error: the card service gave no answer", "last worker", "attempt"):
        assert part in told
    assert "secret" not in str(why)
    assert "Traceback" not in str(why)


async def test_a_failure_that_a_codec_hides_is_read_through_it_and_breaks_nothing_without_it(
    dev_server: DevServer,
) -> None:
    converter = replace(
        pydantic_data_converter,
        payload_codec=Upside(),
        failure_converter_class=DefaultFailureConverterWithEncodedAttributes,
    )
    client = await Client.connect(dev_server.address, data_converter=converter, runtime=quiet_runtime())
    scene = Scene.new(client)
    async with (
        TemporalAdapter.from_client(client, TemporalSettings(task_queue=scene.queue)) as adapter,
        open_adapter(dev_server) as blind,
        troubled_worker(client, scene.queue),
    ):
        ref = await scene.on(adapter).start("Order")
        seen = await scene.on(adapter).until(ref, lambda seen: attempt(seen.message))
        assert (seen.message or "").endswith(": the card service gave no answer")
        unread = (await blind.describe(ref)).message or ""
        assert re.fullmatch(r"ChargeCard attempt \d+: Encoded failure", unread)
        assert "Encoded failure" in (await blind.tooling.explain(ref)).facts["activity ChargeCard (1)"]


async def test_a_paused_step_says_so(troubled: Scene) -> None:
    ref = await troubled.start("Order")
    await troubled.until(ref, lambda seen: attempt(seen.message))
    await troubled.client.workflow_service.pause_activity(
        PauseActivityRequest(
            namespace="default",
            execution=WorkflowExecution(workflow_id=workflow_id(ref)),
            type="ChargeCard",
            reason="the card service moves",
        )
    )
    await troubled.until(ref, lambda seen: seen.message == "ChargeCard paused: the card service moves")
    await run_advice(await troubled.adapter.tooling.explain(ref))
    await troubled.until(ref, lambda seen: attempt(seen.message))


# --- a workflow whose code fails, that is paused, or does not listen


async def test_a_workflow_whose_code_fails_says_with_what(troubled: Scene) -> None:
    ref = await troubled.start("Broken")
    seen = await troubled.until(ref, lambda seen: attempt(seen.message))
    assert "the workflow's code fails" in (seen.message or "")
    why = await troubled.adapter.tooling.explain(ref)
    assert why.facts["its last error"].startswith("KeyError: 'order_id' (WORKFLOW_WORKER_UNHANDLED_FAILURE, worker")
    assert "attempt 2, started" in why.facts["workflow task"]
    assert why.reason == "mistake in the workflow's code, which is tried again: KeyError: 'order_id'"
    assert "mend the workflow's code" in (why.advice or "")
    message = await cancel_and_see(troubled, ref)
    assert message.startswith("cancellation requested: the workflow's code fails")


async def failing(scene: Scene, workflow: str, *arguments: object) -> Explanation:
    ref = await scene.start(workflow, *arguments)
    await scene.until(ref, lambda seen: attempt(seen.message))
    return await scene.adapter.tooling.explain(ref)


async def test_a_workflow_that_no_worker_has_is_a_mistake_in_the_configuration(troubled: Scene) -> None:
    why = await failing(troubled, "Shipmnt")
    assert why.reason.startswith(
        f"mistake in the configuration: the worker on task queue {troubled.queue} has no workflow 'Shipmnt'; "
        "did you mean 'Shipment'? (it has: Again, Broken, "
    )
    assert (why.advice or "").startswith("correct `workflow` or `task_queue` of the tool, or add the workflow to")
    assert "temporal workflow terminate --workflow-id mcp-" in (why.advice or "")


@pytest.mark.parametrize(
    ("workflow", "arguments", "said"),
    [
        ("Elsewhere", [], "Elsewhere.run() missing 1 required positional argument: 'queue'"),
        ("Again", ["many"], "Failed decoding arguments"),
    ],
)
async def test_arguments_that_do_not_fit_are_a_mistake_in_the_configuration(
    troubled: Scene, workflow: str, arguments: list[object], said: str
) -> None:
    why = await failing(troubled, workflow, *arguments)
    assert why.reason.startswith(f"mistake in the configuration: the arguments do not fit workflow {workflow}: ")
    if said != "Failed decoding arguments":  # then the reason is the cause's
        assert why.reason.endswith(said)
    assert (why.advice or "").startswith("correct `input` or `args` of the tool")


async def test_arguments_that_ended_a_workflow_are_a_mistake_in_the_configuration(troubled: Scene) -> None:
    ref = await troubled.start("Undecoded")
    await troubled.ended(ref)
    why = await troubled.adapter.tooling.explain(ref)
    said = "mistake in the configuration: the arguments do not fit the workflow; it has ended: failed, unable to decode"
    assert why.reason.startswith(said)
    assert (why.advice or "").startswith("correct `input` or `args` of the tool")


async def test_a_task_queue_that_only_another_execution_has_workers_on_is_a_mistake_in_the_configuration(
    troubled: Scene, dev_server: DevServer
) -> None:
    kind = f"Anything{uuid.uuid4().hex}"
    async with Scene.new(troubled.client).worker([Anything], []) as worker:
        await troubled.client.start_workflow(kind, id=kind, task_queue=worker.task_queue)
        with anyio.fail_after(PATIENCE):
            while not [row async for row in troubled.client.list_workflows(f"WorkflowType = '{kind}'")]:
                await anyio.sleep(0.05)
        async with open_adapter(dev_server, nobody := f"nobody-{uuid.uuid4().hex}") as adapter:
            why = await adapter.tooling.explain(await troubled.on(adapter).start(kind))
    polled = f"workers of {kind} poll task queue {worker.task_queue}"
    assert why.reason == f"mistake in the configuration: nobody polls task queue {nobody}; {polled}"
    assert (why.advice or "").startswith(f"correct `task_queue` of the tool: {worker.task_queue}, or start a worker")


async def test_a_paused_workflow_says_by_whom_and_why(troubled: Scene) -> None:
    ref = await troubled.start("Waiter")
    await troubled.until(ref, lambda seen: seen.message is None)
    await troubled.client.workflow_service.pause_workflow_execution(
        PauseWorkflowExecutionRequest(
            namespace="default", workflow_id=workflow_id(ref), reason="stocktaking", identity="olga"
        )
    )
    await troubled.until(ref, lambda seen: seen.message == "paused: stocktaking")
    why = await troubled.adapter.tooling.explain(ref)
    await run_advice(why)
    await troubled.until(ref, lambda seen: seen.message is None)
    assert why.reason == "paused: stocktaking"
    assert why.facts["paused"].endswith("by olga: stocktaking")


async def run_advice(why: Explanation) -> None:
    """Do what it advises, as it stands there."""
    said, _, words = (why.advice or "").partition(": temporal ")
    assert said == "unpause it when it may go on"
    await anyio.run_process([temporal_binary(), *shlex.split(words)])


# --- nothing is wrong


@pytest.mark.parametrize(
    ("workflow", "reason", "fact"),
    [
        ("Shipment", "Ship is running since ", "activity Ship (1)"),
        ("Guardian", "it waits for child workflow Waiter", "child workflows"),
        ("Waiter", "it waits for a signal or an update", "started"),
    ],
)
async def test_when_nothing_is_wrong_it_says_what_it_waits_for(
    troubled: Scene, workflow: str, reason: str, fact: str
) -> None:
    ref = await troubled.start(workflow)
    why = await until_settled(troubled, ref, lambda why: why.reason.startswith(reason) and fact in why.facts)
    assert why.advice


async def test_timers_that_are_over_are_not_told(troubled: Scene) -> None:
    ref = await troubled.start("Sleeper")

    def sleeps(why: Explanation) -> bool:
        is_alone = LONG_TIMER.fullmatch(why.facts.get("timers", "")) is not None
        return is_alone and why.reason.startswith("it sleeps: its next timer fires ")

    await until_settled(troubled, ref, sleeps)


async def until_settled(scene: Scene, ref: Ref, wanted: Callable[[Explanation], bool]) -> Explanation:
    """Explained again and again: its first steps are under way."""
    with anyio.fail_after(PATIENCE):
        while not wanted(why := await scene.adapter.tooling.explain(ref)):  # no event tells us
            await anyio.sleep(0.03)
    return why


async def test_one_that_waits_for_a_person_says_the_question(working: Scene) -> None:
    ref = await working.start("Ask", "Bob")
    await working.asked(ref)
    assert (await working.adapter.tooling.explain(ref)).reason == "it waits for an answer: Which size, Bob?"


async def test_one_that_has_ended_says_how(scene: Scene) -> None:
    async with scene.worker():
        ref = await scene.start("Fails", "out of stock")
        await scene.ended(ref)
        assert (await scene.adapter.tooling.explain(ref)).reason == "it has ended: failed, out of stock"
    with pytest.raises(ExecutionNotFound):
        await scene.adapter.tooling.explain(Ref(workflow="Fails", handle="nobody/nothing"))


# --- the small parts


class Asked:
    """A task queue service that counts."""

    def __init__(self, *answers: DescribeTaskQueueResponse | RPCError) -> None:
        self.answers = list(answers)
        self.count = 0

    async def __call__(self, name: str, kind: TaskQueueType.ValueType) -> DescribeTaskQueueResponse:
        self.count += 1
        answer = self.answers.pop(0)
        if isinstance(answer, RPCError):
            raise answer
        return answer


async def test_a_queue_is_asked_once_for_many_looks() -> None:
    asked = Asked(DescribeTaskQueueResponse(), DescribeTaskQueueResponse())
    queues = TaskQueues(asked)
    assert [await queues.is_deserted("orders", WORKFLOW_QUEUE) for _ in range(100)] == [True] * 100
    assert asked.count == 1
    assert await queues.is_deserted("parcels", WORKFLOW_QUEUE)
    assert asked.count == 2


async def test_a_queue_whose_worker_polled_lately_is_not_deserted() -> None:
    recent, old = Timestamp(), Timestamp()
    recent.FromDatetime(datetime.now(UTC) - timedelta(seconds=60))
    old.FromDatetime(datetime.now(UTC) - timedelta(seconds=100))
    live = DescribeTaskQueueResponse(pollers=[PollerInfo(last_access_time=recent)])
    gone = DescribeTaskQueueResponse(pollers=[PollerInfo(last_access_time=old)])
    queues = TaskQueues(Asked(live, gone))
    assert not await queues.is_deserted("live", WORKFLOW_QUEUE)
    assert await queues.is_deserted("gone", WORKFLOW_QUEUE)


async def test_a_queue_that_cannot_be_asked_is_not_called_deserted() -> None:
    queues = TaskQueues(Asked(RPCError("no", RPCStatusCode.PERMISSION_DENIED, b"")))
    assert not await queues.is_deserted("orders", WORKFLOW_QUEUE)


def test_a_long_failure_becomes_one_short_line() -> None:
    assert one_line("\n  first\nsecond") == "first"
    assert one_line("") == ""
    assert len(one_line("x" * 1000)) == LONGEST_TEXT


def test_what_is_to_come_is_not_ago() -> None:
    now = datetime.now(UTC)
    assert ago(now + timedelta(minutes=10, seconds=1)) == "in 10 min"
    assert ago(now - timedelta(minutes=10, seconds=1)) == "10 min ago"
    assert (counted(1, "worker"), counted(2, "worker")) == ("1 worker", "2 workers")
