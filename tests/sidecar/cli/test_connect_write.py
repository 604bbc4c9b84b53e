"""`mcp-workflows connect HOST --write`: the entry gets into the host's file, and all else stays as it is."""

from __future__ import annotations

import json
import os
import pty
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mcp_workflows.sidecar.cli.connect import _plain  # pyright: ignore[reportPrivateUsage]
from tests.sidecar.cli.terminal import Terminal
from tests.support.commands import COMMAND, start

CONFIG = """\
server: {name: shop}
engines: {here: {adapter: memory}}
tools: {say: {engine: here, workflow: echo}}
"""


@pytest.fixture
def home(terminal: Terminal) -> Path:
    """The folder of a configuration, which is the home of hosts, too."""
    (terminal.folder / "workflows.yaml").write_text(CONFIG)
    terminal.monkeypatch.setenv("CODEX_HOME", str(terminal.folder / "codex"))
    return terminal.folder


FILES: Mapping[str, tuple[str, str]] = {
    "claude": (".mcp.json", "mcpServers"),
    "vscode": (".vscode/mcp.json", "servers"),
    "cursor": (".cursor/mcp.json", "mcpServers"),
    "codex": ("codex/config.toml", "mcp_servers"),
    "gemini": (".gemini/settings.json", "mcpServers"),
    "opencode": ("opencode.json", "mcp"),
}


def parsed(path: Path) -> Any:  # Any: JSON or TOML
    text = path.read_text("utf-8-sig")
    return tomllib.loads(text) if path.suffix == ".toml" else json.loads(_plain(text))


@pytest.mark.parametrize("host", FILES)
def test_a_new_file_has_what_is_printed_otherwise(terminal: Terminal, home: Path, host: str) -> None:
    name, section = FILES[host]
    printed = terminal.run("connect", host).out
    ended = terminal.run("connect", host, "--write", "--yes")
    assert ended.code == 0, ended.err
    assert f"{name}: written" in ended.out
    whole = tomllib.loads(printed) if host == "codex" else json.loads(printed)
    assert parsed(home / name) == whole
    assert whole[section]["shop"]
    again = terminal.run("connect", host, "--write")
    assert (again.code, "is up to date" in again.out) == (0, True)
    assert [each.name for each in (home / name).parent.glob("*.bak*")] == []


KEPT: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "empty": ("claude", "", {}),
    "compact": ("claude", '{"mcpServers":{"a":{"command":"x"}},"z":1}', {"z": 1}),
    "comments": (
        "vscode",
        '{\n\t// mine\n\t"servers": {\n\t\t"a": {"url": "http://x"}, // last, {\n\t},\n\t/* z, */ "z": [1, 2,],\n}\n',
        {"z": [1, 2]},
    ),
    "other settings": ("gemini", '{\n    "theme": "a,]}//",\n    "x": {}\n}\n', {"theme": "a,]}//", "x": {}}),
    "own keys": ("claude", '{"mcpServers": {"shop": {"url": "http://a", "timeout": 5, "env": {"A": "b"}}}}', {}),
    "half windows": ("claude", '{\r\n  "theme": "x"\n}\n', {"theme": "x"}),
    "byte order mark": ("claude", '\ufeff{"theme": "x"}', {"theme": "x"}),
    "windows": ("opencode", '{\r\n  "theme": "x"\r\n}\r\n', {"theme": "x"}),
    "toml": ("codex", '# mine\nmodel = "x"  # here\n\n[mcp_servers.a]\ncommand = "b"\n', {"model": "x"}),
    "toml of ours": (
        "codex",
        '[mcp_servers.shop]\nurl = "http://a"\nstartup_timeout_sec = 9 # slow\n[mcp_servers.shop.env]\nA = "b"\n',
        {},
    ),
}


