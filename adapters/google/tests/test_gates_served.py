"""Gates as clients see them: workflows that were not written for us, from `tools/call` to what their callbacks get."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from adapters.google.tests import flows
from adapters.google.tests.configured import asked, by_flags, called, client_of, configured, operating
from adapters.google.tests.scene import environment
from tests.support.child_processes import free_port
from tests.support.google_engine import GoogleEngine
from tests.support.served import Peer

pytestmark = pytest.mark.anyio

OK: Final = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
APPROVED: Final = {"action": "accept", "content": {"ok": True}}
NO: Final = {"action": "decline"}
CANCEL: Final = {"action": "cancel"}


def gate(when: Any, *, words: str = "Approve {{args.order_id}}?", **more: Any) -> Mapping[str, Any]:
    """One that says which order is meant."""
    return {
        "when": when,
        "message": words,
        "schema": OK,
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
        "message": "Pay {{amount}}?",
        "schema": amount,
        "send": {"body": {"paid": "{{answer.amount}}"}},
        "decline": {"body": {"paid": 0}},
    }
    tool = {"workflow": workflow, "input": amount, "questions": {"approval": pay}}
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
