"""What docs/stepfunctions.md shows works as it says."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mcp_workflows_stepfunctions
import pytest
from mcp_workflows_stepfunctions.client import open_client
from mcp_workflows_stepfunctions.settings import AssumeRole, StepFunctionsSettings
from mcp_workflows_stepfunctions.tooling.discover import read_comment
from mcp_workflows_stepfunctions.tooling.iam import caller_policy, permissions

from adapters.stepfunctions.tests import cloud
from mcp_workflows.kit.tooling import Use
from mcp_workflows.sidecar.config.load import load_config
from mcp_workflows.sidecar.config.models import Config
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
    silent = cloud.one_state("Stop", {"Type": "Fail"})
    for child, output, error in (
        (cloud.ECHO, '{"order":"A-1001"}', None),
        (cloud.DECLINES, None, "CardDeclined"),
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


# --- permissions, tags and events


DOCS = Path(__file__).parents[3] / "docs"
PAGES = ("stepfunctions-access", "stepfunctions-events")


def blocks_of(page: str, language: str) -> list[str]:
    text = (DOCS / f"{page}.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def shown(number: int) -> Any:
    """A JSON block of the page about permissions."""
    return json.loads(blocks_of("stepfunctions-access", "json")[number])


def loaded(text: str, folder: Path) -> Config:
    (folder / "workflows.yaml").write_text(text)
    return load_config(folder / "workflows.yaml", {})


@pytest.mark.parametrize("page", PAGES)
def test_each_configuration_loads(page: str, tmp_path: Path) -> None:
    found = [text for text in blocks_of(page, "yaml") if text.startswith("engines:")]
    assert found
    for text in found:
        assert loaded(text, tmp_path).engines["shop"].adapter == "stepfunctions"


async def test_the_policy_is_the_one_that_is_printed() -> None:
    given = StepFunctionsSettings(region="eu-west-1", account="111122223333")
    async with open_client(given) as calls:
        assert await permissions(calls, given, [Use(tool="fulfil_order", workflow="fulfil_order")]) == shown(0)


def test_the_caller_of_a_role_needs_what_is_said() -> None:
    role = "arn:aws:iam::111122223333:role/mcp-workflows"
    assert caller_policy(AssumeRole(arn=role, source_identity="mcp-sidecar")) == shown(1)


def test_the_comment_says_all_it_can() -> None:
    said = read_comment(json.dumps(shown(3)))
    assert (said.name, said.title, said.problems) == ("fulfil_order", "Fulfil an order", ())
    assert said.input["required"] == ["order"]


def test_who_sets_source_identities_of_callers_needs_what_is_said() -> None:
    role = "arn:aws:iam::111122223333:role/mcp-workflows"
    [statement] = caller_policy(AssumeRole(arn=role), callers=True)["Statement"]  # type: ignore[misc]  # JSON
    assert statement["Action"] == shown(2)["Statement"][0]["Action"]


# --- docs/stepfunctions-errors.md


ERRORS_PAGE = (ROOT / "docs" / "stepfunctions-errors.md").read_text(encoding="utf-8")
MESSAGES = re.findall(r"^\| `([^`]+)` \|", ERRORS_PAGE, re.MULTILINE)


def said() -> str:
    """All that the adapter's code can say, with literals that go over two lines made one, and what boto3 adds to it."""
    files = Path(mcp_workflows_stepfunctions.__file__).parent.glob("*.py")
    code = "\n".join(file.read_text(encoding="utf-8") for file in files)
    whole = re.sub(r'"\n\s*f?"', "", code)
    profile = "The config profile (orders) could not be found; there are: "
    return whole.replace("{action} on {resource}", "sts:AssumeRole on arn") + profile


@pytest.mark.parametrize("message", MESSAGES)
def test_the_message_is_one_of_ours(message: str) -> None:
    assert message in said()


def test_there_are_messages() -> None:
    assert len(MESSAGES) > 15
