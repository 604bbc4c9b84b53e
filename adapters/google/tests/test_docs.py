"""What docs/google.md and docs/google-access.md show works as they say."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import mcp_workflows_google
import pytest
from mcp_workflows_google import GoogleAdapter
from mcp_workflows_google.settings import GoogleSettings
from mcp_workflows_google.tooling.check import permissions
from mcp_workflows_google.tooling.definition import parse_definition
from mcp_workflows_google.tooling.embed import add_subworkflows

from mcp_workflows.kit.tooling import Use
from mcp_workflows.sidecar.config.load import load_config
from tests.support.google_engine import GoogleEngine

DOCS = Path(__file__).parents[3] / "docs"
PAGES = ("google", "google-access")


def blocks(page: str, language: str) -> Sequence[str]:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def configurations() -> Sequence[str]:
    readme = (DOCS.parent / "adapters" / "google" / "README.md").read_text(encoding="utf-8")
    all_blocks = [*re.findall(r"^```yaml\n# workflows.yaml\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)]
    all_blocks += [block for page in PAGES for block in blocks(page, "yaml")]
    return [block for block in all_blocks if block.startswith("engines:")]


def workflows() -> Sequence[str]:
    return [block for block in blocks("google", "yaml") if block.startswith("main:")]


@pytest.mark.parametrize("block", configurations())
def test_every_configuration_on_the_pages_can_be_loaded(block: str, tmp_path: Path) -> None:
    (tmp_path / "workflows.yaml").write_text(block)
    config = load_config(tmp_path / "workflows.yaml", {})
    assert config.engines["shop"].kind is GoogleAdapter
    given = config.engines["shop"].settings
    assert isinstance(given, GoogleSettings)
    assert config.tools or given.discover


@pytest.mark.parametrize("source", workflows())
def test_every_workflow_on_the_page_can_be_deployed_with_the_helper(source: str, google_engine: GoogleEngine) -> None:
    whole = add_subworkflows(source)
    assert google_engine.deploy("documented", whole)
    read = parse_definition(whole)
    assert read is not None
    assert read.calls("mcp_elicit") or read.calls("mcp_claim")


def test_there_are_such_blocks() -> None:
    assert len(configurations()) == 7
    assert len(workflows()) == 2


def test_the_role_is_the_one_that_is_printed() -> None:
    (shown,) = map(json.loads, blocks("google-access", "json"))
    given = GoogleSettings(project="shop-prod", location="europe-west1")
    assert permissions(given, [Use(tool="fulfil_order", workflow="fulfil_order")]) == shown


def test_every_setting_of_an_engine_is_on_the_page() -> None:
    text = (DOCS / "google.md").read_text(encoding="utf-8")
    assert [name for name in GoogleSettings.model_fields if f"`{name}`" not in text] == []


# --- docs/google-errors.md


ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "google-errors.md").read_text(encoding="utf-8")
MESSAGES = re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE)


def said() -> str:
    """All that the adapter's code can say, with literals that go over two lines made one."""
    files = Path(mcp_workflows_google.__file__).parent.glob("*.py")
    code = "\n".join(file.read_text(encoding="utf-8") for file in files)
    return re.sub(r'"\n\s*f?"', "", code)


@pytest.mark.parametrize("message", MESSAGES)
def test_the_message_is_one_of_ours(message: str) -> None:
    assert message in said()


def test_there_are_messages() -> None:
    assert len(MESSAGES) > 25
