"""The blocks of docs/engines/http.md, its definitions to copy, and the pages of presets, made from the files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest
from mcp_workflows_http.presets import preset_names, presets, read_preset
from ruamel.yaml import YAML

from mcp_workflows.adapter import StartGuarantee
from mcp_workflows.sidecar.config.load import load_config
from scripts import preset_pages

PAGE = Path(__file__).parents[3] / "docs" / "engines" / "http.md"
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
UNVERIFIED = sorted((Path(__file__).parents[3] / "samples" / "http" / "unverified").glob("*.yaml"))
EXAMPLES = [file.read_text() for file in UNVERIFIED]


def tools_of(folder: Path, block: str) -> object:
    """The tools of a configuration whose variables are set."""
    file = folder / "workflows.yaml"
    file.write_text(block)
    return load_config(file, dict.fromkeys(re.findall(r"\$\{(\w+)\}", block), "t")).tools


@pytest.mark.parametrize("block", [*BLOCKS, *EXAMPLES])
def test_a_block_is_a_configuration(tmp_path: Path, block: str) -> None:
    assert tools_of(tmp_path, block)


def test_every_example_is_on_the_page_and_marked_as_unverified() -> None:
    assert len(EXAMPLES) >= 9
    text = PAGE.read_text()
    for file, example in zip(UNVERIFIED, EXAMPLES, strict=True):
        assert f"(../../samples/http/unverified/{file.name})" in text
        assert ", unverified: " in example.splitlines()[0]


def written_by_hand(block: str) -> int:
    """The keys that a user writes: those that lead to a value."""

    def keys(value: Any) -> int:
        if not isinstance(value, dict):
            return 1
        return sum(map(keys, cast("dict[str, Any]", value).values()))

    return keys(YAML(typ="safe").load(block))  # pyright: ignore[reportUnknownMemberType]


@pytest.mark.parametrize("of_an_api", [BLOCKS[0], *EXAMPLES])
def test_any_api_takes_at_most_forty_keys(of_an_api: str) -> None:
    assert written_by_hand(of_an_api) <= 40


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_has_a_page_made_from_its_file_and_takes_at_most_eight_keys(tmp_path: Path, name: str) -> None:
    """`make format` writes them."""
    text = (preset_pages.FOLDER / f"{name}.md").read_text()
    assert text == preset_pages.page(name)
    block = text.split("```")[1].removeprefix("yaml")
    assert tools_of(tmp_path, block)
    assert written_by_hand(block) <= 8


def test_the_presets_are_those_that_are_shipped() -> None:
    text = PAGE.read_text()
    for name, preset in presets().items():
        starts = StartGuarantee(str(read_preset(name)["starts"]))
        place = f"| [`{name}`](presets/{name}.md) | {preset.title} | `{starts.value}` |"
        assert f"{place} {preset.verified}, {preset.since} |" in text
    assert text == preset_pages.index(text)
    assert {file.stem for file in preset_pages.FOLDER.glob("*.md")} == set(preset_names())
