"""State machines behind a sidecar, as with every cloud; and what only state machines do."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import anyio
import pytest

from adapters.stepfunctions.tests import cloud as local
from adapters.stepfunctions.tests.executions import Run
from tests.support.cloud_suites import (
    OK_FORM,
    Cloud,
    GateSuite,
    OperatorSuite,
    QuestionSuite,
    ReplicaSuite,
    acknowledged,
    same,
)
from tests.support.configured import YES, asked, called, client_of
from tests.support.stepfunctions_engine import ROLE, StepFunctions

pytestmark = pytest.mark.anyio


class TestQuestions(QuestionSuite):
    """Questions of state machines."""


class TestGates(GateSuite):
    """Gates at states that wait for a task token."""


class TestReplicas(ReplicaSuite):
    """Executions are named by their keys. Workflows of Google show the slow ones in `make test`."""

    @pytest.mark.slow
    async def test_an_answer_that_arrived_before_the_sidecar_died_is_taken_once(
        self, cloud: Cloud, tmp_path: Path
    ) -> None:
        await super().test_an_answer_that_arrived_before_the_sidecar_died_is_taken_once(cloud, tmp_path)

    @pytest.mark.slow
    async def test_two_replicas_start_once_and_a_question_outlives_the_one_that_is_killed(
        self, cloud: Cloud, tmp_path: Path
    ) -> None:
        await super().test_two_replicas_start_once_and_a_question_outlives_the_one_that_is_killed(cloud, tmp_path)


class TestOperators(OperatorSuite):
    """State machines are marked by a tag; `verify` needs a role to create some."""

    verify = ("--set", f"role={ROLE}")
    nowhere: ClassVar[Mapping[str, Any]] = {"endpoint_url": "http://127.0.0.1:1"}


EXPIRES: Final = {
    "StartAt": "Ask",
    "States": {
        "Ask": {
            **local.without(local.asking("Now?", TimeoutSeconds=5), "End"),
            "Catch": [{"ErrorEquals": ["States.Timeout"], "ResultPath": None, "Next": "AskAgain"}],
            "Next": "AskAgain",
        },
        "AskAgain": local.asking("Later?"),
    },
}


async def test_an_answer_that_comes_too_late_is_ignored_and_the_next_question_stands(
    stepfunctions: StepFunctions, tmp_path: Path
) -> None:
    machine = stepfunctions.machine(EXPIRES)
    async with client_of(local.configured(tmp_path, stepfunctions.url, {"it": {"workflow": machine}})) as client:
        task_id = await called(client)
        late, _ = await asked(client, task_id)
        with anyio.fail_after(60):
            while (key := next(iter((await client.get(task_id)).get("inputRequests", {late: 0})))) == late:
                await anyio.sleep(0.05)
        await acknowledged(client, task_id, **{late: YES})
        assert set((await client.get(task_id))["inputRequests"]) == {key}
        await acknowledged(client, task_id, **{key: YES})
        assert (await client.until(task_id))["result"]["structuredContent"] == YES


async def test_nobody_who_answers_is_null_to_the_states_that_read_who_it_was(
    cloud: local.StepFunctionsCloud, tmp_path: Path
) -> None:
    machine: Any = {**local.foreign(**{"token.$": "$$.Task.Token"})}
    reads = {"who.$": "$.by", "note.$": "$.note", "order.$": "$.order"}
    states = {**machine["States"], "Ship": {**machine["States"]["Ship"], "Parameters": reads}}
    output = {"by": "{{principal.subject}}", "note": "{{answer.note}}", "order": "{{args.order_of}}"}
    form = {"type": "object", "properties": {"note": {"type": "string"}}}
    gate = {**cloud.gate, "message": "Ship?", "schema": form, "send": {"output": output}}
    tool = {"workflow": cloud.engine.machine({**machine, "States": states}), "questions": {"approval": gate}}
    async with client_of(cloud.configured(tmp_path, {"it": tool})) as client:
        task_id = await called(client)
        key, _ = await asked(client, task_id)
        await acknowledged(client, task_id, **{key: {"action": "accept", "content": {}}})
        done = (await client.until(task_id))["result"]
    assert done["structuredContent"] == {"who": None, "note": None, "order": None}


async def test_a_redrive_ends_no_task_anew_and_is_seen_by_who_watches(
    cloud: local.StepFunctionsCloud, tmp_path: Path
) -> None:
    machine = cloud.deploy("asks")
    tools = {
        "it": {"workflow": machine},
        "watch": {"workflow": machine, "kind": "watch", "allow_answer": True},
    }
    async with client_of(cloud.configured(tmp_path, tools, {"single_user": True})) as client:
        task_id = await called(client)
        key, _ = await asked(client, task_id)
        [execution] = cloud.executions(machine)
        Run(engine=cloud.engine, arn=execution).fail(key, "Shop.Closed")
        ended = await client.until(task_id)
        assert (ended["status"], ended["result"]["isError"]) == ("completed", True)
        cloud.engine.client().redrive_execution(executionArn=execution)
        watched = str((await client.call("watch", {"execution_id": execution})).result["taskId"])
        again, _ = await asked(client, watched)
        assert again != key
        assert same(await client.get(task_id), ended)
        await acknowledged(client, watched, **{again: YES})
        assert (await client.until(watched))["result"]["structuredContent"] == YES
        assert same(await client.get(task_id), ended)


async def test_a_token_that_is_none_is_in_no_message_either(cloud: local.StepFunctionsCloud, tmp_path: Path) -> None:
    misled = cloud.engine.machine(local.foreign(**{"order.$": "$.order_id", "token.$": "$$.Task.Token"}))
    when = {"state": "WaitForApproval", "token": "Entries[0].Detail.order"}
    gate = {**cloud.gate, "when": when, "message": "Ship it?", "schema": OK_FORM}
    secret = f"A-{uuid.uuid4().hex}"
    async with client_of(
        cloud.configured(tmp_path, {"it": {"workflow": misled, "questions": {"approval": gate}}})
    ) as c:
        task_id = (await c.call("it", {"order_id": secret})).result["taskId"]
        key, _ = await asked(c, task_id)
        refused = str((await c.answer(task_id, **{key: {"action": "accept", "content": {"ok": True}}})).error)
        assert "when.token" in refused
        assert secret not in refused
        assert list((await c.get(task_id))["inputRequests"]) == [key]
        await c.send("tasks/cancel", {"taskId": task_id})
        await c.until(task_id)
