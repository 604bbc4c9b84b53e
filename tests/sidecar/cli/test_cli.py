"""The command line, by its entry point: what it prints where, and the code it ends with."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import anyio
import pytest
import typer
from jsonschema import Draft202012Validator
from pydantic import BaseModel
from typer.core import TyperArgument

from mcp_workflows.adapter import JSON, Adapter, Execution, Finding, Ref, Start, StartGuarantee, Status
from mcp_workflows.adapter.memory import MemoryTooling
from mcp_workflows.errors import EngineUnavailable
from mcp_workflows.kit.tooling import Use
from mcp_workflows.sidecar.address import Address
from mcp_workflows.sidecar.checks import ItemState, check
from mcp_workflows.sidecar.cli.main import main
from mcp_workflows.sidecar.cli.options import read_address
from mcp_workflows.sidecar.config.load import load_config
from mcp_workflows.sidecar.config.models import Config
from mcp_workflows.testing import MemoryAdapter
from tests.support.child_processes import free_port
from tests.support.environments import INSPECTOR
from tests.support.strangers import installed

DOCS = Path(__file__).parents[3] / "docs"
COMMAND = str(Path(sysconfig.get_path("scripts")) / "mcp-workflows")

FINE = """\
server: {name: "Acme orders!"}
engines:
  orders: {adapter: memory}
tools:
  wait: {engine: orders, workflow: sleep, input: {type: object, properties: {}}}
  say: {engine: orders, workflow: echo, input: {type: object, properties: {}}}
