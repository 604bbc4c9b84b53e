"""The pages, the files that authors take, and the README of the samples: all that they show works as they say."""

from __future__ import annotations

import io
import json
import re
import shlex
import uuid
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import mcp_workflows_stepfunctions
import pytest
from mcp_workflows_stepfunctions import StepFunctionsAdapter, describe, questions
from mcp_workflows_stepfunctions.client import open_client
from mcp_workflows_stepfunctions.describe import read_failure
from mcp_workflows_stepfunctions.gates import requests
from mcp_workflows_stepfunctions.settings import AssumeRole, StepFunctionsSettings
from mcp_workflows_stepfunctions.tooling.discover import read_comment
from mcp_workflows_stepfunctions.tooling.iam import caller_policy, permissions
from mcp_workflows_stepfunctions.tooling.offline import FILES, read_embedded_files

from adapters.stepfunctions.tests import cloud
from adapters.stepfunctions.tests.executions import Run, Runs
from mcp_workflows.adapter.templates import Template
from mcp_workflows.kit.tooling import Embeds, Use
from mcp_workflows.sidecar.config.load import load_config
from tests.support.cloud_suites import PagesSuite, blocks, page
from tests.support.local_engines import SAMPLES
from tests.support.stepfunctions_engine import StepFunctions

ORDER: Final = {"order_id": "A1"}
YES: Final[Mapping[str, Any]] = {"action": "accept", "content": {"ok": True}}
NO: Final[Mapping[str, Any]] = {"action": "decline"}


RUNS_EXPRESS: Final[Mapping[str, Any]] = {  # as the page says: the call succeeds although the execution fails
    "StartAt": "Quote",
    "States": {
        "Quote": {
            "Type": "Task",
            "Resource": "arn:aws:states:::aws-sdk:sfn:startSyncExecution",
            "Parameters": {"StateMachineArn": "", "Input.$": "States.JsonToString($)"},
            "Next": "Quoted?",
        },
        "Quoted?": {
            "Type": "Choice",
            "Choices": [
                {"Variable": "$.Status", "StringEquals": "SUCCEEDED", "Next": "The quote"},
                {
                    "And": [
                        {"Variable": "$.Error", "IsPresent": True},
                        {"Variable": "$.Cause", "IsPresent": True},
                    ],
                    "Next": "No quote",
                },
            ],
            "Default": "No quote, and no reason",
        },
        "The quote": {
            "Type": "Pass",
            "Parameters": {"output.$": "States.StringToJson($.Output)"},
            "OutputPath": "$.output",
            "End": True,
        },
        "No quote": {"Type": "Fail", "ErrorPath": "$.Error", "CausePath": "$.Cause"},
        "No quote, and no reason": {"Type": "Fail", "Error": "QuoteFailed"},
    },
}


class TestPages(PagesSuite):
    """Pages about state machines."""

    package = mcp_workflows_stepfunctions
    pages = ("../../adapters/stepfunctions/README", "stepfunctions", "stepfunctions-access", "stepfunctions-events")
    errors = "stepfunctions"


def test_a_standard_machine_makes_a_task_of_an_express_one(stepfunctions: StepFunctions) -> None:
    parent = json.loads(json.dumps(RUNS_EXPRESS))
    for child, output, error in (
        (cloud.ECHO, '{"order":"A-1001"}', None),
        (cloud.DECLINES, None, "CardDeclined"),
        (cloud.one_state("Stop", {"Type": "Fail"}), None, "QuoteFailed"),
    ):
        parent["States"]["Quote"]["Parameters"]["StateMachineArn"] = stepfunctions.machine(child, "EXPRESS")
        machine, given = stepfunctions.machine(parent), '{"order": "A-1001"}'
        started = stepfunctions.client().start_execution(stateMachineArn=machine, name="one", input=given)
        found = stepfunctions.ended(started["executionArn"])
        assert (found.get("output"), found.get("error")) == (output, error)


