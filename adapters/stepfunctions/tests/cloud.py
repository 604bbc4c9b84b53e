"""The local engine for the shared suites and the tests here: adapters in front of it, machines, and queues."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias

import anyio
from mcp_workflows_stepfunctions import StepFunctionsAdapter, StepFunctionsSettings

from mcp_workflows.adapter import JSON, Execution, Ref, Start, Status
from tests.support.cloud_suites import PATIENCE, Cloud
from tests.support.configured import written
from tests.support.stepfunctions_engine import REGION, StepFunctions

Definition: TypeAlias = Mapping[str, Any]  # Any: JSON

FORM: Final = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}


def one_state(name: str, state: Mapping[str, Any]) -> Definition:
    """A machine of this state alone."""
    return {"StartAt": name, "States": {name: dict(state)}}


def asking(message: str, **more: Any) -> Mapping[str, Any]:
    """A state that asks a person, through EventBridge."""
    question = {"message": message, "requestedSchema": FORM}
    detail = {"taskToken.$": "$$.Task.Token", "executionArn.$": "$$.Execution.Id", "mcpInput": question}
    return {**waiting({"Source": "mcp.workflows", "DetailType": "MCP Input Request", "Detail": detail}), **more}


def waiting(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """A state that waits for the task token in this event."""
    return {
        "Type": "Task",
        "Resource": "arn:aws:states:::events:putEvents.waitForTaskToken",
        "Parameters": {"Entries": [entry]},
        "TimeoutSeconds": 300,
        "End": True,
    }


def foreign(**body: Any) -> Definition:
    """Somebody's approval: the token goes into a message, and a refusal is caught."""
    waits = waiting({"Source": "shop", "DetailType": "Approval", "Detail": body})
    caught = {"Catch": [{"ErrorEquals": ["Rejected"], "Next": "Keep"}], "Next": "Ship"}
    ship, keep = {"Type": "Pass", "End": True}, {"Type": "Pass", "Result": "kept", "End": True}
    states = {"WaitForApproval": {**without(waits, "End"), **caught}, "Ship": ship, "Keep": keep}
    return {"StartAt": "WaitForApproval", "States": states}


