"""mcpwf.go through the Go compiler; what it cannot be run against here is said in docs/temporal-contract.md."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from mcp_workflows_temporal import TemporalAdapter

from adapters.temporal.tests.contract_page import page_block
from adapters.temporal.tests.go_toolchain import go

SOURCE = Path(__file__).with_name("go")


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """mcpwf.go as an author has it, beside declarations of the SDK's calls it makes."""
    shutil.copytree(SOURCE, tmp_path, dirs_exist_ok=True)
    shutil.copy(SOURCE.with_name("answers.json"), tmp_path)
    (tmp_path / "mcpwf.go").write_text(TemporalAdapter.embeds()["go"])
    (tmp_path / "example").mkdir()
    (tmp_path / "example" / "example.go").write_text(page_block("go"))
    return tmp_path


@pytest.mark.usefixtures("processes")
def test_the_go_file_is_formatted_as_go_does_it(module: Path) -> None:
    assert go(["gofmt", "-l", "mcpwf.go", "example"], module) == ""


@pytest.mark.usefixtures("processes")
def test_the_go_file_compiles_and_vets_and_checks_answers_as_the_others_do(module: Path) -> None:
    go(["go", "vet", ".", "./example"], module)
    assert go(["go", "test", "."], module).startswith("ok")