async def test_the_policies_and_the_comment_are_those_of_the_commands() -> None:
    trust, comment = map(json.loads, blocks("stepfunctions-access", "json"))
    given = StepFunctionsSettings(region="eu-west-1", account="111122223333")
    async with open_client(given) as calls:
        policy: Any = await permissions(calls, given, [Use(tool="fulfil_order", workflow="fulfil_order")])
    table = "".join(re.findall(r"^\| `(?:states|sqs|tag):.* \|$", page("stepfunctions-access"), re.MULTILINE))
    actions = {action for each in policy["Statement"] for action in each["Action"]}
    assert {action for action in actions if f"`{action}`" not in table} == set()
    role = "arn:aws:iam::111122223333:role/mcp-workflows"
    [statement] = caller_policy(AssumeRole(arn=role), callers=True)["Statement"]  # type: ignore[misc]  # JSON
    assert statement["Action"] == trust["Statement"][0]["Action"] == ["sts:AssumeRole", "sts:SetSourceIdentity"]
    said = read_comment(json.dumps(comment))
    assert (said.name, said.title, said.problems) == ("fulfil_order", "Fulfil an order", ())
    assert said.input["required"] == ["order"]


# --- the contract


def machine(state: str) -> Any:
    """A state machine of this state on the page."""
    shown = map(json.loads, blocks("stepfunctions-contract", "json"))
    [found] = [block[state] for block in shown if state in block]
    return cloud.one_state(state, found)


ASKS_BOTH: Final = cloud.one_state(
    "AskBoth",
    {
        "Type": "Parallel",
        "Branches": [
            cloud.one_state("AskSales", cloud.asking("Sales: is the price right?")),
            cloud.one_state("AskLegal", cloud.asking("Legal: may we sign?")),
        ],
        "End": True,
    },
)
GATED: Final[Mapping[str, Any]] = {  # the gate on the page is of this machine
    "StartAt": "WaitForApproval",
    "States": {
        "WaitForApproval": {
            "Type": "Task",
            "Resource": "arn:aws:states:::sqs:sendMessage.waitForTaskToken",
            "TimeoutSeconds": 86400,
            "Parameters": {
                "QueueUrl": "https://sqs.us-east-1.amazonaws.com/123456789012/approvals",
                "MessageBody": {"order.$": "$.order_id", "callback": {"id.$": "$$.Task.Token"}},
            },
            "Catch": [{"ErrorEquals": ["Rejected"], "ResultPath": "$.rejected", "Next": "Keep"}],
            "Next": "Ship",
        },
        "Ship": {"Type": "Pass", "End": True},
        "Keep": {"Type": "Pass", "Result": "kept", "End": True},
    },
}


def deployed(engine: StepFunctions, definition: str) -> Any:
    """The same with a queue, and a function, that are there."""
    queue = engine.client("sqs").create_queue(QueueName="questions")["QueueUrl"]
    if "tell-about-question" in definition:
        definition = definition.replace("tell-about-question", function(engine))
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


def test_the_page_shows_the_files_and_names_of_the_contract() -> None:
    files, text = read_embedded_files(), page("stepfunctions-contract")
    assert isinstance(StepFunctionsAdapter.tooling, Embeds)
    assert StepFunctionsAdapter.tooling.embeds() == files
    [shown] = [json.loads(block) for block in blocks("stepfunctions-contract", "json") if '"AskUser"' in block]
    assert shown == {"AskUser": json.loads(files["asl"])["States"]["AskUser"]}
    assert re.findall(r"\[`(asl.*?)`\]\(\.\./\.\./samples/questions/stepfunctions/(.*?)\)", text) == list(FILES.items())
    [command] = re.findall(r"^mcp-workflows print helper (\S+)", text, re.MULTILINE)
    assert command in FILES
    for name in (questions.MCP_INPUT, questions.TASK_TOKEN, describe.CANCELLED, describe.PROTOCOL_ERROR):
        assert f"`{name}`" in text


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


def test_the_machines_and_answers_on_the_page_are_as_it_says(run: Runs) -> None:
    both = run(ASKS_BOTH, {})
    for key in both.asked(2):
        both.answer(key, YES)
    assert both.end()["status"] == "SUCCEEDED"
    failed = run(machine("NoSuchOrder"), {}).end()
    told = read_failure(failed["status"], failed.get("error"), failed.get("cause"))
    assert (told.text, told.code, told.data) == ("no such order", -32602, {"field": "order_id"})
    shown = [block for block in map(json.loads, blocks("stepfunctions-contract", "json")) if "action" in block]
    state = cloud.without(json.loads(read_embedded_files()["asl"])["States"]["AskUser"], "Next")
    one = cloud.one_state("AskUser", {**cloud.without(state, "Catch"), "End": True})
    answers: list[Any] = []
    for response in (YES, NO):
        it = run(one, ORDER)
        it.answer(it.asked()[0], response)
        answers.append(json.loads(it.end()["output"])["answer"])
    assert answers == [*shown, {"action": "decline", "content": {}}]


