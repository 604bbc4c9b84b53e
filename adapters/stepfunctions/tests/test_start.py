"""One key, one execution, and what is refused before anything is called."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from mcp_workflows_stepfunctions import StepFunctionsAdapter
from mcp_workflows_stepfunctions.arns import parse_machine
from mcp_workflows_stepfunctions.start import MAX_PAYLOAD, execution_name, read_input, start_request

from adapters.stepfunctions.tests import cloud
from adapters.stepfunctions.tests.cloud import a_start
from mcp_workflows.adapter import Ref, Status
from mcp_workflows.errors import EngineRefused, ExecutionNotFound, StartConflict
from tests.support.stepfunctions_engine import StepFunctions

pytestmark = pytest.mark.anyio

MACHINE = parse_machine("arn:aws:states:eu-west-1:111122223333:stateMachine:orders")


def test_the_key_is_the_name_if_it_can_be_one() -> None:
    assert execution_name("fulfil-1a2b") == "fulfil-1a2b"
    long, dotted = execution_name("x" * 81), execution_name("shop.fulfil-1a2b")
    assert len({long, dotted, execution_name("shop_fulfil-1a2b")}) == 3
    assert all(len(name) <= 80 for name in (long, dotted))


def test_the_input_is_the_same_to_the_byte_for_the_same_arguments() -> None:
    assert read_input([{"b": 1, "a": "Grüße"}]) == read_input([{"a": "Grüße", "b": 1}]) == '{"a":"Grüße","b":1}'
    assert (read_input([]), read_input([[1, 2]]), read_input(["text"])) == ("{}", "[1,2]", '"text"')


def test_an_input_is_checked_and_measured_before_anything_is_called() -> None:
    most = "ü" * ((MAX_PAYLOAD - 2) // 2)
    assert len(read_input([most]).encode()) == MAX_PAYLOAD
    for wrong, why in ((["a", "b"], "write args:"), ([float("nan")], "JSON"), (["\ud800"], "JSON")):
        with pytest.raises(EngineRefused, match=why):
            read_input(wrong)
    with pytest.raises(EngineRefused, match=rf"{MAX_PAYLOAD + 1} bytes.*{MAX_PAYLOAD}") as refused:
        read_input([most + "x"])
    assert refused.value.final


def test_a_trace_goes_on_in_x_ray() -> None:
    start = a_start(MACHINE.arn, [], context={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})
    assert start_request(start, MACHINE, "{}").params["traceHeader"] == (
        "Root=1-0af76519-16cd43dd8448eb211c80319c;Parent=b7ad6b7169203331;Sampled=1"
    )
    assert (
        "traceHeader"
        not in start_request(a_start(MACHINE.arn, [], context={"traceparent": "junk"}), MACHINE, "{}").params
    )


@pytest.mark.parametrize("qualifier", ["version", "alias"])
async def test_a_version_and_an_alias_start_once_per_key_too(
    adapter: StepFunctionsAdapter, stepfunctions: StepFunctions, qualifier: str
) -> None:
    arn, client = stepfunctions.machine(cloud.ECHO), stepfunctions.client()
    version = client.publish_state_machine_version(stateMachineArn=arn)["stateMachineVersionArn"]
    routing = [{"stateMachineVersionArn": version, "weight": 100}]
    alias = client.create_state_machine_alias(name="PROD", routingConfiguration=routing)["stateMachineAliasArn"]
    start = a_start({"version": version, "alias": alias}[qualifier], [{"a": 1}])
    handle = await adapter.start(start)
    assert stepfunctions.ended(handle)["stateMachineArn"] == arn
    assert await adapter.start(start) == handle
    with pytest.raises(StartConflict, match="another input"):
        await adapter.start(replace(start, arguments=[{"a": True}]))
    found = await adapter.adopt(handle)
    assert adapter.same_workflow(start.workflow, found.workflow)
    assert adapter.same_workflow(arn, found.workflow)


async def test_what_is_no_machine_here_is_refused_and_says_where_it_is(
    adapter: StepFunctionsAdapter, stepfunctions: StepFunctions
) -> None:
    elsewhere = "arn:aws:states:ap-south-1:123456789012:stateMachine:orders"
    with pytest.raises(EngineRefused, match="in ap-south-1, this engine is set up for us-east-1"):
        await adapter.start(a_start(elsewhere, []))
    with pytest.raises(EngineRefused, match="nobody-made-this"):
        await adapter.start(a_start("nobody-made-this", []))
    async with cloud.adapter(stepfunctions, account="999999999999") as other:
        with pytest.raises(EngineRefused, match="in account 123456789012, this engine is set up for 999999999999"):
            await other.start(a_start(stepfunctions.machine(cloud.ECHO), []))


async def test_an_express_machine_makes_no_task_and_a_standard_one_is_not_run_as_express(
    adapter: StepFunctionsAdapter, stepfunctions: StepFunctions
) -> None:
    express, standard = (stepfunctions.machine(cloud.ECHO, kind) for kind in ("EXPRESS", "STANDARD"))
    with pytest.raises(EngineRefused, match="set express: true, or start"):
        await adapter.start(a_start(express, []))
    with pytest.raises(EngineRefused, match="leave out express: true"):
        await adapter.start(a_start(standard, [], options={"express": True}))
    assert stepfunctions.client().list_executions(stateMachineArn=standard)["executions"] == []


async def test_a_start_can_be_seen_before_it_is_made(adapter: StepFunctionsAdapter) -> None:
    start = a_start("orders:PROD", [{"b": 1, "a": 2}])
    shown = adapter.tooling.preview(start)
    assert shown == {
        "operation": "StartExecution",
        "stateMachineArn": "arn:aws:states:us-east-1:ACCOUNT:stateMachine:orders:PROD",
        "name": start.key,
        "input": {"a": 2, "b": 1},
    }
    assert json.dumps(shown)
    with pytest.raises(EngineRefused, match="is in eu-west-1, this engine is set up for us-east-1"):
        adapter.tooling.preview(a_start("arn:aws:states:eu-west-1:123456789012:stateMachine:orders", []))


async def test_an_output_that_is_json_null_or_text_is_the_result(
    adapter: StepFunctionsAdapter, stepfunctions: StepFunctions
) -> None:
    echo = stepfunctions.machine(cloud.ECHO)
    for value in (None, "text", [1]):
        start = a_start(echo, [value])
        handle = await adapter.start(start)
        stepfunctions.ended(handle)
        seen = await adapter.describe(Ref(workflow=echo, handle=handle))
        assert (seen.status, seen.output) == (Status.SUCCEEDED, value)


async def test_an_execution_of_somebody_else_is_found_by_its_arn(
    adapter: StepFunctionsAdapter, stepfunctions: StepFunctions
) -> None:
    arn = stepfunctions.machine(cloud.ECHO)
    client = stepfunctions.client()
    execution = client.start_execution(stateMachineArn=arn, name="by-hand", input="{}")["executionArn"]
    assert await adapter.adopt(f" {execution}\n") == Ref(workflow=arn, handle=execution)
    with pytest.raises(ExecutionNotFound):
        await adapter.adopt(f"{execution}-not")
    with pytest.raises(ExecutionNotFound):
        await adapter.adopt(execution.replace("us-east-1", "eu-west-1"))
    with pytest.raises(EngineRefused, match="Express"):
        await adapter.adopt(execution.replace(":execution:", ":express:") + ":run")
