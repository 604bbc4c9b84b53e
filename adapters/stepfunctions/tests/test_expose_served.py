"""What is tagged is offered by a sidecar whose configuration names no tool; `import` and `iam` on the same engine."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path

import anyio
import pytest
from typer.testing import CliRunner

from adapters.stepfunctions.tests import machines
from adapters.stepfunctions.tests.test_expose import Owner
from mcp_workflows.sidecar.app import build, http_app
from mcp_workflows.sidecar.cli.app import app
from mcp_workflows.sidecar.config.load import load_config
from tests.support.served import Peer, peer, serving
from tests.support.stepfunctions_engine import StepFunctions

PATIENCE = 20.0  # seconds
CONFIG = """\
store: sqlite:///tasks.db
engines:
  shop:
    adapter: stepfunctions
    region: {engine.region}
    endpoint_url: {engine.url}
    discover: {{tag: {tag}=true, every: 1s}}
tools: {tools}
"""


def configured(engine: StepFunctions, folder: Path, tag: str = "nobody", tools: str = "{}") -> Path:
    path = folder / "workflows.yaml"
    path.write_text(CONFIG.format(engine=engine, tag=tag, tools=tools))
    return path


async def until_listed(client: Peer, *names: str) -> None:
    with anyio.fail_after(PATIENCE):
        while [tool["name"] for tool in (await client.send("tools/list")).result["tools"]] != list(names):
            await anyio.sleep(0.05)


async def test_a_tagged_machine_is_a_tool_until_its_tag_is_taken_off(
    stepfunctions: StepFunctions, tmp_path: Path
) -> None:
    owner = Owner(stepfunctions)
    said = {"name": "echo", "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}}
    tags = [{"key": owner.key, "value": "true"}]
    arn = stepfunctions.machine({"Comment": json.dumps(said), **machines.ECHO}, tags=tags)
    stepfunctions.machine(machines.ECHO)
    config = load_config(configured(stepfunctions, tmp_path, owner.key), {})
    async with serving(http_app(build(config), config, "127.0.0.1", 0)) as url, peer(url) as client:
        await until_listed(client, "echo")
        task = (await client.call("echo", {"text": "hi"})).result["taskId"]
        assert (await client.until(task))["result"]["structuredContent"] == {"text": "hi"}
        stepfunctions.client().untag_resource(resourceArn=arn, tagKeys=[owner.key])
        await until_listed(client)


def test_import_drafts_tools_that_load(stepfunctions: StepFunctions, tmp_path: Path) -> None:
    name = f"Shop.FulfilOrder-{uuid.uuid4().hex[:6]}"
    stepfunctions.machine(machines.ECHO, name=name)
    stepfunctions.machine(machines.ECHO, name=f"{name}-express", type="EXPRESS")
    path = configured(stepfunctions, tmp_path)
    done = CliRunner().invoke(app, ["import", "shop", "-c", str(path)])
    assert done.exit_code == 0, done.output
    drafted = re.sub(r"(?m)^  # ", "  ", done.stdout.split("tools:\n")[1])
    path.write_text(path.read_text().replace("tools: {}\n", f"tools:\n{drafted}"))
    tools = {tool.workflow: tool for tool in load_config(path, {}).tools}
    assert tools[name].options == {}
    assert tools[f"{name}-express"].options == {"express": True}


@pytest.mark.parametrize("workflow", ["fulfil_order", "fulfil_order:PROD"])
def test_iam_prints_the_policy_of_what_is_configured(
    stepfunctions: StepFunctions, tmp_path: Path, workflow: str
) -> None:
    path = configured(stepfunctions, tmp_path, tools=f"{{t: {{engine: shop, workflow: '{workflow}'}}}}")
    done = CliRunner().invoke(app, ["iam", str(path)])
    assert done.exit_code == 0, done.output
    statements = json.loads(done.stdout)["Statement"]
    allowed = {action for each in statements for action in each["Action"]}
    assert {"states:StartExecution", "tag:GetResources"} <= allowed
    prefix = f"arn:aws:states:{stepfunctions.region}:{stepfunctions.account}"
    assert [f"{prefix}:execution:fulfil_order:*"] in [each["Resource"] for each in statements]
