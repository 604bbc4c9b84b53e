"""What the pages about permissions, tags and events show is so."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from mcp_workflows_stepfunctions.client import open_client
from mcp_workflows_stepfunctions.settings import AssumeRole, StepFunctionsSettings
from mcp_workflows_stepfunctions.tooling.discover import read_comment
from mcp_workflows_stepfunctions.tooling.iam import caller_policy, permissions

from mcp_workflows.kit.tooling import Use
from mcp_workflows.sidecar.config.load import load_config
from mcp_workflows.sidecar.config.models import Config

DOCS = Path(__file__).parents[3] / "docs"
PAGES = ("stepfunctions-access", "stepfunctions-events")


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / f"{page}.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def shown(number: int) -> Any:
    """A JSON block of the page about permissions."""
    return json.loads(blocks("stepfunctions-access", "json")[number])


def loaded(text: str, folder: Path) -> Config:
    (folder / "workflows.yaml").write_text(text)
    return load_config(folder / "workflows.yaml", {})


@pytest.mark.parametrize("page", PAGES)
def test_each_configuration_loads(page: str, tmp_path: Path) -> None:
    found = [text for text in blocks(page, "yaml") if text.startswith("engines:")]
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
