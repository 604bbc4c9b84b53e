"""What ran lately, a draft of tools for it, and whether workflows have what their tools name."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_workflows_temporal import TemporalAdapter, TemporalSettings
from temporalio.client import Client
from temporalio.worker import Worker

from adapters.temporal.tests.handlers import Anything, Gated
from adapters.temporal.tests.scene import PATIENCE, Scene, connect, open_adapter
from mcp_workflows.capabilities import Discovered, Discovers, Finding, Verifies
from mcp_workflows.cli import main
from mcp_workflows.config import load_config
from mcp_workflows.errors import EngineUnavailable
from scripts.processes import free_port
from tests.dev_server import DevServer
from tests.sidecars import COMMAND

GATE = {
    "when": {"query": "status", "equals": "waiting"},
    "send": {"signal": "approve"},
    "decline": {"update": "reject"},
}


@pytest.fixture(scope="module")
def empty_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    """A server that nobody has started anything on."""
    with DevServer(tmp_path_factory.mktemp("temporal")) as server:
        yield server


@pytest.fixture
async def own(empty_server: DevServer) -> AsyncIterator[Scene]:
    client = await connect(empty_server)
    scene = Scene.new(client)
    async with open_adapter(empty_server, scene.queue) as adapter:
        yield scene.on(adapter)


def worker(scene: Scene) -> Worker:
    return Worker(scene.client, task_queue=scene.queue, workflows=[Gated, Anything])


async def begin(scene: Scene, kind: str, count: int = 1, queue: str | None = None) -> None:
    for _ in range(count):
        await scene.client.start_workflow(kind, id=f"wf-{uuid.uuid4()}", task_queue=queue or scene.queue)


async def verified(scene: Scene, kind: str, *, gates: Any = None, **options: Any) -> Mapping[bool, list[str]]:
    """What is found, by whether it is fine; a worker that is slow to answer is asked again."""
    found = await scene.adapter.verify(kind, options, {"ship": GATE} if gates is None else gates)
    with anyio.fail_after(PATIENCE):
        while any("no worker answers" in finding.text for finding in found):
            found = await scene.adapter.verify(kind, options, {"ship": GATE} if gates is None else gates)
    return {ok: [finding.text for finding in found if finding.ok is ok] for ok in (True, False)}


async def until_seen(scene: Scene, kind: str) -> None:
    with anyio.fail_after(PATIENCE):
        while not [row async for row in scene.client.list_workflows(f"WorkflowType = '{kind}'")]:
            await anyio.sleep(0.05)


def test_the_adapter_can_discover_and_verify() -> None:
    adapter = TemporalAdapter(TemporalSettings())
    assert isinstance(adapter, Discovers)
    assert isinstance(adapter, Verifies)


async def test_workflow_types_seen_lately_are_discovered_the_most_frequent_first(own: Scene) -> None:
    kinds = {name: f"{name}-{uuid.uuid4().hex}" for name in ("often", "once")}
    await begin(own, kinds["once"], queue="elsewhere")
    await begin(own, kinds["often"], 3)
    await until_seen(own, kinds["once"])
    await until_seen(own, kinds["often"])
    found = [each for each in await own.adapter.discover() if each.workflow in kinds.values()]
    assert [(each.workflow, each.options) for each in found] == [
        (kinds["often"], {}),
        (kinds["once"], {"task_queue": "elsewhere"}),
    ]
    assert all(each.last_seen is not None for each in found)


async def test_a_paused_execution_hides_no_other(scene: Scene, client: Client, tmp_path: Path) -> None:
    kind = f"Paused-{uuid.uuid4().hex}"
    handle = await client.start_workflow(kind, id=f"wf-{uuid.uuid4()}", task_queue=scene.queue)
    config = client.service_client.config
    temporal = str(Path(COMMAND).with_name("temporal"))
    command = [temporal, "workflow", "pause", "-w", handle.id, "--address", config.target_host, "--reason", "test"]
    await anyio.run_process(command)
    found: list[Discovered] = []
    with anyio.fail_after(PATIENCE):
        while not found:
            found = [each for each in await scene.adapter.discover() if each.workflow == kind]
    assert found[0].executions == 1


async def test_an_engine_that_is_down_cannot_be_discovered() -> None:
    async with TemporalAdapter(TemporalSettings(address=f"127.0.0.1:{free_port()}", task_queue="q")) as adapter:
        with pytest.raises(EngineUnavailable, match="connection refused"):
            await adapter.discover()


async def test_what_the_workflow_has_is_fine(own: Scene) -> None:
    async with worker(own):
        await begin(own, "Shop.FulfilOrder")
        await until_seen(own, "Shop.FulfilOrder")
        assert await verified(own, "Shop.FulfilOrder", cancel={"signal": "approve"}) == {True: [], False: []}


async def test_what_it_does_not_have_is_a_problem_with_what_was_meant(own: Scene) -> None:
    wrong = {"when": {"query": "state", "equals": 1}, "send": {"signal": "aprove"}, "decline": {"update": "no"}}
    async with worker(own):
        await begin(own, "Shop.FulfilOrder")
        await until_seen(own, "Shop.FulfilOrder")
        problems = (await verified(own, "Shop.FulfilOrder", gates={"ship": wrong}, cancel={"signal": "stop"}))[False]
    assert sorted(problem.split(":")[0] for problem in problems) == [
        "cancel.signal",
        "gates.ship.decline.update",
        "gates.ship.send.signal",
        "gates.ship.when.query",
    ]
    assert any("has no signal 'aprove'; did you mean 'approve'? (it has: approve)" in text for text in problems)


async def test_an_activity_and_a_placeholder_are_not_looked_for(own: Scene) -> None:
    gate = {"when": {"after": "NotifyApprover"}, "send": {"signal": "approve"}, "decline": None}
    async with worker(own):
        await begin(own, "Shop.FulfilOrder")
        await until_seen(own, "Shop.FulfilOrder")
        found = await verified(own, "Shop.FulfilOrder", gates={"ship": gate}, cancel={"signal": "{{name}}"})
    assert found == {True: [], False: []}


async def test_without_a_worker_it_could_not_be_verified(dev_server: DevServer, client: Client) -> None:
    scene = Scene.new(client)
    kind = f"Nobody-{uuid.uuid4().hex}"
    await begin(scene, kind)
    await until_seen(scene, kind)
    async with open_adapter(dev_server, scene.queue, timeout_seconds=8) as adapter:
        found = await adapter.verify(kind, {}, {"ship": GATE})
    text = "could not be verified (query status, signal approve, update reject): no worker answers a query"
    assert found == [Finding(ok=True, text=text)]


async def test_a_type_never_seen_is_a_note(own: Scene) -> None:
    async with worker(own):
        await begin(own, "Shop.FulfilOrder")
        await until_seen(own, "Shop.FulfilOrder")
        found = await verified(own, "Shop.FulfillOrder", gates={})
    text = "no execution of workflow type Shop.FulfillOrder has been seen in namespace default"
    assert found == {True: [f"{text}; did you mean 'Shop.FulfilOrder'?"], False: []}


async def test_a_name_with_a_quote_in_it_is_only_a_name(own: Scene) -> None:
    kind = "It's' OR 'a'='a"
    assert (await verified(own, kind, gates={}))[True][0].startswith(f"no execution of workflow type {kind} has")


async def test_a_dynamic_handler_cannot_be_told_from_the_one_that_is_named(own: Scene) -> None:
    kind = f"Anything-{uuid.uuid4().hex}"
    async with worker(own):
        await begin(own, kind)
        await until_seen(own, kind)
        found = await verified(own, kind, gates={}, cancel={"signal": "stop"})
    text = "could not be verified (signal stop): a dynamic handler takes every signal"
    assert found == {True: [text], False: []}


# --- the command line

CONFIG = """\
server: {{name: import}}
engines:
  shop: {{adapter: temporal, address: "{address}", task_queue: {queue}}}
  here: {{adapter: memory}}
