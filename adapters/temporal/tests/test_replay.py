"""Replaying an exported history: what clients would have seen, and the same as they do see."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mcp_workflows_temporal import TemporalAdapter

from adapters.temporal.tests.scene import Scene, reset_to_second_task, workflow_id
from adapters.temporal.tests.test_gates import (
    APPROVE,
    AWAITING,
    NO,
    REJECT,
    handled,
    only_key,
    settled,
    shop,
    start,
    tell,
    waiting,
    yes,
)
from mcp_workflows.adapter import JSON, Failure, Progress, Ref, Status
from mcp_workflows.errors import ConfigError
from mcp_workflows.kit.tooling import Replayed
from tests.sidecar.cli.terminal import Ended, Terminal
from tests.support.dev_server import DevServer

CONFIG = """
engines:
  orders: {adapter: temporal, task_queue: orders}
  memory: {adapter: memory}
tools:
  ship_order:
    engine: orders
    workflow: ShipOrder
    input: {type: object, properties: {order_id: {type: string}, parcels: {type: integer}}, required: [order_id]}
    questions:
      approve:
        when: {after: NotifyApprover}
        message: "Ship {{args.order_id}}?"
        schema: {type: boolean}
        send: {signal: approve, args: ["{{answer.approve}}"]}
  plain: {engine: orders, workflow: ShipOrder}
  elsewhere: {engine: memory, workflow: echo}
