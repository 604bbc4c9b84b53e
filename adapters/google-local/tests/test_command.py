"""`python -m mcp_workflows_google_local`: what it says, and how it ends."""

from __future__ import annotations

import re
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

import httpx2
import pytest
from mcp_workflows_google_local.__main__ import main, read_options
from mcp_workflows_google_local.language.library import supported
from mcp_workflows_google_local.refusals import LocalEngineError

from tests.support.child_processes import free_port
from tests.support.google_engine import GoogleEngine
from tests.support.google_local_engine import local_engine
from tests.support.google_local_flows import HELLO, SLEEP

PAGE = (Path(__file__).parents[3] / "docs/engines/google-local.md").read_text()


def said(monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """With what the command ends, which it does at once."""
    monkeypatch.setattr(sys, "argv", ["local", "--port", str(free_port()), *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return str(ended.value)


def test_a_port_that_is_taken_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", port := free_port())):
        text = said(monkeypatch, "--port", str(port))
    assert text == (f"cannot listen on 127.0.0.1:{port} (Address already in use): choose another with --port or --host")
    assert "cannot listen on 127.0.0.1:99999" in said(monkeypatch, "--port", "99999")


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("hello.yaml", "main:\n  steps:\n    - a:\n        colour: red\n", r"hello\.yaml:4:\d+: .*colour"),
        ("hello.json", '{"main": ', r"hello\.json:1:\d+: "),
        ("1hello.yaml", HELLO, r"1hello\.yaml: invalid workflow_id '1hello'"),
        (None, "", r"cannot read .*missing\.yaml: No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_deployed_is_said_to_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str | None, text: str, complaint: str
) -> None:
    file = tmp_path / (name or "missing.yaml")
    if name:
        file.write_text(text)
    assert re.search(complaint, said(monkeypatch, "--deploy", str(file)))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--concurrency", "0"], "write a number from 1, not '0'"),
        (["--url", "ftp://here"], "write http://HOST:PORT, not 'ftp://here'"),
        (["--deploy", "a.yaml", "--env", "A"], "write NAME=VALUE, not 'A'"),
        (["--env", "A=1"], "--env and --label are of the workflows that --deploy names"),
    ],
)
def test_bad_options_are_said_to_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: Sequence[str], complaint: str
) -> None:
    assert said(monkeypatch, *words) == "2"
    assert complaint in capsys.readouterr().err


async def test_a_database_that_is_not_ours_or_in_use_is_said_to_be(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    other.write_text("these are no rows" * 100)
    with pytest.raises(LocalEngineError, match=r"cannot use the database .*other\.db \(file is not a database\)"):
        async with local_engine(database=other):
            pass
    with pytest.raises(LocalEngineError, match="unable to open database file"):
        async with local_engine(database=tmp_path / "no" / "such.db"):
            pass
    async with local_engine(database=tmp_path / "mine.db"):
        with pytest.raises(LocalEngineError, match="database is locked"):
            async with local_engine(database=tmp_path / "mine.db"):
                pass


async def test_files_are_deployed_with_variables_and_labels_which_stay_until_others_are_given(tmp_path: Path) -> None:
    file, database = tmp_path / "greet.workflow.yaml", tmp_path / "google.db"
    file.write_text(HELLO)
    first = read_options(["--deploy", str(file), "--env", "A=1", "B=x=y", "--label", "mcp-tool=true"])
    both = {"A": "1", "B": "x=y"}
    given: Sequence[tuple[Mapping[str, str], Mapping[str, str]]] = (
        (first.env, both),
        ({}, both),
        ({"A": ""}, {"A": ""}),
    )
    for number, (env, variables) in enumerate(given):
        labels: Mapping[str, str] = {} if number else first.labels
        async with local_engine(database=database, deploy=[file], env=env, labels=labels) as engine:
            name = "projects/demo/locations/us-central1/workflows/greet"
            found = await engine.workflows.get_workflow(name=name, timeout=60)
            assert (dict(found.user_env_vars), dict(found.labels)) == (variables, {"mcp-tool": "true"})


async def test_connections_that_speak_neither_protocol_do_no_harm() -> None:
    async with local_engine() as engine:
        port = int(engine.url.rpartition(":")[2])
        for words in (b"", b"PRI", b"\x16\x03\x01\x02\x00", b"\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnonsense"):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                connection.sendall(words)
        async with httpx2.AsyncClient(trust_env=False) as http:
            assert (await http.get(f"{engine.url}/oauth2/v3/certs")).status_code == 200
            assert (await http.get(f"{engine.url}/nothing")).status_code == 404


@pytest.mark.usefixtures("processes")
def test_it_says_one_line_and_ends_quietly(tmp_path: Path) -> None:
    with GoogleEngine(tmp_path) as engine:
        name = engine.execute(engine.deploy("sleep", SLEEP), {"seconds": 600})
        engine.at(name, "nap")
        assert engine.end(signal.SIGINT) == 0
        assert engine.log.read_text() == f"Workflows is ready on {engine.address} (project demo, us-central1)\n"


def module_of(function: str) -> str:
    """The part before the last dot, if there is one."""
    return function.rpartition(".")[0]


def test_the_page_lists_every_function_and_option(capsys: pytest.CaptureFixture[str]) -> None:
    listed = PAGE.partition("<!-- begin functions -->\n\n")[2].partition("\n\n<!-- end functions -->")[0]
    names = sorted((name for name, _, _ in supported()), key=module_of)
    assert listed == "\n".join(f"- {', '.join(f'`{name}`' for name in its)}" for _, its in groupby(names, module_of))
    with pytest.raises(SystemExit):
        read_options(["--help"])
    options = set(re.findall(r"(--[a-z-]+)", capsys.readouterr().out)) - {"--help"}
    assert options == set(re.findall(r"(--[a-z-]+)", "".join(re.findall(r"^\| `-.*? \|", PAGE, re.MULTILINE))))


EXECUTES = """
greet = workflows_v1.Workflow(source_contents="main: {steps: [{greet: {return: hello}}]}")
parent = "projects/demo/locations/us-central1"
deployed = workflows.create_workflow(parent=parent, workflow=greet, workflow_id="greet").result()
execution = executions.create_execution(parent=deployed.name, execution=executions_v1.Execution())
print(executions.get_execution(name=execution.name).state.name)
"""


def test_the_program_on_the_page_runs(google_engine: GoogleEngine, capsys: pytest.CaptureFixture[str]) -> None:
    program = PAGE.partition("```python\n")[2].partition("```")[0].replace("127.0.0.1:8790", google_engine.address)
    exec(program + EXECUTES, {})
    assert capsys.readouterr().out in ("SUCCEEDED\n", "ACTIVE\n")