tools:
  fulfil_order:
    engine: shop
    workflow: Configured
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)


async def test_a_drafted_tool_loads_once_it_is_uncommented(own: Scene, empty_server: DevServer, tmp_path: Path) -> None:
    config = tmp_path / "workflows.yaml"
    config.write_text(CONFIG.format(address=empty_server.address, queue=own.queue))
    for kind in ("Shop.FulfilOrder", "fulfilOrder", "FulfilOrder", "Configured", "null", "12", "${A} 'b' \u00e4\n#: x"):
        await begin(own, kind)
    await begin(own, "Elsewhere", queue="true")
    await until_seen(own, "Elsewhere")
    done = await anyio.to_thread.run_sync(run, "import", "shop", "-c", str(config))
    assert (done.returncode, done.stderr) == (0, "")
    assert "# Configured is there already: fulfil_order" in done.stdout
    assert all(line.startswith("  # ") for line in done.stdout.split("tools:\n")[1].splitlines() if line)
    drafted = re.sub(r"(?m)^  # ", "  ", done.stdout.split("tools:\n")[1])
    config.write_text(config.read_text() + drafted)
    tools = {tool.name: tool for tool in load_config(config, {}).tools}
    assert {
        "fulfil_order",
        "fulfil_order_2",
        "fulfil_order_3",
        "shop_fulfil_order",
        "workflow",
        "12",
    } <= tools.keys() | {"workflow"}
    by_workflow = {tool.workflow: tool for tool in tools.values()}
    assert {
        "Shop.FulfilOrder",
        "fulfilOrder",
        "FulfilOrder",
        "null",
        "12",
        "${A} 'b' \u00e4\n#: x",
    } <= by_workflow.keys()
    assert by_workflow["Elsewhere"].options == {"task_queue": "true"}
    assert by_workflow["FulfilOrder"].options == {}


