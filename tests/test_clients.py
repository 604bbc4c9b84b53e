"""Clients that we did not write, against the sidecar and the real Temporal server."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_workflows_temporal.connection import quiet_runtime
from temporalio.client import Client
from temporalio.worker import Worker

from samples.conformance.workflows import ALL
from tests.dev_server import DevServer
from tests.sidecars import sidecar, write_config

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ROOT = Path(__file__).parent.parent
NODE = ROOT / "node_modules" / "node" / "bin" / "node"
YES = json.dumps({"action": "accept", "content": {"confirm": True}})
FASTMCP = ("fastmcp==4.1.0", "fastmcp-tasks==4.1.0")


@pytest.fixture
async def url(dev_server: DevServer, tmp_path: Path) -> AsyncGenerator[str]:
    """A sidecar over the fixtures' workflows."""
    queue = f"q-{uuid.uuid4().hex}"
    client = await Client.connect(dev_server.address, runtime=quiet_runtime())
    async with Worker(client, task_queue=queue, workflows=ALL):
        with sidecar(write_config(tmp_path, dev_server.address, queue)) as process:
            yield process.url


async def _run(*command: str | Path) -> str:
    done = await anyio.run_process([str(word) for word in command], check=False, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout.decode()
    return done.stdout.decode().strip().splitlines()[-1]


async def _ext_tasks(url: str, tool: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    script = ROOT / "tests" / "clients" / "ext_tasks.mjs"
    outcome: Mapping[str, Any] = json.loads(await _run(NODE, script, url, tool, json.dumps(arguments), YES))
    return outcome


async def test_the_official_typescript_client_gets_results_and_answers_questions(url: str) -> None:
    computed = await _ext_tasks(url, "slow", {"seconds": 1, "label": "x"})
    assert computed["kind"] == "task"
    assert "computed x" in computed["result"]["content"][0]["text"]
    confirmed = await _ext_tasks(url, "confirm", {"filename": "a.txt"})
    assert "a.txt" in confirmed["result"]["content"][0]["text"]


@pytest.fixture(scope="session")
def fastmcp() -> Path:
    """An environment of its own for FastMCP, whose pins are not ours."""
    folder = ROOT / ".cache" / "fastmcp"
    python = folder / "bin" / "python"
    if not (folder / ".ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", *FASTMCP], check=True, stderr=subprocess.DEVNULL
        )
        (folder / ".ready").touch()
    return python


async def test_fastmcps_client_gets_results_and_answers_questions(url: str, fastmcp: Path) -> None:
    script = ROOT / "tests" / "clients" / "with_fastmcp.py"
    computed = json.loads(await _run(fastmcp, script, url, "slow", '{"seconds": 1, "label": "x"}', YES))
    assert all("computed x" in text for text in computed)
    confirmed = json.loads(await _run(fastmcp, script, url, "confirm", '{"filename": "a.txt"}', YES))
    assert all("a.txt" in text for text in confirmed)
