"""`mcp-workflows init`: a first workflows.yaml, by options or by questions; with engines in the adapters' tests."""

from __future__ import annotations

import os
import pty
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, Field

from mcp_workflows.adapter import installed_adapters, load_adapter
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings, MemoryTooling
from mcp_workflows.kit.tooling import Discovered, Proposes
from mcp_workflows.sidecar.config.load import load_config
from tests.sidecar.cli.terminal import Terminal
from tests.support.child_processes import free_port
from tests.support.commands import COMMAND, start
from tests.support.strangers import installed

ROOT = Path(__file__).parents[3]
MEMORY = ("--engine", "memory", "--workflow", "echo")


def test_what_is_written_passes_check_at_once_and_the_next_command_is_said(terminal: Terminal) -> None:
    ended = terminal.run("init", *MEMORY, "--workflow", "sleep")
    assert (ended.code, ended.out.splitlines()[0]) == (0, "workflows.yaml: written")
    following = [line.strip() for line in ended.out.splitlines()[-3:]]
    assert following == [f"mcp-workflows {each}" for each in ("check", "call echo", "connect claude --write")]
    assert terminal.run("check").code == 0
    loaded = load_config((terminal.folder / "workflows.yaml"), {})
    assert [(tool.name, tool.workflow) for tool in loaded.tools] == [("echo", "echo"), ("sleep", "sleep")]
    assert not [name for name in os.listdir(terminal.folder) if name.startswith(".")]


class PrintShopSettings(MemorySettings):
    address: str = Field(description="Where it is.")
    copies: int = 1


class PrintShop(MemoryAdapter):
    """Somebody's adapter, which says nothing of first settings."""

    Settings: ClassVar[type[BaseModel]] = PrintShopSettings


def test_the_required_settings_of_any_adapter_are_asked_for(terminal: Terminal) -> None:
    installed(terminal.folder / "packages", terminal.monkeypatch, {"print-shop": PrintShop})
    ended = terminal.run("init", "--engine", "print-shop", "--workflow", "echo")
    assert (ended.code, ended.out) == (2, "")
    assert "--set address=..." in ended.err
    words = ("--set", "address=http://127.0.0.1:1", "--set", "copies=2")
    assert terminal.run("init", "--engine", "print-shop", "--workflow", "echo", *words).code == 0
    engine = load_config((terminal.folder / "workflows.yaml"), {}).engines["print-shop"]
    assert engine.settings == PrintShopSettings(address="http://127.0.0.1:1", copies=2)


@pytest.mark.parametrize("adapter", installed_adapters())
def test_every_adapter_makes_a_first_configuration_while_its_engine_is_away(terminal: Terminal, adapter: str) -> None:
    for name, value in {"NO_GCE_CHECK": "true", "TEMPORAL_ADDRESS": f"127.0.0.1:{free_port()}"}.items():
        terminal.monkeypatch.setenv(name, value)
    terminal.monkeypatch.delitem(sys.modules, "app", raising=False)  # another test may have loaded one
    kind = load_adapter(adapter)
    if isinstance(kind.tooling, Proposes):
        assert kind.tooling.first_settings.keys() <= kind.Settings.model_fields.keys()
    ended = terminal.run("init", "--engine", adapter, "--workflow", "FulfilOrder")
    assert ended.code == 0, ended.err
    assert f"note: engine {adapter}: " in ended.err
    [tool] = load_config((terminal.folder / "workflows.yaml"), os.environ).tools
    assert (tool.name, tool.workflow, tool.engine) == ("fulfil_order", "FulfilOrder", adapter)
    assert "    # input: {" in (terminal.folder / "workflows.yaml").read_text()


@pytest.mark.usefixtures("processes")
def test_at_a_terminal_it_asks_for_what_the_options_leave_open(terminal: Terminal) -> None:
    code, asked = at_a_terminal(terminal.folder, "memory\necho, sleep\n")
    assert code == 0, asked
    assert "Engine (" in asked
    assert "A workflow, by its name" in asked
    assert [tool.name for tool in load_config((terminal.folder / "workflows.yaml"), {}).tools] == ["echo", "sleep"]


class ListedTooling(MemoryTooling):
    """Lists workflows whose inputs are made of executions, and one with a name that would steer a terminal."""

    async def discover(self, named: Collection[str] = ()) -> Sequence[Discovered]:
        """As in the description of the class."""
        keys: Mapping[str, Any] = {"type": "object", "properties": {"alice_secret": {}}}
        hostile = Discovered(workflow="a\x1b[2J\nb")
        return [Discovered(workflow=name, input=keys, is_sampled=True) for name in ("echo", "sleep")] + [hostile]


class Listed(MemoryAdapter):
    """The memory engine with a list."""

    tooling: Any = ListedTooling


@pytest.fixture
def listed(terminal: Terminal) -> Terminal:
    """With `listed` as an adapter, in other processes, too."""
    installed(terminal.folder / "packages", terminal.monkeypatch, {"listed": Listed})
    terminal.monkeypatch.setenv("PYTHONPATH", f"{terminal.folder}/packages/site{os.pathsep}{ROOT}")
    return terminal


