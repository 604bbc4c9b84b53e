"""Replaying an exported history: what clients would have seen, without an account."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from mcp_workflows_stepfunctions.tooling.offline import replay

from adapters.stepfunctions.tests.events import TOKEN, Telling
from mcp_workflows.adapter import Failure, Gate, InputRequest, Status
from mcp_workflows.errors import ConfigError
from mcp_workflows.sidecar.cli.app import main

CONFIG = """
engines:
  orders: {adapter: stepfunctions, region: us-east-1}
tools:
  ship_order:
    engine: orders
    workflow: Orders
    input: {type: object, properties: {order_id: {type: string}}, required: [order_id]}
    questions:
      approve:
        when: WaitForApproval
        message: "Ship {{args.order_id}}?"
        schema: {type: boolean}
        send: {output: {approved: "{{answer.approve}}"}}
        decline: {error: Rejected}
"""


UNDECODABLE = Failure(text="the execution succeeded, but its output is no JSON", kind="UndecodableResult")


def shipped() -> Telling:
    """A machine that was not written for us waits for somebody, and ships."""
    told = Telling()
    _, latest = told.ask(0, "WaitForApproval", {"MessageBody": {"token": TOKEN}})
    told.add("ExecutionSucceeded", told.answered(latest, "WaitForApproval"), output='"shipped"')
    return told


def approve() -> Mapping[str, Gate]:
    request = InputRequest(method="elicitation/create", params={"message": "Ship it?"})
    return {"approve": Gate(when="WaitForApproval", request=request, send={"output": True})}


def test_a_gate_is_told_event_by_event() -> None:
    seen = replay({"events": shipped().events}, approve())
    assert [(each.event, each.execution.status, list(each.execution.requests)) for each in seen] == [
        ("1", Status.RUNNING, []),
        ("2", Status.RUNNING, []),
        ("3", Status.INPUT_REQUIRED, ["3"]),
        ("6", Status.RUNNING, []),
        ("8", Status.SUCCEEDED, []),
    ]
    assert seen[-1].execution.output == "shipped"
    assert TOKEN not in repr(seen)


@pytest.mark.parametrize(
    ("kind", "details", "status", "failure", "message"),
    [
        ("Succeeded", {"output": "{"}, Status.FAILED, UNDECODABLE, None),
        ("Failed", {"error": "E", "cause": "c"}, Status.FAILED, Failure(text="E: c", kind="E"), None),
        ("TimedOut", {}, Status.FAILED, Failure(text="States.Timeout", kind="States.Timeout"), None),
        ("Aborted", {"error": "Mcp.Cancelled"}, Status.CANCELLED, None, "cancelled"),
        ("Aborted", {}, Status.CANCELLED, None, "aborted"),
        ("Succeeded", {}, Status.SUCCEEDED, None, None),
    ],
)
def test_an_end_is_told_as_a_look_tells_it(
    kind: str, details: Mapping[str, str], status: Status, failure: Failure | None, message: str | None
) -> None:
    told = Telling()
    told.add("ExecutionRedriven", told.add(f"Execution{kind}", 1, **details))  # which reopens no task
    last = replay({"events": told.events}, {})[-1].execution
    assert (last.status, last.failure, last.message) == (status, failure, message)


@pytest.mark.parametrize(
    "history",
    [
        [],
        None,
        {},
        {"events": [1]},
        {"events": [{"id": "x", "type": "ExecutionStarted"}]},
        {"events": [{"id": 1, "type": "ExecutionStarted", "executionStartedEventDetails": "x"}]},
        {"events": [{"id": 1, "type": "ExecutionStarted", "previousEventId": "x"}]},
        {"events": [{"id": 7, "type": "TaskStateEntered"}]},
    ],
)
def test_what_is_no_history_is_said_to_be_none(history: Any) -> None:
    with pytest.raises(ConfigError, match=r"not a.* Step Functions history.*aws stepfunctions get-execution-history"):
        replay(history, {})


def test_a_gate_that_is_none_is_said_to_be_none() -> None:
    request = InputRequest(method="elicitation/create", params={})
    with pytest.raises(ConfigError, match="gate approve: when"):
        replay({"events": shipped().events}, {"approve": Gate(when={}, request=request, send={"output": 1})})


def test_the_command_prints_what_a_client_would_have_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "workflows.yaml").write_text(CONFIG)
    (tmp_path / "history.json").write_text(json.dumps({"events": shipped().events}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["mcp-workflows", "check", "--history", "history.json", "--tool", "ship_order order_id=A1"]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert (ended.value.code or 0, printed.err) == (0, "")
    assert printed.out.splitlines() == [
        "event 1 working",
        "event 2 working: WaitForApproval",
        "event 3 input_required: Ship «A1»? (3); WaitForApproval",
        "event 6 working: WaitForApproval",
        "event 8 completed",
    ]
