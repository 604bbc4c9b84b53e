"""Questions, gates and watched executions as clients see them: from `tools/call` to what the state machine gets."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import anyio
import mcp_types
import pytest
from mcp.client import Client, ClientRequestContext
from typer.testing import CliRunner

from adapters.stepfunctions.tests import machines
from adapters.stepfunctions.tests.configured import (
    PACE,
    YES,
    asked,
    by_flags,
    called,
    client_of,
    configured,
    executions,
    types,
)
from adapters.stepfunctions.tests.executions import Run
from adapters.stepfunctions.tests.test_gates import foreign
from mcp_workflows import TasksClient
from mcp_workflows.sidecar.cli.app import app
from tests.support.served import Peer, peer
from tests.support.sidecars import sidecar
from tests.support.stepfunctions_engine import StepFunctions

pytestmark = pytest.mark.anyio

NO: Final = {"action": "decline"}
EXPIRES: Final = {
    "StartAt": "Ask",
    "States": {
        "Ask": {
            **{key: value for key, value in machines.asking("Now?").items() if key != "End"},
            "TimeoutSeconds": 1,
            "Catch": [{"ErrorEquals": ["States.Timeout"], "ResultPath": None, "Next": "AskAgain"}],
            "Next": "AskAgain",
        },
        "AskAgain": machines.asking("Later?"),
    },
}


async def both_asked(client: Peer, task_id: str) -> Mapping[str, str]:
    """Keys by message, once two questions are open."""
    with anyio.fail_after(20):
        while len(found := (await client.get(task_id)).get("inputRequests", {})) < 2:
            await anyio.sleep(0.02)
    return {question["params"]["message"]: key for key, question in found.items()}


async def acknowledged(client: Peer, task_id: str, **responses: Any) -> None:
    assert (await client.answer(task_id, **responses)).result["resultType"] == "complete"


async def test_two_questions_are_answered_one_by_one_declined_and_answered_again_in_vain(
    stepfunctions: StepFunctions, tmp_path: Path
) -> None:
    machine = stepfunctions.machine(machines.ASKS_TWO)
    async with client_of(configured(tmp_path, stepfunctions.url, {"it": {"workflow": machine}})) as client:
        task_id = await called(client)
        keys = await both_asked(client, task_id)
        first, second = keys["Ship it?"], keys["Really?"]
        wrong = await client.answer(task_id, **{first: {"action": "accept", "content": {"answer": 1}}})
        assert wrong.error["data"]["key"] == first
        await acknowledged(client, task_id, **{first: YES})
        assert set((await client.get(task_id))["inputRequests"]) == {second}
        await acknowledged(client, task_id, **{first: NO, "999": YES})
        assert (await client.get(task_id))["status"] == "input_required"
        await acknowledged(client, task_id, **{second: NO})
        done = await client.until(task_id)
    assert done["result"]["structuredContent"] == {"result": [YES, {"action": "decline", "content": {}}]}
    [execution] = executions(stepfunctions, machine)
    assert types(stepfunctions, execution).count("TaskSucceeded") == 2


async def test_an_answer_that_comes_too_late_is_ignored_and_the_next_question_stands(
    stepfunctions: StepFunctions, tmp_path: Path
) -> None:
    machine = stepfunctions.machine(EXPIRES)
    async with client_of(configured(tmp_path, stepfunctions.url, {"it": {"workflow": machine}})) as client:
        task_id = await called(client)
        late, _ = await asked(client, task_id)
        with anyio.fail_after(20):
            while (key := next(iter((await client.get(task_id)).get("inputRequests", {late: 0})))) == late:
                await anyio.sleep(0.05)
        await acknowledged(client, task_id, **{late: YES})
        assert set((await client.get(task_id))["inputRequests"]) == {key}
        await acknowledged(client, task_id, **{key: YES})
        assert (await client.until(task_id))["result"]["structuredContent"] == YES
    [execution] = executions(stepfunctions, machine)
    assert types(stepfunctions, execution).count("TaskSucceeded") == 1


async def test_an_answer_after_a_cancellation_changes_nothing(stepfunctions: StepFunctions, tmp_path: Path) -> None:
    machine = stepfunctions.machine(machines.ASKS)
    async with client_of(configured(tmp_path, stepfunctions.url, {"it": {"workflow": machine}})) as client:
        task_id = await called(client)
        key, _ = await asked(client, task_id)
        assert (await client.send("tasks/cancel", {"taskId": task_id})).result["resultType"] == "complete"
        await acknowledged(client, task_id, **{key: YES})
        ended = await client.until(task_id)
        await acknowledged(client, task_id, **{key: YES})
        assert {**await client.get(task_id), **PACE} == {**ended, **PACE}
    assert (ended["status"], "cancelled through mcp-workflows" in ended["statusMessage"]) == ("cancelled", True)
    [execution] = executions(stepfunctions, machine)
    assert stepfunctions.ended(execution)["error"] == "Mcp.Cancelled"
    assert "TaskSucceeded" not in types(stepfunctions, execution)


async def test_the_sdks_client_puts_the_questions_to_its_person(stepfunctions: StepFunctions, tmp_path: Path) -> None:
    async def answer(context: ClientRequestContext, params: mcp_types.ElicitRequestParams) -> mcp_types.ElicitResult:
        messages.append(params.message)
        return mcp_types.ElicitResult(action="accept", content={"answer": "yes"})

    messages: list[str] = []
    machine = stepfunctions.machine(machines.ASKS_TWO)
    async with (
        client_of(configured(tmp_path, stepfunctions.url, {"it": {"workflow": machine}})) as served,
        Client(served.url, extensions=[TasksClient()], elicitation_callback=answer) as client,
    ):
        result = await client.call_tool("it", {"order_id": "A1"})
    assert result.structured_content == {"result": [YES, YES]}
    assert sorted(messages) == ["Really?", "Ship it?"]


ASK_OK: Final = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
GATES: Final = {
    "approval": {
        "when": "WaitForApproval",
        "message": "Ship {{args.order_id}}?",
        "schema": ASK_OK,
        "send": {"output": {"approved": "{{answer.ok}}"}},
        "decline": {"error": "Rejected", "cause": "nobody approved it"},
    }
}
GATED: Final = {"input": {"type": "object", "properties": {"order_id": {"type": "string"}}}, "questions": GATES}
APPROVED: Final = {"action": "accept", "content": {"ok": True}}


async def test_a_gate_of_a_machine_that_was_not_written_for_us_is_accepted_and_declined(
    stepfunctions: StepFunctions, tmp_path: Path
) -> None:
    machine = stepfunctions.machine(foreign(**{"token.$": "$$.Task.Token"}))
    config = configured(tmp_path, stepfunctions.url, {"it": {"workflow": machine, **GATED}})
    async with client_of(config) as client:
        for response, result in ((APPROVED, {"structuredContent": {"approved": True}}), (NO, {})):
            task_id = await called(client)
            key, question = await asked(client, task_id)
            assert question["params"]["message"] == "Ship «A1»?"
            await acknowledged(client, task_id, **{key: response})
            done = (await client.until(task_id))["result"]
            assert done["isError"] is False
            assert result.items() <= done.items()
        assert done["content"][0]["text"] == "kept"


async def test_a_gate_is_answered_by_its_name_from_the_command_line(
    stepfunctions: StepFunctions, tmp_path: Path
) -> None:
    machine = stepfunctions.machine(foreign(**{"token.$": "$$.Task.Token"}))
    amount = {"type": "object", "properties": {"amount": {"type": "number"}}, "required": ["amount"]}
    pay = {
        "when": "WaitForApproval",
        "message": "Pay {{amount}}?",
        "schema": amount,
        "send": {"output": {"paid": "{{answer.amount}}"}},
    }
    tool = {"workflow": machine, "input": amount, "questions": {"approval": pay}}
    config = configured(tmp_path, stepfunctions.url, {"it": tool})
    for result, said in (await by_flags(config, "it", "amount=12", "--answer", "approval.amount=12")).values():
        assert json.dumps(result) == '{"paid": 12}'
        assert "? [approval] Pay 12?\n> amount: 12 (by flag)" in said


async def test_nobody_who_answers_is_null_to_the_states_that_read_who_it_was(
    stepfunctions: StepFunctions, tmp_path: Path
) -> None:
    machine: Any = json.loads(json.dumps(foreign(**{"token.$": "$$.Task.Token"})))
    machine["States"]["Ship"]["Parameters"] = {"who.$": "$.by", "note.$": "$.note", "order.$": "$.order"}
    output = {"by": "{{principal.subject}}", "note": "{{answer.note}}", "order": "{{args.order_of}}"}
    ask = {"message": "Ship?", "schema": {"type": "object", "properties": {"note": {"type": "string"}}}}
    gates = {"approval": {**GATES["approval"], **ask, "send": {"output": output}}}
    tool = {"workflow": stepfunctions.machine(machine), "questions": gates}
    async with client_of(configured(tmp_path, stepfunctions.url, {"it": tool})) as client:
        task_id = await called(client)
        key, _ = await asked(client, task_id)
        await acknowledged(client, task_id, **{key: {"action": "accept", "content": {}}})
        done = (await client.until(task_id))["result"]
    assert done["structuredContent"] == {"who": None, "note": None, "order": None}


async def test_a_redrive_ends_no_task_anew_and_is_seen_by_who_watches(
    stepfunctions: StepFunctions, tmp_path: Path
) -> None:
    machine = stepfunctions.machine(machines.ASKS)
    watching = {"kind": "watch", "allow_answer": True}
    tools = {
        "it": {"workflow": machine},
        "by_arn": {"workflow": machine, **watching},
        "by_name": {"workflow": machine.rpartition(":")[2], **watching},
        "another": {"workflow": stepfunctions.machine(machines.ECHO), **watching},
    }
    config = configured(tmp_path, stepfunctions.url, tools, {"single_user": True})
    async with client_of(config) as client:
        task_id = await called(client)
        key, _ = await asked(client, task_id)
        [execution] = executions(stepfunctions, machine)
        Run(engine=stepfunctions, arn=execution).fail(key, "Shop.Closed")
        ended = await client.until(task_id)
        assert (ended["status"], ended["result"]["isError"]) == ("completed", True)
        stepfunctions.client().redrive_execution(executionArn=execution)
        wanted = {"execution_id": execution}
        watched = [str((await client.call(tool, wanted)).result["taskId"]) for tool in ("by_arn", "by_name")]
        again, _ = await asked(client, watched[0])
        assert again != key
        assert (await asked(client, watched[1]))[0] == again
        assert {**await client.get(task_id), **PACE} == {**ended, **PACE}
        refused = (await client.call("another", wanted)).result
        assert (refused["isError"], "shows no execution" in refused["content"][0]["text"]) == (True, True)
        await acknowledged(client, watched[0], **{again: YES})
        assert [(await client.until(each))["result"]["structuredContent"] for each in watched] == [YES, YES]
        assert {**await client.get(task_id), **PACE} == {**ended, **PACE}


async def test_an_execution_started_by_hand_is_watched_and_not_touched(
    stepfunctions: StepFunctions, tmp_path: Path
) -> None:
    machine = stepfunctions.machine(machines.ASKS)
    tools = {"it": {"workflow": machine.rpartition(":")[2], "kind": "watch"}}
    begun = stepfunctions.client().start_execution(stateMachineArn=machine, name="by-hand", input="{}")
    async with client_of(configured(tmp_path, stepfunctions.url, tools, {"single_user": True})) as client:
        task_id = (await client.call("it", {"execution_id": begun["executionArn"]})).result["taskId"]
        with anyio.fail_after(20):
            while "somebody else's answer: Ship it?" not in (await client.get(task_id)).get("statusMessage", ""):
                await anyio.sleep(0.02)
        refused = await client.send("tasks/cancel", {"taskId": task_id})
        assert "nothing can be cancelled" in refused.error["message"]
        stepfunctions.client().stop_execution(executionArn=begun["executionArn"], error="ByHand")
        assert (await client.until(task_id))["status"] == "cancelled"
    assert len(executions(stepfunctions, machine)) == 1


async def test_a_task_token_is_in_no_log_no_store_and_no_message(stepfunctions: StepFunctions, tmp_path: Path) -> None:
    tools = {
        "it": {"workflow": stepfunctions.machine(machines.ASKS)},
        "gated": {"workflow": stepfunctions.machine(foreign(**{"token.$": "$$.Task.Token"})), **GATED},
        "misled": {
            "workflow": stepfunctions.machine(foreign(**{"order.$": "$.order_id", "token.$": "$$.Task.Token"})),
            **GATED,
            "questions": {
                "approval": {
                    **GATES["approval"],
                    "when": {"state": "WaitForApproval", "token": "Entries[0].Detail.order"},
                }
            },
        },
    }
    config = configured(tmp_path, stepfunctions.url, tools)
    said: list[str] = []
    with sidecar(config, "--log-level", "debug") as served:
        async with peer(served.url) as client:
            for tool, response in (("it", YES), ("gated", APPROVED), ("misled", APPROVED)):
                task_id = (await client.call(tool, {"order_id": f"A-{uuid.uuid4().hex}"})).result["taskId"]
                key, question = await asked(client, task_id)
                said += [str(await client.get(task_id)), str(question)]
                why = await anyio.to_thread.run_sync(told_why, config, task_id)
                assert "WaitForApproval" in why or "Ask" in why
                said += [why, str((await client.answer(task_id, **{key: response})).body)]
                said.append(str(await client.get(task_id) if tool == "misled" else await client.until(task_id)))
                said.append(str((await client.answer(task_id, **{key: response})).body))
        log = served.log.read_bytes()
    assert b"DEBUG" in log
    for execution in executions(stepfunctions, str(tools["misled"]["workflow"])):
        stepfunctions.client().stop_execution(executionArn=execution)
    kept = stored(tmp_path)
    assert b"WaitForApproval" in kept
    tokens = [token for tool in tools.values() for token in tokens_of(stepfunctions, str(tool["workflow"]))]
    assert len(tokens) == 3
    for token in tokens:
        assert token not in "".join(said)
        assert token.encode() not in log
        assert token.encode() not in kept


def stored(folder: Path) -> bytes:
    """All of the store's files."""
    return b"".join(path.read_bytes() for path in folder.glob("tasks.db*"))


def told_why(config: Path, task_id: str) -> str:
    return CliRunner().invoke(app, ["tasks", "why", task_id, "-c", str(config)]).output


def tokens_of(engine: StepFunctions, machine: str) -> list[str]:
    """The tokens in the histories of a machine's executions."""
    found: list[str] = []
    for execution in executions(engine, machine):
        event = engine.event(execution, "TaskScheduled")
        [entry] = json.loads(event["taskScheduledEventDetails"]["parameters"])["Entries"]
        detail = json.loads(entry["Detail"]) if isinstance(entry["Detail"], str) else entry["Detail"]
        found.append(detail.get("taskToken") or detail["token"])
    return found
