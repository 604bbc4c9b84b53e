"""`mcp-workflows tasks` as the operator runs it: beside a running sidecar, without one, and without an engine."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import sys
import uuid
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_workflows_temporal.connection import quiet_runtime
from temporalio.client import Client
from temporalio.worker import Worker

from mcp_workflows.adapter import Execution, InputRequest, Status
from mcp_workflows.sidecar.cli.prompts import open_questions
from mcp_workflows.sidecar.cli.tasks import answer_command
from mcp_workflows.testing import make_task
from samples.conformance.workflows import ALL
from tests.sidecar.cli.terminal import Terminal
from tests.sidecar.cli.test_call import converse
from tests.support import commands
from tests.support.commands import COMMAND
from tests.support.dev_server import DevServer
from tests.support.served import peer
from tests.support.sidecars import sidecar, write_config

pytestmark = pytest.mark.anyio


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
    return await anyio.to_thread.run_sync(commands.run, [COMMAND, "tasks", *words, "-c", str(config)])


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
            adopted = (await out(config, "track", "slow", plain.id)).strip()
            assert (await host.until(adopted))["status"] == "completed"


async def test_the_operator_answers_beside_a_running_sidecar_on_the_line_or_when_asked(
    dev_server: DevServer, queue: str, tmp_path: Path
) -> None:
    config = write_config(tmp_path, dev_server.address, queue)
    with sidecar(config) as served:
        async with peer(served.url) as host:
            ids = [(await host.call("confirm", {"filename": name})).result["taskId"] for name in ("a.txt", "b.txt")]
            for task in ids:
                while (await host.get(task))["status"] != "input_required":  # no event tells us
                    await anyio.sleep(0.05)
            why = await read(config, "why", ids[0])
            [ready] = why["commands"]
            assert ready.startswith(f"mcp-workflows tasks answer {ids[0]} ")
            assert ready.endswith(f"=VALUE -c {config}")
            words = shlex.split(ready.replace("VALUE", "true"))[2:-2]
            said = await out(config, *words)
            assert said.startswith(f"{ids[0]}: answered; it is ")
            assert (await host.until(ids[0]))["status"] == "completed"
            shown = await anyio.to_thread.run_sync(
                typing, ["tasks", "answer", ids[1][:12], "-c", str(config)], [("Approve or Decline", "1\n")]
            )
            assert "Delete b.txt?" in shown
            assert f"{ids[1]}: answered; it is " in shown
            assert (await host.until(ids[1]))["status"] == "completed"
            again = await run(config, "answer", ids[1], "confirm=true")
            assert (again.returncode, "no question is open; it is completed" in again.stderr) == (1, True)


def typing(words: Sequence[str], types: Sequence[tuple[str, str]]) -> str:
    """What `mcp-workflows WORDS` shows at a terminal, where each text is typed once what is before it is shown."""
    terminal, other = pty.openpty()
    process = commands.start([COMMAND, *words], stdin=other, stdout=other, stderr=other)
    os.close(other)
    shown = converse(terminal, list(types)).replace("\r", "")
    assert process.wait(60) == 0, shown
    os.close(terminal)
    return shown


@pytest.fixture
def here(terminal: Terminal) -> Terminal:
    """The command in this process, with tools of the engine in memory."""
    (terminal.folder / "workflows.yaml").write_text(IN_MEMORY)
    return terminal


IN_MEMORY = """
server: {name: tasks}
store: sqlite:///tasks.db
audit: {to: audit.jsonl}
engines: {here: {adapter: memory}}
tools:
  one: {engine: here, workflow: ask}
  two: {engine: here, workflow: ask_two}
  forever: {engine: here, workflow: forever}
  stubborn: {engine: here, workflow: stubborn, input: {type: object, properties: {seconds: {type: number}}}}
  gated:
    engine: here
    workflow: gated
    questions:
      approve:
        when: {after_seconds: 0}
        message: "Ship it?"
        schema:
          type: object
          properties:
            ok: {type: boolean}
            note: {type: string}
            sizes: {type: array, items: {type: string, enum: [S, M, L]}}
          required: [ok]
        send: {ok: "{{answer.ok}}", sizes: "{{answer.sizes}}"}
        decline: {refused: true}
"""


def begun(here: Terminal, *words: str) -> str:
    return here.run("call", *words, "--no-wait").out.strip()


def test_each_question_has_a_name_of_its_own_and_a_command_that_a_shell_takes() -> None:
    def question(gate: str | None = None, **params: Any) -> InputRequest:
        return InputRequest(method="elicitation/create", params={"message": "?", **params}, gate=gate)

    ok = {"type": "object", "properties": {"ok": {"type": "boolean"}, "note": {"type": "string"}}}
    requests = {
        "5": question("approve", requestedSchema=ok),
        "8": question("approve", requestedSchema={**ok, "required": ["ok", "note"]}),
        "ship.0": question("ship", requestedSchema={"type": "object", "properties": {"ship": {"type": "string"}}}),
        "plain.17": question(requestedSchema={"type": "object", "properties": {}}),
        "7c1f-2": question(mode="url", url="https://example.com", elicitationId="1"),
        "both": question(mode="form", url="https://example.com", requestedSchema=ok),
        "thought": InputRequest(method="sampling/createMessage", params={}),
        "nowhere": question(mode="url"),
        "wordless": question(message=None, requestedSchema=ok),
        "strange": question(requestedSchema={"type": "object", "properties": [], "required": 5}),
        "absent": question(requestedSchema={**ok, "required": ["other"]}),
    }
    execution = Execution(status=Status.INPUT_REQUIRED, requests=requests)
    questions = open_questions(make_task(id="a1", execution=execution))
    assert [answer_command("a1", each, Path("workflows.yaml")) for each in questions] == [
        f"mcp-workflows tasks answer a1 {words}"
        for words in (
            "5.ok=VALUE",
            "8.ok=VALUE 8.note=VALUE",
            "ship=VALUE",
            "plain.accept=VALUE",
            "7c1f-2",
            "both.ok=VALUE",
        )
    ]
    assert answer_command("a1", questions[0], Path("my shop.yaml")).endswith(" -c 'my shop.yaml'")


def test_the_list_fits_the_terminal_unless_it_is_to_be_wide(here: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(here, "two")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    cut, whole = (here.run("tasks", "list", *words).out.splitlines() for words in ([], ["--wide"]))
    assert max(map(len, cut)) <= 60
    assert "input_required" in cut[1]
    assert whole[1].endswith("first?; second?")
    assert len(whole[1]) > 60
