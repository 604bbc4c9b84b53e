"""`mcp-workflows skills`: Agent Skills as files."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from tests.receiver.test_skills import read_frontmatter
from tests.support import commands
from tests.support.commands import COMMAND

pytestmark = pytest.mark.usefixtures("processes")


def test_the_command_writes_a_skill_for_each_tool(tmp_path: Path) -> None:
    (tmp_path / "workflows.yaml").write_text(
        "engines: {here: {adapter: memory}}\ntools: {echo: {engine: here, workflow: echo}}\n"
    )
    done = commands.run([COMMAND, "skills", "skills"], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "skills/echo/SKILL.md\n")
    assert read_frontmatter((tmp_path / "skills" / "echo" / "SKILL.md").read_text())["name"] == "echo"
    (tmp_path / "file").touch()
    failed = commands.run([COMMAND, "skills", "file"], cwd=tmp_path)
    assert (failed.returncode, "file/echo" in failed.stderr, "Traceback" in failed.stderr) == (1, True, False)


def test_a_file_of_the_user_is_replaced_only_after_a_confirmation_and_a_link_never(tmp_path: Path) -> None:
    words = [COMMAND, "skills", "skills", "--expose-workflow"]
    path = tmp_path / "skills" / "expose-workflow" / "SKILL.md"
    assert commands.run(words, cwd=tmp_path).returncode == 0
    written = path.read_text()
    assert commands.run(words, cwd=tmp_path).returncode == 0
    path.write_text("mine")
    refused = commands.run(words, cwd=tmp_path)
    assert (refused.returncode, "add --yes" in refused.stderr, path.read_text()) == (1, True, "mine")
    assert commands.run([*words, "--yes"], cwd=tmp_path).returncode == 0
    assert path.read_text() == written
    for link in (path, path.parent):
        (tmp_path / "victim").mkdir(exist_ok=True)
        shutil.rmtree(path.parent)
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(tmp_path / "victim", target_is_directory=True)
        refused = commands.run([*words, "--yes"], cwd=tmp_path)
        assert (refused.returncode, "is a link" in refused.stderr) == (1, True)
        assert list((tmp_path / "victim").iterdir()) == []


def test_an_agent_that_follows_the_skill_writes_a_file_that_passes_the_check(tmp_path: Path) -> None:
    assert commands.run([COMMAND, "skills", "skills", "--expose-workflow"], cwd=tmp_path).returncode == 0
    text = (tmp_path / "skills" / "expose-workflow" / "SKILL.md").read_text()
    assert set(read_frontmatter(text)) == {"name", "description"}
    assert len(read_frontmatter(text)["description"]) <= 1024
    [written] = re.findall(r"(?ms)^```yaml\n(.*?)^```", text)
    (tmp_path / "workflows.yaml").write_text(written)
    commanded = [line for block in re.findall(r"(?ms)^```sh\n(.*?)^```", text) for line in block.splitlines()]
    ours = [line.partition("#")[0].split() for line in commanded if line.startswith("mcp-workflows ")]
    assert [line[1] for line in ours] == ["init", "check", "call", "connect"]
    nowhere = {**os.environ, "TEMPORAL_ADDRESS": "127.0.0.1:1"}
    checked = commands.run([COMMAND, "check", "workflows.yaml", "--json"], cwd=tmp_path, env=nowhere)
    found = json.loads(checked.stdout)
    assert [each["ok"] for each in found["engines"]] == [False]  # of all that is checked, only the engine is missing
    assert [each["text"] for each in found["tools"]] == ["not without engine orders"]
    sent = commands.run([COMMAND, *ours[2][1:]], cwd=tmp_path)
    assert (sent.returncode, '"A-1001"' in sent.stdout) == (0, True)
