"""What docs/stepfunctions.md shows works as it says."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from adapters.stepfunctions.tests import machines
from mcp_workflows.sidecar.config.load import load_config
from tests.support.stepfunctions_engine import StepFunctions

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "stepfunctions.md"


def blocks(page: Path, language: str) -> Sequence[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("block", blocks(PAGE, "yaml"))
def test_every_configuration_on_the_page_can_be_loaded(block: str, tmp_path: Path) -> None:
    (tmp_path / "workflows.yaml").write_text(block)
    assert load_config(tmp_path / "workflows.yaml", {}).tools


def test_a_standard_machine_makes_a_task_of_an_express_one(stepfunctions: StepFunctions) -> None:
    (parent,) = map(json.loads, blocks(PAGE, "json"))
    silent = machines.one_state("Stop", {"Type": "Fail"})
    for child, output, error in (
        (machines.ECHO, '{"order":"A-1001"}', None),
        (machines.DECLINES, None, "CardDeclined"),
        (silent, None, "QuoteFailed"),
    ):
        express = stepfunctions.machine(child, "EXPRESS")
        parent["States"]["Quote"]["Parameters"]["StateMachineArn"] = express
        client = stepfunctions.client()
        execution = client.start_execution(
            stateMachineArn=stepfunctions.machine(parent), name="one", input='{"order": "A-1001"}'
        )["executionArn"]
        found = stepfunctions.ended(execution)
        assert (found.get("output"), found.get("error")) == (output, error)
