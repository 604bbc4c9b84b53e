"""Gates: human steps that our configuration declares, from `tools/call` to what the engine is sent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest
from mcp.server.lowlevel import Server

from mcp_workflows import GateQuestion, Tool, attach
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.errors import ConfigError
from mcp_workflows.sidecar.config.load import load_config
from tests.support.served import Peer, peer, site

pytestmark = pytest.mark.anyio

OK: Mapping[str, Any] = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
REJECT: Mapping[str, Any] = {"signal": "reject", "args": ["{{order_id}}", "{{answer}}"]}
NOW: Mapping[str, Any] = {"after_seconds": 0}
ORDER: Mapping[str, Any] = {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]}


NAMED: Mapping[str, Any] = {"_meta": {"mcp-workflows/question": "approve"}}  # how a client learns the gate's name


def approve(**changed: Any) -> GateQuestion:
    sent = ["{{answer.ok}}", "{{principal.subject}}", "{{order_id}} in {{task.id}}"]
    written: dict[str, Any] = {
        "when": NOW,
        "message": "Ship {{args.order_id}}?",
        "schema": dict(OK),
        "send": {"signal": "approve", "args": sent},
    }
    return GateQuestion(**{**written, **changed})


def gated(*, name: str = "ship", **gates: GateQuestion) -> Tool:
    return Tool(name=name, engine="memory", workflow="gated", input=dict(ORDER), questions=gates)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncGenerator[Peer]:
    tools = [
        gated(approve=approve()),
        gated(name="two", first=approve(), second=approve(decline=REJECT)),
        gated(name="broken", approve=approve(send={"args": ["{{length(answer.ok)}}"]})),
    ]
    async with site(store=f"sqlite:///{tmp_path}/tasks.db", tools=tools) as served, peer(served.url) as found:
        yield found


async def waiting(client: Peer, tool: str = "ship") -> Mapping[str, Any]:
    created = (await client.call(tool, {"order_id": "A1"})).result
    return await client.until(created["taskId"], "input_required")


def accept(**content: Any) -> Mapping[str, Any]:
    return {"action": "accept", "content": content}


async def test_an_open_gate_is_a_question_with_its_message_filled_in(client: Peer) -> None:
    task = await waiting(client)
    assert task["inputRequests"] == {
        "approve.1": {
            "method": "elicitation/create",
            "params": {
                "mode": "form",
                "message": "Ship «A1»?",
                "requestedSchema": OK,
                "_meta": {**NAMED["_meta"], "mcp-workflows/decline": False},
            },
        }
    }


async def test_an_answer_reaches_the_engine_in_its_own_words(client: Peer) -> None:
    task_id = (await waiting(client))["taskId"]
    await client.send("tasks/update", {"taskId": task_id, "inputResponses": {"approve.1": accept(ok=True)}})
    sent = (await client.until(task_id))["result"]["structuredContent"]
    assert sent == {"approve": {"signal": "approve", "args": [True, None, f"A1 in {task_id}"]}}


async def test_what_comes_with_a_refusal_was_never_checked_and_is_not_sent(client: Peer) -> None:
    task_id = (await waiting(client, "two"))["taskId"]
    declined = {"action": "decline", "content": {"ok": "anything"}}
    answers = {"first.1": accept(ok=True), "second.1": declined}
    await client.send("tasks/update", {"taskId": task_id, "inputResponses": answers})
    sent = (await client.until(task_id))["result"]["structuredContent"]
    assert sent["second"] == {"signal": "reject", "args": ["A1"]}


async def test_a_client_cannot_say_itself_what_a_gate_sends(client: Peer) -> None:
    task_id = (await waiting(client))["taskId"]
    forged = {**accept(ok=True), "send": {"signal": "forged"}}
    await client.send("tasks/update", {"taskId": task_id, "inputResponses": {"approve.1": forged}})
    sent = (await client.until(task_id))["result"]["structuredContent"]
    assert sent["approve"]["signal"] == "approve"


async def test_a_gate_that_knows_no_refusal_says_so_and_stays_open(client: Peer) -> None:
    task_id = (await waiting(client))["taskId"]
    declined = {"taskId": task_id, "inputResponses": {"approve.1": {"action": "decline"}}}
    error = (await client.send("tasks/update", declined)).error
    assert (error["code"], error["data"]) == (-32602, {"key": "approve.1"})
    assert "cannot be declined" in error["message"]
    assert set((await client.get(task_id))["inputRequests"]) == {"approve.1"}


async def test_a_template_that_does_not_work_on_an_answer_is_told_and_applies_nothing(client: Peer) -> None:
    task_id = (await waiting(client, "broken"))["taskId"]
    answer = {"taskId": task_id, "inputResponses": {"approve.1": accept(ok=True)}}
    assert "length" in (await client.send("tasks/update", answer)).error["message"]
    assert (await client.get(task_id))["status"] == "input_required"


CONFIG = """
engines: {{memory: {{adapter: memory}}}}
tools:
  ship:
    engine: memory
    workflow: gated
    input: {{type: object, properties: {{order_id: {{type: string}}}}}}
    questions:
      approve: {gate}
"""


@pytest.mark.parametrize(
    ("gate", "complaint"),
    [
        ("{when: {after_seconds: 0}, send: 1}", "tools.ship.questions.approve.message: is missing"),
        ("{message: Go?, schema: {type: boolean}, send: 1}", "tools.ship.questions.approve.when: is missing"),
        (
            "{when: {after: 0}, message: Go?, schema: {type: boolean}, send: 1}",
            "tools.ship.questions.approve.when.after: unknown key",
        ),
        (
            "{when: {after_seconds: 0}, message: 'Go {{orderid}}?', schema: {type: boolean}, send: 1}",
            "there is no argument 'orderid'; did you mean 'order_id'?",
        ),
        (
            "{when: {after_seconds: 0}, message: Go?, schema: {type: boolean}, send: '{{answer.ok}}'}",
            "tools.ship.questions.approve.send: the answer has no 'ok'",
        ),
        (
            "{when: {after_seconds: 0}, message: Go?, schema: {type: boolean}, send: '{{answer.'}",
            "braces that are not closed",
        ),
        (
            "{when: {after_seconds: 0}, message: Go?, schema: {type: object, properties: {a: {}}}, send: 1}",
            "tools.ship.questions.approve.schema",
        ),
    ],
)
def test_a_wrong_gate_is_told_with_its_line(gate: str, complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "workflows.yaml"
    file.write_text(CONFIG.format(gate=gate))
    with pytest.raises(ConfigError) as wrong:
        load_config(file, {})
    assert complaint in str(wrong.value)
    assert f"{file}:9:" in str(wrong.value)


def test_an_engine_without_gates_says_so(tmp_path: Path) -> None:
    class Ungated(MemoryAdapter):
        GateSettings = None

    with pytest.raises(ConfigError, match="does not support gates"):
        attach(Server("test"), tools=[gated(approve=approve())], engines={"memory": Ungated(MemorySettings())})
