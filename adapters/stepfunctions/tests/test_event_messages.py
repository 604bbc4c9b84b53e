"""Which executions a message of the events queue is about."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp_workflows_stepfunctions.hints import named_executions

REGION, ACCOUNT = "eu-west-1", "123456789012"
ONE = f"arn:aws:states:{REGION}:{ACCOUNT}:execution:orders:one"
TWO = f"arn:aws:states:{REGION}:{ACCOUNT}:execution:orders:two"
MACHINE = f"arn:aws:states:{REGION}:{ACCOUNT}:stateMachine:orders"
ENDED: Any = {
    "source": "aws.states",
    "detail-type": "Step Functions Execution Status Change",
    "resources": [ONE],
    "detail": {"executionArn": ONE, "stateMachineArn": MACHINE, "status": "SUCCEEDED", "input": json.dumps({"a": TWO})},
}
ASKED: Any = {
    "source": "mcp.workflows",
    "detail-type": "MCP Input Request",
    "resources": [ONE, MACHINE],
    "detail": {"taskToken": "secret", "mcpInput": {"params": {"message": "ok?"}}},
}


def about(event: Any, account: str | None = ACCOUNT) -> list[str]:
    return sorted(named_executions(event if isinstance(event, str) else json.dumps(event), REGION, account))


@pytest.mark.parametrize(
    "event",
    [
        ENDED,
        ASKED,
        {**ASKED, "resources": [], "detail": {**ASKED["detail"], "executionArn": ONE}},
        {"detail": {"executionArn": ONE}},
        {"executionArn": ONE, "taskToken": "secret"},
        {"detail": {"order": {"started": [{"by": ONE}]}}},
        [ONE],
        ONE,
        json.dumps(ONE),
        {"Type": "Notification", "TopicArn": "arn:aws:sns:eu-west-1:123456789012:t", "Message": json.dumps(ENDED)},
    ],
    ids=[
        *("a status change", "a question", "a question that says more", "what our rule leaves of it"),
        *("sent to the queue by a state", "an ARN somewhere", "a list", "an ARN", "an ARN as JSON", "by way of SNS"),
    ],
)
def test_a_message_names_its_execution(event: Any) -> None:
    assert about(event) == [ONE]


def test_what_an_execution_got_as_input_is_not_what_the_event_is_about() -> None:
    assert about({**ENDED, "detail": {**ENDED["detail"], "other": TWO}}) == [ONE]


@pytest.mark.parametrize(
    "event",
    [
        *("", "no JSON", "[" * 100_000, "null", "1", "{}", '{"detail": null}', '{"Type": "Notification"}'),
        *({"detail": {"executionArn": 7}}, {"detail": {"executionArn": MACHINE}}, {"resources": "x"}),
        {"detail": {"executionArn": ONE.replace(REGION, "us-east-1")}},
        {"detail": {"executionArn": ONE.replace(ACCOUNT, "999999999999")}},
        {"detail": {"executionArn": ONE + "x" * 300}},
        {"detail": {"executionArn": ONE.replace(":execution:", ":express:") + ":uuid"}},
    ],
)
def test_a_message_that_is_malformed_or_somebody_elses_names_none(event: Any) -> None:
    assert about(event) == []


def test_without_a_known_account_any_account_counts() -> None:
    assert about({"detail": {"executionArn": ONE.replace(ACCOUNT, "999999999999")}}, account=None)
