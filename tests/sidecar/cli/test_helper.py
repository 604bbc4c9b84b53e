"""mcp-workflows helper, as a person types it."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mcp_workflows.errors import ConfigError
from mcp_workflows.sidecar.cli.app import app

COMMAND = str(Path(sysconfig.get_path("scripts")) / "mcp-workflows")


def ask(*words: str) -> str:
    ended = CliRunner().invoke(app, ["helper", *words])
    if ended.exception:
        raise ended.exception
    return ended.stdout


@pytest.mark.parametrize(
    ("language", "begins", "calls"),
    [("go", "// Package mcpwf", "workflow.UpsertMemo"), ("typescript", "// mcpwf.ts", "upsertMemo")],
)
def test_the_file_for_a_language_is_printed_as_it_is(language: str, begins: str, calls: str) -> None:
    printed = ask(language)
    assert printed.startswith(begins)
    assert calls in printed
    assert printed.endswith("}\n")
    assert printed == ask(language, "--adapter", "temporal")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["cobol"], r"no file for 'cobol'; there is: .*go \(--adapter temporal\), typescript \(--adapter temporal\)"),
        (["go", "--adapter", "memory"], "no file for 'go'; there is: none"),
        (["go", "--adapter", "tempral"], "no adapter named 'tempral' is installed .* did you mean 'temporal'"),
    ],
)
def test_what_there_is_not_is_said_with_what_there_is(words: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        ask(*words)


@pytest.mark.usefixtures("processes")
def test_it_is_a_command_and_its_error_has_no_stack_trace() -> None:
    ended = subprocess.run([COMMAND, "helper", "cobol"], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("there is no file for 'cobol'")
    assert len(ended.stderr.splitlines()) == 1
