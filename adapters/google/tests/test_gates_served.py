"""Gates as clients see them: workflows that were not written for us, from `tools/call` to what their callbacks get."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from mcp_workflows_google.tooling.embed import add_subworkflows

from adapters.google.tests import flows
from adapters.google.tests.configured import asked, by_flags, called, client_of, configured, executions, operating
from adapters.google.tests.elsewhere import deliver
from adapters.google.tests.scene import environment
from scripts.processes import free_port
from tests.support.google_engine import GoogleEngine
from tests.support.served import Peer

pytestmark = pytest.mark.anyio

OK: Final = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
APPROVED: Final = {"action": "accept", "content": {"ok": True}}
NO: Final = {"action": "decline"}
CANCEL: Final = {"action": "cancel"}

STEPS: Final = """
    - open_{name}:
        call: events.create_callback_endpoint
        args: {{http_callback_method: {method}}}
        result: callback_of_{name}
    - wait_for_{name}:
        call: events.await_callback
        args: {{callback: "${{callback_of_{name}}}", timeout: 600}}
        result: {name}
"""


def waits(name: str, method: str = "POST") -> str:
    """Two steps: open a callback, and wait for it."""
    return STEPS.format(name=name, method=method)


def branch(name: str, steps: str) -> str:
    """A branch with these steps."""
    inner = steps.replace("\n", "\n            ").rstrip()
    return f"            - of_{name}:\n                steps:{inner}\n"


def main(steps: str, returned: str) -> str:
    return f"main:\n  params: [args]\n  steps:{steps}    - done:\n        return: {returned}\n"


def at_once(*branches: str, shared: str, returned: str) -> str:
    """A workflow with these branches in parallel."""
    names = "".join(f"          - {name}: null\n" for name in shared.split(", "))
    before = f"\n    - prepare:\n        assign:\n{names}"
    both = f"    - both:\n        parallel:\n          shared: [{shared}]\n          branches:\n{''.join(branches)}"
    return main(before + both, returned)


IN_TURN: Final = main(
    waits("sales") + waits("legal").removeprefix("\n"), '["${sales.http_request.body}", "${legal.http_request.body}"]'
)


def gate(when: Any, *, words: str = "Approve {{args.order_id}}?", **more: Any) -> Mapping[str, Any]:
    """One that says which order is meant."""
    return {
        "when": when,
        "ask": {"message": words, "schema": OK},
        "send": {"body": {"approved": "{{answer.ok}}", "order": "{{args.order_id}}", "by": "{{principal.subject}}"}},
        "decline": {"body": {"approved": False, "why": "{{args.order_id}} was refused"}},
        **more,
    }


@asynccontextmanager
async def gated(
    engine: GoogleEngine, folder: Path, source: str, **gates: Mapping[str, Any]
) -> AsyncGenerator[tuple[Peer, str]]:
    """A client of a sidecar whose tool `it` is this workflow behind these gates, and the workflow."""
    port = free_port()
    workflow = engine.deploy("gated", source, env=environment(port))
    order = {"type": "object", "properties": {"order_id": {"type": "string"}}}
    config = configured(folder, engine.address, {"it": {"workflow": workflow, "input": order, "gates": gates}})
    async with client_of(config, port=port) as client:
        yield client, workflow


async def until_asked(client: Peer, task_id: str, *messages: str) -> Mapping[str, str]:
    """Keys by message, once these questions and no others are open."""
    with anyio.fail_after(20):
        while True:
            open_now = (await client.get(task_id)).get("inputRequests", {})
            keys = {question["params"]["message"]: key for key, question in open_now.items()}
            if keys.keys() == set(messages):
                return keys
            await anyio.sleep(0.02)


async def acknowledged(client: Peer, task_id: str, **responses: Any) -> None:
    assert (await client.answer(task_id, **responses)).result["resultType"] == "complete"


async def test_what_is_sent_is_what_the_configuration_says(google_engine: GoogleEngine, tmp_path: Path) -> None:
    sent = {"approved": True, "order": "A1", "by": None}  # nobody has logged in
    refused = {"approved": False, "why": "A1 was refused"}
    async with gated(google_engine, tmp_path, flows.GATED, approval=gate("await_approval")) as (client, _):
        for response, result in ((APPROVED, sent), (NO, refused)):
            task_id = await called(client)
            key, question = await asked(client, task_id)
            assert question["params"]["message"] == "Approve «A1»?"
            wrong = await client.answer(task_id, **{key: {"action": "accept", "content": {"ok": "perhaps"}}})
            assert wrong.error["data"]["key"] == key
            await acknowledged(client, task_id, **{key: CANCEL})  # put aside: it stays open
            assert set((await client.get(task_id))["inputRequests"]) == {key}
            await acknowledged(client, task_id, **{key: response})
            assert (await client.until(task_id))["result"]["structuredContent"] == result


async def test_a_gate_is_answered_by_its_name_from_the_command_line(
    google_engine: GoogleEngine, tmp_path: Path
) -> None:
    workflow = google_engine.deploy("paying", flows.GATED)
    amount = {"type": "object", "properties": {"amount": {"type": "number"}}, "required": ["amount"]}
    pay = {
        "when": "await_approval",
        "ask": {"message": "Pay {{amount}}?", "schema": amount},
        "send": {"body": {"paid": "{{answer.amount}}"}},
        "decline": {"body": {"paid": 0}},
    }
    tool = {"workflow": workflow, "input": amount, "gates": {"approval": pay}}
    config = configured(tmp_path, google_engine.address, {"it": tool})
    for result, said in (await by_flags(config, "it", "amount=12", "--answer", "approval.amount=12")).values():
        assert json.dumps(result) == '{"paid": 12}'
        assert "? [approval] Pay 12?\n> amount: 12 (by flag)" in said


async def test_the_operator_answers_a_gate_by_its_name(google_engine: GoogleEngine, tmp_path: Path) -> None:
    async with gated(google_engine, tmp_path, flows.GATED, approval=gate("await_approval")) as (client, _):
        task_id = await called(client)
        await asked(client, task_id)
        await operating(tmp_path, "answer", task_id, "approval.ok=true")
        done = (await client.until(task_id))["result"]["structuredContent"]
    assert done == {"approved": True, "order": "A1", "by": None}


async def test_a_gate_without_decline_cannot_be_declined(google_engine: GoogleEngine, tmp_path: Path) -> None:
    only = {key: value for key, value in gate("await_approval").items() if key != "decline"}
    async with gated(google_engine, tmp_path, flows.GATED, approval=only) as (client, _):
        task_id = await called(client)
        key, _ = await asked(client, task_id)
        assert "cannot be declined" in (await client.answer(task_id, **{key: NO})).error["message"]
        assert set((await client.get(task_id))["inputRequests"]) == {key}
        await client.send("tasks/cancel", {"taskId": task_id})


async def test_two_gates_in_a_row_are_asked_one_after_the_other(google_engine: GoogleEngine, tmp_path: Path) -> None:
    gates = {"sales": gate("wait_for_sales", words="Sales?"), "legal": gate("wait_for_legal", words="Legal?")}
    async with gated(google_engine, tmp_path, IN_TURN, **gates) as (client, _):
        task_id = await called(client)
        first = (await until_asked(client, task_id, "Sales?"))["Sales?"]
        await acknowledged(client, task_id, **{first: APPROVED})
        second = (await until_asked(client, task_id, "Legal?"))["Legal?"]
        assert second != first
        await acknowledged(client, task_id, **{first: NO})  # answered already: it must not reach the second
        await acknowledged(client, task_id, **{second: APPROVED})
        done = (await client.until(task_id))["result"]["structuredContent"]["result"]
    assert done == [{"approved": True, "order": "A1", "by": None}] * 2


async def test_parallel_gates_are_told_apart_by_their_methods(google_engine: GoogleEngine, tmp_path: Path) -> None:
    source = at_once(
        branch("sales", waits("sales", "PUT")),
        branch("legal", waits("legal", "GET")),
        shared="sales, legal",
        returned='["${sales.http_request.body}", "${legal.http_request.method}"]',
    )
    gates = {
        "sales": gate({"step": "wait_for_sales", "method": "PUT"}, words="Sales?"),
        "legal": gate({"step": "wait_for_legal", "method": "GET"}, send={}, decline={}, ask={"message": "Legal?"}),
    }
    async with gated(google_engine, tmp_path, source, **gates) as (client, _):
        task_id = await called(client)
        keys = await until_asked(client, task_id, "Sales?", "Legal?")
        await acknowledged(client, task_id, **{keys["Legal?"]: {"action": "accept", "content": {}}})
        await until_asked(client, task_id, "Sales?")
        await acknowledged(client, task_id, **{keys["Sales?"]: NO})
        done = (await client.until(task_id))["result"]["structuredContent"]["result"]
    assert done == [{"approved": False, "why": "A1 was refused"}, "GET"]


async def test_gates_that_nothing_tells_apart_are_complained_of_and_not_asked(
    google_engine: GoogleEngine, tmp_path: Path
) -> None:
    source = at_once(
        branch("sales", waits("sales")), branch("legal", waits("legal")), shared="sales, legal", returned="both"
    )
    gates = {"sales": gate("wait_for_sales"), "legal": gate("wait_for_legal")}
    async with gated(google_engine, tmp_path, source, **gates) as (client, _):
        task_id = await called(client)
        with anyio.fail_after(20):
            while "2 callbacks" not in (task := await client.get(task_id)).get("statusMessage", ""):
                await anyio.sleep(0.02)
        assert task["status"] == "working"
        assert "when.method" in task["statusMessage"]
        await client.send("tasks/cancel", {"taskId": task_id})
        assert (await client.until(task_id))["status"] == "cancelled"


async def test_a_gate_that_somebody_else_has_answered_is_over(google_engine: GoogleEngine, tmp_path: Path) -> None:
    gates = {"sales": gate("wait_for_sales", words="Sales?"), "legal": gate("wait_for_legal", words="Legal?")}
    async with gated(google_engine, tmp_path, IN_TURN, **gates) as (client, workflow):
        task_id = await called(client)
        late = (await until_asked(client, task_id, "Sales?"))["Sales?"]
        [execution] = executions(google_engine, workflow)
        await deliver(google_engine, execution, "by mail")
        await acknowledged(client, task_id, **{late: NO})  # whoever answers now is too late, and harms nothing
        key = (await until_asked(client, task_id, "Legal?"))["Legal?"]
        await acknowledged(client, task_id, **{key: APPROVED})
        done = (await client.until(task_id))["result"]["structuredContent"]["result"]
    assert done == ["by mail", {"approved": True, "order": "A1", "by": None}]


async def test_a_gate_is_not_taken_for_a_question_that_the_workflow_asks_beside_it(
    google_engine: GoogleEngine, tmp_path: Path
) -> None:
    asks = '\n    - ask:\n        call: mcp_elicit\n        args: {message: "Own?"}\n        result: own\n'
    source = at_once(
        branch("own", asks), branch("sales", waits("sales")), shared="own, sales",
        returned='["${own.action}", "${sales.http_request.body.approved}"]',
    )  # fmt: skip
    gates = {"sales": gate("wait_for_sales", words="Sales?")}
    async with gated(google_engine, tmp_path, add_subworkflows(source), **gates) as (client, _):
        task_id = await called(client)
        keys = await until_asked(client, task_id, "Own?", "Sales?")
        await acknowledged(client, task_id, **{keys["Own?"]: NO, keys["Sales?"]: APPROVED})
        done = (await client.until(task_id))["result"]["structuredContent"]["result"]
    assert done == ["decline", True]
