"""`mcp-workflows init`: a first workflows.yaml, by options or by questions; with engines in the adapters' tests."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import BaseModel, Field

from mcp_workflows.adapter import installed_adapters, load_adapter
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.kit.tooling import Proposes
from mcp_workflows.sidecar.cli.main import main
from mcp_workflows.sidecar.config.load import load_config
from tests.support.child_processes import free_port
from tests.support.commands import COMMAND
from tests.support.strangers import installed

MEMORY = ("--engine", "memory", "--workflow", "echo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """Runs the command in a folder, in this process."""

    path: Path
    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    @property
    def written(self) -> Path:
        return self.path / "workflows.yaml"

    def run(self, *words: str) -> Ended:
        self.monkeypatch.setattr(sys, "argv", ["mcp-workflows", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = self.capsys.readouterr()
        return Ended(code=int(ended.value.code or 0), out=printed.out, err=printed.err)


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return Folder(path=tmp_path, capsys=capsys, monkeypatch=monkeypatch)


def test_what_is_written_passes_check_at_once_and_the_next_command_is_said(folder: Folder) -> None:
    ended = folder.run("init", *MEMORY, "--workflow", "sleep")
    assert (ended.code, ended.out.splitlines()[0]) == (0, "workflows.yaml: written")
    assert ended.out.splitlines()[-1].strip() == "mcp-workflows check"
    assert folder.run("check").code == 0
    loaded = load_config(folder.written, {})
    assert [(tool.name, tool.workflow) for tool in loaded.tools] == [("echo", "echo"), ("sleep", "sleep")]
    assert not [name for name in os.listdir(folder.path) if name.startswith(".")]


def test_a_file_that_is_there_is_overwritten_by_force_only(folder: Folder) -> None:
    folder.written.write_text("mine")
    ended = folder.run("init", *MEMORY)
    assert (ended.code, ended.out, folder.written.read_text()) == (1, "", "mine")
    assert "workflows.yaml: exists already" in ended.err
    assert "--force" in ended.err
    assert folder.run("init", *MEMORY, "--force").code == 0
    assert load_config(folder.written, {}).tools[0].name == "echo"


def test_the_next_command_names_the_file_if_it_is_not_the_usual_one(folder: Folder) -> None:
    ended = folder.run("init", *MEMORY, "-c", "other.yaml")
    assert ended.out.splitlines()[-1].strip() == "mcp-workflows check -c other.yaml"
    assert not folder.written.exists()


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        ([], 2, "which engine? one of: "),
        (["--engine", "memory"], 2, "which workflow shall be a tool?"),
        (["--engine", "memry", "--workflow", "echo"], 1, "did you mean 'memory'?"),
        ([*MEMORY, "--set", "colour=red"], 1, "workflows.yaml:5: engines.memory.colour: unknown key"),
        ([*MEMORY, "--set", "colour"], 2, "'colour' is not NAME=VALUE"),
        ([*MEMORY, "-c", "nowhere/workflows.yaml"], 1, "nowhere/workflows.yaml: cannot be written"),
    ],
)
def test_what_is_missing_or_wrong_is_said_and_nothing_written(
    folder: Folder, words: Sequence[str], code: int, complaint: str
) -> None:
    ended = folder.run("init", *words)
    assert (ended.code, ended.out) == (code, "")
    assert complaint in ended.err
    assert os.listdir(folder.path) == []


class PrintShopSettings(MemorySettings):
    address: str = Field(description="Where it is.")
    copies: int = 1


class PrintShop(MemoryAdapter):
    """Somebody's adapter, which says nothing of first settings."""

    Settings: ClassVar[type[BaseModel]] = PrintShopSettings


def test_the_required_settings_of_any_adapter_are_asked_for(folder: Folder) -> None:
    installed(folder.path / "packages", folder.monkeypatch, {"print-shop": PrintShop})
    ended = folder.run("init", "--engine", "print-shop", "--workflow", "echo")
    assert (ended.code, ended.out) == (2, "")
    assert "--set address=..." in ended.err
    words = ("--set", "address=http://127.0.0.1:1", "--set", "copies=2")
    assert folder.run("init", "--engine", "print-shop", "--workflow", "echo", *words).code == 0
    engine = load_config(folder.written, {}).engines["print-shop"]
    assert engine.settings == PrintShopSettings(address="http://127.0.0.1:1", copies=2)


@pytest.mark.parametrize("adapter", installed_adapters())
def test_every_adapter_makes_a_first_configuration_while_its_engine_is_away(folder: Folder, adapter: str) -> None:
    for name, value in {"NO_GCE_CHECK": "true", "TEMPORAL_ADDRESS": f"127.0.0.1:{free_port()}"}.items():
        folder.monkeypatch.setenv(name, value)
    kind = load_adapter(adapter)
    if isinstance(kind.tooling, Proposes):
        assert kind.tooling.first_settings.keys() <= kind.Settings.model_fields.keys()
    ended = folder.run("init", "--engine", adapter, "--workflow", "FulfilOrder")
    assert ended.code == 0, ended.err
    assert f"note: engine {adapter}: " in ended.err
    [tool] = load_config(folder.written, os.environ).tools
    assert (tool.name, tool.workflow, tool.engine) == ("fulfil_order", "FulfilOrder", adapter)
    assert "    # input: {" in folder.written.read_text()


@pytest.mark.usefixtures("processes")
def test_at_a_terminal_it_asks_for_what_the_options_leave_open(folder: Folder) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, b"memory\necho, sleep\n")
    command = [COMMAND, "init"]
    done = subprocess.run(command, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, timeout=60, check=False)
    asked = os.read(ours, 65536).decode()
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 0, asked
    assert "Engine (" in asked
    assert "A workflow, by its name" in asked
    assert [tool.name for tool in load_config(folder.written, {}).tools] == ["echo", "sleep"]
