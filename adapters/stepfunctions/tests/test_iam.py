"""`mcp-workflows iam`: the least that some tools need, written out by hand here."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pytest
from mcp_workflows_stepfunctions.boto3_clients import Boto3Clients, open_boto3_clients
from mcp_workflows_stepfunctions.client import Client
from mcp_workflows_stepfunctions.settings import StepFunctionsSettings
from mcp_workflows_stepfunctions.tooling.iam import LARGEST, permissions, queue_arn

from mcp_workflows.errors import EngineRefused
from mcp_workflows.kit.tooling import Use

STATES = "arn:aws:states:eu-west-1:123456789012"
MACHINES, EXECUTIONS = f"{STATES}:stateMachine", f"{STATES}:execution"


def allow(sid: str, actions: Sequence[str], resources: Sequence[str], condition: Any = None) -> Mapping[str, Any]:
    """Return a statement of the policy."""
    statement = {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resources}
    return statement if condition is None else {**statement, "Condition": condition}


ALL_OF_A_TOOL = [
    allow(
        "DescribeStartListAnswer",
        ["states:DescribeStateMachine", "states:ListExecutions", "states:SendTaskSuccess", "states:StartExecution"],
        [f"{MACHINES}:orders"],
    ),
    allow(
        "LookReadStop",
        ["states:DescribeExecution", "states:GetExecutionHistory", "states:StopExecution"],
        [f"{EXECUTIONS}:orders:*"],
    ),
]


@cache
def some_clients() -> Boto3Clients:
    return open_boto3_clients(StepFunctionsSettings(region="eu-west-1"))


async def policy(uses: Sequence[Use], **settings: Any) -> Any:
    """What `permissions` says, of an engine that is never called."""
    given = StepFunctionsSettings.model_validate({"region": "eu-west-1", "account": "123456789012", **settings})
    found = await permissions(Client(some_clients(), given), given, uses)
    assert found["Version"] == "2012-10-17"
    return found["Statement"]


def use(workflow: str, **more: Any) -> Use:
    return Use(tool="t", workflow=workflow, **more)


@pytest.mark.parametrize("workflow", ["orders", f"{MACHINES}:orders"])
async def test_a_tool_needs_its_machine_its_executions_and_to_answer(workflow: str) -> None:
    assert await policy([use(workflow)]) == ALL_OF_A_TOOL


async def test_a_tool_that_only_watches_may_only_look() -> None:
    assert await policy([use("orders", watches=True, answers=False, cancels=False)]) == [
        allow("DescribeList", ["states:DescribeStateMachine", "states:ListExecutions"], [f"{MACHINES}:orders"]),
        allow("LookRead", ["states:DescribeExecution", "states:GetExecutionHistory"], [f"{EXECUTIONS}:orders:*"]),
    ]


async def test_an_express_tool_may_only_run_its_machine() -> None:
    assert await policy([use("quotes", options={"express": True}), use("prices", options={"express": True})]) == [
        allow(
            "DescribeRunExpress",
            ["states:DescribeStateMachine", "states:StartSyncExecution"],
            [f"{MACHINES}:prices", f"{MACHINES}:quotes"],
        )
    ]


async def test_without_history_nobody_is_asked() -> None:
    found = await policy([use("orders", options={"history": False}, cancels=False)])
    assert [each["Action"] for each in found] == [
        ["states:DescribeStateMachine", "states:ListExecutions", "states:StartExecution"],
        ["states:DescribeExecution"],
    ]


async def test_a_version_or_alias_is_the_machine_under_a_condition() -> None:
    uses = [use("orders:PROD", watches=False, answers=False), use(f"{MACHINES}:orders:3", answers=False)]
    found = await policy([*uses, use("bills:PROD", answers=False)])
    qualified = [each for each in found if "Condition" in each]
    assert qualified == [
        allow(
            "DescribeAliasStart",
            ["states:DescribeStateMachineAlias", "states:StartExecution"],
            [f"{MACHINES}:bills", f"{MACHINES}:orders"],
            {"ForAnyValue:StringEquals": {"states:StateMachineQualifier": ["PROD"]}},
        ),
        allow(
            "Start",
            ["states:StartExecution"],
            [f"{MACHINES}:orders"],
            {"ForAnyValue:StringEquals": {"states:StateMachineQualifier": ["3"]}},
        ),
    ]
    assert [each["Sid"] for each in found if "Condition" not in each] == ["DescribeList", "LookReadStop"]


async def test_who_starts_the_machine_itself_may_start_all_its_versions() -> None:
    found = await policy([use("orders"), use("orders:3")])
    assert found == ALL_OF_A_TOOL


@pytest.mark.parametrize(
    ("gates", "fails"),
    [
        ({"ok": {"when": "Wait", "send": {"output": {}}, "decline": {"output": None}}}, False),
        ({"ok": {"when": "Wait", "send": {"output": {}}, "decline": {"error": "Rejected"}}}, True),
        ({"ok": {"when": "Wait", "send": {"error": "Rejected"}}}, True),
    ],
)
async def test_failing_a_state_is_allowed_only_if_a_gate_does_it(gates: Any, fails: bool) -> None:
    found = await policy([use("orders", gates=gates)])
    assert any("states:SendTaskFailure" in each["Action"] for each in found) is fails


async def test_a_queue_of_events_may_be_read() -> None:
    url = "https://sqs.eu-central-1.amazonaws.com/999999999999/mcp-events"
    assert (await policy([], events={"queue_url": url})) == [
        allow(
            "ReceiveEvents",
            ["sqs:DeleteMessage", "sqs:ReceiveMessage"],
            ["arn:aws:sqs:eu-central-1:999999999999:mcp-events"],
        )
    ]


async def test_tagged_machines_may_be_used_by_their_tag() -> None:
    tagged = {"StringEquals": {"aws:ResourceTag/mcp:expose": "true"}}
    assert await policy([], discover={}) == [
        allow("FindTagged", ["tag:GetResources"], ["*"]),
        allow(
            "Tagged",
            [
                "states:DescribeStateMachine",
                "states:ListExecutions",
                "states:StartExecution",
                "states:StartSyncExecution",
            ],
            [f"{MACHINES}:*"],
            tagged,
        ),
        allow(
            "TaggedExecutions",
            ["states:DescribeExecution", "states:GetExecutionHistory", "states:StopExecution"],
            [f"{EXECUTIONS}:*:*"],
            tagged,
        ),
        allow("Answer", ["states:SendTaskSuccess"], [f"{MACHINES}:*"]),
    ]


KINDS: Mapping[str, str] = {  # of resources, by action, as AWS's service authorization reference has them
    "states:DescribeStateMachine": ":stateMachine:",
    "states:DescribeStateMachineAlias": ":stateMachine:",
    "states:StartExecution": ":stateMachine:",
    "states:StartSyncExecution": ":stateMachine:",
    "states:ListExecutions": ":stateMachine:",
    "states:DescribeExecution": ":execution:",
    "states:DescribeStateMachineForExecution": ":execution:",
    "states:GetExecutionHistory": ":execution:",
    "states:StopExecution": ":execution:",
    "states:SendTaskSuccess": ":stateMachine:",  # there it has none; see `iam`
    "states:SendTaskFailure": ":stateMachine:",
    "tag:GetResources": "*",
    "sqs:ReceiveMessage": ":sqs:",
    "sqs:DeleteMessage": ":sqs:",
}


async def test_each_action_is_allowed_on_resources_of_its_kind() -> None:
    fails = {"ok": {"when": "Wait", "send": {"error": "No"}}}
    uses = [use("orders:PROD", gates=fails), use("quotes:1", options={"express": True})]
    url = "https://sqs.eu-west-1.amazonaws.com/123456789012/q"
    found = await policy(uses, discover={}, events={"queue_url": url})
    assert {action for statement in found for action in statement["Action"]} == KINDS.keys()
    for statement in found:
        for action in statement["Action"]:
            assert all(KINDS[action] in resource for resource in statement["Resource"])


async def test_the_order_of_tools_changes_nothing() -> None:
    uses = [
        use("orders"),
        use("bills:PROD"),
        use("quotes", options={"express": True}),
        use("bills:TEST", answers=False),
    ]
    found = [await policy(order) for order in (uses, uses[::-1])]
    assert found[0] == found[1]
    sids = [each["Sid"] for each in found[0]]
    assert len(set(sids)) == len(sids)
    assert all(sid.isalnum() for sid in sids)


async def test_what_the_caller_of_a_role_needs_is_told_beside_the_policy(caplog: pytest.LogCaptureFixture) -> None:
    role = "arn:aws:iam::123456789012:role/mcp"
    found = await policy([use("orders")], assume_role={"arn": role, "source_identity": "mcp-gateway"})
    assert found == ALL_OF_A_TOOL
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert f'"Action": ["sts:AssumeRole", "sts:SetSourceIdentity"], "Resource": ["{role}"]' in record.getMessage()


async def test_a_policy_that_iam_does_not_take_is_said_to_be_too_long(caplog: pytest.LogCaptureFixture) -> None:
    await policy([use(f"orders-{number}" + "x" * 60) for number in range(40)])
    assert f"IAM takes {LARGEST}" in caplog.text


@pytest.mark.parametrize(
    ("url", "arn"),
    [
        ("https://sqs.us-west-2.amazonaws.com/1/q.fifo", "arn:aws:sqs:us-west-2:1:q.fifo"),
        ("https://us-west-2.queue.amazonaws.com/1/q", "arn:aws:sqs:us-west-2:1:q"),
        ("https://sqs-fips.us-west-2.amazonaws.com/1/q", "arn:aws:sqs:us-west-2:1:q"),
        ("https://vpce-0a-1b.sqs.us-west-2.vpce.amazonaws.com/1/q", "arn:aws:sqs:us-west-2:1:q"),
        ("http://127.0.0.1:5000/1/q", "arn:aws:sqs:eu-west-1:1:q"),
    ],
)
def test_a_queue_url_names_a_queue(url: str, arn: str) -> None:
    assert queue_arn(url, "eu-west-1", "aws") == arn


@pytest.mark.parametrize("workflow", ["no name", "arn:aws:states:us-east-1:123456789012:stateMachine:orders"])
async def test_a_workflow_that_is_none_of_this_engine_is_refused(workflow: str) -> None:
    with pytest.raises(EngineRefused):
        await policy([use(workflow)])


async def test_a_machine_of_another_account_than_the_role_is_refused() -> None:
    role = {"arn": "arn:aws:iam::111122223333:role/workflows"}
    with pytest.raises(EngineRefused, match="in account 123456789012, this engine is set up for 111122223333"):
        await policy([use(f"{MACHINES}:orders")], account=None, assume_role=role)
