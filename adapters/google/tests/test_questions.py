"""Questions as clients see them: from `tools/call` to what `mcp_elicit` returns in the workflow, over the sidecar."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import anyio
import mcp_types
import pytest
from mcp.client import Client, ClientRequestContext
from mcp_workflows_google.tooling.embed import add_subworkflows
from typer.testing import CliRunner

from adapters.google.tests import flows
from adapters.google.tests.configured import YES, asked, called, client_of, configured, executions
from adapters.google.tests.elsewhere import deliver
from adapters.google.tests.scene import environment
from mcp_workflows import TasksClient
from mcp_workflows.sidecar.cli.app import app
from tests.support.child_processes import free_port
from tests.support.google_engine import GoogleEngine
from tests.support.served import Peer

pytestmark = pytest.mark.anyio

NO: Final = {"action": "decline"}
DISMISSED: Final = {"action": "cancel"}
WORDS: Final = {"action": "accept", "content": {"answer": 'j\u00e4 \u2603 "quoted" ${args} \u2028 \U0001f600'}}
ANSWERED: Final = {**YES, "timed_out": False}

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


@asynccontextmanager
async def tool_of(
    engine: GoogleEngine, folder: Path, source: str = flows.ASKS, **settings: Any
) -> AsyncGenerator[tuple[Peer, str]]:
    """A client of a sidecar whose tool `it` is this workflow, and the workflow."""
    port = free_port()
    workflow = engine.deploy("asks", source, env=environment(port))
    config = configured(folder, engine.address, {"it": {"workflow": workflow}}, **settings)
    async with client_of(config, port=port) as client:
        yield client, workflow


async def all_asked(client: Peer, task_id: str, count: int = 2) -> Mapping[str, str]:
    """Keys by message, once so many questions are open."""
    with anyio.fail_after(20):
        while len(found := (await client.get(task_id)).get("inputRequests", {})) < count:
            await anyio.sleep(0.02)
    return {question["params"]["message"]: key for key, question in found.items()}


async def acknowledged(client: Peer, task_id: str, **responses: Any) -> None:
    assert (await client.answer(task_id, **responses)).result["resultType"] == "complete"


# --- answers


async def test_what_a_person_does_is_what_the_workflow_gets(google_engine: GoogleEngine, tmp_path: Path) -> None:
    async with tool_of(google_engine, tmp_path) as (client, _):
        for response in (YES, WORDS, NO, DISMISSED):
            task_id = await called(client)
            key, question = await asked(client, task_id)
            assert question["method"] == "elicitation/create"
            assert question["params"]["message"] == "Ship it?"
            assert question["params"]["requestedSchema"]["required"] == ["answer"]
            await acknowledged(client, task_id, **{key: response})
            done = (await client.until(task_id))["result"]["structuredContent"]
            assert done == {"content": {}, **response, "timed_out": False}


async def test_an_answer_after_a_cancellation_changes_nothing(google_engine: GoogleEngine, tmp_path: Path) -> None:
    async with tool_of(google_engine, tmp_path) as (client, workflow):
        task_id = await called(client)
        key, _ = await asked(client, task_id)
        assert (await client.send("tasks/cancel", {"taskId": task_id})).result["resultType"] == "complete"
        await acknowledged(client, task_id, **{key: YES})
        ended = await client.until(task_id)
        await acknowledged(client, task_id, **{key: YES})
        assert await client.get(task_id) == ended
    assert ended["status"] == "cancelled"
    [execution] = executions(google_engine, workflow)
    assert google_engine.ended(execution).state.name == "CANCELLED"


async def test_the_sdks_client_puts_the_questions_to_its_person(google_engine: GoogleEngine, tmp_path: Path) -> None:
    async def answer(context: ClientRequestContext, params: mcp_types.ElicitRequestParams) -> mcp_types.ElicitResult:
        messages.append(params.message)
        return mcp_types.ElicitResult(action="accept", content={"answer": "yes"})

    messages: list[str] = []
    async with (
        tool_of(google_engine, tmp_path, flows.ASKS_TWO) as (served, _),
        Client(served.url, extensions=[TasksClient()], elicitation_callback=answer) as client,
    ):
        result = await client.call_tool("it", {"order_id": "A1"})
    assert result.structured_content == {"asked": 2}
    assert sorted(messages) == ["Really?", "Ship it?"]


async def test_a_question_that_cannot_be_asked_fails_the_workflow_in_plain_words(
    google_engine: GoogleEngine, tmp_path: Path
) -> None:
    source = HELD.replace('"Ship it?"', '"Ship it?", requested_schema: {type: array}')
    async with tool_of(google_engine, tmp_path, source) as (client, workflow):
        task_id = await called(client)
        await deliver(google_engine, executions(google_engine, workflow)[0], {})
        result = (await client.until(task_id))["result"]
    assert result["isError"]
    assert "the question cannot be asked" in result["content"][0]["text"]
    assert "requested_schema" in result["content"][0]["text"]


@pytest.mark.parametrize(
    ("deployed", "status", "why"),
    [
        ({"url": "/"}, 404, "whose last slash is one too many"),
        ({"audience": "https://other.example.com"}, 401, "inbound.audience is another"),
        ({"account": "other@demo.iam.gserviceaccount.com"}, 403, "not among inbound.accounts"),
    ],
    ids=["address", "audience", "account"],
)
async def test_a_workflow_that_cannot_ask_fails_and_check_says_what_it_is_deployed_with(
    google_engine: GoogleEngine, tmp_path: Path, deployed: Mapping[str, str], status: int, why: str
) -> None:
    port = free_port()
    env = dict(environment(port))
    env["MCP_WORKFLOWS_URL"] += deployed.get("url", "")
    env["MCP_WORKFLOWS_AUDIENCE"] = deployed.get("audience", env["MCP_WORKFLOWS_AUDIENCE"])
    account = deployed.get("account", "")
    workflow = google_engine.deploy("asks", flows.ASKS, env=env, service_account=account)
    config = configured(tmp_path, google_engine.address, {"it": {"workflow": workflow}})
    async with client_of(config, port=port) as client:
        result = (await client.until(await called(client)))["result"]
    assert result["isError"]
    assert f"error code {status}" in result["content"][0]["text"]
    assert "mcp-workflows check" in result["content"][0]["text"]
    checked = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(app, ["check", str(config)]))
    assert checked.exit_code == 1
    assert why in checked.output


# --- the sidecar


async def test_a_question_asked_while_the_sidecar_is_down_is_there_when_it_is_back(
    google_engine: GoogleEngine, tmp_path: Path
) -> None:
    port = free_port()
    workflow = google_engine.deploy("asks", HELD, env=environment(port))
    config = configured(tmp_path, google_engine.address, {"it": {"workflow": workflow}})
    async with client_of(config, port=port) as client:
        task_id = await called(client)
    [execution] = executions(google_engine, workflow)
    await deliver(google_engine, execution, {})
    google_engine.at(execution, "of_the_connection")  # of mcp_retry: it has been tried
    async with client_of(config, port=port) as client:
        key, _ = await asked(client, task_id)
        await acknowledged(client, task_id, **{key: YES})
        assert (await client.until(task_id))["result"]["structuredContent"] == ANSWERED


async def test_of_two_answers_at_once_one_counts_and_neither_is_an_error(
    google_engine: GoogleEngine, tmp_path: Path
) -> None:
    port = free_port()
    workflow = google_engine.deploy("asks", flows.ASKS, env=environment(port))
    config = configured(tmp_path, google_engine.address, {"it": {"workflow": workflow}})
    async with client_of(config, port=port) as one, client_of(config) as other:
        task_id = await called(one)
        key, _ = await asked(other, task_id)
        async with anyio.create_task_group() as group:
            for client, response in ((one, YES), (other, NO)) * 5:
                group.start_soon(partial(acknowledged, client, task_id, **{key: response}))
        done = await one.until(task_id)
        assert (await other.until(task_id))["result"] == done["result"]
    assert done["result"]["structuredContent"]["action"] in {"accept", "decline"}


async def test_a_question_is_told_at_once_though_the_next_look_is_a_minute_away(
    google_engine: GoogleEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_workflows.engines.polling.policy.PollingPolicy.pace", Mock(return_value=60.0))
    quota = {"share": 1, "list_executions": 1}  # one sweep in more than a minute
    async with tool_of(google_engine, tmp_path, HELD, quota=quota) as (client, workflow):
        task_id = await called(client)
        wanted = {"notifications": {"taskIds": [task_id]}}
        async with client.stream("subscriptions/listen", wanted) as (_, frames):
            await anext(frames)
            assert (await client.get(task_id))["status"] == "working"
            await deliver(google_engine, executions(google_engine, workflow)[0], {})
            with anyio.fail_after(20):
                async for frame in frames:
                    if "Ship it?" in json.dumps(frame):
                        break
        await client.send("tasks/cancel", {"taskId": task_id})


@pytest.mark.slow
async def test_an_answer_while_the_engine_is_down_is_told_and_counts_when_it_is_given_again(
    own_google_engine: GoogleEngine, tmp_path: Path
) -> None:
    async with tool_of(own_google_engine, tmp_path, timeout_seconds=1) as (client, _):
        task_id = await called(client)
        key, _ = await asked(client, task_id)
        own_google_engine.kill()
        error = (await client.answer(task_id, **{key: YES})).error
        assert "did not take the answer" in error["message"]
        assert set((await client.get(task_id))["inputRequests"]) == {key}
        await anyio.to_thread.run_sync(own_google_engine.start)
        with anyio.fail_after(20):
            while "error" in (await client.answer(task_id, **{key: YES})).body:
                await anyio.sleep(0.1)
        assert (await client.until(task_id))["result"]["structuredContent"] == ANSWERED


# --- executions that somebody else started


async def test_an_execution_that_is_watched_or_adopted_shows_what_it_asked_before(
    google_engine: GoogleEngine, tmp_path: Path
) -> None:
    port = free_port()
    workflow = google_engine.deploy("asks", flows.ASKS_TWO, env=environment(port))
    watching = {"kind": "watch", "allow_answer": True}
    tools = {
        "it": {"workflow": workflow},
        "by_name": {"workflow": workflow, **watching},
        "by_id": {"workflow": workflow.rpartition("/")[2], **watching},
        "other": {"workflow": "other", **watching},
    }
    config = configured(tmp_path, google_engine.address, tools, {"single_user": True})
    async with client_of(config, port=port) as client:
        execution = google_engine.execute(workflow, {})
        wanted = {"execution_id": execution}
        watched = [str((await client.call(tool, wanted)).result["taskId"]) for tool in ("by_name", "by_id")]
        keys = await all_asked(client, watched[0])
        assert await all_asked(client, watched[1]) == keys
        refused = (await client.call("other", wanted)).result
        assert (refused["isError"], "shows no execution" in refused["content"][0]["text"]) == (True, True)
        adopted = await told_by("tasks", "adopt", "it", execution, "--owner", "local", "-c", str(config))
        assert await all_asked(client, adopted) == keys
        await acknowledged(client, watched[0], **{keys["Ship it?"]: YES})
        await acknowledged(client, adopted, **{keys["Really?"]: YES})
        for task_id in (*watched, adopted):
            assert (await client.until(task_id))["result"]["structuredContent"] == {"asked": 2}


async def told_by(*words: str) -> str:
    """What a command prints."""
    done = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(app, list(words)))
    assert done.exit_code == 0, done.output
    return done.stdout.strip()


# --- secrets


async def test_the_url_of_a_callback_and_a_token_are_in_no_log_and_in_no_message(
    google_engine: GoogleEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with tool_of(google_engine, tmp_path) as (client, _):
            task_id = await called(client)
            key, question = await asked(client, task_id)
            said = [str(question), str(await client.get(task_id))]
            said.append(await told_by("tasks", "why", task_id, "-c", str(tmp_path / "workflows.yaml")))
            assert "it waits for an answer" in said[-1]
            said.append(str((await client.answer(task_id, **{key: YES})).body))
            said.append(str(await client.until(task_id)))
    for text in (*said, caplog.text):
        assert "/callbacks/" not in text
        assert "eyJ" not in text  # how tokens begin
        assert "Bearer" not in text
