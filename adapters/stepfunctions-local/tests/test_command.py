"""`python -m mcp_workflows_stepfunctions_local`: what it says, and how it ends."""

from __future__ import annotations

import re
import runpy
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import boto3
import pytest
from mcp_workflows_stepfunctions import StepFunctionsSettings
from mcp_workflows_stepfunctions_local.release import MOTO, LocalEngineError, is_known
from ruamel.yaml import YAML

from tests.support import commands
from tests.support.child_processes import free_port
from tests.support.commands import COMMAND
from tests.support.local_machines import SLEEP
from tests.support.served import peer
from tests.support.sidecars import Process
from tests.support.stepfunctions_engine import StepFunctions

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/engines/stepfunctions-local.md").read_text()
MODULE = "mcp_workflows_stepfunctions_local"


def server() -> Any:
    """The module of the server; moto takes seconds to import."""
    return import_module(f"{MODULE}.server")


def blocks(language: str) -> Sequence[str]:
    """The fenced blocks of its page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_a_port_that_is_taken_is_said_to_be(stepfunctions: StepFunctions) -> None:
    with pytest.raises(LocalEngineError, match=rf"cannot listen on 127\.0\.0\.1:{stepfunctions.port} "):
        server().check_port("127.0.0.1", stepfunctions.port)


def test_without_the_right_moto_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    patches = import_module(f"{MODULE}.patches")
    with pytest.raises(LocalEngineError, match=r"moto>=5\.2\.5,<5\.3 .*has no vanished"):
        patches.require(signal, "SIGTERM", "vanished")
    assert [is_known(version) for version in ("5.2.4", "5.2.5", "5.2.11", "5.3.0")] == [False, True, True, False]
    project = tomllib.loads((ROOT / "adapters/stepfunctions-local/pyproject.toml").read_text())
    assert MOTO.replace("moto", "moto[server,stepfunctions]") in project["project"]["dependencies"]
    monkeypatch.setitem(sys.modules, f"{MODULE}.server", None)
    with pytest.raises(SystemExit, match=r"pip install 'mcp-workflows\[stepfunctions-local\]'"):
        runpy.run_module(MODULE, run_name="__main__")


def test_it_forgets_when_asked_to_and_ends_quickly_though_something_runs(own_stepfunctions: StepFunctions) -> None:
    client = own_stepfunctions.client()
    forgotten = client.start_execution(stateMachineArn=own_stepfunctions.machine(SLEEP))["executionArn"]
    own_stepfunctions.forget()
    with pytest.raises(client.exceptions.ExecutionDoesNotExist):
        client.describe_execution(executionArn=forgotten)
    client.start_execution(stateMachineArn=own_stepfunctions.machine(SLEEP))
    assert own_stepfunctions.end(signal.SIGINT) == 0


def test_the_examples_of_its_page_are_right(stepfunctions: StepFunctions, monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in shlex.split(typed("export AWS_ENDPOINT_URL"))[1:]:
        name, value = setting.split("=", 1)
        monkeypatch.setenv(name, value.replace("8083", str(stepfunctions.port)))
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    aws: Any = boto3  # it has no types
    assert "stateMachines" in aws.client("stepfunctions").list_state_machines()
    [settings] = blocks("yaml")
    loaded: Any = YAML(typ="safe").load(settings)  # pyright: ignore[reportUnknownMemberType]  # untyped stream
    engine = loaded["engines"]["orders"]
    assert engine.pop("adapter") == "stepfunctions"
    StepFunctionsSettings.model_validate(engine)


@pytest.mark.usefixtures("processes")
def test_the_page_lists_every_option() -> None:
    shown = commands.run([sys.executable, "-m", MODULE, "--help"]).stdout
    options = set(re.findall(r"(--[a-z-]+)", shown)) - {"--help"}
    assert options == set(re.findall(r"^\| `(--[a-z-]+)", PAGE, re.MULTILINE))


class Documented(StepFunctions):
    """The engine as the page starts it, on a port of its own."""

    def argv(self) -> Sequence[str]:
        return [sys.executable, *shlex.split(typed(MODULE))[1:], "--port", str(self.port)]


def typed(part: str) -> str:
    """The line of the walk-through that has this part."""
    return next(line for block in blocks("sh") for line in block.splitlines() if part in line)


def run(line: str) -> subprocess.CompletedProcess[str]:
    return commands.run([COMMAND, *shlex.split(line)[1:]])


@pytest.mark.usefixtures("processes")
async def test_the_walk_through_of_its_page_goes_from_an_empty_folder_to_an_answered_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    [config] = blocks("yaml")
    helper, _, file = typed("print helper").partition(" > ")
    (tmp_path / file).write_text(run(helper).stdout)
    for setting in shlex.split(typed("export AWS_ACCESS_KEY_ID"))[1:]:
        monkeypatch.setenv(*setting.split("=", 1))
    with Documented(tmp_path) as engine:
        (tmp_path / "workflows.yaml").write_text(config.replace("8083", str(engine.port)))
        checked = run(typed("mcp-workflows check"))
        assert (checked.returncode, "everything is fine" in checked.stdout) == (0, True), checked.stdout
        [answered] = re.findall(r"`(mcp-workflows call ship_order [^`]*--answer[^`]*)`", PAGE)
        assert answered.startswith(typed("mcp-workflows call"))
        called = run(answered)
        assert (called.returncode, called.stdout) == (0, "shipped\n"), called.stderr
        assert "`call` prints `shipped`" in PAGE
        assert "Ship order A1?" in called.stderr
        port = free_port()
        [serves] = re.findall(r"`(mcp-workflows serve [^`]*)`", PAGE)
        serve = shlex.split(serves.replace("8931", str(port)))[1:]
        served = Process([COMMAND, *serve], port, tmp_path / "serve.log")
        try:
            served.wait_until_ready()
            async with peer(served.url) as client:
                task_id = (await client.call("ship_order", {"order_id": "A2"})).result["taskId"]
                [key] = (await client.until(task_id, "input_required"))["inputRequests"]
                await client.answer(task_id, **{key: {"action": "decline"}})
                done = (await client.until(task_id))["result"]["content"][0]["text"]
        finally:
            served.stop()
    assert done == "kept"


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("ship.asl.json", '{"StartAt": ', r"ship\.asl\.json:1:13: not JSON: "),
        ("ship.json", '{"StartAt": "A",\n"States": {"A": {"Type": "No"}}}', r"ship\.json:2:26: .*\"No\""),
        ("ship it.json", "{}", r"ship it\.json: a state machine cannot be named 'ship it'"),
        (None, "", r"cannot read .*missing\.json: No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_deployed_is_said_to_be(
    tmp_path: Path, name: str | None, text: str, complaint: str
) -> None:
    file = tmp_path / (name or "missing.json")
    if name:
        file.write_text(text)
    with pytest.raises(LocalEngineError, match=complaint):
        server().deploy_file(file, "us-east-1")
