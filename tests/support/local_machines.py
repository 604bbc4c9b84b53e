"""State machines that the tests of the local Step Functions engine start, and their task tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import pytest
from botocore.exceptions import ClientError

from tests.support.stepfunctions_engine import StepFunctions

QUESTION: Final = "arn:aws:states:::events:putEvents.waitForTaskToken"


def only(state: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A definition of this one state, called Only."""
    return {"StartAt": "Only", "States": {"Only": {**state, "End": True}}, **more}


def asking(**more: Any) -> dict[str, Any]:
    """A state that waits for its task token."""
    entry = {"Source": "test", "DetailType": "question", "Detail": {"taskToken.$": "$$.Task.Token"}}
    return {"Type": "Task", "Resource": QUESTION, "Parameters": {"Entries": [entry]}, "TimeoutSeconds": 60, **more}


PASS: Final = only({"Type": "Pass"})
SLEEP: Final = only({"Type": "Wait", "Seconds": 60})
ASK: Final = only(asking())
FAIL: Final = {"StartAt": "Only", "States": {"Only": {"Type": "Fail", "Error": "Bad", "Cause": "it was"}}}


def code(error: ClientError) -> str:
    """The error code that AWS would have sent."""
    response: Any = error.response  # pyright: ignore[reportUnknownMemberType]
    return str(response["Error"]["Code"])


def token_of(event: Any) -> str:
    parameters = json.loads(event["taskScheduledEventDetails"]["parameters"])
    return str(parameters["Entries"][0]["Detail"]["taskToken"])


def asked(engine: StepFunctions, definition: dict[str, Any]) -> tuple[str, str]:
    """An execution that waits for its token, and the token."""
    arn = engine.machine(definition)
    execution = str(engine.client().start_execution(stateMachineArn=arn)["executionArn"])
    engine.event(execution, "TaskSubmitted")
    return execution, token_of(engine.event(execution, "TaskScheduled"))


def refused(call: Callable[..., object], **params: str) -> str:
    with pytest.raises(ClientError) as error:
        call(**params)
    return code(error.value)