"""
WRONG = "engines:\n  orders: {adapter: memory}\ntools:\n  wait: {engine: order, workflow: sleep}\n  say: {}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """Calls the entry point in this process, as a shell would."""

    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    def call(self, *arguments: str) -> Ended:
        self.monkeypatch.setattr(sys, "argv", ["mcp-workflows", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = self.capsys.readouterr()
        return Ended(code=int(ended.value.code or 0), out=printed.out, err=printed.err)


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setenv("COLUMNS", "200")
    return Terminal(capsys=capsys, monkeypatch=monkeypatch)


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "workflows.yaml"
    path.write_text(FINE, encoding="utf-8")
    return path


def test_the_version_is_that_of_the_package(terminal: Terminal) -> None:
    ended = terminal.call("--version")
    assert (ended.code, ended.out) == (0, "mcp-workflows 0.2.0.dev0\n")


def test_the_schema_is_json_on_standard_output(terminal: Terminal) -> None:
    ended = terminal.call("schema")
    assert ended.code == 0
    Draft202012Validator.check_schema(json.loads(ended.out))


@pytest.mark.parametrize("command", ["serve", "check"])
def test_a_wrong_config_ends_with_all_problems_and_no_trace(terminal: Terminal, tmp_path: Path, command: str) -> None:
    path = tmp_path / "workflows.yaml"
    path.write_text(WRONG, encoding="utf-8")
    ended = terminal.call(command, str(path))
    assert (ended.code, ended.out) == (1, "")
    assert [line.split(": ")[0] for line in ended.err.splitlines()] == [f"{path}:4", f"{path}:5", f"{path}:5"]
    assert "did you mean 'orders'?" in ended.err


@pytest.mark.parametrize("arguments", [["import"], ["serve", "x.yaml", "--htp", ":1"], ["connect", "emacs"], ["srve"]])
def test_wrong_usage_ends_with_2(terminal: Terminal, arguments: list[str]) -> None:
    ended = terminal.call(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert "Usage: mcp-workflows" in ended.err


@dataclass(frozen=True, slots=True, kw_only=True)
class Help:
    """What `--help` of a command prints."""

    words: Sequence[str]
    text: str

    def names(self, what: str) -> bool:
        return re.search(rf"(?<![\w-]){re.escape(what)}(?![\w-])", self.text) is not None


@pytest.fixture
def helps(terminal: Terminal) -> Sequence[Help]:
    """Of every command, found from the help of those around it."""
    found: list[Help] = []
    groups: list[list[str]] = [[]]
    for words in groups:
        ended = terminal.call(*words, "--help")
        assert ended.code == 0
        found.append(Help(words=words, text=ended.out))
        listed = ended.out.partition("Commands ")[2]
        groups.extend([*words, name] for name in re.findall(r"^. ([a-z-]+) ", listed, re.MULTILINE))
    return found


READING = {"serve", "dev", "check", "iam", "config show", "store rekey", "call", "replay", "import"}
NOTHING_ELSE = {"init", "serve", "dev", "check", "iam", "config show", "store rekey"}


def test_every_command_that_reads_a_configuration_takes_it_in_the_same_way(helps: Sequence[Help]) -> None:
    shown = {" ".join(each.words): each for each in helps}
    assert shown.keys() >= READING
    for name in (each for each in shown if each in READING or each.startswith("tasks ")):
        assert shown[name].names("-c"), name
        assert "The configuration. Default: workflows.yaml, or else app.py." in shown[name].text, name
    positional = {name for name, each in shown.items() if each.text.splitlines()[1].rstrip().endswith("[CONFIG]")}
    assert positional - {"connect"} == NOTHING_ELSE


@pytest.mark.skipif(not hasattr(TyperArgument, "display_type_rich"), reason="a Typer that shows no types")
def test_the_helps_of_all_commands_have_one_style(helps: Sequence[Help]) -> None:
    for each in helps:
        types = [found for found in re.findall(r"<([^>]*)>", each.text) if "|" not in found]
        assert types == [], f"{each.words}: a type of Python, or of a flag"
        usage = each.text.splitlines()[1].partition("[OPTIONS]")[2].split()
        assert all(word.strip("[].") == word.strip("[].").upper() for word in usage), each.words
        assert not any(found in each.text for found in ("{", "[[", "......")), each.words


@pytest.mark.parametrize(
    "words", [["check"], ["config", "show"], ["iam"], ["tasks", "list"], ["import", "x"], ["call", "x"]]
)
def test_without_a_configuration_here_it_is_said_how_to_get_one(
    terminal: Terminal, tmp_path: Path, words: Sequence[str]
) -> None:
    terminal.monkeypatch.chdir(tmp_path)
    ended = terminal.call(*words)
    assert (ended.code, ended.out) == (1, "")
    assert "workflows.yaml: no such file in this folder" in ended.err
    assert "mcp-workflows init" in ended.err
    assert "-c CONFIG" in ended.err


@pytest.mark.parametrize(
    ("words", "is_taken"), [(["tasks", "list"], True), (["check"], True), (["import", "x"], False)]
)
def test_a_folder_with_an_app_needs_no_configuration(
    terminal: Terminal, tmp_path: Path, words: Sequence[str], is_taken: bool
) -> None:
    terminal.monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text("raise ValueError('imported')\n")
    ended = terminal.call(*words)
    assert (ended.code, "imported" in ended.err, "no such file" in ended.err) == (1, is_taken, not is_taken)


@pytest.mark.parametrize(
    "words", [[], ["workflows.yaml"], ["-c", "workflows.yaml"], ["./workflows.yaml", "-c", "workflows.yaml"]]
)
def test_the_configuration_is_the_one_here_unless_another_is_named(
    terminal: Terminal, config_file: Path, words: Sequence[str]
) -> None:
    terminal.monkeypatch.chdir(config_file.parent)
    ended = terminal.call("check", *words)
    assert (ended.code, ended.out.splitlines()[-1]) == (0, "workflows.yaml: everything is fine")


def test_two_configurations_are_wrong_usage(terminal: Terminal, config_file: Path) -> None:
    ended = terminal.call("check", str(config_file), "-c", "workflows.yaml")
    assert (ended.code, ended.out) == (2, "")
    assert "there are two configurations" in ended.err


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


@pytest.mark.parametrize("address", ["0.0.0.0:8931", "[::]:8931", "192.0.2.1:8931", "sidecar.internal:8931"])
def test_serving_beyond_this_machine_is_refused(terminal: Terminal, config_file: Path, address: str) -> None:
    ended = terminal.call("serve", str(config_file), "--http", address)
    assert (ended.code, ended.out) == (1, "")
    assert "can be reached from other machines" in ended.err
    assert "--unsafe-no-auth" in ended.err


@pytest.mark.usefixtures("processes")
def test_serving_on_stdio_ends_with_its_client_and_prints_nothing_else(config_file: Path) -> None:
    command = [COMMAND, "serve", str(config_file)]
    ended = subprocess.run(command, input="", capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, "")


@pytest.mark.usefixtures("processes")
def test_serving_over_http_ends_quietly_when_interrupted(config_file: Path) -> None:
    port = free_port()
    arguments = ["serve", str(config_file), "--http", f":{port}", "--log-level", "warning"]
    with subprocess.Popen([COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as sidecar:
        try:
            _wait_until_alive(f"http://127.0.0.1:{port}/healthz", sidecar)
            sidecar.send_signal(signal.SIGINT)
            out, err = sidecar.communicate(timeout=60)
        finally:
            sidecar.kill()
    assert (sidecar.returncode, out, err) == (0, "", "")


def _wait_until_alive(url: str, sidecar: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and sidecar.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=1).close()
        except (urllib.error.URLError, ConnectionError):
            continue
        return
    pytest.fail(f"{url} never answered; the process ended with {sidecar.poll()}")


def test_check_says_in_a_table_that_everything_is_fine(terminal: Terminal, config_file: Path) -> None:
    ended = terminal.call("check", str(config_file))
    rows = [line.split() for line in ended.out.splitlines() if line]
    assert ended.code == 0
    assert [row[:2] for row in rows[1:5]] == [
        ["store", "sqlite"],
        ["engine", "orders"],
        ["tool", "wait"],
        ["tool", "say"],
    ]
    assert rows[3][2:6] == ["orders", "/", "sleep", "ok"]
    assert ended.out.splitlines()[-1] == f"{config_file}: everything is fine"


def test_check_says_what_is_not_fine_and_what_to_do(terminal: Terminal, config_file: Path) -> None:
    config_file.write_text(FINE.replace("echo", "ecko"), encoding="utf-8")
    ended = terminal.call("check", str(config_file))
    assert ended.code == 1
    assert "no workflow named 'ecko'" in ended.out
    assert "-> there are: ask," in ended.out
    assert ended.out.splitlines()[-1] == f"{config_file}: 1 problem"


def test_check_as_json_is_for_programs(terminal: Terminal, config_file: Path) -> None:
    config_file.write_text(FINE.replace("echo", "ecko"), encoding="utf-8")
    ended = terminal.call("check", str(config_file), "--json")
    found = json.loads(ended.out)
    assert ended.code == 1
    assert found["ok"] is False
    assert (found["store"]["ok"], found["store"]["url"]) == (True, f"sqlite:///{config_file.parent}/mcp-workflows.db")
    assert [(engine["name"], engine["adapter"], engine["ok"]) for engine in found["engines"]] == [
        ("orders", "memory", True)
    ]
    assert [(tool["name"], tool["engine"], tool["workflow"], tool["ok"]) for tool in found["tools"]] == [
        ("wait", "orders", "sleep", True),
        ("say", "orders", "ecko", False),
    ]
    assert found["tools"][1]["hint"].startswith("there are: ")


def test_check_as_json_lists_the_problems_of_a_wrong_config(terminal: Terminal, config_file: Path) -> None:
    config_file.write_text(WRONG, encoding="utf-8")
    ended = terminal.call("check", str(config_file), "--json")
    found = json.loads(ended.out)
    assert (ended.code, ended.err, found["ok"], len(found["errors"])) == (1, "", False, 3)


def test_check_of_an_engine_that_is_down_blames_the_engine(terminal: Terminal, config_file: Path) -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        engine = f"{{adapter: temporal, address: '{address}', task_queue: orders}}"
        config_file.write_text(FINE.replace("{adapter: memory}", engine), encoding="utf-8")
        ended = terminal.call("check", str(config_file), "--json")
    found = json.loads(ended.out)
    assert ended.code == 1
    assert found["engines"][0]["ok"] is False
    assert address in found["engines"][0]["text"]
    assert {tool["text"] for tool in found["tools"]} == {"not without engine orders"}


def test_check_of_a_store_that_cannot_be_used_is_a_row(terminal: Terminal, config_file: Path) -> None:
    config_file.write_text(f"store: sqlite:///none/tasks.db\n{FINE}", encoding="utf-8")
    found = json.loads(terminal.call("check", str(config_file), "--json").out)
    assert found["store"]["ok"] is False
    assert found["engines"][0]["ok"] is True


class Nothing(BaseModel):
    """No settings, no options."""


class PlainAdapter(Adapter):
    """The smallest adapter there can be: it cannot check anything."""

    Settings: ClassVar[type[BaseModel]] = Nothing
    Options: ClassVar[type[BaseModel]] = Nothing
    starts: ClassVar[StartGuarantee] = StartGuarantee.ONCE

    def __init__(self, settings: Any) -> None:  # Any: as the boundary has it
        self._settings = settings

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to close."""

    async def start(self, start: Start) -> str:
        return start.key

    async def describe(self, ref: Ref) -> Execution:
        return Execution(status=Status.SUCCEEDED)

    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        """There are no questions."""

    async def cancel(self, ref: Ref) -> None:
        """All has ended."""


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


