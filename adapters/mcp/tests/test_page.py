"""The blocks of docs/engines/mcp.md, and the definitions that it links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from adapters.mcp.tests.upstreams import (
    airflow_upstream,
    bash_upstream,
    firecrawl_upstream,
    gitlab_upstream,
    jenkins_upstream,
)
from adapters.mcp.tests.upstreams.upstream import documented_engines
from mcp_workflows.sidecar.config.load import load_config

DOCS = Path(__file__).parents[3] / "docs" / "engines"
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", (DOCS / "mcp.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_is_a_configuration(tmp_path: Path, block: str) -> None:
    file = tmp_path / "workflows.yaml"
    file.write_text(block)
    loaded = load_config(file, dict.fromkeys(re.findall(r"\$\{(\w+)\}", block), "t"))
    assert loaded.engines


def test_the_split_tools_of_a_server_are_one_task_in_twelve_lines() -> None:
    lines = [line for line in BLOCKS[0].splitlines() if not line.startswith("#")]
    assert len(lines) <= 12


def test_each_example_is_tested_with_its_real_server() -> None:
    tested = (airflow_upstream, firecrawl_upstream, gitlab_upstream, jenkins_upstream, bash_upstream)
    assert [each.CONFIG for each in tested] == [engine for _, engine in sorted(documented_engines().items())]
    page = (DOCS / "mcp.md").read_text()
    assert [name for name in documented_engines() if f"(../../samples/mcp/{name}.yaml)" not in page] == []
