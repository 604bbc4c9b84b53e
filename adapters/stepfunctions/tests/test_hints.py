"""EventBridge -> SQS -> hints, with the rules and the queue of the docs."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from mcp_workflows_stepfunctions.boto3_clients import open_boto3_clients
from mcp_workflows_stepfunctions.client import Client, open_client
from mcp_workflows_stepfunctions.hints import named_executions, receive_hints
from mcp_workflows_stepfunctions.settings import StepFunctionsSettings

from adapters.stepfunctions.tests.cloud import ASKS, arn, event, left_in, new_queue, send, settings
from adapters.stepfunctions.tests.injecting import refusing
from mcp_workflows.errors import EngineRefused
from tests.support.local_engines import SAMPLES
from tests.support.stepfunctions_engine import StepFunctions

PATIENCE = 60.0  # seconds


@dataclass(slots=True)
class Heard:
    """What was hinted at, and a way to wait for more."""

    arns: list[str] = field(default_factory=list[str])
    _news: anyio.Event = field(default_factory=anyio.Event)

    def __call__(self, arn: str) -> None:
        self.arns.append(arn)
        self._news.set()
        self._news = anyio.Event()

    async def until(self, enough: Callable[[list[str]], object]) -> None:
        with anyio.fail_after(PATIENCE):
            while not enough(self.arns):
                await self._news.wait()


@asynccontextmanager
async def listening(given: StepFunctionsSettings) -> AsyncGenerator[Heard]:
    heard = Heard()
    async with open_client(given) as calls, anyio.create_task_group() as group:
        group.start_soon(receive_hints, calls, given, heard)
        yield heard
        group.cancel_scope.cancel()


def deployed(engine: StepFunctions) -> str:
    """The queue and the rules of the template that the page deploys."""
    template = (SAMPLES / "questions" / "stepfunctions" / "mcp-events.yaml").read_text()
    name = f"events-{uuid.uuid4().hex[:8]}"
    engine.client("cloudformation").create_stack(
        StackName=name,
        TemplateBody=template,
        Parameters=[{"ParameterKey": "QueueName", "ParameterValue": name}],
    )
    return str(engine.client("sqs").get_queue_url(QueueName=name)["QueueUrl"])


async def test_an_execution_that_asks_and_ends_is_heard_of_and_the_queue_has_no_more_than_its_arn(
    stepfunctions: StepFunctions,
) -> None:
    queue = await anyio.to_thread.run_sync(deployed, stepfunctions)
    detail = {"executionArn": arn(stepfunctions, "one"), "taskToken": "secret", "input": "secret"}
    stepfunctions.client("events").put_events(
        Entries=[{"Source": "mcp.workflows", "DetailType": "MCP Input Request", "Detail": json.dumps(detail)}]
    )
    [message] = stepfunctions.client("sqs").receive_message(QueueUrl=queue, WaitTimeSeconds=5)["Messages"]
    assert json.loads(message["Body"]) == {"detail": {"executionArn": detail["executionArn"]}}
    async with listening(settings(stepfunctions, events={"queue_url": queue})) as heard:
        client, machine = stepfunctions.client(), stepfunctions.machine(ASKS)
        execution = client.start_execution(stateMachineArn=machine, name="one", input="{}")["executionArn"]
        await heard.until(lambda arns: arns.count(execution) == 1)
        scheduled = await anyio.to_thread.run_sync(stepfunctions.event, execution, "TaskScheduled")
        asked = json.loads(scheduled["taskScheduledEventDetails"]["parameters"])["Entries"][0]["Detail"]
        client.send_task_success(taskToken=asked["taskToken"], output="{}")
        await heard.until(lambda arns: arns.count(execution) == 2)


async def test_messages_are_deleted_whatever_is_in_them(
    stepfunctions: StepFunctions, caplog: pytest.LogCaptureFixture
) -> None:
    queue, last = new_queue(stepfunctions), arn(stepfunctions, "last")
    bodies = ['{"taskToken": "secret', '{"taskToken": "secret"}', event(arn(stepfunctions, "x", region="eu-west-1"))]
    send(stepfunctions, queue, *bodies, *[event(arn(stepfunctions, str(n))) for n in range(10)])
    with caplog.at_level(logging.DEBUG, "mcp_workflows_stepfunctions"):
        async with listening(settings(stepfunctions, events={"queue_url": queue})) as heard:
            await heard.until(lambda arns: len(set(arns)) == 10)
            with anyio.fail_after(PATIENCE):
                while left_in(stepfunctions, queue):
                    await anyio.sleep(0.02)
            send(stepfunctions, queue, event(last))
            await heard.until(lambda arns: last in arns)
    assert not any("eu-west-1" in each for each in heard.arns)
    assert "name no execution of ours" in caplog.text
    assert "secret" not in caplog.text


async def test_who_is_cancelled_while_nothing_comes_ends_at_once(stepfunctions: StepFunctions) -> None:
    queue = new_queue(stepfunctions)
    send(stepfunctions, queue, event(arn(stepfunctions, "one")))
    async with listening(settings(stepfunctions, events={"queue_url": queue})) as heard:
        await heard.until(len)
        with anyio.fail_after(PATIENCE):
            while left_in(stepfunctions, queue):  # it was deleted: the next long poll is on its way
                await anyio.sleep(0.02)
        began = time.monotonic()
    assert time.monotonic() - began < 15  # a poll takes 20


async def test_who_may_not_read_the_queue_hears_which_permission_is_missing(stepfunctions: StepFunctions) -> None:
    queue = new_queue(stepfunctions)
    given = settings(stepfunctions, events={"queue_url": queue})
    clients = open_boto3_clients(given)
    denied = pytest.raises(EngineRefused, match=f"sqs:ReceiveMessage on {queue} is not allowed")
    with refusing(clients.queue, "ReceiveMessage", "AccessDenied"), denied:
        await receive_hints(Client(clients, given), given, Heard())
    clients.close()


# --- messages


REGION, ACCOUNT = "eu-west-1", "123456789012"
FIRST = f"arn:aws:states:{REGION}:{ACCOUNT}:execution:orders:one"
SECOND = f"arn:aws:states:{REGION}:{ACCOUNT}:execution:orders:two"
MACHINE = f"arn:aws:states:{REGION}:{ACCOUNT}:stateMachine:orders"
ENDED: Any = {
    "source": "aws.states",
    "detail-type": "Step Functions Execution Status Change",
    "resources": [FIRST],
    "detail": {
        "executionArn": FIRST,
        "stateMachineArn": MACHINE,
        "status": "SUCCEEDED",
        "input": json.dumps({"a": SECOND}),
    },
}
ASKED: Any = {
    "source": "mcp.workflows",
    "detail-type": "MCP Input Request",
    "resources": [FIRST, MACHINE],
    "detail": {"taskToken": "secret", "mcpInput": {"params": {"message": "ok?"}}},
}


def about(event: Any, account: str | None = ACCOUNT) -> list[str]:
    return sorted(named_executions(event if isinstance(event, str) else json.dumps(event), REGION, account))


@pytest.mark.parametrize(
    "event",
    [
        ENDED,
        ASKED,
        {"detail": {"executionArn": FIRST}},
        {"executionArn": FIRST, "taskToken": "secret"},
        {"detail": {"order": {"started": [{"by": FIRST}]}}},
        FIRST,
        {"Type": "Notification", "TopicArn": "arn:aws:sns:eu-west-1:123456789012:t", "Message": json.dumps(ENDED)},
    ],
    ids=str,
)
def test_a_message_names_its_execution(event: Any) -> None:
    assert about(event) == [FIRST]


def test_what_an_execution_got_as_input_is_not_what_the_event_is_about() -> None:
    assert about({**ENDED, "detail": {**ENDED["detail"], "other": SECOND}}) == [FIRST]
    assert about({"detail": {"executionArn": FIRST.replace(ACCOUNT, "999999999999")}}, account=None)  # not known


@pytest.mark.parametrize(
    "event",
    [
        *("", "no JSON", "[" * 100_000, "null", "1", "{}", '{"detail": null}', '{"Type": "Notification"}'),
        *({"detail": {"executionArn": 7}}, {"detail": {"executionArn": MACHINE}}, {"resources": "x"}),
        {"detail": {"executionArn": FIRST.replace(REGION, "us-east-1")}},
        {"detail": {"executionArn": FIRST.replace(ACCOUNT, "999999999999")}},
        {"detail": {"executionArn": FIRST + "x" * 300}},
        {"detail": {"executionArn": FIRST.replace(":execution:", ":express:") + ":uuid"}},
    ],
)
def test_a_message_that_is_malformed_or_somebody_elses_names_none(event: Any) -> None:
    assert about(event) == []