async def test_what_an_adapter_cannot_check_is_not_a_problem(config_file: Path) -> None:
    report = await check(_with_adapter(config_file, PlainAdapter))
    assert [row.state for row in report.rows] == [ItemState.OK, *[ItemState.NOT_CHECKED] * 3]
    assert report.summary == "no problem found, 3 not checked"
    assert report.as_json()["ok"] is True


async def test_a_check_that_takes_too_long_is_a_problem(config_file: Path) -> None:
    with anyio.fail_after(30):
        report = await check(_with_adapter(config_file, SilentAdapter), patience=0.2)
    assert [row.state for row in report.rows] == [ItemState.OK, ItemState.OK, ItemState.PROBLEM, ItemState.PROBLEM]
    assert report.rows[2].finding == Finding(ok=False, text="no answer within 0.2 s")


HTTP = {"url": "http://127.0.0.1:8931/mcp"}
SECTIONS = {
    "claude": "mcpServers",
    "vscode": "servers",
    "cursor": "mcpServers",
    "codex": "mcp_servers",
    "gemini": "mcpServers",
    "opencode": "mcp",
}
TYPES = {"claude": ("http", "stdio"), "vscode": ("http", "stdio"), "opencode": ("remote", "local")}
PLACES = {
    "claude": ".mcp.json",
    "vscode": ".vscode/mcp.json",
    "cursor": ".cursor/mcp.json",
    "codex": ".codex/config.toml",
    "gemini": ".gemini/settings.json",
    "opencode": "opencode.json",
}
URL_NAMES = {"gemini": "httpUrl"}


