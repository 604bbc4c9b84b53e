"""State machines that play the parts of the tests, as anybody would write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

Definition: TypeAlias = Mapping[str, Any]  # Any: JSON

ECHO: Final[Definition] = {"StartAt": "Echo", "States": {"Echo": {"Type": "Pass", "End": True}}}
DECLINES: Final[Definition] = {
    "StartAt": "Charge",
    "States": {"Charge": {"Type": "Fail", "Error": "CardDeclined", "Cause": "the card was declined"}},
}
FOREVER: Final[Definition] = {"StartAt": "Sleep", "States": {"Sleep": {"Type": "Wait", "Seconds": 3600, "End": True}}}
FORM: Final = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}


def asking(message: str, **more: Any) -> Mapping[str, Any]:
    """A state that asks a person, through EventBridge."""
    question = {"message": message, "requestedSchema": FORM}
    detail = {"taskToken.$": "$$.Task.Token", "executionArn.$": "$$.Execution.Id", "mcpInput": question}
    entry = {"Source": "mcp.workflows", "DetailType": "MCP Input Request", "Detail": detail}
    return {
        "Type": "Task",
        "Resource": "arn:aws:states:::events:putEvents.waitForTaskToken",
        "Parameters": {"Entries": [entry]},
        "TimeoutSeconds": 300,
        "End": True,
        **more,
    }


def one_state(name: str, state: Mapping[str, Any]) -> Definition:
    """A machine of this state alone."""
    return {"StartAt": name, "States": {name: dict(state)}}


ASKS: Final = one_state("Ask", asking("Ship it?"))
ASKS_TWO: Final = one_state(
    "Both",
    {
        "Type": "Parallel",
        "Branches": [one_state("First", asking("Ship it?")), one_state("Second", asking("Really?"))],
        "End": True,
    },
)
