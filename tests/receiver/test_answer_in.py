"""Questions that only people answer: on our page, or anywhere but by a model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.server.lowlevel import Server

from mcp_workflows import Tool, Workflows, attach
from mcp_workflows.access.principal import LOCAL
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.tools.dialogue import AnswerWay
from tests.support.in_memory import MODERN, Line, line
from tests.support.waiting import TIMEOUT

pytestmark = pytest.mark.anyio

WEB = "https://mcp.example.com"
TASKS: Mapping[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
FORMS: Mapping[str, Any] = {"elicitation": {"form": {}}}
URLS: Mapping[str, Any] = {"elicitation": {"form": {}, "url": {}}}
CARDS: Mapping[str, Any] = {
    "extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}},
}
OLD = "2025-11-25"
SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
YES: Mapping[str, Any] = {"action": "accept", "content": {"ok": True}}
OPENED: Mapping[str, Any] = {"action": "accept"}
DONE = {"ship": True}


def tool(name: str = "ship", *, answer_in: str = "page", **more: Any) -> Tool:
    """A tool whose workflow waits at a gate; the question ends the wait of a plain call."""
    gate = {"when": {"after_seconds": 0}, "message": "Ship it?", "schema": SCHEMA, "send": "{{answer.ok}}"}
    questions = {"ship": {**gate, "answer_in": answer_in}}
    written = {"name": name, "engine": "memory", "workflow": "gated", "questions": questions, "wait": "20s"}
    return Tool.model_validate({**written, **more})


@asynccontextmanager
async def server_of(
    folder: Path, *tools: Tool, web_url: str | None = WEB
) -> AsyncGenerator[tuple[Server[Any], Workflows]]:
    server: Server[Any] = Server("test", version="1")
    engines = {"memory": MemoryAdapter(MemorySettings(name=str(folder)))}
    workflows = attach(server, tools=tools or [tool()], engines=engines, store=f"sqlite:///{folder}/tasks.db")
    workflows.web_url = web_url
    async with workflows:
        yield server, workflows


async def answer_on_the_page(workflows: Workflows) -> str:
    """Answer the one open question as its page does, and return the address of the page."""
    with anyio.fail_after(TIMEOUT):
        while not (found := (await workflows.service.inbox(LOCAL)).questions):
            await anyio.sleep(0.05)
    [question] = found
    assert question.request is not None
    assert question.request.params["mode"] == "form", "the page shows a form"
    await workflows.service.update(question.task_id, {question.key: YES}, LOCAL, AnswerWay.PAGE)
    return str(question.url)


async def until(client: Line, task_id: str, status: str) -> Mapping[str, Any]:
    with anyio.fail_after(TIMEOUT):
        while (seen := (await client.send("tasks/get", {"taskId": task_id}))["result"])["status"] != status:
            await anyio.sleep(0.05)
    found: Mapping[str, Any] = seen
    return found


async def test_a_client_that_opens_links_gets_the_page_and_can_give_no_answer(tmp_path: Path) -> None:
    async with server_of(tmp_path) as (server, workflows), line(server, MODERN, {**TASKS, **URLS}) as client:
        task_id = (await client.call("ship"))["result"]["taskId"]
        [(key, asked)] = (await until(client, task_id, "input_required"))["inputRequests"].items()
        params = asked["params"]
        assert (params["mode"], params["message"], "requestedSchema" in params) == ("url", "Ship it?", False)
        url = params["url"]
        assert url.startswith(f"{WEB}/approvals/")
        for response in (YES, {"action": "decline", "content": {"reason": "no"}}):
            refused = await client.send("tasks/update", {"taskId": task_id, "inputResponses": {key: response}})
            assert refused["error"]["code"] == -32602
            assert url in refused["error"]["message"]
        for response in (OPENED, {"action": "decline"}, {"action": "cancel"}):  # about the link, not the question
            taken = await client.send("tasks/update", {"taskId": task_id, "inputResponses": {key: response}})
            assert "result" in taken
            assert list((await until(client, task_id, "input_required"))["inputRequests"]) == [key]
        assert await answer_on_the_page(workflows) == url
        assert (await until(client, task_id, "completed"))["result"]["structuredContent"] == DONE


async def test_a_client_without_links_reads_the_address_and_can_give_no_answer(tmp_path: Path) -> None:
    async with server_of(tmp_path) as (server, workflows), line(server, MODERN, {**TASKS, **FORMS}) as client:
        task_id = (await client.call("ship"))["result"]["taskId"]
        with anyio.fail_after(TIMEOUT):
            while f"at {WEB}/approvals/" not in str(seen := (await client.send("tasks/get", {"taskId": task_id}))):
                await anyio.sleep(0.05)
        assert (seen["result"]["status"], "inputRequests" in seen["result"]) == ("working", False)
        for response in (YES, OPENED, {"action": "decline"}):
            refused = await client.send("tasks/update", {"taskId": task_id, "inputResponses": {"ship.1": response}})
            assert f"{WEB}/approvals/" in refused["error"]["message"]
        await answer_on_the_page(workflows)
        await until(client, task_id, "completed")


async def test_the_task_tools_name_the_page_and_take_no_answer(tmp_path: Path) -> None:
    async with server_of(tmp_path) as (server, workflows), line(server, MODERN) as client:
        handed = await client.tool("ship")
        [question] = handed["structuredContent"]["questions"].values()
        assert (question["canAnswer"], "schema" in question) == (False, False)
        url, task_id = question["url"], handed["structuredContent"]["taskId"]
        assert url.startswith(f"{WEB}/approvals/")
        text = handed["content"][0]["text"]
        assert f"only a person answers this, at {url}" in text
        assert "task_answer" not in text
        for more in ({"content": {"ok": True}}, {"action": "decline"}, {}):
            refused = await client.tool("task_answer", {"taskId": task_id, **more})
            assert refused["isError"]
            assert f"No answer was sent: only a person answers this, at {url}." in refused["content"][0]["text"]
        assert await answer_on_the_page(workflows) == url
        ended = await client.tool("task_wait", {"taskId": task_id})
        assert ended["structuredContent"]["result"] == DONE


async def test_a_plain_call_shows_the_link_once_and_waits_for_the_answer_on_the_page(tmp_path: Path) -> None:
    async with server_of(tmp_path) as (server, workflows), line(server, MODERN, URLS) as client:
        first = (await client.call("ship"))["result"]
        [(key, asked)] = first["inputRequests"].items()
        assert asked["params"]["url"].startswith(f"{WEB}/approvals/")
        replies: list[Mapping[str, Any]] = []

        async def go_on() -> None:
            state = {"requestState": first["requestState"], "inputResponses": {key: OPENED}}
            replies.append(await client.call("ship", **state))

        async with anyio.create_task_group() as group:
            group.start_soon(go_on)
            await answer_on_the_page(workflows)
        assert replies[0]["result"]["structuredContent"] == DONE


async def test_a_plain_call_of_the_older_revision_asks_for_the_page_once_and_waits(tmp_path: Path) -> None:
    async with server_of(tmp_path) as (server, workflows), line(server, OLD, URLS) as client:
        client.answer = OPENED
        replies: list[Mapping[str, Any]] = []

        async def call() -> None:
            replies.append(await client.call("ship"))

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            with anyio.fail_after(TIMEOUT):
                while not client.asked:
                    await anyio.sleep(0.05)
            await answer_on_the_page(workflows)
        assert replies[0]["result"]["structuredContent"] == DONE
        [asked] = client.asked
        assert asked.params is not None
        assert (asked.method, asked.params["mode"]) == ("elicitation/create", "url")
        assert asked.params["url"].startswith(f"{WEB}/approvals/")


async def test_a_task_of_the_older_revision_asks_for_the_page_or_names_it_in_its_message(tmp_path: Path) -> None:
    async with server_of(tmp_path) as (server, workflows), line(server, OLD, URLS) as able, line(server, OLD) as other:
        able.answer = {"action": "decline"}  # to open it; that is no answer
        task_id = (await able.call("ship", task={}))["result"]["task"]["taskId"]
        message = str((await until(other, task_id, "input_required"))["statusMessage"])
        assert f"asks: at {WEB}/approvals/" in message
        replies: list[Mapping[str, Any]] = []

        async def result() -> None:
            replies.append(await able.send("tasks/result", {"taskId": task_id}))

        async with anyio.create_task_group() as group:
            group.start_soon(result)
            with anyio.fail_after(TIMEOUT):
                while not able.asked:
                    await anyio.sleep(0.05)
            await answer_on_the_page(workflows)
        assert replies[0]["result"]["structuredContent"] == DONE
        assert [asked.params and asked.params["mode"] for asked in able.asked] == ["url"]


async def test_without_pages_people_answer_in_the_chat(tmp_path: Path) -> None:
    async with server_of(tmp_path, web_url=None) as (server, _), line(server, MODERN, {**TASKS, **URLS}) as client:
        task_id = (await client.call("ship"))["result"]["taskId"]
        [(key, asked)] = (await until(client, task_id, "input_required"))["inputRequests"].items()
        assert asked["params"]["mode"] == "form"
        await client.send("tasks/update", {"taskId": task_id, "inputResponses": {key: YES}})
        await until(client, task_id, "completed")


@pytest.mark.parametrize("web_url", [WEB, None])
async def test_a_model_that_may_not_answer_reads_where_people_do(tmp_path: Path, web_url: str | None) -> None:
    tools = tool(answer_in="chat", model_may_answer=False), tool("other", answer_in="chat")
    async with server_of(tmp_path, *tools, web_url=web_url) as (server, _), line(server, MODERN) as client:
        handed = await client.tool("ship")
        task_id, [question] = handed["structuredContent"]["taskId"], handed["structuredContent"]["questions"].values()
        assert (question["canAnswer"], "schema" in question, "url" in question) == (False, False, web_url is not None)
        where = f"at {WEB}/approvals/" if web_url else "in a dialog of their client, or the operator"
        text = handed["content"][0]["text"]
        assert f"only a person answers this, {where}" in text
        assert "task_answer" not in text
        refused = await client.tool("task_answer", {"taskId": task_id, "content": {"ok": True}})
        assert refused["isError"]
        assert f"No answer was sent: only a person answers this, {where}" in refused["content"][0]["text"]
        other = await client.tool("other")
        given = {"taskId": other["structuredContent"]["taskId"], "content": {"ok": True}}
        assert (await client.tool("task_answer", given))["structuredContent"]["status"] != "input_required"


@pytest.mark.parametrize("version", [MODERN, OLD])
async def test_people_answer_in_dialogs_of_their_client_whatever_a_model_may(tmp_path: Path, version: str) -> None:
    tools = (tool(answer_in="chat", model_may_answer=False),)
    async with server_of(tmp_path, *tools) as (server, _):
        async with line(server, version, {**FORMS, **CARDS}) as client:  # the card takes no answer, so the host asks
            client.answer = YES
            reply = (await client.call("ship"))["result"]
            if version == MODERN:
                assert [each["params"]["mode"] for each in reply["inputRequests"].values()] == ["form"]
                state = {
                    "requestState": reply["requestState"],
                    "inputResponses": dict.fromkeys(reply["inputRequests"], YES),
                }
                reply = (await client.call("ship", **state))["result"]
            with anyio.fail_after(TIMEOUT):
                while "taskId" in reply["structuredContent"] and reply["structuredContent"].get("result") != DONE:
                    reply = await client.tool("task_wait", {"taskId": reply["structuredContent"]["taskId"]})
        async with line(server, MODERN, {**TASKS, **FORMS}) as client:
            task_id = (await client.call("ship"))["result"]["taskId"]
            [key] = (await until(client, task_id, "input_required"))["inputRequests"]
            await client.send("tasks/update", {"taskId": task_id, "inputResponses": {key: YES}})
            await until(client, task_id, "completed")


@pytest.mark.parametrize("capabilities", [{}, CARDS])
async def test_the_answering_tool_is_listed_only_where_a_model_may_answer_something(
    tmp_path: Path, capabilities: Mapping[str, Any]
) -> None:
    tools = [tool(model_may_answer=False), tool("other", model_may_answer=False)]
    async with server_of(tmp_path, *tools) as (server, _), line(server, MODERN, capabilities) as client:
        assert "task_answer" not in await client.tools()
    async with (
        server_of(tmp_path, tools[0], tool("other")) as (server, _),
        line(server, MODERN, capabilities) as client,
    ):
        assert "task_answer" in await client.tools()
