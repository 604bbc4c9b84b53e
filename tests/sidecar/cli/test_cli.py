"""The command line, by its entry point: what it prints where, and the code it ends with."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sysconfig
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import anyio
import pytest
import typer
from jsonschema import Draft202012Validator

from mcp_workflows.adapter import JSON, Adapter, Finding
from mcp_workflows.adapter.memory import MemoryTooling
from mcp_workflows.errors import EngineUnavailable
from mcp_workflows.kit.tooling import Use
from mcp_workflows.sidecar.address import Address
from mcp_workflows.sidecar.checks import ItemState, check
from mcp_workflows.sidecar.cli.options import read_address
from mcp_workflows.sidecar.config.load import load_config
from mcp_workflows.sidecar.config.models import Config
from mcp_workflows.testing import MemoryAdapter
from tests.sidecar.cli.terminal import Terminal
from tests.support.strangers import installed

COMMAND = str(Path(sysconfig.get_path("scripts")) / "mcp-workflows")

FINE = """\
server: {name: "Acme orders!"}
engines:
  orders: {adapter: memory}
tools:
  wait: {engine: orders, workflow: sleep, input: {type: object, properties: {}}}
  say: {engine: orders, workflow: echo, input: {type: object, properties: {}}}
"""


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "workflows.yaml"
    path.write_text(FINE, encoding="utf-8")
    return path


def test_the_schema_is_json_on_standard_output(terminal: Terminal) -> None:
    ended = terminal.run("print", "schema")
    assert ended.code == 0
    Draft202012Validator.check_schema(json.loads(ended.out))


@pytest.mark.parametrize("arguments", [["serve", "x.yaml", "--htp", ":1"], ["connect", "emacs"], ["srve"]])
def test_wrong_usage_ends_with_2(terminal: Terminal, arguments: list[str]) -> None:
    ended = terminal.run(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert "Usage: mcp-workflows" in ended.err


@pytest.mark.parametrize(
    ("words", "is_taken"), [(["tasks", "list"], True), (["check"], True), (["init", "--add", "x"], False)]
)
def test_a_folder_with_an_app_needs_no_configuration(
    terminal: Terminal, tmp_path: Path, words: Sequence[str], is_taken: bool
) -> None:
    terminal.monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text("raise ValueError('imported')\n")
    ended = terminal.run(*words)
    assert (ended.code, "imported" in ended.err, "no such file" in ended.err) == (1, is_taken, not is_taken)


@pytest.mark.parametrize(
    "words", [[], ["workflows.yaml"], ["-c", "workflows.yaml"], ["./workflows.yaml", "-c", "workflows.yaml"]]
)
def test_the_configuration_is_the_one_here_unless_another_is_named(
    terminal: Terminal, config_file: Path, words: Sequence[str]
) -> None:
    terminal.monkeypatch.chdir(config_file.parent)
    ended = terminal.run("check", *words)
    assert (ended.code, ended.out.splitlines()[-1]) == (0, "workflows.yaml: everything is fine")


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8931", "127.0.0.1", 8931),
        ("localhost:80", "localhost", 80),
        ("[::1]:8931", "::1", 8931),
        (":8931", "127.0.0.1", 8931),
        ("8931", "127.0.0.1", 8931),
        ("0.0.0.0:0", "0.0.0.0", 0),
        ("sidecar.internal:443", "sidecar.internal", 443),
    ],
)
def test_an_address_is_host_and_port(text: str, host: str, port: int) -> None:
    assert read_address(text) == Address(host=host, port=port)


@pytest.mark.parametrize(
    "text",
    ["", ":", "localhost", "127.0.0.1:", "::1:8931", "[::1]", "127.0.0.1:65536", "http://127.0.0.1:8931", "x y:1"],
)
def test_anything_else_is_no_address(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"is not HOST:PORT; for example 127\.0\.0\.1:8931"):
        read_address(text)


@pytest.mark.usefixtures("processes")
def test_serving_on_stdio_ends_with_its_client_and_prints_nothing_else(config_file: Path) -> None:
    command = [COMMAND, "serve", str(config_file)]
    ended = subprocess.run(command, input="", capture_output=True, text=True, timeout=180, check=False)
    assert (ended.returncode, ended.stdout) == (0, "")


def test_check_of_an_engine_that_is_down_blames_the_engine(terminal: Terminal, config_file: Path) -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        engine = f"{{adapter: temporal, address: '{address}', task_queue: orders}}"
        config_file.write_text(FINE.replace("{adapter: memory}", engine), encoding="utf-8")
        ended = terminal.run("check", str(config_file), "--json")
    found = json.loads(ended.out)
    assert ended.code == 1
    assert found["engines"][0]["ok"] is False
    assert address in found["engines"][0]["text"]
    assert {tool["text"] for tool in found["tools"]} == {"not without engine orders"}


def test_check_of_a_store_that_cannot_be_used_is_a_row(terminal: Terminal, config_file: Path) -> None:
    config_file.write_text(f"store: sqlite:///none/tasks.db\n{FINE}", encoding="utf-8")
    found = json.loads(terminal.run("check", str(config_file), "--json").out)
    assert found["store"]["ok"] is False
    assert found["engines"][0]["ok"] is True


class SilentTooling(MemoryTooling):
    async def check(self, workflow: str, options: Mapping[str, JSON]) -> Finding:
        await anyio.sleep_forever()
        raise AssertionError("unreachable")


class SilentAdapter(MemoryAdapter):
    """Whose engine answers, and whose workflows are never found out about."""

    tooling: Any = SilentTooling


def _with_adapter(config_file: Path, kind: type[Adapter]) -> Config:
    config = load_config(config_file, {})
    engine = replace(config.engines["orders"], kind=kind, settings=kind.Settings())
    return replace(config, engines={"orders": engine})


async def test_a_check_that_takes_too_long_is_a_problem(config_file: Path) -> None:
    with anyio.fail_after(60):
        report = await check(_with_adapter(config_file, SilentAdapter), time_limit=0.2)
    assert [row.state for row in report.rows] == [ItemState.OK, ItemState.OK, ItemState.PROBLEM, ItemState.PROBLEM]
    assert report.rows[2].finding == Finding(ok=False, text="no answer within 0.2 s")


def test_what_connect_prints_is_json_or_toml_and_starts_the_command_that_is_installed(
    terminal: Terminal, config_file: Path
) -> None:
    started = json.loads(terminal.run("connect", "cursor").out)["mcpServers"]["Acme-orders"]
    assert started == tomllib.loads(terminal.run("connect", "codex").out)["mcp_servers"]["Acme-orders"]
    assert started == {"command": COMMAND, "args": ["serve", str(config_file)]}
    assert os.access(COMMAND, os.X_OK)


class PermittingTooling(MemoryTooling):
    async def permissions(self, uses: Sequence[Use]) -> Mapping[str, JSON]:
        if self._is_down("permissions"):
            raise EngineUnavailable("the engine in memory does not answer")
        return {"Version": "2012-10-17", "Statement": [asdict(use) for use in uses]}


class PermittingAdapter(MemoryAdapter):
    """Tells what it was asked for."""

    tooling: Any = PermittingTooling


PERMITS = """\
engines:
  orders: {adapter: permitting}
  other: {adapter: memory}