def _parsed(host: str, text: str) -> Any:  # any JSON or TOML value
    return tomllib.loads(text) if host == "codex" else json.loads(text)


@pytest.mark.parametrize("host", SECTIONS)
def test_connect_prints_a_snippet_for_a_sidecar_over_http(terminal: Terminal, host: str) -> None:
    ended = terminal.call("connect", host, "--url", HTTP["url"], "--name", "orders")
    entry = {URL_NAMES.get(host, "url"): HTTP["url"]}
    entry = {"type": TYPES[host][0], **entry} if host in TYPES else entry
    assert ended.code == 0
    assert _parsed(host, ended.out) == {SECTIONS[host]: {"orders": entry}}
    assert PLACES[host] in ended.err


@pytest.mark.parametrize("host", SECTIONS)
def test_connect_with_a_config_lets_the_host_start_the_sidecar(
    terminal: Terminal, config_file: Path, host: str
) -> None:
    terminal.monkeypatch.chdir(config_file.parent)
    ended = terminal.call("connect", host)
    words = ["serve", str(config_file)]
    entry = {"command": [COMMAND, *words]} if host == "opencode" else {"command": COMMAND, "args": words}
    entry = {"type": TYPES[host][1], **entry} if host in TYPES else entry
    assert _parsed(host, ended.out) == {SECTIONS[host]: {"Acme-orders": entry}}
    assert os.access(COMMAND, os.X_OK)