@pytest.mark.parametrize("accepts", [True, False])
def test_the_gate_on_the_page_opens_its_state(
    accepts: bool, run: Runs, stepfunctions: StepFunctions, tmp_path: Path
) -> None:
    (tmp_path / "workflows.yaml").write_text(blocks("stepfunctions-contract", "yaml")[0])
    [tool] = load_config(tmp_path / "workflows.yaml", {}).tools
    scope = {"args": ORDER, "principal": {"subject": "ada"}, "task": {"id": None}}
    gates = tool.frozen_gates(scope)
    it = run(deployed(stepfunctions, json.dumps(GATED)), ORDER)
    [(key, request)] = requests(it.until(lambda found: bool(requests(found, gates))), gates).items()
    assert (request.gate, request.params["message"]) == ("approval", "Ship «A1»?")
    template = gates["approval"].send if accepts else gates["approval"].decline
    sent = Template(template).render({**scope, "answer": {"ok": True} if accepts else None})
    it.answer(key, {"action": "accept" if accepts else "decline", "send": sent}, gates)
    assert json.loads(it.end()["output"]) == ({"approved": True, "by": "ada"} if accepts else "kept")


# --- samples/questions/stepfunctions


FOLDER: Final = SAMPLES / "questions" / "stepfunctions"
README: Final = (FOLDER / "README.md").read_text()
SHIP_ORDER: Final = "arn:aws:states:us-east-1:123456789012:stateMachine:ship_order"


def commands() -> Iterator[Sequence[str]]:
    """The README's commands that begin with `aws`, in words."""
    for block in re.findall(r"^```sh\n(.*?)^```", README, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            if (words := shlex.split(line))[0] == "aws":
                yield words


def type_in(engine: StepFunctions, words: Sequence[str]) -> None:
    """Do what the `aws` command does: `--role-arn` is the parameter roleArn, or RoleArn, as the service writes it."""
    client = engine.client(words[1])
    operation = words[2].replace("-", "_")
    shape: Any = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[operation]).input_shape
    names = {member.lower(): member for member in shape.members}
    options = {name.strip("-").replace("-", ""): value for name, value in zip(words[3::2], words[4::2], strict=True)}
    options.pop("endpointurl", None)
    getattr(client, operation)(**{names[name]: content(value) for name, value in options.items()})


def content(value: str) -> str:
    """What an option's value stands for."""
    return (FOLDER / value.removeprefix("file://")).read_text() if value.startswith("file://") else value


def test_the_samples_are_the_files_and_the_readme_names_what_the_role_of_each_needs() -> None:
    files = read_embedded_files()
    there = {path.name: path.read_text() for path in FOLDER.glob("*.asl.json")}
    assert there == {FILES[language]: text for language, text in files.items()}
    for language, name in FILES.items():
        [needs, *_] = re.findall(r"Needs (\w+:\w+) on", json.loads(files[language])["Comment"])
        [row] = [line for line in README.splitlines() if f"| `{name}` |" in line]
        assert f"| `{needs}` on `arn:aws:" in row
        assert f"`{language}`" in README or f"helper {language} >" in README


def test_the_commands_of_the_readme_deploy_machines_that_ask(stepfunctions: StepFunctions) -> None:
    [tool] = load_config(FOLDER / "workflows.yaml", {}).tools
    outputs: list[Any] = []
    for words in commands():
        type_in(stepfunctions, words)
        if words[2] not in ("create-state-machine", "update-state-machine"):
            continue
        given = json.dumps(dict.fromkeys(tool.input["required"], "A1"))
        started = stepfunctions.client().start_execution(stateMachineArn=SHIP_ORDER, input=given)
        it = Run(engine=stepfunctions, arn=started["executionArn"])
        it.answer(it.asked()[0], YES)
        outputs.append(json.loads(it.end()["output"]))
    stepfunctions.client().delete_state_machine(stateMachineArn=SHIP_ORDER)
    assert (tool.workflow, outputs) == ("ship_order", ["shipped", "shipped"])
