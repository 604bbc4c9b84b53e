"""State machines that the tests of the local engine start."""

from __future__ import annotations

from typing import Any, Final

from botocore.exceptions import ClientError

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
