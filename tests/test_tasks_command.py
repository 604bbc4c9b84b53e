"""`mcp-workflows tasks` as the operator runs it: beside a running sidecar, without one, and without an engine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_workflows_temporal.connection import quiet_runtime
from temporalio.client import Client
from temporalio.worker import Worker

from mcp_workflows.cli import main
from samples.conformance.workflows import ALL
from tests.dev_server import DevServer
from tests.served import peer
from tests.sidecars import COMMAND, sidecar, write_config

pytestmark = pytest.mark.anyio

PATIENCE = 60.0  # seconds


@pytest.fixture
async def client(dev_server: DevServer) -> Client:
    return await Client.connect(dev_server.address, runtime=quiet_runtime())


@pytest.fixture
async def queue(client: Client) -> AsyncGenerator[str]:
    """A task queue of this test alone, and a worker on it."""
    name = f"q-{uuid.uuid4().hex}"
    async with Worker(client, task_queue=name, workflows=ALL):
        yield name


async def run(config: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`mcp-workflows tasks WORDS`."""
    done = await anyio.run_process([COMMAND, "tasks", *words, "-c", str(config)], check=False)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


async def out(config: Path, *words: str) -> str:
    """What it prints; fails the test if it fails."""
    done = await run(config, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def read(config: Path, *words: str) -> Any:
    return json.loads(await out(config, *words, "--json"))


async def test_the_operator_works_beside_a_running_sidecar(
    dev_server: DevServer, client: Client, queue: str, tmp_path: Path
) -> None:
    config = write_config(tmp_path, dev_server.address, queue)
    with sidecar(config) as served:
        async with peer(served.url) as host:
            slow = (await host.call("slow", {"seconds": 1000})).result["taskId"]
            asking = (await host.call("confirm", {"filename": "a.txt"})).result["taskId"]
            while (await host.get(asking))["status"] != "input_required":  # no event tells us
                await anyio.sleep(0.05)

            listed = await out(config, "list")
            assert re.search(rf"{slow[:12]} +slow +working +\d+ s +mcp-slow-", listed)
            assert re.search(rf"{asking[:12]} +confirm +input_required ", listed)
            why = await read(config, "why", asking[:10])
            assert (why["id"], why["reason"]) == (asking, "it waits for an answer: Delete a.txt?")
            assert f"task queue {queue}" in why["facts"]

            said = await out(config, "cancel", slow)
            assert slow in said
            assert (await host.until(slow))["status"] == "cancelled"
            said = await out(config, "cancel", asking, "--terminate", "--reason", "stocktaking")
            assert said == f"{asking}: cancelled, terminated: stocktaking\n"
            assert (await host.until(asking))["status"] == "cancelled"

            plain = await client.start_workflow("SlowCompute", args=[0, "x"], id=f"plain-{queue}", task_queue=queue)
            adopted = (await out(config, "adopt", "slow", plain.id)).strip()
            assert (await host.until(adopted))["status"] == "completed"


@pytest.mark.slow  # the same is shown in this process, by tests/test_operating.py
async def test_without_an_engine_the_operator_reads_what_the_store_knows(
    own_dev_server: DevServer, tmp_path: Path
) -> None:
    config = write_config(tmp_path, own_dev_server.address, "nobodys-queue")
    with sidecar(config) as served:
        async with peer(served.url) as host:
            task = (await host.call("slow", {"seconds": 1})).result["taskId"]
            while "nobody polls" not in (await host.get(task)).get("statusMessage", ""):  # no event tells us
                await anyio.sleep(0.1)
    why = await out(config, "why", task)  # without the sidecar, too
    assert re.search(r"why: +nobody polls task queue nobodys-queue\n", why)
    assert re.search(r"what to do: +start a worker on task queue nobodys-queue in namespace default\n", why)
    own_dev_server.kill()
    listed = await run(config, "list")
    assert "nobody polls task queue nobodys-queue" in listed.stdout
    assert "as last known: engine temporal: Temporal at" in listed.stderr
    cancelled = await run(config, "cancel", task)
    assert (cancelled.returncode, "noted, and delivered with the next look" in cancelled.stderr) == (1, True)
    own_dev_server.start()
    with sidecar(config) as served:
        async with peer(served.url) as host:
            await host.get(task)
            with anyio.fail_after(PATIENCE):
                while "cancellation requested" not in (await host.get(task)).get("statusMessage", ""):
                    await anyio.sleep(0.1)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["show", "nobody"], 1, "no task's id begins with 'nobody'"),
        (["cancel", "x", "--reason", "y"], 2, "--terminate"),
        (["list", "--status", "running"], 2, "working"),
        (["adopt", "nothing", "x"], 1, "no tool named 'nothing' in the configuration; there are: slow, confirm"),
        (["adopt", "slow", "x", "--args", "[1]"], 2, "is a JSON object"),
        (["adopt", "slow", "x", "--owner", ""], 2, "--owner is empty"),
    ],
)
def test_what_the_operator_gets_wrong_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    said: str,
) -> None:
    config = write_config(tmp_path, "localhost:1", "q")
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(sys, "argv", ["mcp-workflows", "tasks", *words, "-c", str(config)])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (code, "")
    assert said in printed.err
    assert "Traceback" not in printed.err
