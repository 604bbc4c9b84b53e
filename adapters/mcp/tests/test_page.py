"""docs/mcp.md and its examples: blocks are read as they stand, as short as the page says, and as they are tested."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from adapters.mcp.tests.upstreams import (
    airflow_upstream,
    bash_upstream,
    firecrawl_upstream,
    gitlab_upstream,
    jenkins_upstream,
)
from mcp_workflows.sidecar.config.load import load_config

DOCS = Path(__file__).parents[3] / "docs"
BLOCKS, EXAMPLES = (
    re.findall(r"^```yaml\n(.*?)^```", (DOCS / name).read_text(), re.MULTILINE | re.DOTALL)
    for name in ("mcp.md", "mcp-examples.md")
)
TESTED = {
    "firecrawl": firecrawl_upstream.CONFIG,
    "shell": bash_upstream.CONFIG,
    "jenkins": jenkins_upstream.CONFIG,
    "airflow": airflow_upstream.CONFIG,
    "gitlab": gitlab_upstream.CONFIG,
}


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_is_a_configuration(tmp_path: Path, block: str) -> None:
    file = tmp_path / "workflows.yaml"
    file.write_text(block)
    loaded = load_config(file, dict.fromkeys(re.findall(r"\$\{(\w+)\}", block), "t"))
    assert loaded.engines


def test_the_split_tools_of_a_server_are_one_task_in_twelve_lines() -> None:
    lines = [line for line in BLOCKS[0].splitlines() if not line.startswith("#")]
    assert len(lines) <= 12


def test_the_examples_are_the_definitions_that_are_tested_with_real_servers() -> None:
    found: dict[str, Any] = {}
    for block in EXAMPLES:
        found |= YAML(typ="safe").load(block)["engines"]  # pyright: ignore[reportUnknownMemberType]
    assert found == TESTED
