"""The proof of gates: a TypeScript workflow with a plain approval signal, unmodified, as docs/use/gates.md tells it."""

from __future__ import annotations

import json
import os
import re
import shlex
import uuid
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from adapters.temporal.tests.scene import PATIENCE
from adapters.temporal.tests.typescript_worker import Factory
from tests.support.child_processes import free_port
from tests.support.commands import COMMAND, run
from tests.support.dev_server import DevServer
from tests.support.served import Peer, peer
from tests.support.sidecars import Process

DOCS = Path(__file__).parents[3] / "docs" / "use" / "gates.md"
SHIP = Path(__file__).with_name("typescript") / "workflows" / "ship.ts"


def block(language: str) -> str:
    """The first block of this language on the page."""
    return str(re.findall(rf"```{language}\n(.*?)```", DOCS.read_text(), re.DOTALL)[0])


@pytest.fixture
async def client(tmp_path: Path, dev_server: DevServer, typescript_worker: Factory) -> AsyncIterator[Peer]:
    """A client of the sidecar that serves the configuration of the docs, with the TypeScript worker behind it."""
    queue = f"q-{uuid.uuid4().hex}"
    typescript_worker(dev_server, queue)
    (tmp_path / "workflows.yaml").write_text(block("yaml").replace("task_queue: orders", f"task_queue: {queue}"))
    with sidecar(tmp_path, dev_server) as url:
        async with peer(url) as found:
            yield found


@contextmanager
def sidecar(folder: Path, server: DevServer) -> Generator[str]:
    port = free_port()
    command = [COMMAND, "serve", "workflows.yaml", "--http", f"127.0.0.1:{port}"]
    env = {**os.environ, "TEMPORAL_ADDRESS": server.address}
    process = Process(command, port, folder / "serve.log", cwd=folder, env=env)
    try:
        process.wait_until_ready()
        yield process.url
    finally:
        process.stop()


async def asked(client: Peer) -> tuple[str, dict[str, Any]]:
    """Call the tool up to its question."""
    task_id = (await client.call("ship_order", {"order_id": "A1"})).result["taskId"]
    return task_id, (await client.until(task_id, "input_required", within=60))["inputRequests"]


async def test_an_unmodified_typescript_workflow_is_asked_about_and_ships_after_a_yes_and_not_after_a_no(
    client: Peer, dev_server: DevServer, tmp_path: Path
) -> None:
    task_id, requests = await asked(client)
    assert list(requests) == ["approve.7"]
    assert requests["approve.7"]["params"]["message"] == "Ship «A1»?"
    await client.answer(task_id, **{"approve.7": {"action": "accept", "content": {"ok": True}}})
    done = await client.until(task_id)
    assert done["result"]["structuredContent"] == {"order_id": "A1", "shipped": True}
    workflow_id = await executed(dev_server, tmp_path)
    shown = dev_server.cli("workflow", "show", "--workflow-id", workflow_id, "--output", "json")
    (tmp_path / "history.json").write_text(shown.stdout)
    assert replayed(tmp_path) == block("text").splitlines()
    task_id, _ = await asked(client)
    await client.answer(task_id, **{"approve.7": {"action": "decline"}})
    done = await client.until(task_id)
    assert done["result"]["structuredContent"] == {"order_id": "A1", "shipped": False, "approved_by": None}


async def executed(server: DevServer, folder: Path) -> str:
    """The id of the one execution on the queue of the configuration; the list lags behind a little."""
    [queue] = re.findall(r"task_queue: ([\w-]+)", (folder / "workflows.yaml").read_text())
    query = ("--query", f"TaskQueue = '{queue}'", "--output", "json")
    with anyio.fail_after(PATIENCE):
        while not (listed := json.loads(server.cli("workflow", "list", *query).stdout or "[]")):  # no event tells us
            await anyio.sleep(0.05)
    return str(listed[0]["execution"]["workflowId"])


def replayed(folder: Path) -> Sequence[str]:
    """What the docs' own command prints."""
    [line] = [line for line in block("sh").splitlines() if " --history " in line]
    command = [COMMAND, *shlex.split(line)[1:]]
    done = run(command, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_the_workflow_in_the_docs_is_the_one_of_the_tests() -> None:
    shown = [line for line in block("typescript").splitlines() if "..." not in line]
    assert all(line in SHIP.read_text().splitlines() for line in shown)


def test_nothing_of_ours_is_in_that_workflow() -> None:
    assert set(re.findall(r"from '(.*)'", SHIP.read_text())) == {"@temporalio/workflow"}
