"""What ran lately, a draft of tools for it, and whether workflows have what their tools name."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_workflows_temporal import TemporalAdapter, TemporalSettings
from mcp_workflows_temporal.tooling import discover as discovery
from mcp_workflows_temporal.tooling.histories import is_typo, nearest
from temporalio.client import Client
from temporalio.worker import Worker

from adapters.temporal.tests import own_converter
from adapters.temporal.tests.handlers import (
    Anything,
    Count,
    FulfilOrder,
    Gated,
    Label,
    Mailed,
    Note,
    Order,
    Quote,
    ShipParcel,
    send_approval_mail,
    write_log,
)
from adapters.temporal.tests.scene import PATIENCE, Scene, connect, open_adapter
from adapters.temporal.tests.test_codec import coded
from mcp_workflows.adapter import JSON, Finding
from mcp_workflows.errors import EngineUnavailable
from mcp_workflows.kit.tooling import Discovered
from mcp_workflows.sidecar.config.load import load_config
from tests.support import commands
from tests.support.child_processes import free_port
from tests.support.commands import COMMAND
from tests.support.dev_server import DevServer

GATE = {
    "when": {"query": "status", "equals": "waiting"},
    "send": {"signal": "approve"},
    "decline": {"update": "reject"},
}


@pytest.fixture(scope="module")
def empty_server(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
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
    return scene.worker([Gated, Anything, Mailed], [send_approval_mail, write_log])


async def begin(scene: Scene, kind: str, count: int = 1, queue: str | None = None) -> None:
    for _ in range(count):
        await scene.client.start_workflow(kind, id=f"wf-{uuid.uuid4()}", task_queue=queue or scene.queue)


async def verified(scene: Scene, kind: str, *, gates: Any = None, **options: Any) -> Mapping[bool, list[str]]:
    """What is found, by whether it is no problem; a worker that is slow to answer is asked again."""
    found = await scene.adapter.tooling.verify(kind, options, {"ship": GATE} if gates is None else gates)
    with anyio.fail_after(PATIENCE):
        while any("no worker answers" in finding.text for finding in found):
            found = await scene.adapter.tooling.verify(kind, options, {"ship": GATE} if gates is None else gates)
    return {ok: [finding.text for finding in found if (finding.ok is not False) is ok] for ok in (True, False)}


async def until_seen(scene: Scene, kind: str) -> None:
    with anyio.fail_after(PATIENCE):
        while not [row async for row in scene.client.list_workflows(f"WorkflowType = '{kind}'")]:
            await anyio.sleep(0.05)


async def test_workflow_types_seen_lately_are_discovered_the_most_frequent_first(own: Scene) -> None:
    kinds = {name: f"{name}-{uuid.uuid4().hex}" for name in ("often", "once")}
    await begin(own, kinds["once"], queue="elsewhere")
    await begin(own, kinds["often"], 3)
    await until_seen(own, kinds["once"])
    await until_seen(own, kinds["often"])
    found = [each for each in await own.adapter.tooling.discover() if each.workflow in kinds.values()]
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
            found = [each for each in await scene.adapter.tooling.discover() if each.workflow == kind]
    assert found[0].executions == 1


async def test_an_engine_that_is_down_cannot_be_discovered() -> None:
    async with TemporalAdapter(TemporalSettings(address=f"127.0.0.1:{free_port()}", task_queue="q")) as adapter:
        with pytest.raises(EngineUnavailable, match="connection refused"):
            await adapter.tooling.discover()


async def test_what_the_workflow_has_is_fine_and_what_it_lacks_is_a_problem_with_what_was_meant(own: Scene) -> None:
    wrong = {"when": {"query": "state", "equals": 1}, "send": {"signal": "aprove"}, "decline": {"update": "no"}}
    placeholder = {"when": {"after": "Notify{{args.region}}"}, "send": {"signal": "approve"}, "decline": None}
    async with worker(own):
        await begin(own, "Shop.FulfilOrder")
        await until_seen(own, "Shop.FulfilOrder")
        fine = await verified(own, "Shop.FulfilOrder", cancel={"signal": "approve"})
        open_ = await verified(own, "Shop.FulfilOrder", gates={"ship": placeholder}, cancel={"signal": "{{name}}"})
        problems = (await verified(own, "Shop.FulfilOrder", gates={"ship": wrong}, cancel={"signal": "stop"}))[False]
        unseen = await verified(own, "Shop.FulfillOrder", gates={})
    assert fine == open_ == {True: [], False: []}
    assert sorted(problem.split(":")[0] for problem in problems) == [
        "cancel.signal",
        "questions.ship.decline.update",
        "questions.ship.send.signal",
        "questions.ship.when.query",
    ]
    assert any("has no signal 'aprove'; did you mean 'approve'? (it has: approve)" in text for text in problems)
    text = "no execution of workflow type Shop.FulfillOrder was seen in namespace default"
    assert unseen == {True: [f"{text}; did you mean 'Shop.FulfilOrder'?"], False: []}


async def test_without_a_worker_it_could_not_be_verified(dev_server: DevServer, client: Client) -> None:
    scene = Scene.new(client)
    kind = f"Nobody-{uuid.uuid4().hex}"
    await begin(scene, kind)
    await until_seen(scene, kind)
    async with open_adapter(dev_server, scene.queue, timeout_seconds=8) as adapter:
        found = await adapter.tooling.verify(kind, {}, {"ship": GATE})
    text = "could not be verified (query status, signal approve, update reject): no worker answers a query"
    assert found == [Finding(ok=None, text=text)]


async def test_a_name_with_a_quote_in_it_is_only_a_name(own: Scene) -> None:
    kind = "It's' OR 'a'='a"
    assert (await verified(own, kind, gates={}))[True][0].startswith(f"no execution of workflow type {kind} was seen")


async def test_a_dynamic_handler_cannot_be_told_from_the_one_that_is_named(own: Scene) -> None:
    kind = f"Anything-{uuid.uuid4().hex}"
    async with worker(own):
        await begin(own, kind)
        await until_seen(own, kind)
        found = await verified(own, kind, gates={}, cancel={"signal": "stop"})
    text = "could not be verified (signal stop): a dynamic handler takes every signal"
    assert found == {True: [text], False: []}


async def test_a_search_attribute_that_is_not_registered_is_a_problem(own: Scene) -> None:
    kind = f"Anything-{uuid.uuid4().hex}"
    written = {"CustomerId": "{{args.customer}}", "TemporalChangeVersion": ["1"]}
    [wrong] = (await verified(own, kind, gates={}, search_attributes=written))[False]
    assert wrong == "search_attributes.CustomerId: it is not registered in namespace default"


async def test_inputs_that_others_have_encoded_are_a_problem_without_a_codec(
    own: Scene, empty_server: DevServer
) -> None:
    kind = f"Anything-{uuid.uuid4().hex}"
    encoding = await coded(empty_server)
    await encoding.start_workflow(kind, {"order": 1}, id=f"wf-{kind}", task_queue=own.queue)
    await until_seen(own, kind)
    [wrong] = (await verified(own, kind, gates={}))[False]
    assert wrong.startswith(f"the input of its execution wf-{kind} is encoded (binary/upside), and this engine has no")
    async with TemporalAdapter.from_client(encoding) as adapter:
        assert (await verified(own.on(adapter), kind, gates={}))[False] == []


# --- activities that gates wait for


def after(activity: str) -> Mapping[str, Any]:
    """The gates of a tool."""
    return {"ship": {"when": {"after": activity}, "send": {"signal": "approve"}, "decline": None}}


async def mailed(scene: Scene) -> str:
    """The id of an execution of `Mailed` that has sent its mail and can be found."""
    execution = await scene.client.start_workflow(Mailed.run, id=f"wf-{uuid.uuid4()}", task_queue=scene.queue)
    with anyio.fail_after(PATIENCE):
        while not any(
            event.HasField("activity_task_completed_event_attributes")
            for event in (await execution.fetch_history()).events
        ):
            await anyio.sleep(0.03)
        while not [row async for row in scene.client.list_workflows(f"WorkflowId = '{execution.id}'")]:
            await anyio.sleep(0.03)
    return execution.id


IN = "in {n} of workflow Mailed"
MEANT = "did you mean 'send_approval_mail'? (seen: send_approval_mail)"


ACTIVITIES: Mapping[str, tuple[bool, str | None]] = {
    "send_approval_mail": (True, None),
    "send_aproval_mail": (False, f"no activity 'send_aproval_mail' {IN}; {MEANT}"),
    "SendApprovalMail": (False, f"no activity 'SendApprovalMail' {IN}; {MEANT}"),
    "WriteLog": (False, "'WriteLog' runs as a local activity, and no gate can see that"),
    "Charge": (True, f"could not be verified: no activity 'Charge' {IN} (seen: send_approval_mail)"),
    "send_approval_call": (True, f"could not be verified: no activity 'send_approval_call' {IN}; {MEANT}"),
}


async def test_the_activity_of_a_gate_is_looked_for_in_recent_histories(scene: Scene) -> None:
    both = {**after("send_approval_mail"), "again": after("send_approval_xmail")["ship"]}
    async with worker(scene):
        await mailed(scene)
        for activity, (ok, said) in ACTIVITIES.items():
            found = await verified(scene, "Mailed", gates=after(activity))
            texts = [re.sub("the latest ([0-9]+ executions|execution)", "{n}", text) for text in found[ok]]
            assert texts == ([] if said is None else [f"questions.ship.when.after: {said}"])
            assert found[not ok] == []
        found = await verified(scene, "Mailed", gates=both)  # what another gate names is not what was meant
    assert found[False] == []
    assert "questions.again.when.after: could not be verified: no activity 'send_approval_xmail'" in found[True][0]


@pytest.mark.parametrize(
    ("name", "other", "slip"),
    [
        ("NotifyAprover", "NotifyApprover", True),
        ("NotfiyApprover", "NotifyApprover", True),
        ("NotifyApprovar", "NotifyApprover", True),
        ("notify_approver", "NotifyApprover", True),
        ("NotifyAprovar", "NotifyApprover", False),
        ("ShipA", "ShipB", False),
        ("ChargeCard", "ChargeCards", False),
        ("Notify", "NotifyApprover", False),
    ],
)
def test_a_slip_is_one_letter_before_the_last(name: str, other: str, slip: bool) -> None:
    assert (is_typo(name, other), is_typo(other, name)) == (slip, slip)


def test_names_that_differ_in_numbers_are_not_near() -> None:
    assert nearest("Remind2", ["Remind1", "Charge"]) is None


async def test_the_activity_is_looked_for_without_a_worker(scene: Scene, dev_server: DevServer) -> None:
    async with worker(scene):
        await mailed(scene)
    async with open_adapter(dev_server, scene.queue, timeout_seconds=2) as adapter:
        found = await adapter.tooling.verify("Mailed", {}, after("send_aproval_mail"))
    assert [finding.ok for finding in found] == [False, None]
    assert "did you mean 'send_approval_mail'?" in found[0].text
    assert found[1].text == "could not be verified (signal approve): no worker answers a query"


async def test_an_execution_that_has_ended_is_looked_at_behind_many_that_have_just_begun(
    own: Scene, empty_server: DevServer
) -> None:
    async with worker(own):
        execution = own.client.get_workflow_handle(await mailed(own))
        await execution.signal("approve")
        await execution.result()
    await begin(own, "Mailed", 25)
    running = "WorkflowType = 'Mailed' AND ExecutionStatus = 'Running'"
    with anyio.fail_after(PATIENCE):
        while len([row async for row in own.client.list_workflows(running)]) < 25:
            await anyio.sleep(0.03)
    async with open_adapter(empty_server, own.queue, timeout_seconds=8) as adapter:
        found = await adapter.tooling.verify("Mailed", {}, after("send_approval_mail"))
    assert [finding.text for finding in found] == ["could not be verified (signal approve): no worker answers a query"]


async def test_without_any_history_nothing_can_tell(own: Scene) -> None:
    found = await verified(own, f"Nobody-{uuid.uuid4().hex}", gates=after("send_approval_mail"))
    assert found[False] == []
    assert found[True][0].startswith(
        "could not be verified (activity send_approval_mail, signal approve): it takes one: no execution of workflow"
    )


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
    return commands.run([COMMAND, *arguments])


async def test_a_drafted_tool_loads_once_it_is_uncommented(own: Scene, empty_server: DevServer, tmp_path: Path) -> None:
    config = tmp_path / "workflows.yaml"
    config.write_text(CONFIG.format(address=empty_server.address, queue=own.queue))
    kinds = "Shop.FulfilOrder", "fulfilOrder", "FulfilOrder", "Configured", "null", "12", "${A} 'b' \u00e4\n#: x"
    for kind in kinds:
        await begin(own, kind)
    await begin(own, "Elsewhere", queue="true")
    await until_seen(own, "Elsewhere")
    done = await anyio.to_thread.run_sync(run, "init", "--add", "shop", "-c", str(config))
    assert (done.returncode, done.stderr) == (0, "")
    assert "# Configured is there already: fulfil_order" in done.stdout
    assert all(line.startswith("  # ") for line in done.stdout.split("tools:\n")[1].splitlines() if line)
    drafted = re.sub(r"(?m)^  # ", "  ", done.stdout.split("tools:\n")[1])
    config.write_text(config.read_text() + drafted)
    tools = {tool.name: tool for tool in load_config(config, {}).tools}
    assert {"fulfil_order", "fulfil_order_2", "fulfil_order_3", "shop_fulfil_order", "12"} <= tools.keys()
    by_workflow = {tool.workflow: tool for tool in tools.values()}
    assert set(kinds) <= {*by_workflow, "Configured"}
    assert by_workflow["Elsewhere"].options == {"task_queue": "true"}
    assert by_workflow["FulfilOrder"].options == {}


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
    assert "note: no execution of a workflow 'Chosn' was found; did you mean 'Chosen'?" in done.stderr


async def test_at_a_terminal_the_workflows_of_an_engine_are_chosen_by_number(
    own: Scene, empty_server: DevServer, tmp_path: Path
) -> None:
    await begin(own, "Frequent", count=3)
    await until_seen(own, "Frequent")
    config = tmp_path / "workflows.yaml"
    ours, theirs = pty.openpty()
    os.write(ours, b"\n1\n")  # the namespace, the workflow
    words = ["--engine", "temporal", "--set", f"address={empty_server.address}", "--set", f"task_queue={own.queue}"]
    process = commands.start([COMMAND, "init", *words, "-c", str(config)], stdin=theirs, stderr=theirs)
    code = await anyio.to_thread.run_sync(process.wait, 60)
    asked = os.read(ours, 65536).decode()
    os.close(ours)
    os.close(theirs)
    assert code == 0, asked
    [first] = re.findall(r"\b1\. (\w+)", asked)
    assert [tool.workflow for tool in load_config(config, {}).tools] == [first]


SECRET = "hunter2-4711"


async def new_namespace(server: DevServer) -> str:
    """Make a namespace, and wait until it can be used."""
    name = f"n-{uuid.uuid4().hex}"
    made = await anyio.to_thread.run_sync(server.cli, "operator", "namespace", "create", "-n", name)
    assert made.returncode == 0, made.stderr
    async with open_adapter(server, namespace=name) as adapter:
        with anyio.fail_after(PATIENCE):
            while not (await adapter.tooling.check_engine()).ok:
                await anyio.sleep(0.05)
    return name


@pytest.fixture
async def shop(empty_server: DevServer) -> AsyncIterator[Scene]:
    """A namespace with a worker, where orders were fulfilled lately."""
    namespace = await new_namespace(empty_server)
    scene = Scene.new(await Client.connect(empty_server.address, namespace=namespace))
    worker = scene.worker([FulfilOrder, ShipParcel, Quote], [])
    async with worker, open_adapter(empty_server, namespace=namespace) as adapter:
        orders = [Order(SECRET, 2), Order(SECRET, 1, note=SECRET)]
        for order in orders:
            await scene.client.execute_workflow(FulfilOrder.run, order, id=f"wf-{uuid.uuid4()}", task_queue=scene.queue)
        await scene.client.execute_workflow(
            Quote.run, args=[SECRET, 1.5, [SECRET]], id=f"wf-{uuid.uuid4()}", task_queue=scene.queue
        )
        with anyio.fail_after(PATIENCE):
            while len(await found_on(scene, adapter)) < 3 or any(
                each.usual is None for each in await found_on(scene, adapter)
            ):
                await anyio.sleep(0.05)
        yield scene.on(adapter)


async def found_on(scene: Scene, adapter: TemporalAdapter) -> list[Discovered]:
    return [each for each in await adapter.tooling.discover() if each.options.get("task_queue") == scene.queue]


async def test_what_is_discovered_has_the_arguments_of_recent_inputs_and_children_come_last(shop: Scene) -> None:
    order, quote, parcel = await found_on(shop, shop.adapter)
    assert [each.workflow for each in (order, quote, parcel)] == ["FulfilOrder", "Quote", "ShipParcel"]
    assert [(each.executions, each.is_child) for each in (order, quote, parcel)] == [(2, False), (1, False), (3, True)]
    assert order.input == {
        "type": "object",
        "properties": {
            "order_id": {"type": "string"},
            "quantity": {"type": "integer"},
            "note": {"type": ["string", "null"]},
        },
        "required": ["order_id", "quantity"],
    }
    assert "args" not in order.options
    assert quote.options["args"] == "{{[arg1, arg2, arg3]}}"
    assert quote.input is not None
    assert quote.input["required"] == ["arg1", "arg2", "arg3"]
    assert SECRET not in repr([order, quote, parcel])


async def test_the_input_of_a_workflow_that_is_named_is_read_however_seldom_it_ran(
    shop: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "SAMPLED_TYPES", 1)

    async def with_input(*named: str) -> list[str]:
        return [each.workflow for each in await shop.adapter.tooling.discover(named) if each.input is not None]

    assert (await with_input(), await with_input("Quote")) == (["FulfilOrder"], ["Quote"])


async def test_inputs_that_cannot_be_read_here_leave_the_arguments_open(shop: Scene, empty_server: DevServer) -> None:
    kind = f"Sealed-{uuid.uuid4().hex}"
    sealed = await Client.connect(
        empty_server.address, namespace=shop.client.namespace, data_converter=own_converter.encrypting
    )
    await sealed.start_workflow(kind, SECRET, id=f"wf-{uuid.uuid4()}", task_queue=shop.queue)
    await until_seen(shop, kind)
    [found] = [each for each in await found_on(shop, shop.adapter) if each.workflow == kind]
    assert (found.input, found.executions) == (None, 1)


async def run_in(folder: Path, environment: Mapping[str, str], line: str) -> str:
    command = [COMMAND, *shlex.split(line)[1:]]
    done = await anyio.to_thread.run_sync(lambda: commands.run(command, cwd=folder, env=environment))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


MAPS: Sequence[tuple[type, Sequence[JSON], str, str]] = [
    (Count, [{f"cus_{SECRET}": 1, "b": 2}], "count", "0"),
    (Label, [None, {f"p_{SECRET.replace('-', '_')[:7]}": "x", "alice_secret": "y"}], "label arg2={}", "None: 0"),
    (Note, [None], "note", "noted None"),
]


async def test_keys_that_are_data_are_not_written_and_the_recommended_call_works(
    empty_server: DevServer, tmp_path: Path
) -> None:
    namespace = await new_namespace(empty_server)
    own = {"TEMPORAL_ADDRESS": empty_server.address, "TEMPORAL_NAMESPACE": namespace}
    environment = {**os.environ, **own}
    scene = Scene.new(await Client.connect(empty_server.address, namespace=namespace))
    async with scene.worker([Count, Label, Note, FulfilOrder, ShipParcel], []):
        for kind, arguments, _, _ in MAPS:
            await scene.client.execute_workflow(
                kind.__name__, args=arguments, id=f"wf-{uuid.uuid4()}", task_queue=scene.queue
            )
            await until_seen(scene, kind.__name__)
        await scene.client.execute_workflow(
            FulfilOrder.run, Order("A1", 1), id=f"wf-{uuid.uuid4()}", task_queue=scene.queue
        )
        await until_seen(scene, "FulfilOrder")
        said = await run_in(
            tmp_path,
            environment,
            f"mcp-workflows init --engine temporal {' '.join(f'--workflow {kind.__name__}' for kind, *_ in MAPS)}",
        )
        for _, _, call, result in MAPS:
            assert result in await run_in(tmp_path, environment, f"mcp-workflows call {call}")
        more = await run_in(tmp_path, environment, "mcp-workflows init --add temporal --workflow FulfilOrder")
    written = (tmp_path / "workflows.yaml").read_text()
    assert [word for word in ("hunter2", "alice", "cus_") if word in said + written] == []
    assert "the input of Count is inferred from recent executions" in said
    assert "order_id" not in written
    assert "order_id" in more


async def test_an_existing_workflow_answers_its_first_call_after_three_commands(
    shop: Scene, empty_server: DevServer, tmp_path: Path
) -> None:
    own = {"TEMPORAL_ADDRESS": empty_server.address, "TEMPORAL_NAMESPACE": shop.client.namespace}
    environment = {**os.environ, **own}

    async def typed(line: str) -> str:
        return await run_in(tmp_path, environment, line)

    said = await typed("mcp-workflows init --engine temporal --workflow FulfilOrder")
    said += await typed("mcp-workflows connect claude --write --yes")
    called = await typed("mcp-workflows call fulfil_order order_id=A1 quantity=1")
    assert "shipped A1" in called
    assert "mcp-workflows call fulfil_order order_id=... quantity=..." in said
    written = (tmp_path / "workflows.yaml").read_text()
    tool = re.findall(r"^ {4}\S.*", written.partition("  fulfil_order:\n")[2].partition("\n\n")[0], re.MULTILINE)
    assert [line for line in tool if "TODO" in line] == [
        '    description: "TODO: what it does, and when a model should call it."'
    ]
    await typed("mcp-workflows check")
    assert SECRET not in said + written + (tmp_path / ".mcp.json").read_text()
    [host] = json.loads((tmp_path / ".mcp.json").read_text())["mcpServers"].values()
    assert host["args"] == ["serve", str(tmp_path / "workflows.yaml")]


async def test_where_nothing_has_run_yet_there_is_a_sample(empty_server: DevServer, tmp_path: Path) -> None:
    config = tmp_path / "workflows.yaml"
    namespace = await new_namespace(empty_server)
    words = ["--engine", "temporal", "--set", f"address={empty_server.address}", "--set", f"namespace={namespace}"]
    done = await anyio.to_thread.run_sync(run, "init", *words, "-c", str(config))
    assert done.returncode == 0, done.stderr
    assert "no workflow has run yet" in done.stderr
    [tool] = load_config(config, {}).tools
    assert tool.workflow == "MyWorkflow"


async def test_check_says_what_the_gates_name_and_the_workflow_lacks(
    own: Scene, empty_server: DevServer, tmp_path: Path
) -> None:
    config = tmp_path / "workflows.yaml"
    config.write_text(
        CONFIG.format(address=empty_server.address, queue=own.queue).replace("Configured", "Mailed")
        + "    cancel: {signal: stop}\n    questions:\n      ship:\n        when: {after: send_aproval_mail}\n"
        + "        message: Ship?\n"
        + "        send: {signal: aprove}\n"
    )
    async with worker(own):
        await mailed(own)
        done = await anyio.to_thread.run_sync(run, "check", str(config))
    assert done.returncode == 1, done.stdout
    [line] = [line for line in done.stdout.splitlines() if line.startswith("tool")]
    assert (
        f"{config}:14: questions.ship.send.signal: workflow Mailed has no signal 'aprove'; did you mean 'appr" in line
    )
    assert f"{config}:9: cancel.signal: workflow Mailed has no signal 'stop' (it has: approve)" in line
    assert f"{config}:12: questions.ship.when.after: no activity 'send_aproval_mail' in " in line
    assert "did you mean 'send_approval_mail'?" in line