@pytest.mark.parametrize("what", KEPT)
def test_all_else_in_the_file_stays_and_there_is_a_backup(terminal: Terminal, home: Path, what: str) -> None:
    host, before, others = KEPT[what]
    name, section = FILES[host]
    path = home / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(before.encode())
    had: dict[str, Any] = parsed(path) if before else {}
    ended = terminal.run("connect", host, "--write", "--yes")
    assert ended.code == 0, ended.err
    after = path.read_bytes().decode()
    found = parsed(path)
    assert {key: value for key, value in found.items() if key != section} == others
    servers = found[section]
    assert {each: servers[each] for each in servers if each != "shop"} == {
        each: value for each, value in had.get(section, {}).items() if each != "shop"
    }
    assert COMMAND in str(servers["shop"])
    assert "http://a" not in str(servers["shop"])
    comments = re.findall(r"(?://|#) .*|/\*.*?\*/", before)
    assert [comment for comment in comments if comment.strip() not in after] == []
    all_lines = after.count("\n") if what == "windows" else before.count("\r\n")
    assert (after.count("\r\n"), after.startswith("\ufeff")) == (all_lines, before.startswith("\ufeff"))
    assert path.with_name(f"{path.name}.bak").read_bytes() == before.encode()
    if what == "own keys":
        assert (servers["shop"]["timeout"], servers["shop"]["env"]) == (5, {"A": "b"})
    if what == "toml of ours":
        assert (servers["shop"]["startup_timeout_sec"], servers["shop"]["env"]) == (9, {"A": "b"})


@pytest.mark.parametrize(
    ("host", "text", "said"),
    [
        ("claude", '{"mcpServers": {"a": }', "Expecting value: line 1"),
        ("claude", '{"mcpServers": []}', "must be an object"),
        ("claude", "[]", "must be an object"),
        ("claude", '{"mcpServers": {"shop": 1}}', "must be an object"),
        ("claude", '{"a": "\\ud800", "mcpServers": {}, "mcpServers": {"b": {}}', "line 1"),
        ("claude", "\xff", "codec"),
        ("claude", '{"mcpServers": {"shop": {"env": {"A": "\\ud800"}}}}', "surrogates not allowed"),
        ("codex", "model = \n", "line 1"),
        ("codex", "mcp_servers = 3\n", "must be an object"),
        ("codex", 'mcp_servers = {a = {command = "b"}}\n', "mcp_servers.shop has a form that cannot be changed here"),
        ("codex", '[mcp_servers]\nshop = {command = "b"}\n', "shop has a form that cannot be changed here"),
    ],
)
def test_a_file_that_cannot_be_understood_is_left_alone(
    terminal: Terminal, home: Path, host: str, text: str, said: str
) -> None:
    path = home / FILES[host][0]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode("latin-1"))
    ended = terminal.run("connect", host, "--write", "--yes")
    assert (ended.code, path.read_bytes()) == (1, text.encode("latin-1"))
    assert f"{path.name}: nothing was changed" in ended.err
    assert said in ended.err
    assert list(path.parent.glob("*.bak*")) == []


