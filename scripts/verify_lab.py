"""What `verify_stepfunctions` works with: a client, and what it has made and removes again."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from botocore.exceptions import ClientError
from rich.console import Console

PATIENCE: Final = 30.0  # seconds for an execution to come to where it should
PREFIX: Final = "mcp-workflows-verify"

console = Console(width=150, highlight=False)
Machine = Mapping[str, Any]  # Any: JSON
T = TypeVar("T")


class NotTriedError(Exception):
    """This point cannot be settled here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What came out of a point."""

    text: str
    ok: bool | None  # None: there is nothing to compare it with


@dataclass(slots=True, kw_only=True)
class Lab:
    """A client, and what has been made with it."""

    client: Any  # botocore has no types
    tagging: Any
    messages: Any
    role: str
    queue: str | None  # the URL of a queue with EventBridge's status events
    restricted: Callable[[str], Any] | None  # a client that may only answer tokens of this machine
    sink: str | None  # the ARN of a Lambda function that keeps quiet
    made: list[str] = field(default_factory=list[str])
    running: list[str] = field(default_factory=list[str])

    def machine(self, definition: Machine, **more: Any) -> str:
        """A new state machine; its ARN."""
        name = f"{PREFIX}-{uuid.uuid4().hex[:8]}"
        text = json.dumps(definition)
        arn = self.client.create_state_machine(name=name, definition=text, roleArn=self.role, **more)["stateMachineArn"]
        self.made.append(arn)
        return str(arn)

    def start(self, machine: str, name: str | None = None, given: str = "{}") -> str:
        """A new execution; its ARN."""
        name = name or uuid.uuid4().hex
        arn = self.client.start_execution(stateMachineArn=machine, name=name, input=given)["executionArn"]
        self.running.append(arn)
        return str(arn)

    def until(self, arn: str, status: str) -> Mapping[str, Any]:
        """The execution once it has this status."""
        return until(lambda: self._with_status(arn, status), f"{status} of {arn}")

    def _with_status(self, arn: str, status: str) -> Mapping[str, Any] | None:
        try:
            found: Mapping[str, Any] = self.client.describe_execution(executionArn=arn)
        except self.client.exceptions.ExecutionDoesNotExist:
            return None
        return found if found["status"] == status else None

    def waiting(self, arn: str) -> Mapping[str, Any]:
        """The TaskScheduled event of an execution that waits for a task token."""
        return until(lambda: self._event(arn, "TaskSubmitted", "TaskScheduled"), f"a task token of {arn}")

    def _event(self, arn: str, there: str, wanted: str) -> Mapping[str, Any] | None:
        try:
            events = self.client.get_execution_history(executionArn=arn)["events"]
        except self.client.exceptions.ExecutionDoesNotExist:
            return None
        if not any(event["type"] == there for event in events):
            return None
        return next(event for event in events if event["type"] == wanted)

    def token(self, arn: str) -> str:
        """Its task token, from the parameters in the history."""
        return token(self.waiting(arn)["taskScheduledEventDetails"]["parameters"])

    def event_of(self, arn: str) -> Mapping[str, Any] | None:
        """The detail of a status event of this execution, if it is in the queue; all that is taken out is removed."""
        found = self.messages.receive_message(QueueUrl=self.queue, MaxNumberOfMessages=10, WaitTimeSeconds=5)
        events: list[Mapping[str, Any]] = []
        for message in found.get("Messages", ()):
            self.messages.delete_message(QueueUrl=self.queue, ReceiptHandle=message["ReceiptHandle"])
            events.append(json.loads(message["Body"]).get("detail", {}))
        return next((event for event in events if event.get("executionArn") == arn), None)

    def tidy(self) -> None:
        """Stop and remove everything; what cannot be removed is named."""
        for arn in self.running:
            self._quietly(arn, lambda arn=arn: self.client.stop_execution(executionArn=arn))
        for arn in self.made:
            self._quietly(arn, lambda arn=arn: self.client.delete_state_machine(stateMachineArn=arn))

    def _quietly(self, arn: str, remove: Callable[[], object]) -> None:
        try:
            remove()
        except ClientError as error:
            if arn in self.made:
                console.print(f"could not remove {arn}: {code(error)}", markup=False)


def until(look: Callable[[], T | None], what: str, patience: float = PATIENCE) -> T:
    """What a look finds, once it finds something; `patience` in seconds."""
    deadline = time.monotonic() + patience
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise NotTriedError(f"not seen within {patience:g} s: {what}")
        time.sleep(0.1)
    return found


def token(parameters: str) -> str:
    return str(json.loads(parameters)["Entries"][0]["Detail"]["taskToken"])


def code(error: ClientError) -> str:
    response: Mapping[str, Any] = error.response
    return str(response["Error"]["Code"])


def answer(call: Callable[[], object]) -> str:
    """The error code of a call, or `accepted`."""
    try:
        call()
    except ClientError as error:
        return code(error)
    return "accepted"
