"""docs/http.md: its blocks are read as they stand, and its part about presets is made from their files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest
from mcp_workflows_http.presets import presets, read_preset
from ruamel.yaml import YAML

from mcp_workflows.adapter import StartGuarantee
from mcp_workflows.sidecar.config.load import load_config

PAGE = Path(__file__).parents[3] / "docs" / "http.md"
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
ENVIRONMENT = dict.fromkeys(["JOBS_TOKEN", "BUILDBOT_PASSWORD", "GITHUB_TOKEN", "GITHUB_WEBHOOK_SECRET"], "t")


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_is_a_configuration(tmp_path: Path, block: str) -> None:
    file = tmp_path / "workflows.yaml"
    file.write_text(block)
    assert load_config(file, ENVIRONMENT).tools


def written_by_hand(block: str) -> int:
    """The keys that a user writes: those that lead to a value."""

    def keys(value: Any) -> int:
        if not isinstance(value, dict):
            return 1
        return sum(map(keys, cast("dict[str, Any]", value).values()))

    return keys(YAML(typ="safe").load(block))  # pyright: ignore[reportUnknownMemberType]


def test_it_takes_few_keys() -> None:
    of_an_api, of_a_preset = BLOCKS[:2]
    assert written_by_hand(of_an_api) <= 40
    assert written_by_hand(of_a_preset) <= 9  # with one argument; two of them are its schema


def test_the_presets_are_those_that_are_shipped() -> None:
    text = PAGE.read_text()
    for name, preset in presets().items():
        starts = StartGuarantee(str(read_preset(name)["starts"]))
        assert f"| `{name}` | {preset.title} | `{starts.value}` | {preset.verified}, {preset.since} |" in text
        assert f"### {name}\n\n{preset.notes.strip()}\n" in text