@pytest.mark.usefixtures("processes")
def test_the_list_to_choose_from_has_no_keys_of_executions_and_asks_again_for_a_number_beyond_it(
    listed: Terminal,
) -> None:
    code, asked = at_a_terminal(listed.folder, "1, 4\n2\n", "--engine", "listed")
    assert code == 0, asked
    assert "there is no number 4" in asked
    assert "a\\u001b[2J\\nb" in asked
    assert "alice_secret" not in asked
    written = (listed.folder / "workflows.yaml").read_text()
    assert [tool.name for tool in load_config(listed.folder / "workflows.yaml", {}).tools] == ["sleep"]
    assert written.count("alice_secret") == 1
    assert written.index("# inferred from recent executions") < written.index("alice_secret")


def test_no_name_of_a_workflow_steers_the_terminal(listed: Terminal) -> None:
    ended = listed.run("init", "--engine", "listed")
    assert (ended.code, "\x1b" in ended.err, "which workflow should become a tool?" in ended.err) == (2, False, True)


def test_the_workflows_that_are_named_are_no_comments_in_what_is_to_be_added(listed: Terminal) -> None:
    (listed.folder / "workflows.yaml").write_text("engines: {here: {adapter: listed}}\ntools: {}\n")
    lines = listed.run("init", "--add", "here", "--workflow", "sleep").out.splitlines()
    assert "  sleep:" in lines
    assert [line for line in lines if "alice_secret" in line] == [
        line for line in lines if line.startswith("    input:")
    ]
    assert "  # echo:  # no execution seen" in lines


def at_a_terminal(folder: Path, typed: str, *words: str) -> tuple[int, str]:
    """`mcp-workflows init WORDS` with these lines typed: its code, and what it has asked."""
    ours, theirs = pty.openpty()
    os.write(ours, typed.encode())
    code = start([COMMAND, "init", *words], cwd=folder, stdin=theirs, stderr=theirs).wait(60)
    asked = os.read(ours, 65536).decode()
    os.close(ours)
    os.close(theirs)
    return code, asked


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("answer", ["n", "y"])
def test_a_file_is_overwritten_only_when_somebody_agrees(terminal: Terminal, answer: str) -> None:
    file = terminal.folder / "workflows.yaml"
    file.write_text("# mine\n")
    assert "already exists" in terminal.run("init", *MEMORY, "--yes").err
    assert file.read_text() == "# mine\n"
    code, asked = at_a_terminal(terminal.folder, f"{answer}\n", *MEMORY)
    assert "workflows.yaml exists already. Overwrite it?" in asked
    assert (code == 0, file.read_text() != "# mine\n") == (answer == "y", answer == "y")


@pytest.mark.usefixtures("processes")
def test_settings_are_asked_for_only_if_no_engine_answers_with_the_usual_ones(terminal: Terminal) -> None:
    pytest.importorskip("mcp_workflows_temporal")
    away = f"127.0.0.1:{free_port()}"
    terminal.monkeypatch.setenv("TEMPORAL_ADDRESS", away)
    other = f"127.0.0.1:{free_port()}"
    code, asked = at_a_terminal(terminal.folder, f"{other}\n\norders\nFulfilOrder\n", "--engine", "temporal")
    assert code == 0, asked
    assert asked.index(f"{away}: connection refused") < asked.index("address:") < asked.index(f"{other}: connection")
    [engine] = load_config(terminal.folder / "workflows.yaml", {}).engines.values()
    assert engine.settings.model_dump(include={"address", "task_queue"}) == {"address": other, "task_queue": "orders"}


def test_an_engine_that_is_away_is_an_error_where_nobody_names_a_workflow(terminal: Terminal) -> None:
    pytest.importorskip("mcp_workflows_temporal")
    terminal.monkeypatch.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{free_port()}")
    ended = terminal.run("init", "--engine", "temporal", "--yes")
    assert (ended.code, ended.out, os.listdir(terminal.folder)) == (1, "", [])
    assert "temporal server start-dev" in ended.err
    assert "nothing was written" in ended.err


def test_a_preset_is_an_engine_of_its_own(terminal: Terminal) -> None:
    pytest.importorskip("mcp_workflows_http")
    url = f"http://127.0.0.1:{free_port()}"
    words = ("--set", f"url={url}", "--set", 'auth={"bearer": "${TOKEN}"}', "--workflow", "release")
    terminal.monkeypatch.setenv("TOKEN", "t")
    ended = terminal.run("init", "--engine", "airflow", *words)
    assert ended.code == 0, ended.err
    [engine] = load_config(terminal.folder / "workflows.yaml", {"TOKEN": "t"}).engines.values()
    assert (engine.name, engine.adapter) == ("airflow", "http")
    assert {"preset: airflow", 'auth: {"bearer": "${TOKEN}"}'} <= {
        line.strip() for line in (terminal.folder / "workflows.yaml").read_text().splitlines()
    }
