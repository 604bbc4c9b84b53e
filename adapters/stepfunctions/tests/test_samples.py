"""samples/questions/stepfunctions: the files of the package, and a README whose commands put one of them to work."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest
from mcp_workflows_stepfunctions.tooling.offline import FILES, read_embedded_files

from adapters.stepfunctions.tests.executions import Run
from mcp_workflows.sidecar.config.load import load_config
from tests.support.local_engines import SAMPLES
from tests.support.stepfunctions_engine import StepFunctions

FOLDER: Final = SAMPLES / "questions" / "stepfunctions"
README: Final = (FOLDER / "README.md").read_text()
MACHINE: Final = "arn:aws:states:us-east-1:123456789012:stateMachine:ship_order"


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


@pytest.fixture
def engine(stepfunctions: StepFunctions) -> Iterator[StepFunctions]:
    """The engine as it was, afterwards."""
    yield stepfunctions
    stepfunctions.client().delete_state_machine(stateMachineArn=MACHINE)


def test_the_samples_are_the_files_that_the_package_prints() -> None:
    there = {path.name: path.read_text() for path in FOLDER.glob("*.asl.json")}
    assert there == {FILES[language]: text for language, text in read_embedded_files().items()}


def test_the_readme_names_each_file_and_what_its_role_needs() -> None:
    for language, name in FILES.items():
        needs = re.findall(r"Needs (\w+:\w+) on", json.loads(read_embedded_files()[language])["Comment"])
        [row] = [line for line in README.splitlines() if f"| `{name}` |" in line]
        assert needs
        assert f"| `{needs[0]}` on `arn:aws:" in row
        assert f"`{language}`" in README or f"helper {language} >" in README


def test_the_commands_of_the_readme_deploy_machines_that_ask(engine: StepFunctions) -> None:
    [tool] = load_config(FOLDER / "workflows.yaml", {}).tools
    outputs: list[Any] = []
    for words in commands():
        type_in(engine, words)
        if words[2] not in ("create-state-machine", "update-state-machine"):
            continue
        given = json.dumps(dict.fromkeys(tool.input["required"], "A1"))
        started = engine.client().start_execution(stateMachineArn=MACHINE, input=given)
        it = Run(engine=engine, arn=started["executionArn"])
        it.answer(it.asked()[0], {"action": "accept", "content": {"ok": True}})
        outputs.append(json.loads(it.end()["output"]))
    assert (tool.workflow, outputs) == ("ship_order", ["shipped", "shipped"])
