"""Messages to jobs: requests of the API that tasks take as actions."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.server.lowlevel import Server
from mcp_workflows_http import HttpAdapter, HttpSettings
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from adapters.http.tests.jobs_api import ACTIONS, DEFINITION, JobsApi, jobs_api
from mcp_workflows import Tool, attach
from mcp_workflows.adapter import Ref, Start, StartGuarantee, Status
from mcp_workflows.errors import ConfigError, EngineRefused, ExecutionNotFound
from mcp_workflows.sidecar.checks import check
from mcp_workflows.sidecar.config.load import load_config
from tests.support.in_memory import MODERN, Line, line

pytestmark = pytest.mark.anyio

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def settings(url: str, **more: Any) -> HttpSettings:
    return HttpSettings.model_validate({**DEFINITION, "actions": ACTIONS, "url": url, **more})


@asynccontextmanager
async def here(**more: Any) -> AsyncGenerator[tuple[JobsApi, HttpAdapter, Start]]:
    """The API, its adapter, and a message to a job that runs."""
    async with jobs_api() as (api, url), HttpAdapter(settings(url, **more)) as adapter:
        start = Start(workflow="forever", arguments={}, key="k", created=datetime.now(UTC))
        target = await adapter.start(start)
        yield api, adapter, replace(start, options={"request": "tell"}, arguments=[{"text": "hi"}], target=target)


def answering(body: object, status: int) -> Any:
    async def served(_: Request) -> Response:
        return JSONResponse(body, status_code=status)

    return served


async def test_the_reply_becomes_the_result_and_each_message_has_its_own_guarantee() -> None:
    async with here() as (api, adapter, message):
        ref = Ref(workflow="", handle=await adapter.start(message), options=message.options)
        seen = await adapter.describe(ref)
        assert (seen.status, seen.output, seen.execution_id) == (Status.SUCCEEDED, {"notes": 1}, "job-0")
        note = replace(message, options={"request": "note", "options": {"color": "red"}}, arguments=["hi"])
        ref = Ref(workflow="", handle=await adapter.start(note), options=note.options)
        assert (await adapter.describe(ref)).output == {"sent": "note", "to": "job-0"}
        assert adapter.promise(note.options) is StartGuarantee.KEYED
        assert adapter.promise(message.options) is StartGuarantee.ONCE
        with pytest.raises(ExecutionNotFound, match="no handle of a message"):
            await adapter.describe(replace(ref, handle=message.target or ""))
        assert [note["text"] for note in api.jobs["job-0"].notes.values()] == ["hi", "hi"]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [({"error": "not now"}, 409, "it answered 409: not now"), ({"error": "it is full", "full": True}, 200, "full")],
)
async def test_a_refused_message_says_why(body: object, status: int, said: str) -> None:
    async with here() as (api, adapter, message):
        api.next_replies.append(answering(body, status))
        with pytest.raises(EngineRefused, match=said):
            await adapter.start(message)


@pytest.mark.parametrize(
    ("body", "said"),
    [({"notes": "x" * 70_000}, "more than 65,536 bytes"), ({}, "its result cannot be read")],
)
async def test_a_result_that_cannot_be_kept_or_read_is_an_error_with_its_reason(body: object, said: str) -> None:
    actions = {"tell": {**ACTIONS["tell"], "output": "{{length(reply.body.notes) > `0` && reply.body.notes}}"}}
    async with here(actions=actions) as (api, adapter, message):
        api.next_replies.append(answering(body, 200))
        ref = Ref(workflow="", handle=await adapter.start(message), options=message.options)
        seen = await adapter.describe(ref)
        assert seen.failure is not None
        assert said in seen.failure.text


async def test_an_action_that_the_definition_does_not_have_is_reported(tmp_path: Path) -> None:
    async with here() as (_, adapter, message):
        with pytest.raises(EngineRefused, match=r"no message shout \(actions: note, tell\)"):
            await adapter.start(replace(message, options={"request": "shout"}))
        with pytest.raises(ConfigError, match=r"actions.shout.request: Input should be 'note' or 'tell'"):
            attach(
                Server[Any]("test"),
                tools=[tool("shout")],
                engines={"jobs": adapter},
                store=f"sqlite:///{tmp_path}/t.db",
            )
    with pytest.raises(ValidationError, match="sends"):
        settings("http://127.0.0.1:1", actions={"tell": {**ACTIONS["tell"], "sends": "findable"}})


def tool(*actions: str) -> Tool:
    written = {name: {"request": name, "input": TEXT} for name in actions}
    return Tool.model_validate(
        {"name": "build", "engine": "jobs", "workflow": "forever", "actions": written, "wait": "10ms"}
    )


@asynccontextmanager
async def building(folder: Path) -> AsyncGenerator[tuple[Line, JobsApi, str]]:
    """A client, the API, and a task that runs."""
    async with jobs_api() as (api, url):
        server: Server[Any] = Server("test", version="1")
        workflows = attach(
            server,
            tools=[tool("note", "tell")],
            engines={"jobs": HttpAdapter(settings(url))},
            store=f"sqlite:///{folder}/t.db",
        )
        async with workflows, line(server, MODERN) as client:
            yield client, api, str((await client.tool("build"))["structuredContent"]["taskId"])


async def test_check_finds_an_action_that_the_definition_does_not_have(tmp_path: Path) -> None:
    async with jobs_api() as (_, url):
        jobs = {**DEFINITION, "actions": ACTIONS, "adapter": "http", "url": url}
        tools = {"build": {"engine": "jobs", "workflow": "forever", "actions": {"tel": {"request": "tel"}}}}
        file = anyio.Path(tmp_path / "workflows.yaml")
        await file.write_text(json.dumps({"engines": {"jobs": jobs}, "tools": tools}))
        report = await check(load_config(tmp_path / "workflows.yaml", {}))
        found = [row.finding.text for row in report.rows if row.name == "build" and row.finding]
        assert "actions.tel.request: Input should be 'note' or 'tell'" in found


async def test_after_a_lost_reply_a_message_without_a_key_is_never_sent_again(tmp_path: Path) -> None:
    async with building(tmp_path) as (client, api, task_id):
        api.lost_notes = 1
        taken = {"taskId": task_id, "action": "tell", "content": {"text": "hi"}}
        reply = (await client.call("task_action", taken))["result"]
        assert reply["isError"]
        assert (
            "outcome unknown: it may have been sent, and will not be sent again (it answered 502"
            in reply["content"][0]["text"]
        )
        assert (api.calls["note"], notes(api)) == (1, ["hi"])
        sent = await client.tool("task_action", taken)
        assert sent["structuredContent"] == {"notes": 2}


async def test_after_a_lost_reply_a_message_with_a_key_is_sent_again_and_delivered_once(tmp_path: Path) -> None:
    async with building(tmp_path) as (client, api, task_id):
        api.lost_notes = 1
        taken = {"taskId": task_id, "action": "note", "content": {"text": "hi"}}
        sent = await client.tool("task_action", taken)
        assert sent["structuredContent"] == {"sent": "note", "to": "job-0"}
        assert (api.calls["note"], len(notes(api))) == (2, 1)


def notes(api: JobsApi) -> list[Any]:
    [job] = api.jobs.values()
    return [note["text"] for note in job.notes.values()]
