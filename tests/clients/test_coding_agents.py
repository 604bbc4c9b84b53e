"""A coding agent that nobody here wrote follows the packaged skill; its model is scripted."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.host_matrix import HOSTS, PACKAGES, Target
from tests.clients.host_model import YAML_BLOCK, ScriptedModel, prompt_of
from tests.clients.host_trials import PATIENCE, until
from tests.support import commands
from tests.support.child_processes import Child, Command, free_port, stop_all
from tests.support.commands import COMMAND
from tests.support.dev_server import DevServer
from tests.support.environments import NODE, ROOT, npm_packages

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("processes")]


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"call": tool, "arguments": arguments}


@pytest.fixture
def worked(dev_server: DevServer, tmp_path: Path) -> Generator[str]:
    """Return the address of a Temporal server with the workers of samples/orders."""
    folder = ROOT / "samples" / "orders"
    words = (sys.executable, "worker.py")
    worker = Child(
        Command(name="worker", argv=words, cwd=folder, env={"TEMPORAL_ADDRESS": dev_server.address}),
        tmp_path / "worker.log",
    )
    queue = ("task-queue", "describe", "--task-queue", "orders", "--output", "json")
    try:
        until(lambda: bool(json.loads(dev_server.cli(*queue).stdout or "{}").get("pollers")), worker.check)
        yield dev_server.address
    finally:
        stop_all([worker])


def test_opencode_finds_the_skill_and_writes_a_file_that_passes_the_check(tmp_path: Path, worked: str) -> None:
    assert commands.run([COMMAND, "skills", ".claude/skills", "--expose-workflow"], cwd=tmp_path).returncode == 0
    play = [
        call("skill", name="expose-workflow"),
        call("write", filePath=str(tmp_path / "workflows.yaml"), content=YAML_BLOCK),
        call("bash", command=f"{COMMAND} check workflows.yaml --json", description="Check the file"),
    ]
    opencode, codex = HOSTS["opencode"], HOSTS["codex"]
    programs = [
        min(npm_packages(f"host-{host.folder}", PACKAGES / host.folder / "package.json").glob(program))
        for host, program in ((opencode, opencode.program), (codex, "@openai/codex-*/vendor/*/codex-path/rg"))
    ]  # opencode would download rg
    env = {"PATH": f"{programs[1].parent}:{NODE.parent}:/usr/bin:/bin", "HOME": str(tmp_path / "home")}
    with ScriptedModel(free_port(), "http://127.0.0.1:9/mcp", tmp_path / "sent.jsonl") as model:
        for path, text in opencode.files(Target(model=model.url, command=("/bin/false",))).items():
            file = tmp_path / "home" / path
            file.parent.mkdir(parents=True)
            file.write_text(json.dumps({**json.loads(text), "mcp": {}}))
        words = [programs[0], *opencode.run, prompt_of(play)]
        env["TEMPORAL_ADDRESS"] = worked
        subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, timeout=PATIENCE, check=True)
        skill, written, checked = [request for request in model.requests if request.tools][-1].results
    assert "# Expose a workflow as an MCP tool" in skill
    assert "Wrote file" in written
    found = json.loads(checked)
    assert [each["ok"] for each in found["engines"]] == [True]
    [tool] = found["tools"]
    assert (tool["name"], tool["ok"]) == ("fulfil_order", None), tool  # no execution shows yet that the names are right