def test_connect_with_a_config_and_a_url_takes_the_name_from_the_config(terminal: Terminal, config_file: Path) -> None:
    ended = terminal.call("connect", "cursor", "-c", str(config_file), "--url", HTTP["url"])
    assert json.loads(ended.out) == {"mcpServers": {"Acme-orders": HTTP}}


def test_connect_needs_a_configuration_or_a_url(terminal: Terminal, tmp_path: Path) -> None:
    terminal.monkeypatch.chdir(tmp_path)
    ended = terminal.call("connect", "cursor")
    said = "name the configuration with --config, or say where it is served: --url http://127.0.0.1:8931/mcp"
    assert (ended.code, ended.out, ended.err) == (1, "", f"workflows.yaml: no such file; {said}\n")
    by_url = terminal.call("connect", "cursor", "--url", HTTP["url"])
    assert json.loads(by_url.out) == {"mcpServers": {"mcp-workflows": HTTP}}
    assert terminal.call("connect", "cursor", "-c", "other.yaml", "--url", HTTP["url"]).code == 1


def test_connect_claude_also_says_the_command_that_does_it(terminal: Terminal, config_file: Path) -> None:
    over_http = terminal.call("connect", "claude", "--url", HTTP["url"]).err
    over_stdio = terminal.call("connect", "claude", "-c", str(config_file)).err
    assert f"claude mcp add --transport http mcp-workflows {HTTP['url']}" in over_http
    assert f"claude mcp add --transport stdio Acme-orders -- {COMMAND} serve {config_file}" in over_stdio


def test_connect_inspector_prints_a_command_line(terminal: Terminal, config_file: Path) -> None:
    [(package, version)] = json.loads(INSPECTOR.read_text())["devDependencies"].items()  # the tests run this one
    inspector = ["npx", f"{package}@{version}"]
    over_http = shlex.split(terminal.call("connect", "inspector", "--url", HTTP["url"]).out)
    over_stdio = shlex.split(terminal.call("connect", "inspector", "-c", str(config_file)).out)
    assert over_http == [*inspector, "--transport", "http", "--server-url", HTTP["url"]]
    assert over_stdio == [*inspector, COMMAND, "serve", str(config_file)]


VARIABLES = """
server: {name: outside}
engines: {here: {adapter: memory, name: "${ENGINE_NAME}-${REGION:-e \\"$u}"}}
tools: {echo: {engine: here, workflow: echo}}
"""


@pytest.mark.parametrize(
    ("host", "handed_on"),
    [
        ("claude", {"env": {"ENGINE_NAME": "${ENGINE_NAME}", "REGION": '${REGION:-e "$u}'}}),
        ("vscode", {"env": {"ENGINE_NAME": "${env:ENGINE_NAME}", "REGION": "${env:REGION}"}}),
        ("cursor", {"env": {"ENGINE_NAME": "${env:ENGINE_NAME}", "REGION": 'e "$u'}}),
        ("codex", {"env_vars": ["ENGINE_NAME", "REGION"]}),
        ("gemini", {"env": {"ENGINE_NAME": "${ENGINE_NAME}", "REGION": 'e "$u'}}),
        ("opencode", {"environment": {"ENGINE_NAME": "{env:ENGINE_NAME}", "REGION": 'e "$u'}}),
    ],
)
def test_connect_hands_the_variables_of_the_config_on_and_needs_none_of_them(
    terminal: Terminal, tmp_path: Path, host: str, handed_on: dict[str, Any]
) -> None:
    config = tmp_path / "outside.yaml"
    config.write_text(VARIABLES)
    ended = terminal.call("connect", host, "-c", str(config))
    [entry] = _parsed(host, ended.out)[SECTIONS[host]].values()
    assert {key: entry[key] for key in entry.keys() & {"env", "env_vars", "environment"}} == handed_on
    assert "ENGINE_NAME" in ended.err


def test_connect_cursor_names_a_variable_that_is_set(terminal: Terminal, tmp_path: Path) -> None:
    config = tmp_path / "outside.yaml"
    config.write_text(VARIABLES)
    terminal.monkeypatch.setenv("REGION", "us")
    [entry] = json.loads(terminal.call("connect", "cursor", "-c", str(config)).out)["mcpServers"].values()
    assert entry["env"]["REGION"] == "${env:REGION}"