def without(state: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A state without one of its fields."""
    return {key: value for key, value in state.items() if key != name}


ECHO: Final[Definition] = one_state("Echo", {"Type": "Pass", "End": True})
DECLINES: Final = one_state("Charge", {"Type": "Fail", "Error": "CardDeclined", "Cause": "the card was declined"})
FOREVER: Final[Definition] = one_state("Sleep", {"Type": "Wait", "Seconds": 3600, "End": True})
ASKS: Final = one_state("Ask", asking("Ship it?"))
ASKS_TWO: Final = one_state(
    "Both",
    {
        "Type": "Parallel",
        "Branches": [one_state("First", asking("Ship it?")), one_state("Second", asking("Really?"))],
        "End": True,
    },
)


class StepFunctionsCloud(Cloud):
    """State machines."""

    name = "aws"
    gate: ClassVar[Mapping[str, Any]] = {
        "when": "WaitForApproval",
        "send": {"output": {"approved": "{{answer.ok}}"}},
        "decline": {"error": "Rejected", "cause": "no"},
    }
    declined = "kept"
    secret = "AWS4-HMAC"  # how signatures begin
    parts: ClassVar[Mapping[str, Definition]] = {
        "echo": ECHO,
        "declines": DECLINES,
        "forever": FOREVER,
        "nap": one_state("Nap", {"Type": "Wait", "Seconds": 1, "End": True}),
        "asks": ASKS,
        "asks_two": ASKS_TWO,
        "gated": foreign(**{"order": "A1", "token.$": "$$.Task.Token"}),
    }

    def __init__(self, engine: StepFunctions) -> None:
        super().__init__(engine)
        self.engine = engine

    def settings(self) -> Mapping[str, Any]:
        return {"adapter": "stepfunctions", "region": REGION, "endpoint_url": self.engine.url}

    def open(self, **more: Any) -> StepFunctionsAdapter:
        return adapter(self.engine, **more)

    def deploy(self, part: str, *, mark: str | None = None) -> str:
        tags = [] if mark is None else [{"key": mark, "value": "true"}]
        return self.engine.machine(self.parts[part], tags=tags)

    def start(self, workflow: str) -> str:
        return str(self.engine.client().start_execution(stateMachineArn=workflow, input="{}")["executionArn"])

    def workflows(self) -> Sequence[str]:
        return [each["name"] for each in self.engine.client().list_state_machines()["stateMachines"]]

    def executions(self, workflow: str) -> Sequence[str]:
        return executions(self.engine, workflow)

    def state(self, execution: str) -> str:
        return str(self.engine.ended(execution)["status"])

    async def answer_elsewhere(self, execution: str, output: str) -> None:
        [token] = self.secrets(execution)
        self.engine.client().send_task_success(taskToken=token, output=json.dumps(output))

    def secrets(self, execution: str) -> Sequence[str]:
        sent = json.loads(self.engine.event(execution, "TaskScheduled")["taskScheduledEventDetails"]["parameters"])
        detail = sent["Entries"][0]["Detail"]
        read = json.loads(detail) if isinstance(detail, str) else detail
        return [read.get("taskToken") or read["token"]]

    def discover(self, mark: str) -> Mapping[str, Any]:
        return {"tag": f"{mark}=true"}

    def unmark(self, workflow: str, mark: str) -> None:
        self.engine.client().untag_resource(resourceArn=workflow, tagKeys=[mark])


def settings(engine: StepFunctions, **more: Any) -> StepFunctionsSettings:
    """Of an adapter in front of this engine; `more` is as in workflows.yaml."""
    return StepFunctionsSettings.model_validate({"endpoint_url": engine.url, "region": engine.region, **more})


def adapter(engine: StepFunctions, **more: Any) -> StepFunctionsAdapter:
    """Not entered."""
    return StepFunctionsAdapter(settings(engine, **more))


def configured(folder: Path, url: str, tools: Mapping[str, Mapping[str, Any]], **engine: Any) -> Path:
    """The workflows.yaml of these tools of the engine `aws` at this URL; `engine` adds to its settings."""
    return written(folder, "aws", {"adapter": "stepfunctions", "region": REGION, "endpoint_url": url, **engine}, tools)


def executions(engine: StepFunctions, machine: str) -> list[str]:
    """The ARNs of all executions of a machine."""
    found = engine.client().list_executions(stateMachineArn=machine)["executions"]
    return [each["executionArn"] for each in found]


def a_start(workflow: str, arguments: JSON, **more: Any) -> Start:
    """A start under a new key."""
    return Start(workflow=workflow, arguments=arguments, key=f"k-{uuid.uuid4().hex}", created=datetime.now(UTC), **more)


async def until(adapter: StepFunctionsAdapter, ref: Ref, wanted: Callable[[Execution], bool]) -> Execution:
    """The first look that is as wanted."""
    with anyio.fail_after(PATIENCE):
        while not wanted(seen := await adapter.describe(ref)):
            await anyio.sleep(0.02)
    return seen


async def until_ended(adapter: StepFunctionsAdapter, ref: Ref) -> Execution:
    """The first look at its end."""
    return await until(adapter, ref, lambda seen: seen.terminal)


async def until_asked(adapter: StepFunctionsAdapter, ref: Ref) -> Execution:
    """The first look with a question."""
    return await until(adapter, ref, lambda seen: seen.status is Status.INPUT_REQUIRED)


def new_queue(engine: StepFunctions) -> str:
    """The URL of a new queue."""
    return str(engine.client("sqs").create_queue(QueueName=f"q-{uuid.uuid4().hex}")["QueueUrl"])


def send(engine: StepFunctions, queue: str, *bodies: str) -> None:
    """Send messages to a queue."""
    for body in bodies:
        engine.client("sqs").send_message(QueueUrl=queue, MessageBody=body)


def left_in(engine: StepFunctions, queue: str) -> int:
    """Messages that are there, or that somebody has and has not deleted."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = engine.client("sqs").get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
    return sum(int(found[name]) for name in names)


def arn(engine: StepFunctions, name: str, *, region: str | None = None) -> str:
    """An execution of the machine `orders`."""
    return f"arn:aws:states:{region or engine.region}:{engine.account}:execution:orders:{name}"


def event(execution: str) -> str:
    """What EventBridge sends about an execution."""
    return json.dumps({"source": "aws.states", "detail": {"executionArn": execution, "status": "SUCCEEDED"}})
