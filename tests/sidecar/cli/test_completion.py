"""What a shell completes: quickly, from the table of commands and the configuration, and never with an error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.core import TyperArgument

from mcp_workflows.__main__ import ASKED_BY_SHELL, main
from scripts.completion import TABLE, text
from tests.support.commands import COMMAND

CONFIG = """\
engines: {orders: {adapter: memory}, more: {adapter: memory}}
include:
  - teams/*.yaml
  - {files: shop.yaml, namespace: shop, engines: [orders]}
tools:
  wait: {engine: orders, workflow: sleep}
  say: {engine: orders, workflow: "${NOT_SET}"}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """Asks as bash does, in this process."""

    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    def words(self, line: str) -> Sequence[str]:
        """What the last word of a line can be; the command is left out."""
        words = ["mcp-workflows", *line.split(" ")]
        env = {ASKED_BY_SHELL: "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
        for name, value in env.items():
            self.monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            main()
        printed = self.capsys.readouterr()
        assert (ended.value.code, printed.err) == (0, "")
        return printed.out.split()


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    (tmp_path / "teams").mkdir()
    (tmp_path / "workflows.yaml").write_text(CONFIG)
    (tmp_path / "teams" / "a.yaml").write_text("tools: {from_team: {}}")
    (tmp_path / "shop.yaml").write_text("tools: {buy: {}}")
    (tmp_path / "other.yaml").write_text("tools: {elsewhere: {}}")
    monkeypatch.chdir(tmp_path)
    return Shell(capsys=capsys, monkeypatch=monkeypatch)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ch", ["check"]),
        ("tasks ca", ["cancel"]),
        ("serve --l", ["--log-level"]),
        ("serve --log-level w", ["warning"]),
        ("connect cl", ["claude"]),
        ("call w", ["wait"]),
        ("call ", ["wait", "say", "from_team", "shop_buy"]),
        ("call -c other.yaml ", ["elsewhere"]),
        ("call --config other.yaml e", ["elsewhere"]),
        ("tasks list --tool s", ["say", "shop_buy"]),
        ("import ", ["orders", "more"]),
        ("iam -c workflows.yaml --engine m", ["more"]),
        ("init --engine me", ["memory"]),
        ("serve ", []),
        ("call -c nowhere.yaml ", []),
        ("call 'wa", ["wait"]),
    ],
)
def test_commands_options_tools_and_engines_are_completed(shell: Shell, line: str, words: Sequence[str]) -> None:
    assert shell.words(line) == words


@pytest.mark.parametrize(
    "wrong", ["tools: [", "[]", "tools: x", "tools: {a: 1, a: 2}", "include: {files: {a: b}}", "\0"]
)
def test_nothing_is_completed_from_a_configuration_that_is_wrong(shell: Shell, tmp_path: Path, wrong: str) -> None:
    (tmp_path / "workflows.yaml").write_text(wrong)
    assert shell.words("call ") == []


@pytest.mark.skipif(not hasattr(TyperArgument, "display_type_rich"), reason="a Typer that shows no types")
def test_the_table_has_all_commands_and_options() -> None:
    assert TABLE.read_text("utf-8") == text(), "write it again: .venv/bin/python -m scripts.completion"


@pytest.mark.usefixtures("processes")
def test_completing_loads_nothing_that_takes_long(tmp_path: Path) -> None:
    (tmp_path / "workflows.yaml").write_text(CONFIG)
    env = {ASKED_BY_SHELL: "complete_bash", "COMP_WORDS": "mcp-workflows call w", "COMP_CWORD": "2"}
    code = """
import atexit, sys
atexit.register(lambda: print({"mcp", "mcp_types", "anyio", "httpx2"} & {*sys.modules}, file=sys.stderr))
from mcp_workflows.__main__ import main
main()
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, **env}, capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr.strip()) == ("wait", "set()")


@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes_with_the_script_that_is_shown(tmp_path: Path) -> None:
    (tmp_path / "workflows.yaml").write_text(CONFIG)
    script = """
eval "$(mcp-workflows --show-completion)"
COMP_WORDS=(mcp-workflows call s) COMP_CWORD=2
_mcp_workflows_completion mcp-workflows
echo "${COMPREPLY[@]}"
complete -p mcp-workflows
"""
    env = {**os.environ, "PATH": f"{Path(COMMAND).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.splitlines()[0] == "say"
    assert "-o default" in done.stdout.splitlines()[1]