@pytest.mark.usefixtures("processes")
def test_a_shell_fills_in_the_variables_of_the_inspectors_command_line(terminal: Terminal, tmp_path: Path) -> None:
    config = tmp_path / "outside.yaml"
    config.write_text(VARIABLES)
    line = terminal.call("connect", "inspector", "-c", str(config)).out
    shown = subprocess.run(
        ["sh", "-c", f"npx() {{ printf '%s\\n' \"$@\"; }}; {line}"],
        env={"ENGINE_NAME": "x y"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.splitlines()[1:5] == ["-e", "ENGINE_NAME=x y", "-e", 'REGION=e "$u']


def test_connect_claudes_command_hands_the_variables_on_as_the_snippet_does(terminal: Terminal, tmp_path: Path) -> None:
    config = tmp_path / "outside.yaml"
    config.write_text(VARIABLES)
    ended = terminal.call("connect", "claude", "-c", str(config))
    [command] = [shlex.split(line) for line in ended.err.splitlines() if line.startswith("claude ")]
    [(name, entry)] = json.loads(ended.out)["mcpServers"].items()
    variables = [command[at + 1] for at, word in enumerate(command) if word == "--env"]
    assert variables == [f"{key}={value}" for key, value in entry["env"].items()]
    assert command[command.index("--scope") :] == [
        *("--scope", "project", "--transport", "stdio", name, "--"),
        *(entry["command"], *entry["args"]),
    ]


@pytest.mark.parametrize("host", [*SECTIONS, "inspector"])
def test_no_url_that_connect_prints_has_anything_glued_to_it(
    terminal: Terminal, asking: Callable[[str], Path], host: str
) -> None:
    for way in (["--url", HTTP["url"]], ["-c", str(asking(ISSUERS))], ["-c", str(asking(TOKENS))]):
        ended = terminal.call("connect", host, *way)
        urls = re.findall(r"https?:[^\s\"]+", ended.err + ended.out)
        assert urls
        assert set(urls) <= {HTTP["url"], "https://workflows.example.com/mcp"}


ASKING = """
server: {{name: acme, public_url: "https://workflows.example.com", auth: {auth}}}
engines: {{here: {{adapter: memory}}}}
tools: {{echo: {{engine: here, workflow: echo}}}}
"""
TOKENS = f"{{tokens: [{{name: ci, sha256: {'9f' * 32}}}]}}"
ISSUERS = "{issuers: [{issuer: https://login.example.com}], required_scopes: [workflows]}"
PROXY = "{proxy: {peers: [10.0.0.7], subject_header: X-User}}"


@pytest.fixture
def asking(tmp_path: Path) -> Callable[[str], Path]:
    def write(auth: str) -> Path:
        path = tmp_path / "asking.yaml"
        path.write_text(ASKING.format(auth=auth))
        return path

    return write


@pytest.mark.parametrize(
    ("host", "where"),
    [
        ("claude", {"headers": {"Authorization": "Bearer ${ACME_TOKEN}"}}),
        ("vscode", {"headers": {"Authorization": "Bearer ${input:ACME_TOKEN}"}}),
        ("cursor", {"headers": {"Authorization": "Bearer ${env:ACME_TOKEN}"}}),
        ("codex", {"bearer_token_env_var": "ACME_TOKEN"}),
        ("gemini", {"headers": {"Authorization": "Bearer ${ACME_TOKEN}"}}),
        ("opencode", {"headers": {"Authorization": "Bearer {env:ACME_TOKEN}"}}),
    ],
)
def test_connect_tells_hosts_where_to_read_a_token_that_was_made_by_hand(
    terminal: Terminal, asking: Callable[[str], Path], host: str, where: dict[str, Any]
) -> None:
    ended = terminal.call("connect", host, "-c", str(asking(TOKENS)))
    made = _parsed(host, ended.out)
    entry = made[SECTIONS[host]]["acme"]
    url = URL_NAMES.get(host, "url")
    assert entry[url] == "https://workflows.example.com/mcp"
    assert {key: entry[key] for key in entry.keys() - {"type", url}} == where
    assert [each["id"] for each in made.get("inputs", ())] == (["ACME_TOKEN"] if host == "vscode" else [])
    assert "to log in: " in ended.err


@pytest.mark.parametrize("host", SECTIONS)
@pytest.mark.parametrize("auth", [ISSUERS, PROXY], ids=["issuers", "proxy"])
def test_connect_gives_a_host_no_token_where_people_log_in_themselves(
    terminal: Terminal, asking: Callable[[str], Path], host: str, auth: str
) -> None:
    ended = terminal.call("connect", host, "-c", str(asking(auth)))
    entry = _parsed(host, ended.out)[SECTIONS[host]]["acme"]
    assert entry.keys() - {"type"} == {URL_NAMES.get(host, "url")}
    assert ("no token is needed here" if auth == ISSUERS else "a proxy in front of the server") in ended.err


def test_connect_codex_names_the_command_that_logs_in(terminal: Terminal, asking: Callable[[str], Path]) -> None:
    assert (
        "`codex mcp login orders`"
        in terminal.call("connect", "codex", "-c", str(asking(ISSUERS)), "--name", "orders").err
    )


def test_connect_puts_the_token_into_command_lines_by_its_variable(
    terminal: Terminal, asking: Callable[[str], Path]
) -> None:
    config = str(asking(TOKENS))
    header = '--header "Authorization: Bearer $ACME_TOKEN"'
    assert terminal.call("connect", "inspector", "-c", config).out.endswith(
        f"https://workflows.example.com/mcp {header}\n"
    )
    assert f"acme https://workflows.example.com/mcp {header}" in terminal.call("connect", "claude", "-c", config).err


def test_connect_names_a_variable_that_a_shell_takes(terminal: Terminal, asking: Callable[[str], Path]) -> None:
    out = terminal.call("connect", "codex", "-c", str(asking(TOKENS)), "--name", "2nd place-to.go").out
    assert tomllib.loads(out)["mcp_servers"]["2nd-place-to-go"]["bearer_token_env_var"] == "_2ND_PLACE_TO_GO_TOKEN"


def test_connect_goes_where_the_config_says_it_is_served_unless_told_otherwise(
    terminal: Terminal, asking: Callable[[str], Path]
) -> None:
    config = str(asking(TOKENS))
    elsewhere = json.loads(terminal.call("connect", "cursor", "-c", config, "--url", HTTP["url"]).out)
    assert elsewhere["mcpServers"]["acme"] == {**HTTP, "headers": {"Authorization": "Bearer ${env:ACME_TOKEN}"}}
    started = terminal.call("connect", "cursor", "-c", config, "--stdio")
    assert json.loads(started.out)["mcpServers"]["acme"] == {"command": COMMAND, "args": ["serve", config]}
    assert "to log in: nothing" in started.err
    assert terminal.call("connect", "cursor", "-c", config, "--stdio", "--url", HTTP["url"]).code == 2


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
    ended = terminal.call("iam", str(permits))
    policy = json.loads(ended.out)
    assert (ended.code, policy["Version"]) == (0, "2012-10-17")
    pay, see, ship = policy["Statement"]
    gate = {"when": {"after_seconds": 0.0}, "send": "{{answer.ok}}", "decline": None}
    shared: dict[str, Any] = {"options": {}, "gates": {}, "watches": False, "answers": True, "cancels": True}
    assert pay == {**shared, "tool": "pay", "workflow": "echo"}
    assert see == {**shared, "tool": "see", "workflow": "ask", "watches": True, "cancels": False}
    assert ship == {**shared, "tool": "ship", "workflow": "gated", "gates": {"go": gate}}
    assert ended.err == "note: engine other: nothing for it, the adapter 'memory' has no policies\n"
    chosen = terminal.call("iam", str(permits), "--engine", "orders")
    assert (chosen.out, chosen.err) == (ended.out, "")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--engine", "order"], "no engine named 'order'; did you mean 'orders'? (engines: orders, other)"),
        (["--engine", "other"], "engine other: the adapter 'memory' cannot tell which permissions it needs"),
    ],
)
def test_iam_says_which_engines_there_are_and_which_cannot_tell(
    terminal: Terminal, permits: Path, arguments: list[str], complaint: str
) -> None:
    ended = terminal.call("iam", str(permits), *arguments)
    assert (ended.code, ended.out, ended.err) == (1, "", f"{complaint}\n")