tools:
  pay: {engine: orders, workflow: echo}
  see: {engine: orders, workflow: ask, kind: watch, allow_answer: true}
  ship:
    engine: orders
    workflow: gated
    questions:
      go:
        when: {after_seconds: 0}
        message: Go?
        schema: {type: object, properties: {ok: {type: boolean}}}
        send: "{{answer.ok}}"
  far: {engine: other, workflow: echo}
"""


@pytest.fixture
def permits(terminal: Terminal, config_file: Path) -> Path:
    installed(config_file.parent, terminal.monkeypatch, {"permitting": PermittingAdapter})
    config_file.write_text(PERMITS)
    return config_file


def test_iam_prints_what_the_tools_of_an_engine_need_and_nothing_else(terminal: Terminal, permits: Path) -> None:
    ended = terminal.run("print", "iam", str(permits))
    policy = json.loads(ended.out)
    assert (ended.code, policy["Version"]) == (0, "2012-10-17")
    pay, see, ship = policy["Statement"]
    gate = {"when": {"after_seconds": 0.0}, "send": "{{answer.ok}}", "decline": None}
    shared: dict[str, Any] = {"options": {}, "gates": {}, "watches": False, "answers": True, "cancels": True}
    assert pay == {**shared, "tool": "pay", "workflow": "echo"}
    assert see == {**shared, "tool": "see", "workflow": "ask", "watches": True, "cancels": False}
    assert ship == {**shared, "tool": "ship", "workflow": "gated", "gates": {"go": gate}}
    assert ended.err == "note: engine other: nothing to print: the adapter 'memory' has no policies\n"
    chosen = terminal.run("print", "iam", str(permits), "--engine", "orders")
    assert (chosen.out, chosen.err) == (ended.out, "")


LANGUAGES = {"go": ("// Package mcpwf", "workflow.UpsertMemo"), "typescript": ("// mcpwf.ts", "upsertMemo")}


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_helper_for_a_language_is_printed_as_it_is(terminal: Terminal, language: str) -> None:
    begins, calls = LANGUAGES[language]
    printed = terminal.run("print", "helper", language).out
    assert printed.startswith(begins)
    assert calls in printed
    assert printed.endswith("}\n")
    assert printed == terminal.run("print", "helper", language, "--adapter", "temporal").out


COMPLETED = """\
engines: {orders: {adapter: memory}, more: {adapter: memory}}
include:
  - teams/*.yaml
  - {files: shop.yaml, namespace: shop, engines: [orders]}
tools:
  wait: {engine: orders, workflow: sleep}
  say: {engine: orders, workflow: "${NOT_SET}"}
"""


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
        ("call -c wrong.yaml ", []),
        ("call -c nowhere.yaml ", []),
        ("tasks list --tool s", ["say", "shop_buy"]),
        ("init --add ", ["orders", "more"]),
        ("init --engine me", ["memory"]),
        ("print iam -c workflows.yaml --engine m", ["more"]),
        ("check --live o", ["orders"]),
    ],
)
def test_shells_complete_commands_options_tools_and_engines(
    terminal: Terminal, line: str, words: Sequence[str]
) -> None:
    files = {
        "workflows.yaml": COMPLETED,
        "teams/a.yaml": "tools: {from_team: {}}",
        "shop.yaml": "tools: {buy: {}}",
        "other.yaml": "tools: {elsewhere: {}}",
        "wrong.yaml": "tools: [",
    }
    for name, text in files.items():
        (terminal.folder / name).parent.mkdir(exist_ok=True)
        (terminal.folder / name).write_text(text)
    typed = ["mcp-workflows", *line.split(" ")]
    env = {"_MCP_WORKFLOWS_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(typed), "COMP_CWORD": str(len(typed) - 1)}
    for name, value in env.items():
        terminal.monkeypatch.setenv(name, value)
    ended = terminal.run()
    assert (ended.code, ended.out.split(), ended.err) == (0, words, "")


def test_iam_of_several_engines_is_one_policy_each(terminal: Terminal, permits: Path) -> None:
    permits.write_text(PERMITS.replace("{adapter: memory}", "{adapter: permitting}"))
    ended = terminal.run("print", "iam", str(permits))
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.endswith("choose one with --engine orders or other\n")
    policy = json.loads(terminal.run("print", "iam", str(permits), "--engine", "other").out)
    assert [use["tool"] for use in policy["Statement"]] == ["far"]


def test_presets_are_listed_and_printed_as_they_are(terminal: Terminal) -> None:
    assert re.search(r"^wes +http +real +GA4GH", terminal.run("print", "presets").out, re.MULTILINE)
    assert terminal.run("print", "presets", "wes").out.startswith("about:")
    Draft202012Validator.check_schema(terminal.run("print", "schema", "--preset").json)


@pytest.mark.parametrize("words", [[], ["check"], ["call"]])
def test_a_help_names_no_types_of_python(terminal: Terminal, words: list[str]) -> None:
    ended = terminal.run(*words, "--help")
    assert (ended.code, re.findall(r"<[^>|]*>", ended.out)) == (0, [])


def test_the_version_is_that_of_the_package(terminal: Terminal) -> None:
    ended = terminal.run("--version")
    assert (ended.code, ended.out) == (0, "mcp-workflows 0.2.0\n")