def test_a_second_backup_leaves_the_first_one(terminal: Terminal, home: Path) -> None:
    path = home / ".mcp.json"
    path.write_text("{}")
    path.chmod(0o600)
    terminal.run("connect", "claude", "--write", "--yes")
    terminal.run("connect", "claude", "--write", "--yes", "--name", "other")
    assert (home / ".mcp.json.bak").read_text() == "{}"
    assert list(json.loads((home / ".mcp.json.bak1").read_text())["mcpServers"]) == ["shop"]
    assert list(json.loads(path.read_text())["mcpServers"]) == ["shop", "other"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_link_stays_one_and_secrets_beside_the_entry_are_not_shown(terminal: Terminal, home: Path) -> None:
    there = home / "dotfiles.json"
    there.write_text('{\n  "mcpServers": {\n    "a": {\n      "env": {"K": "hunter2"}\n    }\n  }\n}\n')
    (home / ".mcp.json").symlink_to(there)
    ended = terminal.run("connect", "claude", "--write", "--yes")
    assert (home / ".mcp.json").is_symlink()
    assert "shop" in there.read_text()
    assert '"shop": {' in ended.out
    assert "hunter2" not in ended.out


def test_nothing_that_the_file_has_is_shown_but_the_keys_of_the_entry_that_go(terminal: Terminal, home: Path) -> None:
    own = {"url": "https://x/hunter2", "headers": {"Authorization": "Bearer hunter2"}, "env": {"B": "hunter2"}}
    whole = {"mcpServers": {"shop": own, "other": {"env": {"A": "hunter2"}}}}
    (home / ".mcp.json").write_text(json.dumps(whole))
    ended = terminal.run("connect", "claude", "--write", "--yes")
    assert ended.code == 0, ended.err
    assert "hunter2" not in ended.out + ended.err
    assert "replaces these keys of shop: url, headers\n" in ended.out
    assert parsed(home / ".mcp.json")["mcpServers"]["shop"]["env"] == {"B": "hunter2"}


def test_an_entry_for_a_url_does_not_keep_the_environment_of_a_command(terminal: Terminal, home: Path) -> None:
    own = {"command": "shop", "env": {"TOKEN": "hunter2"}, "timeout": 5}
    (home / ".mcp.json").write_text(json.dumps({"mcpServers": {"shop": own}}))
    ended = terminal.run("connect", "claude", "--write", "--yes", "--url", "https://x.example/mcp")
    assert ended.code == 0, ended.err
    assert "replaces these keys of shop: command, env\n" in ended.out
    entry = parsed(home / ".mcp.json")["mcpServers"]["shop"]
    assert (entry["timeout"], "env" in entry) == (5, False)


def test_a_folder_with_an_app_needs_no_configuration(terminal: Terminal, home: Path) -> None:
    (terminal.folder / "workflows.yaml").unlink(missing_ok=True)
    (terminal.folder / "app.py").write_text(
        "from dbos import DBOS\n\n\n@DBOS.workflow()\nasync def order() -> str:\n    return ''\n"
    )
    shown = terminal.run("connect", "claude")
    assert shown.code == 0, shown.err
    [entry] = json.loads(shown.out)["mcpServers"].values()
    assert entry["args"] == ["serve", str(terminal.folder / "app.py")]


@pytest.mark.parametrize("url", ["javascript:alert(1)", "https://u:pw@x.example/mcp", "x.example/mcp", "https://"])
def test_an_address_that_is_no_http_url_or_has_a_password_is_refused(terminal: Terminal, home: Path, url: str) -> None:
    ended = terminal.run("connect", "vscode", "--url", url)
    assert (ended.code, ended.out) == (2, "")
    assert "pw@" not in ended.err


def test_an_empty_variable_for_codex_counts_as_none(terminal: Terminal, home: Path) -> None:
    terminal.monkeypatch.setenv("CODEX_HOME", "")
    terminal.monkeypatch.setenv("HOME", str(home))
    assert terminal.run("connect", "codex", "--write", "--yes").code == 0
    assert (home / ".codex/config.toml").exists()


@pytest.mark.parametrize("trouble", ["a file for a folder", "a loop of links", "no home"])
def test_a_place_that_cannot_be_used_is_an_error_in_a_line(terminal: Terminal, home: Path, trouble: str) -> None:
    host = "codex" if trouble == "no home" else "vscode"
    if trouble == "a file for a folder":
        (home / ".vscode").write_text("mine")
    elif trouble == "a loop of links":
        (home / ".vscode").mkdir()
        (home / ".vscode/mcp.json").symlink_to("mcp.json")
    else:
        terminal.monkeypatch.setenv("CODEX_HOME", "~nobody-has-this-name/codex")
    ended = terminal.run("connect", host, "--write", "--yes")
    assert (ended.code, ended.out) == (1, "")
    assert ": cannot be read: " in ended.err


def test_what_is_written_is_never_open_to_more_people_than_the_file_was(terminal: Terminal, home: Path) -> None:
    path = home / ".mcp.json"
    path.write_text("{}")
    path.chmod(0o640)
    before = os.umask(0)
    try:
        terminal.run("connect", "claude", "--write", "--yes")
        assert [each.stat().st_mode & 0o777 for each in home.glob(".mcp.json*")] == [0o640, 0o640]
        terminal.monkeypatch.setattr("shutil.copymode", max)  # changes nothing: as until that is done
        terminal.run("connect", "claude", "--write", "--yes", "--name", "other")
        assert path.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


@pytest.mark.usefixtures("processes")
def test_a_file_that_changes_while_somebody_is_asked_is_left_alone(terminal: Terminal, home: Path) -> None:
    path = home / ".mcp.json"
    path.write_text("{}")
    ours, theirs = pty.openpty()
    process = start([COMMAND, "connect", "claude", "--write"], cwd=home, stdin=theirs, stderr=theirs)
    asked = b""
    while b"Write .mcp.json?" not in asked:
        asked += os.read(ours, 65536)
    path.write_text('{"theme": "x"}')
    os.write(ours, b"y\n")
    assert process.wait(60) == 1
    os.close(ours)
    os.close(theirs)
    assert path.read_text() == '{"theme": "x"}'
    assert [each.name for each in home.glob(".mcp.json*")] == [".mcp.json"]


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("answer", ["n", "y"])
def test_at_a_terminal_somebody_is_asked_first(terminal: Terminal, home: Path, answer: str) -> None:
    ended = terminal.run("connect", "claude", "--write")
    assert (ended.code, "add --yes" in ended.err, (home / ".mcp.json").exists()) == (1, True, False)
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    code = start([COMMAND, "connect", "claude", "--write"], cwd=home, stdin=theirs, stderr=theirs).wait(60)
    assert "Write .mcp.json?" in os.read(ours, 65536).decode()
    os.close(ours)
    os.close(theirs)
    assert (code == 0, (home / ".mcp.json").exists()) == (answer == "y", answer == "y")


@pytest.mark.parametrize("host", ["inspector", "chatgpt"])
def test_a_host_without_a_file_says_so(terminal: Terminal, home: Path, host: str) -> None:
    ended = terminal.run("connect", host, "--write", "--url", "https://x.example/mcp")
    assert (ended.code, ended.out) == (2, "")
    assert "has no file to write to" in ended.err


TOKENS = CONFIG.replace("{name: shop}", '{name: shop, auth: {tokens: [{name: me, sha256: "' + "0" * 64 + '"}]}}')


def test_vs_codes_input_for_the_token_is_added_once(terminal: Terminal, home: Path) -> None:
    (home / "workflows.yaml").write_text(TOKENS)
    path = home / ".vscode/mcp.json"
    path.parent.mkdir()
    path.write_text('{"inputs": [\n  {"id": "mine"} // here\n]}')
    url = ("--url", "https://x.example/mcp")
    for name in ("shop", "shop-2", "shop"):
        terminal.run("connect", "vscode", "--write", "--yes", *url, "--name", name)
    assert [each["id"] for each in parsed(path)["inputs"]] == ["mine", "SHOP_TOKEN", "SHOP_2_TOKEN"]
    assert '{"id": "mine"}, // here' in path.read_text()


def test_a_comment_in_an_empty_list_of_inputs_stays(terminal: Terminal, home: Path) -> None:
    (home / "workflows.yaml").write_text(TOKENS)
    path = home / ".vscode/mcp.json"
    path.parent.mkdir()
    path.write_text('{"inputs": [ // {"id": "off"}\n]}')
    assert terminal.run("connect", "vscode", "--write", "--yes", "--url", "https://x.example/mcp").code == 0
    assert [each["id"] for each in parsed(path)["inputs"]] == ["SHOP_TOKEN"]
    assert '// {"id": "off"}' in path.read_text()


@pytest.mark.parametrize("inputs", ["null", '{"id": 1}', "[1]", '"x"'])
def test_inputs_of_another_form_are_left_alone(terminal: Terminal, home: Path, inputs: str) -> None:
    (home / "workflows.yaml").write_text(TOKENS)
    path = home / ".vscode/mcp.json"
    path.parent.mkdir()
    path.write_text(f'{{"inputs": {inputs}}}')
    ended = terminal.run("connect", "vscode", "--write", "--yes", "--url", "https://x.example/mcp")
    assert (ended.code, path.read_text()) == (1, f'{{"inputs": {inputs}}}')
