"""Temporarily deployed state machines for `mcp-workflows check --live`, and requests to them.

All functions block, and run in a thread. A cancelled run ends at the next poll.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# Reason: botocore has no types.

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import boto3
from botocore.exceptions import BotoCoreError, ClientError
from pydantic import BaseModel, ConfigDict, Field

from mcp_workflows.errors import EngineRefused
from mcp_workflows.testing.laws import until_found
from mcp_workflows_stepfunctions.boto3_clients import Boto3Clients, open_boto3_clients
from mcp_workflows_stepfunctions.settings import StepFunctionsSettings

PREFIX: Final = "mcp-workflows-verify"

Definition = Mapping[str, Any]  # Any: JSON

LARGEST: Final = 262_144  # bytes
FORM: Final = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}


def machine_of(name: str, state: Mapping[str, Any], **more: Any) -> Definition:
    """Return a machine of one state. Any: JSON."""
    return {"StartAt": name, "States": {name: {**state, "End": True}}, **more}


def asking(message: str) -> Definition:
    """Return a machine that asks a person."""
    question = {"message": message, "requestedSchema": FORM}
    detail = {"taskToken.$": "$$.Task.Token", "executionArn.$": "$$.Execution.Id", "mcpInput": question}
    entry = {"Source": "mcp.workflows", "DetailType": "MCP Input Request", "Detail": detail}
    resource = "arn:aws:states:::events:putEvents.waitForTaskToken"
    state = {"Type": "Task", "Resource": resource, "Parameters": {"Entries": [entry]}, "TimeoutSeconds": 300}
    return machine_of("Ask", state)


ECHO: Final = machine_of("Echo", {"Type": "Pass"})
SLEEP: Final = machine_of("Sleep", {"Type": "Wait", "Seconds": 3600})
FAIL: Final[Definition] = {
    "StartAt": "Charge",
    "States": {"Charge": {"Type": "Fail", "Error": "CardDeclined", "Cause": "the card was declined"}},
}
ASK: Final = asking("Ship it?")
FAILING_BRANCH: Final[Definition] = {
    "StartAt": "Pause",
    "States": {"Pause": {"Type": "Wait", "Seconds": 2, "Next": "No"}, "No": {"Type": "Fail", "Error": "No"}},
}
BRANCHES: Final = machine_of("Both", {"Type": "Parallel", "Branches": [ASK, FAILING_BRANCH]})
ASKS_TWO: Final = machine_of("Both", {"Type": "Parallel", "Branches": [ASK, asking("Really?")]})


class FixtureSettings(BaseModel):
    """Settings of `check --live` for the state machines that it deploys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    role: str = Field(
        description="The ARN of the IAM role that the machines run as. It needs events:PutEvents on the default event "
        "bus, and states:StartSyncExecution for the Express point."
    )
    assume: str | None = Field(
        default=None, description="The ARN of a role to try permissions with; it may states:SendTaskSuccess."
    )


@dataclass(slots=True, kw_only=True)
class Deployment:
    """Clients, and the objects created with them."""

    clients: Boto3Clients
    settings: FixtureSettings
    made: list[str] = field(default_factory=list[str])
    running: list[str] = field(default_factory=list[str])

    @classmethod
    def open(cls, engine: StepFunctionsSettings, settings: FixtureSettings) -> Deployment:
        """Open the clients.

        Raises:
            ConfigError: see `open_boto3_clients`.
        """
        return cls(clients=open_boto3_clients(engine), settings=settings)

    @property
    def client(self) -> Any:
        """The client of Step Functions."""
        return self.clients.states

    def machine(self, definition: Definition, **more: Any) -> str:
        """Create a state machine; return its ARN."""
        name = f"{PREFIX}-{uuid.uuid4().hex[:8]}"
        text = json.dumps(definition)
        role = self.settings.role
        arn = self.client.create_state_machine(name=name, definition=text, roleArn=role, **more)["stateMachineArn"]
        self.made.append(arn)
        return str(arn)

    def start(self, machine: str, name: str | None = None, given: str = "{}") -> str:
        """Start an execution; return its ARN."""
        name = name or uuid.uuid4().hex
        arn = self.client.start_execution(stateMachineArn=machine, name=name, input=given)["executionArn"]
        self.running.append(arn)
        return str(arn)

    def until(self, arn: str, status: str) -> Mapping[str, Any]:
        """Return the execution once it has this status."""
        return until_found(lambda: self._with_status(arn, status), f"{status} of {arn}")

    def _with_status(self, arn: str, status: str) -> Mapping[str, Any] | None:
        try:
            found: Mapping[str, Any] = self.client.describe_execution(executionArn=arn)
        except self.client.exceptions.ExecutionDoesNotExist:
            return None
        return found if found["status"] == status else None

    def waiting(self, arn: str) -> Mapping[str, Any]:
        """Return the TaskScheduled event of an execution that waits for a task token."""
        return until_found(lambda: self._event(arn, "TaskSubmitted", "TaskScheduled"), f"a task token of {arn}")

    def _event(self, arn: str, there: str, wanted: str) -> Mapping[str, Any] | None:
        try:
            events = self.client.get_execution_history(executionArn=arn)["events"]
        except self.client.exceptions.ExecutionDoesNotExist:
            return None
        if not any(event["type"] == there for event in events):
            return None
        found: Mapping[str, Any] = next(event for event in events if event["type"] == wanted)
        return found

    def token(self, arn: str) -> str:
        """Return the task token from the parameters in the history."""
        return token(self.waiting(arn)["taskScheduledEventDetails"]["parameters"])

    def restricted(self, role: str, machine: str) -> Any:
        """Return a client that may only answer the tokens of this machine."""
        statement = {"Effect": "Allow", "Action": "states:SendTaskSuccess", "Resource": machine}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        reply = self.clients.sts.assume_role(RoleArn=role, RoleSessionName=PREFIX, Policy=policy)["Credentials"]
        client: Any = boto3.client(
            "stepfunctions",
            region_name=self.clients.region,
            endpoint_url=self.client.meta.endpoint_url,
            aws_access_key_id=reply["AccessKeyId"],
            aws_secret_access_key=reply["SecretAccessKey"],
            aws_session_token=reply["SessionToken"],
        )
        return client

    def remove(self) -> None:
        """Stop and remove everything; a running execution keeps its machine until it has ended.

        Raises:
            EngineRefused: some objects cannot be removed; the message names them.
        """
        for arn in self.running:
            with suppress(ClientError, BotoCoreError):
                self.client.stop_execution(executionArn=arn)
        left: list[str] = []
        for arn in self.made:
            try:
                self.client.delete_state_machine(stateMachineArn=arn)
            except ClientError as error:
                left.append(f"{arn} ({code(error)})")
            except BotoCoreError as error:
                left.append(f"{arn} ({type(error).__name__})")
        self.clients.close()
        if left:
            raise EngineRefused(f"could not be removed: {', '.join(left)}")


def token(parameters: str) -> str:
    """Return the task token in the parameters of a question."""
    return str(json.loads(parameters)["Entries"][0]["Detail"]["taskToken"])


def code(error: ClientError) -> str:
    """Return the error code of AWS."""
    response: Mapping[str, Any] = error.response
    return str(response["Error"]["Code"])


def answer(call: Callable[[], object]) -> str:
    """Return the error code of a call, or `accepted`."""
    try:
        call()
    except ClientError as error:
        return code(error)
    return "accepted"
