"""The state machines there are, for `mcp-workflows import` and `init`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from mcp_workflows_stepfunctions.client import Client, open_client
from mcp_workflows_stepfunctions.settings import StepFunctionsSettings
from mcp_workflows_stepfunctions.tooling import discover as discovery
from mcp_workflows_stepfunctions.tooling.discover import discover
from typer.testing import CliRunner

from adapters.stepfunctions.tests.scene import settings
from mcp_workflows.errors import EngineUnavailable
from mcp_workflows.kit.tooling import Discovered
from mcp_workflows.sidecar.cli.app import app
from mcp_workflows.sidecar.config.load import load_config
from tests.support.child_processes import free_port
from tests.support.stepfunctions_engine import StepFunctions

SUCCEED = {"StartAt": "A", "States": {"A": {"Type": "Succeed"}}}


@pytest.fixture
async def calls(stepfunctions: StepFunctions) -> AsyncIterator[Client]:
    async with open_client(settings(stepfunctions)) as calls:
        yield calls


async def found(calls: Client, *arns: str) -> list[Discovered]:
    names = [arn.rpartition(":")[2] for arn in arns]
    return [each for each in await discover(calls) if each.workflow in names]


async def test_all_state_machines_are_listed_the_most_frequent_first(
    stepfunctions: StepFunctions, calls: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "PAGE", 2)
    express, once, often = (stepfunctions.machine(SUCCEED, type=kind) for kind in ("EXPRESS", "STANDARD", "STANDARD"))
    for machine in (once, often, often):
        last = stepfunctions.client().start_execution(stateMachineArn=machine)["executionArn"]
    seen = await found(calls, express, once, often)
    assert [each.workflow for each in seen] == [arn.rpartition(":")[2] for arn in (often, once, express)]
    assert [each.executions for each in seen] == [2, 1, 0]
    assert [dict(each.options) for each in seen] == [{}, {}, {"express": True, "tasks": "forbidden"}]
    assert seen[0].last_seen == stepfunctions.client().describe_execution(executionArn=last)["startDate"]
    assert seen[2].last_seen is None


async def test_only_the_newest_are_counted(
    stepfunctions: StepFunctions, calls: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "COUNTED", 1)
    old, new = stepfunctions.machine(SUCCEED), stepfunctions.machine(SUCCEED)
    for machine in (old, new):
        stepfunctions.client().start_execution(stateMachineArn=machine)
    assert [each.executions for each in await found(calls, old, new)] == [1, 0]


def test_a_machine_that_a_tool_names_in_another_way_is_not_drafted_again(
    stepfunctions: StepFunctions, tmp_path: Path
) -> None:
    machines = [stepfunctions.machine(SUCCEED) for _ in range(2)]
    names = [arn.rpartition(":")[2] for arn in machines]
    config = tmp_path / "workflows.yaml"
    config.write_text(
        f"engines:\n  shop: {{adapter: stepfunctions, region: us-east-1, endpoint_url: '{stepfunctions.url}'}}\n"
        f"tools:\n  by_arn: {{engine: shop, workflow: '{machines[0]}'}}\n"
        f"  by_alias: {{engine: shop, workflow: '{names[1]}:PROD'}}\n"
    )
    drafted = CliRunner().invoke(app, ["import", "shop", "-c", str(config)]).stdout
    for name, tool in zip(names, ("by_arn", "by_alias"), strict=True):
        assert f"# {name} is there already: {tool}" in drafted
        assert f"workflow: {name}\n" not in drafted


def test_a_first_configuration_has_the_settings_that_an_express_machine_needs(
    stepfunctions: StepFunctions, tmp_path: Path
) -> None:
    machine = stepfunctions.machine(SUCCEED, type="EXPRESS").rpartition(":")[2]
    config = tmp_path / "workflows.yaml"
    settings = ("--set", "region=us-east-1", "--set", f"endpoint_url={stepfunctions.url}")
    words = ["init", "--engine", "stepfunctions", *settings, "--workflow", machine, "-c", str(config)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    [tool] = load_config(config, {}).tools
    assert (tool.workflow, tool.options["express"]) == (machine, True)


async def test_an_engine_that_is_down_cannot_be_discovered() -> None:
    given = StepFunctionsSettings(region="us-east-1", endpoint_url=f"http://127.0.0.1:{free_port()}")
    async with open_client(given) as calls:
        with pytest.raises(EngineUnavailable):
            await discover(calls)
