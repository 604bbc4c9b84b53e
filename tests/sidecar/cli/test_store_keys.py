"""`store.encryption` in workflows.yaml, and `mcp-workflows store`: where keys come from, and how they are changed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from mcp_workflows.sidecar.cli.app import main
from mcp_workflows.sidecar.config.models import Config
from mcp_workflows.store.encryption import new_key
from mcp_workflows.task import Task
from mcp_workflows.testing import make_task
from tests.support.config_files import FINE, load, problems

KEY, OLD = new_key(), new_key()
FROM_ENVIRONMENT = 'store: {url: "sqlite:///tasks.db", encryption: {keys: ["${KEY}"]}}\n'
ROTATED = 'store: {url: "sqlite:///tasks.db", encryption: {keys: ["${KEY}", "${OLD}"]}}\n'
FROM_FILE = 'store: {url: "sqlite:///tasks.db", encryption: {key_file: keys.txt}}\n'
PLAIN = 'store: "sqlite:///tasks.db"\n'

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """`mcp-workflows WORDS` in this process: its exit code, and what it prints."""

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["mcp-workflows", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return call


def key_file(folder: Path, *lines: str, mode: int = 0o600) -> Path:
    path = folder / "keys.txt"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    path.chmod(mode)
    return path


async def create(config: Config, task: Task) -> Task:
    async with config.store.open() as store:
        return await store.create(task)


async def get(config: Config, task: Task) -> Task | None:
    async with config.store.open() as store:
        return await store.get(task.id, task.owner)


async def test_keys_come_from_a_file_beside_the_configuration(tmp_path: Path) -> None:
    key_file(tmp_path, "# since July", KEY, "", f"  {OLD} ")
    task = make_task()
    assert await create(load(tmp_path, FROM_FILE + FINE), task) == task
    assert await get(load(tmp_path, FROM_ENVIRONMENT + FINE, KEY=KEY), task) == task


def test_no_key_is_ever_shown(tmp_path: Path) -> None:
    config = load(tmp_path, FROM_ENVIRONMENT + FINE, KEY=KEY)
    for shown in (repr(config), str(config.store), str(config.store.model_dump()), config.store.model_dump_json()):
        assert KEY not in shown
    assert repr(config.store.open()).count(KEY) == 0


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o660, 0o666])
def test_a_key_file_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = key_file(tmp_path, KEY, mode=mode)
    (said,) = problems(tmp_path, FROM_FILE + FINE)
    assert said.startswith(f"1: store.encryption.key_file: the key file {path} can be read or changed by others")
    assert f"chmod 600 {path}" in said
    assert KEY not in said


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440])
def test_a_key_file_of_its_user_and_group_is_taken(tmp_path: Path, mode: int) -> None:
    key_file(tmp_path, KEY, mode=mode)
    assert load(tmp_path, FROM_FILE + FINE).store.open()


def test_a_key_file_that_is_not_there_or_empty_is_named(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    assert problems(tmp_path, FROM_FILE + FINE) == [
        f"1: store.encryption.key_file: the key file {path} cannot be read: No such file or directory"
    ]
    key_file(tmp_path, "", "# none yet")
    (said,) = problems(tmp_path, FROM_FILE + FINE)
    assert f"the key file {path} has no key in it" in said


@pytest.mark.parametrize(
    ("written", "at"), [('keys: ["${KEY}", hunter2-hunter2]', "keys"), ("key_file: keys.txt", "key_file")]
)
def test_what_is_no_key_is_said_with_its_line_and_not_shown(tmp_path: Path, written: str, at: str) -> None:
    key_file(tmp_path, KEY, "hunter2-hunter2")
    (said,) = problems(tmp_path, f"store: {{encryption: {{{written}}}}}\n{FINE}", KEY=KEY)
    assert said.startswith(f"1: store.encryption.{at}: encryption key 2 is not a key")
    assert "mcp-workflows store key" in said
    assert "hunter2" not in said


@pytest.mark.parametrize("written", ["{}", "{keys: []}", '{keys: ["${KEY}"], key_file: keys.txt}'])
def test_keys_come_from_one_place(tmp_path: Path, written: str) -> None:
    (said,) = problems(tmp_path, f"store: {{encryption: {written}}}\n{FINE}", KEY=KEY)
    assert "either keys or a key_file" in said
    assert KEY not in said


def test_keys_are_changed_on_the_command_line(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(input="canary")
    config = tmp_path / "workflows.yaml"
    anyio.run(create, load(tmp_path, PLAIN + FINE), task)
    assert b"canary" in (tmp_path / "tasks.db").read_bytes()
    monkeypatch.setenv("KEY", OLD)
    config.write_text(FROM_ENVIRONMENT + FINE, encoding="utf-8")
    code, out, err = command("store", "rekey", str(config))
    assert (code, out) == (
        0,
        "encrypted with the first key: 1 tasks and notes that were not before\nthe other keys are no longer needed\n",
    )
    assert b"canary" not in (tmp_path / "tasks.db").read_bytes()
    monkeypatch.setenv("KEY", KEY)
    monkeypatch.setenv("OLD", OLD)
    config.write_text(ROTATED + FINE, encoding="utf-8")
    assert command("store", "rekey", str(config))[0] == 0
    assert anyio.run(get, load(tmp_path, FROM_ENVIRONMENT + FINE, KEY=KEY), task) == task
    code, out, err = command("store", "rekey", str(config))
    assert (code, out.startswith("encrypted with the first key: 0 ")) == (0, True)
    assert KEY not in out + err


def test_check_says_which_key_is_missing(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    anyio.run(create, load(tmp_path, FROM_ENVIRONMENT + FINE, KEY=OLD), make_task())
    monkeypatch.setenv("KEY", KEY)
    code, out, err = command("check", str(tmp_path / "workflows.yaml"))
    assert code == 1
    assert "the store is encrypted with key" in out + err
    assert KEY not in out + err
