"""docs/stepfunctions-contract.md, and the files that authors take: every state machine in them runs, and asks."""

from __future__ import annotations

import io
import json
import re
import uuid
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from mcp_workflows_stepfunctions import StepFunctionsAdapter, describe, questions
from mcp_workflows_stepfunctions.describe import read_failure
from mcp_workflows_stepfunctions.gates import requests
from mcp_workflows_stepfunctions.history import History
from mcp_workflows_stepfunctions.tooling.offline import FILES, read_embedded_files

from adapters.stepfunctions.tests.executions import Run, Runs
from mcp_workflows.adapter.templates import Template
from mcp_workflows.kit.tooling import Embeds
from mcp_workflows.sidecar.config.load import load_config
from tests.support.stepfunctions_engine import StepFunctions

PAGE: Final = (Path(__file__).parents[3] / "docs" / "stepfunctions-contract.md").read_text()
ORDER: Final = {"order_id": "A1"}
YES: Final[Mapping[str, Any]] = {"action": "accept", "content": {"ok": True}}
NO: Final[Mapping[str, Any]] = {"action": "decline"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def machine(state: str) -> Any:
    """The state machine on the page that has this state first."""
    [found] = [block for block in map(json.loads, blocks("json")) if block.get("StartAt") == state]
    return found


def deployed(engine: StepFunctions, definition: str) -> Any:
    """The same with a queue, and a function, that are there."""
    queue = engine.client("sqs").create_queue(QueueName="questions")["QueueUrl"]
    definition = (
        definition.replace("tell-about-question", function(engine)) if "tell-about" in definition else definition
    )
    return json.loads(re.sub(r"https://sqs\.[^\"]*", queue, definition))


def function(engine: StepFunctions) -> str:
    """A Lambda function; the engine calls none of its code."""
    name, code = f"tell-{uuid.uuid4().hex[:8]}", io.BytesIO()
    with zipfile.ZipFile(code, "w") as file:
        file.writestr("tell.py", "def handler(event, context): return None")
    role = engine.client("iam").create_role(RoleName=name, AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    engine.client("lambda").create_function(
        FunctionName=name, Runtime="python3.11", Role=role, Handler="tell.handler", Code={"ZipFile": code.getvalue()}
    )
    return name


def test_the_adapter_embeds() -> None:
    assert isinstance(StepFunctionsAdapter.tooling, Embeds)
    assert StepFunctionsAdapter.tooling.embeds() == read_embedded_files()


def test_the_page_shows_the_files_as_they_are() -> None:
    shown = [block for block in blocks("json") if '"AskUser"' in block]
    assert shown == [read_embedded_files()["asl"], read_embedded_files()["asl-jsonata"]]
    assert re.findall(r"\[`(asl.*?)`\]\(\.\./samples/questions/stepfunctions/(.*?)\)", PAGE) == list(FILES.items())
    [command] = [line for line in blocks("sh")[0].splitlines() if " helper " in line]
    assert command.split()[3] in FILES


def test_the_page_has_the_names_of_the_contract() -> None:
    for name in (questions.MCP_INPUT, questions.TASK_TOKEN, describe.CANCELLED, describe.PROTOCOL_ERROR):
        assert f"`{name}`" in PAGE


@pytest.mark.parametrize("language", FILES)
def test_a_file_runs_as_it_is(language: str, run: Runs, stepfunctions: StepFunctions) -> None:
    definition = deployed(stepfunctions, read_embedded_files()[language])
    for response, output in ((YES, "shipped"), (NO, "kept")):
        it = run(definition, ORDER)
        [key] = it.asked()
        [request] = requests(it.fold(), {}).values()
        assert request.params["message"] == "Ship order A1?"
        assert request.params["requestedSchema"]["required"] == ["ok"]
        it.answer(key, response)
        assert json.loads(it.end()["output"]) == output


def test_two_branches_on_the_page_ask_at_once(run: Runs) -> None:
    it = run(machine("AskBoth"), {})
    for key in it.asked(2):
        it.answer(key, YES)
    assert it.end()["status"] == "SUCCEEDED"


def test_the_protocol_error_on_the_page_is_one(run: Runs) -> None:
    end = run(machine("NoSuchOrder"), {}).end()
    told = read_failure(end["status"], end.get("error"), end.get("cause"))
    assert (told.text, told.code, told.data) == ("no such order", -32602, {"field": "order_id"})


def test_the_answers_on_the_page_are_what_states_get(run: Runs) -> None:
    shown = [block for block in map(json.loads, blocks("json")) if "action" in block]
    asks = json.loads(read_embedded_files()["asl"])["States"]["AskUser"]
    del asks["Next"], asks["Catch"]
    told: list[Any] = []
    for response in (YES, NO):
        it = run({"StartAt": "AskUser", "States": {"AskUser": {**asks, "End": True}}}, ORDER)
        it.answer(it.asked()[0], response)
        told.append(json.loads(it.end()["output"])["answer"])
    assert told == shown


@pytest.mark.parametrize("accepts", [True, False])
def test_the_gate_on_the_page_opens_its_state(
    accepts: bool, run: Runs, stepfunctions: StepFunctions, tmp_path: Path
) -> None:
    (tmp_path / "workflows.yaml").write_text(blocks("yaml")[0])
    [tool] = load_config(tmp_path / "workflows.yaml", {}).tools
    scope = {"args": ORDER, "principal": {"subject": "ada"}, "task": {"id": None}}
    gates = tool.frozen_gates(scope)
    it: Run = run(deployed(stepfunctions, json.dumps(machine("WaitForApproval"))), ORDER)
    fold: History = it.until(lambda found: bool(requests(found, gates)))
    [(key, request)] = requests(fold, gates).items()
    assert (request.gate, request.params["message"]) == ("approval", "Ship «A1»?")
    template = gates["approval"].send if accepts else gates["approval"].decline
    sent = Template(template).render({**scope, "answer": {"ok": True} if accepts else None})
    it.answer(key, {"action": "accept" if accepts else "decline", "send": sent}, gates)
    assert json.loads(it.end()["output"]) == ({"approved": True, "by": "ada"} if accepts else "kept")