async def test_importing_needs_no_tools_yet(own: Scene, empty_server: DevServer, tmp_path: Path) -> None:
    config = tmp_path / "workflows.yaml"
    config.write_text(CONFIG.format(address=empty_server.address, queue=own.queue).split("tools:")[0])
    await begin(own, "First")
    await until_seen(own, "First")
    done = await anyio.to_thread.run_sync(run, "import", "shop", "-c", str(config))
    assert done.returncode == 0
    assert "  # first:  # 1 execution, last started 20" in done.stdout


async def test_a_first_configuration_has_the_chosen_workflows_as_tools_and_the_others_as_a_draft(
    own: Scene, empty_server: DevServer, tmp_path: Path
) -> None:
    await begin(own, "Chosen")
    await begin(own, "Other")
    for kind in ("Chosen", "Other"):
        await until_seen(own, kind)
    config = tmp_path / "workflows.yaml"
    words = ["--engine", "temporal", "--set", f"address={empty_server.address}", "--set", f"task_queue={own.queue}"]
    done = await anyio.to_thread.run_sync(run, "init", *words, "--workflow", "Chosen", "-c", str(config))
    assert done.returncode == 0, done.stderr
    assert [(tool.name, tool.workflow) for tool in load_config(config, {}).tools] == [("chosen", "Chosen")]
    assert "  # other:  # 1 execution, last started 20" in config.read_text()
    again = ["-c", str(config), "--force"]
    done = await anyio.to_thread.run_sync(run, "init", *words, "--workflow", "Chosn", *again)
    assert "note: no workflow 'Chosn' has been seen there; did you mean 'Chosen'?" in done.stderr


async def test_at_a_terminal_the_workflows_of_an_engine_are_chosen_by_number(
    own: Scene, empty_server: DevServer, tmp_path: Path
) -> None:
    await begin(own, "Frequent", count=3)
    await until_seen(own, "Frequent")
    config = tmp_path / "workflows.yaml"
    ours, theirs = pty.openpty()
    os.write(ours, b"\n1\n")  # the namespace, the workflow
    words = ["--engine", "temporal", "--set", f"address={empty_server.address}", "--set", f"task_queue={own.queue}"]
    command = partial(subprocess.run, [COMMAND, "init", *words, "-c", str(config)], timeout=60, check=False)
    done = await anyio.to_thread.run_sync(partial(command, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs))
    asked = os.read(ours, 65536).decode()
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 0, asked
    [first] = re.findall(r"1\. (\w+)", asked)
    assert [tool.workflow for tool in load_config(config, {}).tools] == [first]


@pytest.mark.parametrize(
    ("engine", "complaint"),
    [
        ("shop", "engine shop: Temporal at 127.0.0.1:{port}: connection refused"),
        ("shopp", "no engine named 'shopp'; did you mean 'shop'? (engines: here, shop)"),
        ("here", "engine here: the adapter 'memory' cannot list workflows"),
    ],
)
def test_importing_what_cannot_be_ends_with_one_line(
    tmp_path: Path,
    engine: str,
    complaint: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    config = tmp_path / "workflows.yaml"
    config.write_text(CONFIG.format(address=f"127.0.0.1:{port}", queue="q"))
    monkeypatch.setattr(sys, "argv", ["mcp-workflows", "import", engine, "-c", str(config)])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (1, "")
    assert printed.err.strip().endswith(complaint.format(port=port))
    assert len(printed.err.splitlines()) == 1


async def test_check_says_what_the_gates_name_and_the_workflow_lacks(
    own: Scene, empty_server: DevServer, tmp_path: Path
) -> None:
    config = tmp_path / "workflows.yaml"
    config.write_text(
        CONFIG.format(address=empty_server.address, queue=own.queue).replace("Configured", "Shop.FulfilOrder")
        + "    cancel: {signal: stop}\n    gates:\n      ship:\n        when: {after: NotifyApprover}\n"
        + "        ask: {message: Ship?, schema: {type: object, properties: {ok: {type: boolean}}}}\n"
        + "        send: {signal: aprove}\n"
    )
    async with worker(own):
        await begin(own, "Shop.FulfilOrder")
        await until_seen(own, "Shop.FulfilOrder")
        done = await anyio.to_thread.run_sync(run, "check", str(config))
    assert done.returncode == 1, done.stdout
    [line] = [line for line in done.stdout.splitlines() if line.startswith("tool")]
    assert "gates.ship.send.signal: workflow Shop.FulfilOrder has no signal 'aprove'; did you mean 'approve'?" in line
    assert "cancel.signal: workflow Shop.FulfilOrder has no signal 'stop' (it has: approve)" in line
