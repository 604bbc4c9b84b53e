"""Versions, aliases, Express machines and tags on the local engine."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.support.local_machines import ASK, PASS, code, only
from tests.support.stepfunctions_engine import StepFunctions

OTHER = only({"Type": "Pass", "Result": "other"})


def published(engine: StepFunctions) -> tuple[str, str, str]:
    """A machine with two versions: PASS, and OTHER; and an alias of the first."""
    client, arn = engine.client(), engine.machine(PASS)
    first = client.publish_state_machine_version(stateMachineArn=arn)["stateMachineVersionArn"]
    client.update_state_machine(stateMachineArn=arn, definition=json.dumps(OTHER))
    client.publish_state_machine_version(stateMachineArn=arn, description="the other")
    route = [{"stateMachineVersionArn": first, "weight": 100}]
    alias = client.create_state_machine_alias(name="PROD", routingConfiguration=route)["stateMachineAliasArn"]
    return arn, first, alias


def test_an_execution_by_version_or_alias_runs_that_version(stepfunctions: StepFunctions) -> None:
    arn, first, alias = published(stepfunctions)
    client = stepfunctions.client()
    outputs = {
        wanted: stepfunctions.ended(client.start_execution(stateMachineArn=wanted)["executionArn"])
        for wanted in (arn, first, alias)
    }
    assert [found["output"] for found in outputs.values()] == ['"other"', "{}", "{}"]
    assert {found["stateMachineArn"] for found in outputs.values()} == {arn}
    assert outputs[first]["stateMachineVersionArn"] == outputs[alias]["stateMachineVersionArn"] == first
    assert outputs[alias]["stateMachineAliasArn"] == alias
    assert {found["executionArn"].rpartition(":")[0] for found in outputs.values()} == {
        arn.replace(":stateMachine:", ":execution:")
    }
    listed = client.list_executions(stateMachineArn=alias)["executions"]
    assert [found["executionArn"] for found in listed] == [outputs[alias]["executionArn"]]


def test_a_version_that_an_alias_has_is_not_deleted(stepfunctions: StepFunctions) -> None:
    arn, first, alias = published(stepfunctions)
    client = stepfunctions.client()
    with pytest.raises(client.exceptions.ConflictException):
        client.delete_state_machine_version(stateMachineVersionArn=first)
    client.delete_state_machine_alias(stateMachineAliasArn=alias)
    client.delete_state_machine_version(stateMachineVersionArn=first)
    for gone in (first, alias, f"{arn}:9"):
        with pytest.raises(client.exceptions.StateMachineDoesNotExist):
            client.start_execution(stateMachineArn=gone)


def test_a_machine_is_created_twice_only_as_the_same(stepfunctions: StepFunctions) -> None:
    name = f"m-{uuid.uuid4().hex[:8]}"
    assert stepfunctions.machine(PASS, name=name) == stepfunctions.machine(PASS, name=name)
    with pytest.raises(stepfunctions.client().exceptions.StateMachineAlreadyExists):
        stepfunctions.machine(OTHER, name=name)


def test_nothing_is_told_of_an_express_execution(stepfunctions: StepFunctions) -> None:
    client, arn = stepfunctions.client(), stepfunctions.machine(PASS, type="EXPRESS")
    first, second = (client.start_execution(stateMachineArn=arn, name="one")["executionArn"] for _ in range(2))
    assert first != second
    for call in (client.describe_execution, client.get_execution_history, client.stop_execution):
        with pytest.raises(client.exceptions.InvalidArn):
            call(executionArn=first)
    with pytest.raises(client.exceptions.StateMachineTypeNotSupported):
        client.list_executions(stateMachineArn=arn)
    with pytest.raises(client.exceptions.StateMachineTypeNotSupported):
        client.start_sync_execution(stateMachineArn=stepfunctions.machine(PASS))


def test_an_express_machine_cannot_wait_for_a_token(stepfunctions: StepFunctions) -> None:
    with pytest.raises(ClientError, match=r"does not support '\.waitForTaskToken'") as refused:
        stepfunctions.machine(ASK, type="EXPRESS")
    assert code(refused.value) == "InvalidDefinition"


def test_machines_are_found_by_their_tag_in_pages(stepfunctions: StepFunctions) -> None:
    mark = uuid.uuid4().hex[:8]
    tagged = {stepfunctions.machine(PASS, tags=[{"key": "mcp:expose", "value": mark}]) for _ in range(5)}
    stepfunctions.machine(PASS, tags=[{"key": "mcp:expose", "value": "no"}])
    pages: list[Any] = list(
        stepfunctions.client("resourcegroupstaggingapi")
        .get_paginator("get_resources")
        .paginate(
            TagFilters=[{"Key": "mcp:expose", "Values": [mark]}],
            ResourceTypeFilters=["states:stateMachine"],
            ResourcesPerPage=2,
        )
    )
    found = [resource["ResourceARN"] for page in pages for resource in page["ResourceTagMappingList"]]
    assert (len(pages), len(found), set(found)) == (3, 5, tagged)
    tags = stepfunctions.client().list_tags_for_resource(resourceArn=found[0])["tags"]
    assert tags == [{"key": "mcp:expose", "value": mark}]


def test_a_map_run_is_described_and_one_that_is_none_is_refused(stepfunctions: StepFunctions) -> None:
    client = stepfunctions.client()
    items = {"ProcessorConfig": {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"}, **PASS}
    arn = stepfunctions.machine(only({"Type": "Map", "ItemsPath": "$", "ItemProcessor": items}))
    execution = client.start_execution(stateMachineArn=arn, input="[1, 2, 3]")["executionArn"]
    assert stepfunctions.ended(execution)["output"] == "[1,2,3]"
    [run] = client.list_map_runs(executionArn=execution)["mapRuns"]
    assert client.describe_map_run(mapRunArn=run["mapRunArn"])["itemCounts"]["succeeded"] == 3
    with pytest.raises(client.exceptions.ResourceNotFound):
        client.describe_map_run(mapRunArn=run["mapRunArn"] + "0")
