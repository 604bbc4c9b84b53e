"""What is labelled is offered by a sidecar whose configuration names no tool, and nothing else ever is."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from google.cloud import workflows_v1
from typer.testing import CliRunner

from adapters.google.tests import flows
from adapters.google.tests.configured import client_of
from adapters.google.tests.scene import INBOUND
from mcp_workflows.sidecar.cli.app import app
from mcp_workflows.sidecar.config.load import load_config
from tests.support.google_engine import LOCATION, PROJECT, GoogleEngine
from tests.support.served import Peer

pytestmark = pytest.mark.anyio

SCHEMA: Final = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def configured(engine: GoogleEngine, folder: Path, label: str, tools: str = "{}", **discover: Any) -> Path:
    place = {"project": PROJECT, "location": LOCATION, "emulator": engine.address, "inbound": INBOUND}
    found = {"label": f"mcp-tool={label}", "every": "1s", **discover}
    written = json.dumps({"adapter": "google-workflows", **place, "discover": found})
    path = folder / "workflows.yaml"
    path.write_text(f"store: sqlite:///tasks.db\nengines:\n  shop: {written}\ntools: {tools}\n")
    return path


def relabel(engine: GoogleEngine, workflow: str, labels: dict[str, str]) -> None:
    client: Any = engine.workflows()  # Any: its methods are typed in part only
    changed = workflows_v1.Workflow(name=workflow, labels=labels)
    client.update_workflow(workflow=changed, update_mask={"paths": ["labels"]}).result(timeout=60)


async def listed(client: Peer) -> dict[str, Any]:
    return {tool["name"]: tool for tool in (await client.send("tools/list")).result["tools"]}


async def until_listed(client: Peer, *names: str) -> None:
    with anyio.fail_after(20):
        while set(await listed(client)) != set(names):
            await anyio.sleep(0.05)


async def test_a_labelled_workflow_is_a_tool_until_its_label_is_taken_off_and_no_other_ever_is(
    google_engine: GoogleEngine, tmp_path: Path
) -> None:
    value = uuid.uuid4().hex
    tool = google_engine.deploy(
        "echo", flows.ECHO, labels={"mcp-tool": value}, description="Says it again.\x07 Even \u2603."
    )
    name = tool.rpartition("/")[2]
    hidden = google_engine.deploy("hidden", flows.ECHO)
    google_engine.deploy("other", flows.ECHO, labels={"mcp-tool": "false", "tool": value})
    config = configured(google_engine, tmp_path, value, schemas={name: SCHEMA})
    async with client_of(config) as client:
        await until_listed(client, name)
        shown = (await listed(client))[name]
        assert shown["inputSchema"] == SCHEMA
        assert shown["description"] == "Says it again. Even \u2603."
        wrong = await client.call(name, {"text": 1})
        assert wrong.result["isError"]
        task_id = (await client.call(name, {"text": "hi"})).result["taskId"]
        assert (await client.until(task_id))["result"]["structuredContent"] == {"text": "hi"}
        assert (await client.call(hidden.rpartition("/")[2], {"text": "hi"})).code == -32602
        relabel(google_engine, hidden, {"mcp-tool": value})
        relabel(google_engine, tool, {})
        await until_listed(client, hidden.rpartition("/")[2])
        assert (await client.get(task_id))["status"] == "completed"


@pytest.mark.slow
async def test_an_engine_that_cannot_be_asked_takes_no_tool_away(
    own_google_engine: GoogleEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own_google_engine.deploy("echo", flows.ECHO, labels={"mcp-tool": "true"}, unique=False)
    async with client_of(configured(own_google_engine, tmp_path, "true")) as client:
        await until_listed(client, "echo")
        own_google_engine.kill()
        with anyio.fail_after(20):
            while "what was offered stays" not in caplog.text:
                await anyio.sleep(0.05)
        assert set(await listed(client)) == {"echo"}
        await anyio.to_thread.run_sync(own_google_engine.start)
        with anyio.fail_after(20):
            while "taskId" not in (result := (await client.call("echo", {"n": 1})).result):
                await anyio.sleep(0.1)
        assert (await client.until(str(result["taskId"])))["result"]["structuredContent"] == {"n": 1}


def test_check_prints_a_draft_of_the_schema_as_a_suggestion_only(google_engine: GoogleEngine, tmp_path: Path) -> None:
    value = uuid.uuid4().hex
    source = "main: {params: [args], steps: [{answer: {return: '${args.order_id + args.amount}'}}]}"
    google_engine.deploy("reads", source, labels={"mcp-tool": value})
    done = CliRunner().invoke(app, ["check", str(configured(google_engine, tmp_path, value))])
    assert done.exit_code == 0, done.output
    assert "order_id" in done.output
    assert "amount" in done.output


def test_import_drafts_tools_that_load(google_engine: GoogleEngine, tmp_path: Path) -> None:
    name = google_engine.deploy("fulfil_order", flows.ECHO).rpartition("/")[2]
    path = configured(google_engine, tmp_path, "nobody")
    done = CliRunner().invoke(app, ["import", "shop", "-c", str(path)])
    assert done.exit_code == 0, done.output
    drafted = re.sub(r"(?m)^  # ", "  ", done.stdout.split("tools:\n")[1])
    path.write_text(path.read_text().replace("tools: {}\n", f"tools:\n{drafted}"))
    assert name in {tool.workflow for tool in load_config(path, {}).tools}


def test_a_first_configuration_of_workflows_that_are_deployed_loads(
    google_engine: GoogleEngine, tmp_path: Path
) -> None:
    name = google_engine.deploy("fulfil_order", flows.ECHO).rpartition("/")[2]
    path = tmp_path / "workflows.yaml"
    place = {"project": PROJECT, "location": LOCATION, "emulator": google_engine.address}
    settings = [f"--set={key}={value}" for key, value in place.items()]
    words = ["init", "--engine", "google-workflows", *settings, "--workflow", name, "-c", str(path)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "note:" not in done.output
    assert [tool.workflow for tool in load_config(path, {}).tools] == [name]
