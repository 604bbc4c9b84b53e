"""Gates that send another number of arguments than a handler takes: refused, found by `check`, and blamed by `why`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from adapters.temporal.tests.scene import PATIENCE, Scene, connect, open_adapter, workflow_id
from adapters.temporal.tests.test_gates import AWAITING, handled, only_key, settled, shop, start, tell, waiting, yes
from mcp_workflows.adapter import JSON, Finding, Ref
from mcp_workflows.errors import ConfigError, EngineUnavailable
from mcp_workflows.kit.tooling import Explanation
from mcp_workflows.sidecar.config.load import load_config
from tests.support.dev_server import DevServer

WORKFLOW = "adapters.temporal.tests.gated:ShipByVote"
CONFIG = """
engines:
  orders: {{adapter: temporal, task_queue: orders}}
tools:
  ship:
    engine: orders
    workflow: ShipByVote
    input: {workflow}
    questions:
      approve:
        when: {{query: state, equals: awaiting_approval}}
        message: Ship it?
        schema: {{type: object, properties: {{ok: {{type: boolean}}, who: {{type: string}}}}, required: [ok]}}
        send: {send}
"""


def write(folder: Path, send: str, workflow: str = WORKFLOW) -> Path:
    config = folder / "workflows.yaml"
    config.write_text(CONFIG.format(send=send, workflow=workflow))
    return config


# --- by the workflow's code, when the configuration is read


@pytest.mark.parametrize(
    ("send", "wrong"),
    [
        (
            "{signal: approve, args: ['{{answer.ok}}']}",
            "signal approve takes 2 to 3 arguments (ok, who, note), and this",
        ),
        ("{update: vote, args: [1, 2, 3]}", "update vote takes 2 arguments (ok, who), and this gives it 3"),
        (
            "{update: vote, args: ['{{answer.ok}}', '{{answer.who}}']}",
            "who is left out when the person leaves it empty",
        ),
    ],
)
def test_arguments_that_the_handler_does_not_take_are_refused_where_the_code_is_named(
    tmp_path: Path, send: str, wrong: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, send), {})
    assert "tools.ship.questions.approve.send.args" in str(caught.value)
    assert wrong in str(caught.value)


@pytest.mark.parametrize(
    "send",
    [
        "{signal: approve, args: ['{{answer.ok}}', '{{principal.subject}}']}",
        "{signal: approve, args: ['{{answer.ok}}', '{{principal.subject}}', '{{answer.who}}']}",
        "{update: vote, args: ['{{answer.who}}', '{{answer.ok}}']}",
        "{signal: set_up_as_it_runs, args: ['{{answer.ok}}']}",
    ],
)
def test_arguments_that_the_handler_takes_are_fine(tmp_path: Path, send: str) -> None:
    load_config(write(tmp_path, send), {})


@pytest.mark.parametrize(
    ("old", "new", "where", "said"),
    [
        ("workflow: ShipByVote", "workflow: ShipByVotes", "workflow", "is the workflow type 'ShipByVote', and not"),
        (
            "query: state",
            "query: staate",
            "questions.approve.when.query",
            "has no query 'staate'; did you mean 'state'?",
        ),
        ("signal: approve", "signal: aprove", "questions.approve.send.signal", "no signal 'aprove'; did you mean 'app"),
        ("    input:", "    cancel: {signal: aprove}\n    input:", "cancel.signal", "has no signal 'aprove'; did you"),
    ],
)
def test_a_name_that_the_code_contradicts_is_refused(tmp_path: Path, old: str, new: str, where: str, said: str) -> None:
    config = write(tmp_path, "{signal: approve, args: ['{{answer.ok}}', '{{answer.ok}}']}")
    config.write_text(config.read_text().replace(old, new))
    with pytest.raises(ConfigError) as caught:
        load_config(config, {})
    assert f"tools.ship.{where}: {WORKFLOW} " in str(caught.value)
    assert said in str(caught.value)


def test_code_that_cannot_be_imported_is_complained_of_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, "{signal: approve, args: ['{{answer.ok}}']}", "nowhere.workflows:Order"), {})
    assert str(caught.value).count("cannot import") == 1
    assert "gates" not in str(caught.value)


# --- by what came in recent histories, in `check`


async def checked(scene: Scene, send: JSON) -> Sequence[Finding]:
    gates = {"approve": {"when": AWAITING, "send": send, "decline": None}}
    return [each for each in await scene.adapter.tooling.verify("ShipByVote", {}, gates) if not each.ok]


async def test_check_compares_the_number_of_arguments_with_what_came_lately(own_dev_server: DevServer) -> None:
    scene = Scene.new(await connect(own_dev_server))
    async with open_adapter(own_dev_server, scene.queue) as adapter, shop(scene):
        scene = scene.on(adapter)
        broken = await scene.start("ShipByVote")
        await tell(scene, broken, "approve", True)  # proves nothing: it breaks the workflow
        for signal, args in (("approve", [True, "anna"]), ("approve", [True, "ben", "in a hurry"])):
            ref = await scene.start("ShipByVote")
            await tell(scene, ref, signal, *args)
            await scene.ended(ref)
        voted = await scene.start("ShipByVote")
        handle = scene.client.get_workflow_handle(workflow_id(voted))
        await handle.execute_update("vote", args=[True, "carl"])  # pyright: ignore[reportUnknownMemberType]  # the SDK's own hints
        await scene.ended(voted)
        await until_listed(scene, 4)
        [few] = await checked(scene, {"signal": "approve", "args": ["{{answer.ok}}"]})
        assert few.text == (
            "questions.approve.send.args: signal approve lately came with 2 or 3, and this gives it 1 argument"
        )
        assert "null where there is nothing to say" in (few.hint or "")
        [many] = await checked(scene, {"update": "vote", "args": [1, 2, 3]})
        assert "update vote lately came with 2, and this gives it 3 arguments" in many.text
        for fine in ({"signal": "approve", "args": [1, 2]}, {"update": "vote", "args": [1, 2]}):
            assert await checked(scene, fine) == []


async def until_listed(scene: Scene, count: int) -> None:
    with anyio.fail_after(PATIENCE):
        while len([row async for row in scene.client.list_workflows("WorkflowType = 'ShipByVote'")]) < count:
            await anyio.sleep(0.05)


# --- by the workflow task that fails, in `why`


async def broken(scene: Scene, ref: Ref) -> Explanation:
    """Why it does not get on, once its workflow task has failed."""
    with anyio.fail_after(PATIENCE):
        while "it waits" in (why := await scene.adapter.tooling.explain(ref)).reason or "about to" in why.reason:
            await anyio.sleep(0.05)  # no event tells us
    return why


async def cli(server: DevServer, advice: str | None, command: str, end: str, *more: str) -> None:
    """Run what the advice says, as it is written; in a thread, as the worker must go on."""
    written = (advice or "").partition(f"temporal {command}")[2].partition(end)[0]
    done = await anyio.to_thread.run_sync(partial(server.cli, *shlex.split(command + written), *more))
    assert done.returncode == 0, done.stderr


async def test_why_blames_the_gate_whose_signal_breaks_the_workflow_and_says_how_it_goes_on(
    selling: Scene, dev_server: DevServer
) -> None:
    ref = await start(selling, "ShipByVote", when=AWAITING, send={"signal": "approve", "args": ["{{answer.ok}}"]})
    await selling.adapter.answer(ref, {await only_key(selling, ref): yes(True)})
    why = await broken(selling, ref)
    assert why.reason == (
        "questions.approve.send.args: gate approve sent signal approve with 1 argument, which its handler does not take"
        ": ShipByVote.approve() missing 1 required positional argument: 'who'"
    )
    await cli(dev_server, why.advice, "workflow reset", " (")
    assert len((await selling.asked(ref)).requests) == 1
    await handled(selling, ref)
    await cli(dev_server, why.advice, "workflow signal", ", with", "--input", "true", "--input", '"anna"')
    assert (await selling.ended(ref)).output == [{"ok": True, "who": "anna"}]


async def test_why_blames_the_gate_whose_update_breaks_the_workflow(selling: Scene, dev_server: DevServer) -> None:
    ref, key = await settled(selling, "ShipByVote", when=AWAITING, send={"update": "vote", "args": [1, 2, 3]})
    with pytest.raises(EngineUnavailable, match=r"the workflow task that takes the answer \(update vote\) fails"):
        await selling.adapter.answer(ref, {key: yes(1, 2, 3, kind="update", name="vote")})
    why = await broken(selling, ref)
    assert why.reason == (
        "questions.approve.send.args: gate approve sent update vote, which its handler does not take: "
        "ShipByVote.vote() takes 3 positional arguments but 4 were given (self is one of them)"
    )
    await cli(dev_server, why.advice, "workflow reset", " (")
    await selling.asked(ref)
    await cli(dev_server, why.advice, "workflow update execute", ", with", "--input", "true", "--input", '"anna"')
    assert (await selling.ended(ref)).output == [{"ok": True, "who": "anna"}]


@pytest.mark.parametrize("arguments", [[True, "mallory"], [True]])
async def test_why_does_not_blame_a_gate_for_what_somebody_else_did(selling: Scene, arguments: Sequence[JSON]) -> None:
    ref, key = await waiting(selling, "ShipByVote", when=AWAITING, send={"signal": "approve", "args": [1, 2]})
    if len(arguments) == 2:  # the gate sends what is right, and the workflow's own code is wrong
        await selling.adapter.answer(ref, {key: yes(*arguments)})
        said = "mistake in the workflow's code, which is tried again: TypeError: notify_approver() missing 1 required"
    else:  # somebody else sends what is wrong
        await tell(selling, ref, "approve", *arguments)
        said = "the workflow's code fails"
    why = await broken(selling, ref)
    assert why.reason.startswith(said)