def test_iam_where_no_engine_can_tell_says_so(terminal: Terminal, config_file: Path) -> None:
    ended = terminal.call("iam", str(config_file))
    complaint = "engine orders: the adapter 'memory' cannot tell which permissions it needs\n"
    assert (ended.code, ended.out, ended.err) == (1, "", complaint)


def test_iam_of_several_engines_is_one_policy_each(terminal: Terminal, permits: Path) -> None:
    permits.write_text(PERMITS.replace("{adapter: memory}", "{adapter: permitting}"))
    ended = terminal.call("iam", str(permits))
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.endswith("each is printed by itself: say --engine orders or other\n")
    policy = json.loads(terminal.call("iam", str(permits), "--engine", "other").out)
    assert [use["tool"] for use in policy["Statement"]] == ["far"]


def test_iam_of_an_engine_that_gives_no_answer_says_so(terminal: Terminal, permits: Path) -> None:
    permits.write_text(PERMITS.replace("{adapter: permitting}", "{adapter: permitting, unreachable: true}"))
    ended = terminal.call("iam", str(permits), "--engine", "orders")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "engine orders: the engine in memory does not answer\n"


def test_docs_lists_the_pages_with_their_titles(terminal: Terminal) -> None:
    ended = terminal.call("docs")
    assert ended.code == 0
    assert re.search(r"^gates +Gates: people in workflows that were not written for us$", ended.out, re.MULTILINE)
    assert "grafana-dashboard.json" in ended.out