"""


def export(server: DevServer, ref: Ref) -> Mapping[str, Any]:
    """As a user exports it."""
    shown = server.cli("workflow", "show", "--workflow-id", workflow_id(ref), "--output", "json")
    assert shown.returncode == 0, shown.stderr
    history: Mapping[str, Any] = json.loads(shown.stdout)
    return history


def replayed(server: DevServer, ref: Ref) -> Sequence[Replayed]:
    return TemporalAdapter.tooling.replay(export(server, ref), ref.gates)


def told(seen: Sequence[Replayed]) -> Sequence[tuple[str, Status, list[str]]]:
    return [(each.event, each.execution.status, list(each.execution.requests)) for each in seen]


async def test_two_rounds_are_told_event_by_event(selling: Scene, dev_server: DevServer) -> None:
    ref, first = await settled(selling, "ShipOrder", "A1", 2, decline=REJECT)
    await selling.adapter.answer(ref, {first: yes(True)})
    second = await only_key(selling, ref)
    await handled(selling, ref)
    await selling.adapter.answer(ref, {second: NO})
    await selling.ended(ref)
    assert told(replayed(dev_server, ref)) == [
        ("1", Status.RUNNING, []),
        ("7", Status.INPUT_REQUIRED, ["approve.7"]),
        ("11", Status.RUNNING, []),
        ("17", Status.INPUT_REQUIRED, ["approve.17"]),
        ("21", Status.RUNNING, []),
        ("25", Status.SUCCEEDED, []),
    ]


@pytest.mark.parametrize("workflow", ["ShipOrder", "ShipByUpdate", "ShipAndAsk"])
async def test_a_replay_ends_where_a_look_is(selling: Scene, dev_server: DevServer, workflow: str) -> None:
    ref = await start(selling, workflow, "A1", send={"update": "approve"} if "Update" in workflow else APPROVE)
    seen = await selling.asked(ref, 2 if workflow == "ShipAndAsk" else 1)
    assert replayed(dev_server, ref)[-1].execution.requests == seen.requests


async def test_the_next_run_of_a_chain_is_replayed_with_its_own_keys(selling: Scene, dev_server: DevServer) -> None:
    ref, first = await waiting(selling, "ShipForEver", "A1", send={"signal": "approve"})
    await tell(selling, ref, "approve", True)
    seen = await selling.until(ref, lambda seen: seen.requests and first not in seen.requests)
    assert replayed(dev_server, ref)[-1].execution.requests == seen.requests
    run = ("--run-id", ref.handle.rpartition("/")[2], "--output", "json")
    shown = dev_server.cli("workflow", "show", "--workflow-id", workflow_id(ref), *run)
    last = TemporalAdapter.tooling.replay(json.loads(shown.stdout), ref.gates)[-1].execution
    assert (last.status, last.requests) == (Status.RUNNING, {})
    assert (last.message or "").startswith("it goes on as another run")


async def test_a_reset_run_is_replayed_with_its_own_keys(selling: Scene, dev_server: DevServer) -> None:
    ref, first = await waiting(selling, "ShipOrder", "A1")
    await reset_to_second_task(selling, ref)
    seen = await selling.until(ref, lambda seen: seen.requests and first not in seen.requests)
    assert replayed(dev_server, ref)[-1].execution.requests == seen.requests


async def test_what_our_library_asked_and_said_is_replayed(working: Scene, dev_server: DevServer) -> None:
    ref = await working.start("Ask", "Bob")
    [key] = (await working.asked(ref)).requests
    await working.adapter.answer(ref, {key: {"action": "accept", "content": {"size": "S"}}})
    done = await working.ended(ref)
    seen = replayed(dev_server, ref)
    [asked] = [each.execution for each in seen if each.execution.requests]
    assert (list(asked.requests), asked.message, asked.progress) == ([key], "asking Bob", Progress(value=1, total=2))
    assert seen[-1].execution.output == done.output


@pytest.mark.parametrize(
    ("workflow", "arguments", "status", "said"),
    [
        ("Fails", ["out of stock", "OutOfStock"], Status.FAILED, "out of stock"),
        ("TimesOut", [True], Status.CANCELLED, "terminated: fire"),
    ],
)
async def test_an_end_is_told_as_a_look_tells_it(
    working: Scene, dev_server: DevServer, workflow: str, arguments: list[Any], status: Status, said: str
) -> None:
    ref = await working.start(workflow, *arguments)
    if status is Status.CANCELLED:
        await working.client.get_workflow_handle(workflow_id(ref)).terminate(reason="fire")
    done = await working.ended(ref)
    last = replayed(dev_server, ref)[-1].execution
    assert (last.status, last.failure, last.message) == (done.status, done.failure, done.message)
    assert (last.failure.text if last.failure else last.message) == said


async def test_a_memo_of_a_codec_is_said_to_be_encrypted(working: Scene, dev_server: DevServer) -> None:
    ref = await working.start("ForeignMemo")
    await working.client.get_workflow_handle(workflow_id(ref)).signal("go")
    await working.ended(ref)
    seen = replayed(dev_server, ref)
    assert "its memo is encrypted (binary/foreign)" in (seen[1].execution.message or "")
    assert (seen[-1].execution.status, seen[-1].execution.message) == (
        Status.SUCCEEDED,
        "its result is encrypted (binary/foreign)",
    )


async def test_a_gate_by_query_is_named_and_not_shown(selling: Scene, dev_server: DevServer) -> None:
    ref, _ = await waiting(selling, "ShipByStatus", when=AWAITING)
    [only] = replayed(dev_server, ref)
    assert only.execution.message == "gate approve is told by the query state, which is not in a history"


@pytest.mark.parametrize(
    "history",
    [
        [],
        1,
        None,
        {},
        {"events": []},
        {"events": 1},
        {"events": [1]},
        {"events": [{"eventId": "x"}]},
        {"workflows": {}},
    ],
)
def test_what_is_no_history_is_said_to_be_none(history: Any) -> None:
    with pytest.raises(ConfigError, match=r"not a.* Temporal history.*temporal workflow show"):
        TemporalAdapter.tooling.replay(history, {})


def test_a_history_of_a_newer_temporal_is_read_as_far_as_it_is_known() -> None:
    start = {"eventId": "1", "eventType": "EVENT_TYPE_WORKFLOW_EXECUTION_STARTED", "brandNew": {"a": 1}}
    attributes = {"workflowType": {"name": "Ship"}, "neverHeardOf": True}
    history = {"events": [{**start, "workflowExecutionStartedEventAttributes": attributes}], "more": 1}
    [only] = TemporalAdapter.tooling.replay(history, {})
    assert only.execution.status is Status.RUNNING


# the command


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """Replays a history in a folder with the configuration."""

    terminal: Terminal

    def run(self, tool: str, history: str = "history.json", *more: str) -> Ended:
        return self.terminal.run("check", "--history", history, "--tool", tool, *more)


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    (tmp_path / "workflows.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    return Shell(terminal=Terminal(tmp_path, capsys, monkeypatch))


@pytest.fixture
async def history(scene: Scene, dev_server: DevServer, tmp_path: Path) -> Path:
    """Of an execution that was approved, exported beside the configuration."""
    async with shop(scene):
        ref, key = await settled(scene, "ShipOrder", "A1")
        await scene.adapter.answer(ref, {key: yes(True)})
        await scene.ended(ref)
    path = tmp_path / "history.json"
    path.write_text(json.dumps(export(dev_server, ref)))
    return path


@pytest.mark.usefixtures("history")
async def test_the_command_prints_a_line_for_each_change(shell: Shell, tmp_path: Path) -> None:
    assert shell.run("ship_order order_id=A1").out.splitlines() == [
        "event 1 working",
        "event 7 input_required: Ship «A1»? (approve.7)",
        "event 11 working",
        "event 15 completed",
    ]
    without = shell.run("ship_order")
    assert "event 7 input_required: Ship {{args.order_id}}? (approve.7)" in without.out
    assert without.err == ""
    told = json.loads(shell.run("ship_order", "history.json", "--json").out)
    assert [each["status"] for each in told] == ["working", "input_required", "working", "completed"]
    assert list(told[1]["inputRequests"]) == ["approve.7"]
    plain = shell.run("plain", "history.json", "--config", "workflows.yaml")
    assert (plain.code, plain.out.splitlines()) == (0, ["event 1 working", "event 15 completed"])
    (tmp_path / "workflows.yaml").write_text(CONFIG.replace("NotifyApprover", "NotifyAprover"))
    never = shell.run("ship_order", "history.json", "--json")
    assert (never.code, len(json.loads(never.out))) == (0, 2)
    assert "gate approve was never open in this history" in never.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ship_order", "nowhere.json"], "nowhere.json: No such file or directory"),
        (["ship_order", "broken.json"], "broken.json:1:2: not JSON"),
        (["ship_order", "deep.json"], "deep.json: not JSON (RecursionError)"),
        (["ship_order", "bytes.json"], "bytes.json: not JSON (UnicodeDecodeError)"),
        (["ship_order", "other.json"], "this is not a Temporal history"),
        (["elsewhere", "other.json"], "the adapter of engine 'memory' cannot replay histories"),
    ],
)
def test_the_command_says_what_is_wrong(shell: Shell, tmp_path: Path, words: Sequence[str], said: str) -> None:
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "bytes.json").write_bytes(b"\xff")
    (tmp_path / "other.json").write_text("[1]")
    done = shell.run(*words)
    assert (done.code, done.out) == (1, "")
    assert said in done.err


def test_arguments_that_do_not_fit_the_tool_are_wrong_usage(shell: Shell) -> None:
    done = shell.run("ship_order parcels=many")
    assert (done.code, done.out, "parcels" in done.err) == (2, "", True)


def test_details_that_are_encrypted_hide_nothing_else_of_a_failure() -> None:
    details = {"payloads": [{"metadata": {"encoding": "YmluYXJ5L2VuY3J5cHRlZA=="}, "data": "eA=="}]}
    about = {"type": "CardDeclined", "nonRetryable": True, "details": details}
    failed = {"failure": {"message": "card declined", "applicationFailureInfo": about}}
    kind = "EVENT_TYPE_WORKFLOW_EXECUTION_"
    events: Sequence[JSON] = [
        {"eventId": "1", "eventType": f"{kind}STARTED", "workflowExecutionStartedEventAttributes": {}},
        {"eventId": "2", "eventType": f"{kind}FAILED", "workflowExecutionFailedEventAttributes": failed},
    ]
    found = TemporalAdapter.tooling.replay({"events": events}, {})[-1].execution
    assert found.failure == Failure(text="card declined", kind="CardDeclined", retryable=False)
