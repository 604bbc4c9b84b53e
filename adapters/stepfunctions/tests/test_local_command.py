"""`python -m mcp_workflows_stepfunctions.local`: what it says, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from mcp_workflows_stepfunctions import StepFunctionsSettings
from mcp_workflows_stepfunctions.local.port import refuse_taken
from mcp_workflows_stepfunctions.local.release import MOTO, LocalEngineError, known, not_importable
from ruamel.yaml import YAML

from adapters.stepfunctions.tests.local_machines import SLEEP
from tests.stepfunctions_engine import StepFunctions

ROOT = Path(__file__).parents[3]


def test_a_port_that_is_taken_is_said_to_be(stepfunctions: StepFunctions) -> None:
    with pytest.raises(
        LocalEngineError, match=rf"cannot listen on 127\.0\.0\.1:{stepfunctions.port} \(Address already in"
    ):
        refuse_taken("127.0.0.1", stepfunctions.port)


def test_without_the_extra_it_says_what_to_install() -> None:
    hidden = (
        "import sys; sys.modules['moto'] = None; sys.argv = ['local'];"
        "import runpy; runpy.run_module('mcp_workflows_stepfunctions.local', run_name='__main__')"
    )
    ended = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "pip install 'mcp-workflows-stepfunctions[local]'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_another_moto_is_named_as_the_reason() -> None:
    patching = import_module("mcp_workflows_stepfunctions.local.patching")
    with pytest.raises(LocalEngineError, match=r"moto>=5\.2\.5,<5\.3 .*has no vanished"):
        patching.required(signal, "SIGTERM", "vanished")
    assert [known(version) for version in ("5.2.4", "5.2.5", "5.2.11", "5.3.0")] == [False, True, True, False]
    assert "moto>=5.2.5,<5.3" in not_importable(ImportError("cannot import name 'Gone'", name="moto.stepfunctions"))


def test_it_forgets_when_asked_to_and_ends_quickly_though_something_runs(own_stepfunctions: StepFunctions) -> None:
    client = own_stepfunctions.client()
    forgotten = client.start_execution(stateMachineArn=own_stepfunctions.machine(SLEEP))["executionArn"]
    own_stepfunctions.forget()
    with pytest.raises(client.exceptions.ExecutionDoesNotExist):
        client.describe_execution(executionArn=forgotten)
    client.start_execution(stateMachineArn=own_stepfunctions.machine(SLEEP))
    assert own_stepfunctions.end(signal.SIGINT) == 0


def test_the_examples_of_its_page_are_right(stepfunctions: StepFunctions) -> None:
    page = (ROOT / "docs/stepfunctions-local.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    environ = {**os.environ, **stepfunctions.environ}
    ran = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60)
    assert ran.stdout.strip() in {"RUNNING", "SUCCEEDED"}, ran.stderr
    [settings] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    loaded: Any = YAML(typ="safe").load(settings)  # pyright: ignore[reportUnknownMemberType]  # untyped stream
    engine = loaded["engines"]["orders"]
    assert engine.pop("adapter") == "stepfunctions"
    StepFunctionsSettings.model_validate(engine)


def test_the_range_of_moto_is_the_one_that_is_installed_and_written() -> None:
    project = tomllib.loads((ROOT / "adapters/stepfunctions/pyproject.toml").read_text())
    extra = project["project"]["optional-dependencies"]["local"]
    assert MOTO.replace("moto", "moto[server,stepfunctions]") in extra
    assert f"`{MOTO.removeprefix('moto')}`" in (ROOT / "docs/stepfunctions-local.md").read_text()
