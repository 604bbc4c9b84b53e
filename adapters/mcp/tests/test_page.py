"""docs/mcp.md: its blocks are read as they stand, and are as short as the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mcp_workflows.sidecar.config.load import load_config

PAGE = Path(__file__).parents[3] / "docs" / "mcp.md"
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_is_a_configuration(tmp_path: Path, block: str) -> None:
    file = tmp_path / "workflows.yaml"
    file.write_text(block)
    loaded = load_config(file, dict.fromkeys(re.findall(r"\$\{(\w+)\}", block), "t"))
    assert loaded.engines


def test_the_split_tools_of_a_server_are_one_task_in_twelve_lines() -> None:
    lines = [line for line in BLOCKS[0].splitlines() if not line.startswith("#")]
    assert len(lines) <= 12