@pytest.mark.parametrize("name", ["gates", "gates.md", "docs/gates.md"])
def test_docs_prints_a_page_as_it_is_where_nobody_reads_along(terminal: Terminal, name: str) -> None:
    assert terminal.call("docs", name).out == (DOCS / "gates.md").read_text()


@pytest.mark.parametrize("name", ["presets/buildbot", "presets/buildbot.md", "docs/presets/buildbot.md"])
def test_docs_prints_the_page_of_a_preset(terminal: Terminal, name: str) -> None:
    assert terminal.call("docs", name).out == (DOCS / "presets" / "buildbot.md").read_text()


def test_docs_prints_a_file_that_pages_tell_of(terminal: Terminal) -> None:
    assert terminal.call("docs", "alerts.yaml").out == (DOCS / "alerts.yaml").read_text()


def test_docs_prints_one_section_with_those_inside_it(terminal: Terminal) -> None:
    text = (DOCS / "google-access.md").read_text()
    start, end = text.index("## What workflows may call"), text.index("## Labelled workflows")
    out = terminal.call("docs", "google-access#what-workflows-may-call").out
    assert out.rstrip() == text[start:end].rstrip()
    assert "### Reaching the sidecar from Google" in out


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("gate", "there is no page 'gate' (`mcp-workflows docs` lists them); did you mean 'gates'?\n"),
        ("../README", "there is no page '../README' (`mcp-workflows docs` lists them)\n"),
        ("gates#limit", "; did you mean 'limits'?\n"),
        ("alerts.yaml#limits", "alerts.yaml has no section 'limits' (it has: none)\n"),
    ],
)
def test_docs_says_what_there_is_instead(terminal: Terminal, page: str, told: str) -> None:
    ended = terminal.call("docs", page)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.endswith(told)


@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such terminals")
def test_docs_shows_a_page_in_the_pager_of_a_terminal(tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    ours, theirs = os.openpty()
    environment = {**os.environ, "PAGER": f"tee {shown}", "TERM": "xterm", "COLUMNS": "80"}
    with os.fdopen(ours, "rb", closefd=True):
        command = [COMMAND, "docs", "gates#limits"]
        subprocess.run(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, timeout=60, check=True)
        os.close(theirs)
    text = shown.read_text()
    assert "\x1b[" in text
    assert "## " not in text
    assert "Limits" in text
