"""`mcp-workflows print iam`: the least that some tools need, written out by hand here."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

import anyio
import pytest
from mcp_workflows_stepfunctions import StepFunctionsAdapter
from mcp_workflows_stepfunctions.boto3_clients import Boto3Clients, open_boto3_clients
from mcp_workflows_stepfunctions.client import Client
from mcp_workflows_stepfunctions.settings import StepFunctionsSettings
from mcp_workflows_stepfunctions.tooling.iam import LARGEST, permissions, queue_arn

from adapters.stepfunctions.tests import cloud
from adapters.stepfunctions.tests.cloud import (
    PATIENCE,
    arn,
    event,
    left_in,
    new_queue,
    send,
    settings,
    until_asked,
    until_ended,
)
from mcp_workflows.adapter import Gate, InputRequest, Ref, Start
from mcp_workflows.errors import EngineRefused
from mcp_workflows.kit.tooling import Use
from tests.support.stepfunctions_engine import StepFunctions

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
        "PollReadStop",
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


@pytest.mark.parametrize("uses", [["orders"], [f"{MACHINES}:orders"], ["orders", "orders:3"]])
async def test_a_tool_needs_its_machine_its_executions_and_to_answer(uses: list[str]) -> None:
    assert await policy([use(workflow) for workflow in uses]) == ALL_OF_A_TOOL


async def test_a_tool_that_only_watches_may_only_look() -> None:
    assert await policy([use("orders", watches=True, answers=False, cancels=False)]) == [
        allow("DescribeList", ["states:DescribeStateMachine", "states:ListExecutions"], [f"{MACHINES}:orders"]),
        allow("PollRead", ["states:DescribeExecution", "states:GetExecutionHistory"], [f"{EXECUTIONS}:orders:*"]),
    ]


async def test_a_tool_without_history_and_cancel_asks_nothing_and_stops_nothing() -> None:
    found = await policy([use("orders", options={"history": False}, cancels=False)])
    assert {action for each in found for action in each["Action"]} == {
        *("states:DescribeStateMachine", "states:ListExecutions", "states:StartExecution"),
        "states:DescribeExecution",
    }


async def test_an_express_tool_may_only_run_its_machine() -> None:
    assert await policy([use("quotes", options={"express": True}), use("prices", options={"express": True})]) == [
        allow(
            "DescribeRunExpress",
            ["states:DescribeStateMachine", "states:StartSyncExecution"],
            [f"{MACHINES}:prices", f"{MACHINES}:quotes"],
        )
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
    assert [each["Sid"] for each in found if "Condition" not in each] == ["DescribeList", "PollReadStop"]


@pytest.mark.parametrize(
    ("gates", "fails"),
    [
        ({"ok": {"when": "Wait", "send": {"output": {}}, "decline": {"output": None}}}, False),
        ({"ok": {"when": "Wait", "send": {"output": {}}, "decline": {"error": "Rejected"}}}, True),
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


# --- what is called, and nothing else


SERVICES: Final[Mapping[str, str]] = {"stepfunctions": "states", "sqs": "sqs", "resourcegroupstaggingapi": "tag"}
NAMES: Final[Mapping[str, str]] = {"sqs:DeleteMessageBatch": "sqs:DeleteMessage"}  # one action for two operations
NOT_NEEDED: Final = frozenset({"sts:GetCallerIdentity", "states:ListStateMachines"})  # never denied; may be denied
GATE: Final[Mapping[str, Any]] = {
    "when": {"state": "Wait"},
    "send": {"output": {"ok": "{{answer.ok}}"}},
    "decline": {"error": "Rejected"},
}

WAIT_ENTRY: Final = {
    "Source": "shop",
    "DetailType": "Approval",
    "Detail": {"cb.$": "$$.Task.Token", "executionArn.$": "$$.Execution.Id"},
}


def watch(adapter: StepFunctionsAdapter, used: set[str]) -> None:
    """Note what is called, before it is sent."""
    clients = adapter._opened.client._clients  # pyright: ignore[reportPrivateUsage]

    def note(model: Any, **_: Any) -> None:
        service = str(model.service_model.service_name)
        name = f"{SERVICES.get(service, service)}:{model.name}"
        used.add(NAMES.get(name, name))

    made: tuple[Any, ...] = (clients.states, clients.sync, clients.sts, clients.queue, clients.tagging)
    for client in filter(None, made):
        client.meta.events.register("before-call", note)


def plan(workflow: str, **more: Any) -> Start:
    return Start(workflow=workflow, arguments=[], key=uuid.uuid4().hex, created=datetime.now(UTC), **more)


async def start(adapter: StepFunctionsAdapter, workflow: str, gates: Mapping[str, Gate] | None = None) -> Ref:
    """Twice, as after a lost reply."""
    order = plan(workflow)
    assert await adapter.start(order) == await adapter.start(order)
    return Ref(workflow=workflow, handle=await adapter.start(order), gates=gates or {})


async def answer_and_cancel(adapter: StepFunctionsAdapter, workflow: str) -> None:
    """One of its executions is answered, another is cancelled."""
    first, second = [await start(adapter, workflow) for _ in range(2)]
    [key] = (await until_asked(adapter, first)).requests
    await adapter.answer(first, {key: {"action": "accept", "content": {"answer": "yes"}}})
    await until_ended(adapter, first)
    await adapter.describe_many([first, second])
    await adapter.tooling.explain(second)
    await adapter.cancel(second)
    await adapter.adopt(second.handle)


async def decline_at_gate(adapter: StepFunctionsAdapter, workflow: str) -> None:
    request = InputRequest(method="elicitation/create", params={"message": "ok?"})
    gate = Gate(when=GATE["when"], request=request, send=GATE["send"], decline=GATE["decline"])
    ref = await start(adapter, workflow, {"approve": gate})
    [key] = (await until_asked(adapter, ref)).requests
    await adapter.answer(ref, {key: {"action": "decline", "send": {"error": "Rejected"}}})
    await until_ended(adapter, ref)


async def hear(adapter: StepFunctionsAdapter, engine: StepFunctions, queue: str) -> None:
    """Of one message, until it is deleted."""
    heard: list[str] = []
    send(engine, queue, event(arn(engine, "one")))
    async with anyio.create_task_group() as group:
        group.start_soon(adapter.hints, heard.append)
        with anyio.fail_after(PATIENCE):
            while left_in(engine, queue):
                await anyio.sleep(0.02)
        group.cancel_scope.cancel()
    assert heard == [arn(engine, "one")]


async def test_everything_that_is_called_is_allowed_and_nothing_else(stepfunctions: StepFunctions) -> None:
    queue = new_queue(stepfunctions)
    tag = f"expose-{uuid.uuid4().hex[:8]}"
    waiting = cloud.one_state("Wait", {**cloud.asking("?"), "Parameters": {"Entries": [WAIT_ENTRY]}})
    asks, waits = stepfunctions.machine(cloud.ASKS), stepfunctions.machine(waiting)
    quotes = stepfunctions.machine(cloud.ECHO, type="EXPRESS", tags=[{"key": tag, "value": "true"}])
    aliased = with_alias(stepfunctions, asks)
    express = {"express": True}
    uses = [
        Use(tool="a", workflow=asks),
        Use(tool="b", workflow=aliased),
        Use(tool="c", workflow=quotes, options=express),
    ]
    uses.append(Use(tool="d", workflow=waits, gates={"approve": GATE}))
    used: set[str] = set()
    given = settings(stepfunctions, events={"queue_url": queue}, discover={"tag": f"{tag}=true"})
    async with StepFunctionsAdapter(given) as adapter:
        watch(adapter, used)
        await adapter.tooling.check_engine()
        for each in uses:
            assert (await adapter.tooling.check(each.workflow, each.options)).ok
            await adapter.tooling.verify(each.workflow, each.options, each.gates)
        await answer_and_cancel(adapter, asks)
        await start(adapter, aliased)
        await decline_at_gate(adapter, waits)
        handle = await adapter.start(plan(quotes, options=express))
        await until_ended(adapter, Ref(workflow=quotes, handle=handle, options=express))
        await hear(adapter, stepfunctions, queue)
        assert [found.workflow for found in await adapter.tooling.exposed()] == [quotes]
        policy = await adapter.tooling.permissions(uses)
    allowed = {action for statement in policy["Statement"] for action in statement["Action"]}
    assert used - NOT_NEEDED == allowed


def with_alias(engine: StepFunctions, machine: str) -> str:
    client = engine.client()
    version = client.publish_state_machine_version(stateMachineArn=machine)["stateMachineVersionArn"]
    routing = [{"stateMachineVersionArn": version, "weight": 100}]
    return str(client.create_state_machine_alias(name="PROD", routingConfiguration=routing)["stateMachineAliasArn"])
