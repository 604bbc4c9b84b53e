"""Workflows behind a sidecar, as with every cloud; and questions that workflows themselves post to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final
from unittest.mock import Mock

import anyio
import pytest
from mcp_workflows_google.tooling.subworkflows import add_subworkflows
from typer.testing import CliRunner

from adapters.google.tests.cloud import ASKS, GoogleCloud, deliver, environment
from mcp_workflows.sidecar.cli.app import app
from tests.support.cloud_suites import Cloud, GateSuite, OperatorSuite, QuestionSuite, ReplicaSuite, acknowledged
from tests.support.configured import YES, asked, called, client_of
from tests.support.google_local_listener import listening

pytestmark = pytest.mark.anyio

HELD: Final = add_subworkflows("""
main:
  params: [args]
  steps:
    - opening:
        call: events.create_callback_endpoint
        args: {http_callback_method: POST}
        result: go
    - held:
        call: events.await_callback
        args: {callback: "${go}", timeout: 600}
    - asking:
        call: mcp_elicit
        args: {message: "Ship it?"}
        result: answer
    - done:
        return: ${answer}
""")


class TestQuestions(QuestionSuite):
    """Questions that workflows ask by `mcp_elicit`."""


class TestGates(GateSuite):
    """Gates at steps that wait for a callback."""


class TestReplicas(ReplicaSuite):
    """Executions are found by the label of their key, once they have settled."""

    impatient: ClassVar[Mapping[str, Any]] = {"settle": "3s", "timeout_seconds": 1}

    @pytest.mark.slow  # state machines show it in `make test`
    async def test_an_engine_that_freezes_and_then_is_gone_ends_no_task(self, own_cloud: Cloud, tmp_path: Path) -> None:
        await super().test_an_engine_that_freezes_and_then_is_gone_ends_no_task(own_cloud, tmp_path)


class TestOperators(OperatorSuite):
    """Workflows are marked by a label."""

    nowhere: ClassVar[Mapping[str, Any]] = {"emulator": "127.0.0.1:1", "timeout_seconds": 1, "settle": "10s"}


async def test_a_question_that_cannot_be_asked_fails_the_workflow_in_plain_words(
    cloud: GoogleCloud, tmp_path: Path
) -> None:
    workflow = cloud.deploy_source("asks", HELD.replace('"Ship it?"', '"Ship it?", requested_schema: {type: array}'))
    async with client_of(cloud.configured(tmp_path, {"it": {"workflow": workflow}}), port=cloud.port) as client:
        task_id = await called(client)
        await deliver(cloud.engine, cloud.executions(workflow)[0], {})
        result = (await client.until(task_id))["result"]
    assert result["isError"]
    assert "the question cannot be asked" in result["content"][0]["text"]
    assert "requested_schema" in result["content"][0]["text"]


@pytest.mark.parametrize(
    ("deployed", "status", "why"),
    [
        ({"url": "/"}, 404, "which must not end in a slash"),
        ({"account": "other@demo.iam.gserviceaccount.com"}, 403, "not among inbound.accounts"),
    ],
    ids=["address", "account"],
)
async def test_a_workflow_that_cannot_ask_fails_and_check_says_what_it_is_deployed_with(
    cloud: GoogleCloud, tmp_path: Path, deployed: Mapping[str, str], status: int, why: str
) -> None:
    env = dict(environment(cloud.port))
    env["MCP_WORKFLOWS_URL"] += deployed.get("url", "")
    workflow = cloud.engine.deploy("asks", ASKS, env=env, service_account=deployed.get("account", ""))
    config = cloud.configured(tmp_path, {"it": {"workflow": workflow}})
    async with client_of(config, port=cloud.port) as client:
        result = (await client.until(await called(client)))["result"]
    assert result["isError"]
    assert f"error code {status}" in result["content"][0]["text"]
    assert "mcp-workflows check" in result["content"][0]["text"]
    checked = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(app, ["check", str(config)]))
    assert checked.exit_code == 1
    assert why in checked.output


async def test_a_question_asked_while_the_sidecar_is_down_is_there_when_it_is_back(
    cloud: GoogleCloud, tmp_path: Path
) -> None:
    workflow = cloud.deploy_source("asks", HELD)
    config = cloud.configured(tmp_path, {"it": {"workflow": workflow}})
    async with client_of(config, port=cloud.port) as client:
        task_id = await called(client)
    [execution] = cloud.executions(workflow)
    await deliver(cloud.engine, execution, {})
    cloud.engine.at(execution, "of_the_connection")  # of mcp_retry: it has been tried
    async with client_of(config, port=cloud.port) as client:
        key, _ = await asked(client, task_id)
        await acknowledged(client, task_id, **{key: YES})
        assert (await client.until(task_id))["result"]["structuredContent"] == cloud.returned(YES)


async def test_a_question_is_told_at_once_though_the_next_look_is_a_minute_away(
    cloud: GoogleCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_workflows.engines.polling.policy.PollingPolicy.interval", Mock(return_value=60.0))
    quota = {"share": 1, "list_executions": 1}  # one sweep in more than a minute
    workflow = cloud.deploy_source("asks", HELD)
    config = cloud.configured(tmp_path, {"it": {"workflow": workflow}}, quota=quota)
    async with client_of(config, port=cloud.port) as client:
        task_id = await called(client)
        wanted = {"notifications": {"taskIds": [task_id]}}
        async with client.stream("subscriptions/listen", wanted) as (_, frames):
            await anext(frames)
            assert (await client.get(task_id))["status"] == "working"
            await deliver(cloud.engine, cloud.executions(workflow)[0], {})
            with anyio.fail_after(60):
                async for frame in frames:
                    if "Ship it?" in json.dumps(frame):
                        break
        await client.send("tasks/cancel", {"taskId": task_id})


FENCED: Final = add_subworkflows("""
main:
  params: [args]
  steps:
    - opening: {call: events.create_callback_endpoint, args: {http_callback_method: PUT}, result: go}
    - held: {call: events.await_callback, args: {callback: "${go}", timeout: 600}}
    - claiming: {call: mcp_claim, result: claim}
    - fence: {switch: [{condition: "${not(claim.claimed)}", return: {lost: true}}]}
    - charging: {call: http.post, args: {url: "${args.shop}", body: {}}}
    - done: {return: {by: '${sys.get_env("GOOGLE_CLOUD_WORKFLOW_EXECUTION_ID")}'}}
""")


async def test_of_many_duplicates_that_claim_at_once_one_charges_and_the_task_is_that_one(
    cloud: GoogleCloud, tmp_path: Path
) -> None:
    workflow = cloud.deploy_source("fenced", FENCED)
    config = cloud.configured(tmp_path, {"it": {"workflow": workflow}})
    with listening() as shop:
        async with client_of(config, port=cloud.port) as client:
            task_id = str((await client.call("it", {"shop": shop.url})).result["taskId"])
            first = cloud.engine.seen(cloud.executions(workflow)[0])
            again = (cloud.engine.execute(workflow, {"shop": shop.url}, dict(first.labels)) for _ in range(5))
            names = [first.name, *again]
            async with anyio.create_task_group() as group:
                for name in names:
                    group.start_soon(partial(deliver, cloud.engine, name, {}, method="PUT"))
            done = (await client.until(task_id))["result"]["structuredContent"]
            ended = [await anyio.to_thread.run_sync(cloud.engine.ended, name) for name in names]
            assert len(shop.requests) == 1
            assert sorted((json.loads(each.result) for each in ended), key=str) == [done, *[{"lost": True}] * 5]
            assert done["by"] in {name.rpartition("/")[2] for name in names}
